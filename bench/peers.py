"""Time per round of other systems' simulators beside ours, on the same workloads.

    .venv/bin/python -m bench.peers --systems all

Every peer runs without a network in an environment of its own, made by pip when it is asked for and
kept in the user's cache folder. Without `--systems` only what needs no installation is run. What a
system needs, and how it is used, is at the head of its runner in peer_runners/.

A time is that of one round without evaluation, after a warm-up; start-up is what comes before. W3
is the CIFAR-10 benchmark of pfl-research, W4 the setting of recent papers with a fifth of the
samples. Systems take turns, every run in a process of its own; each is tried with the processes and
threads that two cores allow, its defaults there among them, and the table has its best. The
distance is that of its global model after the warm-up to the plain loop's, relative to how far that
one has moved: rounding errors on W1, where all see the same batches; elsewhere, where their order
differs, it must be below one half (W3 has dropout: below one) and the training loss must fall. A
system that fails this, or cannot be installed, is named with the reason.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench._shared import describe_machine, make_table
from bench.peer_runners.environments import CannotRunError, call, header, interpreter
from rich.console import Console
from rich.table import Table

OURS = dict.fromkeys(("plain", "fedfm-loop", "fedfm-stacked", "fedfm-threads"), "ours")
SYSTEMS = OURS | {name: name for name in ("flower", "pfl", "fluke", "fedlab")}
"""The runner of every system."""
ROUNDS = {"W1": 20, "W2": 3, "W3": 3, "W4": 1}
"""The workloads, and how many rounds of each are timed in one run unless told otherwise."""
OFFLINE = [
    *("unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"),
    *("sh", "-c", 'ip link set lo up && exec "$@"', "sh"),
]
"""Runs a command that sees no network but its own loopback, and leaves no process (Linux)."""
Setting = tuple[int, int]
"""Processes, and threads of each."""


@dataclass
class Contest:
    """One system on one workload: what was measured under each setting."""

    system: str
    reports: dict[Setting, list[dict[str, Any]]] = field(default_factory=dict)
    """What the runner printed, once for every run."""
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Install what is missing."""
        self.runner = SYSTEMS[self.system]
        self.needs = header(self.runner).get("tool", {}).get("peers", {})
        try:
            self.python = interpreter(self.runner)
        except CannotRunError as error:
            self.failures.append(f"{self.system} cannot be installed: {error}")
            return
        settings = self.needs.get("settings", [[1, 1], [1, 2]])
        self.reports = {(processes, threads): [] for processes, threads in settings}

    def run(self, setting: Setting, file: str, rounds: int) -> None:
        """One run in a process of its own; a setting that failed is not tried again."""
        command = [str(self.python), "-m", f"bench.peer_runners.{self.runner}", self.system, file]
        shield = [] if self.runner == "ours" else OFFLINE
        environment = {"OMP_NUM_THREADS": str(setting[1])} | self.needs.get("environment", {})
        environment["BENCH_BEGAN"] = str(time.time())
        try:
            output = call([*shield, *command, *map(str, (rounds, *setting))], **environment)
        except CannotRunError as error:
            self.failures.append(f"{self.system}, {label(setting)}, fails: {error}")
            del self.reports[setting]
            return
        lines = [line for line in output.splitlines() if line.startswith("{")]
        self.reports[setting].append(json.loads(lines[-1]))

    @property
    def medians(self) -> dict[Setting, float]:
        """Milliseconds a round."""
        return {
            setting: 1000 * median(chain.from_iterable(r["seconds_per_round"] for r in reports))
            for setting, reports in self.reports.items()
        }


def label(setting: Setting) -> str:
    """Processes x threads."""
    return f"{setting[0]}x{setting[1]}"


def measure(systems: Sequence[str], workload: str, rounds: int, repeats: int) -> list[Contest]:
    """All systems in turn, again and again, so that a busy moment of the machine hits them all."""
    contests = [Contest(system) for system in systems]
    with TemporaryDirectory() as folder:
        file = f"{folder}/{workload}.pt"
        call([sys.executable, "-m", "bench.peer_runners.workloads", workload, file, str(rounds)])
        for _ in range(repeats):
            for contest in contests:
                for setting in list(contest.reports):
                    contest.run(setting, file, rounds)
    return contests


# ---- the report ----------------------------------------------------------------------------------


def relative(contests: Sequence[Contest], prefix: str) -> Callable[[float], str]:
    """How a time compares to the best of the systems whose names begin so."""
    rivals = [contest for contest in contests if contest.system.startswith(prefix)]
    times = [time for contest in rivals for time in contest.medians.values()]
    return lambda time: f"{time / min(times):.2f}" if times else "-"


def rows(contests: Sequence[Contest]) -> Iterator[list[str]]:
    """Every system at its best setting."""
    ratios = relative(contests, "plain"), relative(contests, "fedfm")
    for contest in contests:
        medians = contest.medians
        if not medians:
            yield [contest.system, "-"]
            continue
        best = min(medians, key=lambda setting: medians[setting])
        report = contest.reports[best][-1]
        yield [
            *(contest.system, report["version"], f"{medians[best]:.1f}"),
            f"{1000 * report['samples_a_round'] / medians[best]:,.0f}",
            *(ratio(medians[best]) for ratio in ratios),
            *(f"{report['start_up']:.1f}", f"{report['peak_mb']:,.0f}"),
            *(f"{report['distance']:.0e}", label(best)),
            ", ".join(f"{label(setting)} {time:.1f}" for setting, time in medians.items()),
        ]


def table(title: str, contests: Sequence[Contest]) -> Table:
    """The report on a workload."""
    times = ("ms a round", "samples/s", "time / plain", "time / fedfm", "start-up s")
    report = make_table(title, "system", "version", *times, "peak MB", "distance", "best", names=2)
    report.add_column("ms by processes x threads")
    for row in rows(contests):
        report.add_row(*row)
    return report


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    known = [*SYSTEMS, "all"]
    parser.add_argument("--systems", nargs="+", choices=known, default=list(OURS))
    parser.add_argument("--workloads", nargs="+", choices=ROUNDS, default=list(ROUNDS))
    parser.add_argument("--rounds", type=int, help="timed rounds of a run")
    parser.add_argument("--repeats", type=int, default=3, help="runs of every system and setting")
    parser.add_argument("--out", type=Path, help="write the report to this file as well")
    return parser.parse_args()


def main() -> None:
    """Time all systems on all workloads; one that cannot be run is named with the reason."""
    chosen = options()
    systems = list(SYSTEMS) if "all" in chosen.systems else chosen.systems
    console = Console(width=130, highlight=False, record=True)
    console.print(describe_machine())
    for workload in chosen.workloads:
        rounds = chosen.rounds or ROUNDS[workload]
        contests = measure(systems, workload, rounds, chosen.repeats)
        title = f"{workload}; medians of {chosen.repeats} x {rounds} rounds"
        console.print(table(title, contests))
        for failure in (each for contest in contests for each in contest.failures):
            console.print(failure, markup=False)
    if chosen.out:
        lines = [line.rstrip() for line in console.export_text().splitlines()]
        chosen.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
