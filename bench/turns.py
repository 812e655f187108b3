"""Two versions of FedFM in turns: what a round costs before and after a change.

    python -m bench.turns OLD/src NEW/src

Each turn starts a new process with one version, runs the same short simulations on one thread, and
reports the median processor time of a round. The ratio is the median over turns of new / old.
"""

import json
import os
import subprocess
import sys
from statistics import median

TURNS = 5
JOBS = {
    "cnn, fedavg, loop": ("cnn", "fedavg", "loop"),
    "cnn, fedavg, stacked": ("cnn", "fedavg", "stacked"),
    "cnn, fedfm, stacked": ("cnn", {"fedfm": {"start_round": 0}}, "stacked"),
    "mlp, scaffold, stacked": ("mlp", "scaffold", "stacked"),
}
PROGRAM = """
import json, sys, time
from statistics import median
from fedfm import simulate
model, method, executor = json.loads(sys.argv[1])
training = {"clients": 10, "rounds": 8, "epochs": 5, "batch_size": 32}
how = {"partition": {"kind": "iid"}, "training": training, "executor": executor, "threads": 1}
times = []
simulate(model, "digits", method, **how, watch=lambda record: times.append(time.process_time()))
print(median(after - before for before, after in zip(times[1:], times[2:])))
"""


def time_round(source: str, job: object) -> float:
    """Return the median processor seconds of a round of a job with the version at `source`."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(job)]
    environment = os.environ | {"PYTHONPATH": source}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main(old: str, new: str) -> None:
    for name, job in JOBS.items():
        pairs = [(time_round(old, job), time_round(new, job)) for _ in range(TURNS)]
        ratio = median(after / before for before, after in pairs)
        times = [1e3 * median(each) for each in zip(*pairs, strict=True)]
        print(f"{name}: {times[0]:.1f} ms before, {times[1]:.1f} ms after, ratio {ratio:.3f}")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        main(*sys.argv[1:])
    else:  # as in `make bench`, which has no other version
        print(__doc__)
