"""Two versions of FedFM in turns: what a round costs before and after a change.

    python -m bench.turns OLD/src NEW/src          # on a CPU: small networks
    python -m bench.turns OLD/src NEW/src --gpu    # on a GPU: the paper's rounds

Each turn starts a new process with one version, runs the same short simulations, and reports the
median time of a round: processor time on one thread, or wall-clock time on a GPU. The ratio is the
median over turns of new / old.
"""

import argparse
import json
import os
import subprocess
import sys
from statistics import median

FEDFM = {"fedfm": {"start_round": 0}}
JOBS = {
    "cnn, fedavg, loop": ("cnn", "fedavg", "loop"),
    "cnn, fedavg, stacked": ("cnn", "fedavg", "stacked"),
    "cnn, fedfm, stacked": ("cnn", FEDFM, "stacked"),
    "mlp, scaffold, stacked": ("mlp", "scaffold", "stacked"),
}
GPU_JOBS = {
    "resnet18, fedavg": ("resnet18", "fedavg", "graph"),
    "resnet18, fedfm": ("resnet18", FEDFM, "graph"),
    "resnet18, scaffold": ("resnet18", "scaffold", "graph"),
}
PROGRAM = """
import json, sys, time
from statistics import median
import torch
from fedfm import simulate
from fedfm.data.dataset import Dataset, Split
def random_images(count):
    images = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8)
    return Split(images, torch.randint(10, (count,)))
jobs, on_gpu = json.loads(sys.argv[1])
if on_gpu:
    splits = random_images(50_000), random_images(10_000)
    data = Dataset("random", *splits, (*"0123456789",), (128.0,), (64.0,))
    clock = time.perf_counter
    training = {"clients": 10, "rounds": 8, "epochs": 10, "batch_size": 64}
else:
    clock, data = time.process_time, "digits"
    training = {"clients": 10, "rounds": 8, "epochs": 5, "batch_size": 32}
for model, method, executor in jobs:
    how = {"partition": {"kind": "iid"}, "training": training, "executor": executor, "threads": 1}
    times = []
    simulate(model, data, method, **how, watch=lambda record: times.append(clock()))
    print(median(after - before for before, after in zip(times[1:], times[2:])))
"""


def time_rounds(source: str, jobs: list[object], on_gpu: bool) -> list[float]:
    """Return the median seconds of a round of each job with the version at `source`."""
    command = [sys.executable, "-c", PROGRAM, json.dumps([jobs, on_gpu])]
    paths = os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [float(line) for line in done.stdout.splitlines()]


def compare(old: str, new: str, on_gpu: bool, turns: int) -> None:
    """Print both times and the ratio of every job."""
    jobs = GPU_JOBS if on_gpu else JOBS
    each = [
        [time_rounds(source, [*jobs.values()], on_gpu) for source in (old, new)]
        for _ in range(turns)
    ]
    for i, name in enumerate(jobs):
        ratio = median(after[i] / before[i] for before, after in each)
        before, after = (1e3 * median(turn[version][i] for turn in each) for version in (0, 1))
        print(f"{name}: {before:.1f} ms before, {after:.1f} ms after, ratio {ratio:.3f}")


def main() -> None:
    """Compare the versions given; without any, as in `make bench`, say how to."""
    if len(sys.argv) == 1:
        print(__doc__)
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    compare(options.old, options.new, options.gpu, options.turns)


if __name__ == "__main__":
    main()
