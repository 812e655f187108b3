"""A report over 500 runs of 100 rounds: seconds and memory of the whole command."""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))  # where `tests` is found

from tests.report.runs import write_run

METHODS = ("fedavg", "fedprox", "scaffold", "fednova", "moon", "fedproto", "fedfm", "fedfm-lite")
BETAS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 100.0)
SEEDS = 5
ROUNDS = 100
RUNS = 500
LIMITS = {"seconds": 5.0, "MB": 500.0}


def write_runs(folder: Path) -> None:
    """So many runs: methods by partitions by seeds."""
    grid = ((m, b, s) for b in BETAS for m in METHODS for s in range(SEEDS))
    for number, (method, beta, seed) in zip(range(RUNS), grid, strict=False):
        write_run(folder / f"{number:03}", method, seed, ROUNDS, kind="niid1", beta=beta)


def main() -> None:
    """Measure it in a process of its own, the start of Python and its imports included."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_runs(folder / "runs")
        command = "import sys; from fedfm.cli import main; sys.exit(main())"
        arguments = ["report", str(folder / "runs"), "--out", str(folder / "report.html")]
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", command, *arguments], check=True, env=os.environ)
        seconds = time.perf_counter() - start
        size = (folder / "report.html").stat().st_size / 1e6
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    memory, processor = used.ru_maxrss * 1024 / 1e6, used.ru_utime + used.ru_stime
    print(f"{RUNS} runs of {ROUNDS} rounds: {size:.1f} MB, {processor:.1f} s of a processor's time")
    for name, found in {"seconds": seconds, "MB": memory}.items():
        print(f"{found:8.1f} {name} (wanted: below {LIMITS[name]:g})")


if __name__ == "__main__":
    main()
