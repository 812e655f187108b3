"""The clock of every runner, and the check that it trains; needs PyTorch only."""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from bench.peer_runners.work import Weights, Work, load, network
from torch import Tensor


class Options(NamedTuple):
    """What the driver asks for."""

    system: str
    file: str
    rounds: int
    processes: int
    threads: int

    @classmethod
    def parse(cls) -> "Options":
        """From the command line."""
        system, file, *numbers = sys.argv[1:]
        options = cls(system, file, *map(int, numbers))
        torch.set_num_threads(options.threads)
        return options

    @property
    def total(self) -> int:
        """Rounds in all."""
        return load(self.file).warm_up + self.rounds


@dataclass
class Watch:
    """Takes the time of every round; checks the model at the end of the warm-up."""

    work: Work
    seconds: list[float] = field(default_factory=list)
    scores: dict[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)
    first_at: float = 0.0
    """When the first round was over; the driver says in BENCH_BEGAN when it started the system."""

    def lap(self, weights: Callable[[], Weights]) -> None:
        """A round is over; `weights` gives the global model."""
        self.seconds.append(time.perf_counter() - self.began)
        if len(self.seconds) == 1:
            self.first_at = time.time()
        if len(self.seconds) == self.work.warm_up:
            self.scores |= check(self.work, weights())
        self.began = time.perf_counter()

    def report(self, options: Options, package: str, root: int | None = None) -> None:
        """Print what was measured; all processes descend from `root`, by default this one."""
        about = {"system": options.system, "version": version(package)}
        timed = self.seconds[self.work.warm_up :]
        until_first = self.first_at - float(os.environ["BENCH_BEGAN"])
        seconds = {
            "seconds_per_round": timed,
            "samples_a_round": self.work.samples_a_round,
            "start_up": max(0.0, until_first - median(timed)),
            "peak_mb": peak_mb(root or os.getpid()),
        }
        print("\n" + json.dumps(about | seconds | self.scores), flush=True)


def check(work: Work, weights: Weights) -> dict[str, Any]:
    """Fail unless the global model is trained, and is the plain loop's where batches are the same.

    The distance is that to the plain loop's model, relative to how far that one has moved.
    """
    trained, goal, start = (flat(each) for each in (weights, work.reference, work.start))
    distance = float((trained - goal).norm() / (goal - start).norm())
    losses = [loss(work, each) for each in (work.start, weights)]
    assert losses[1] < losses[0], f"the training loss does not fall: {losses}"
    chance = 1.0 if work.workload == "W3" else 0.5  # W3 has dropout
    limit = 1e-3 if work.same_batches else chance
    assert distance < limit, f"trains another model: {distance:.2g} away from the plain loop's"
    return {"distance": distance, "losses": losses}


def flat(weights: Weights) -> Tensor:
    """All weights as one vector."""
    return torch.cat([value.detach().flatten().float() for value in weights.values()])


@torch.no_grad()
def loss(work: Work, weights: Weights) -> float:
    """The loss of a model on a thousand training samples."""
    module = network(work.workload).eval()
    module.load_state_dict(weights)
    indices = torch.cat(list(work.samples))[:1000]
    return float(F.cross_entropy(module(work.inputs[indices]), work.labels[indices]))


def peak_mb(root: int) -> float:
    """The peak memory of a process and its descendants, added up (shared pages count in each)."""
    statuses = {int(path.parent.name): status(path) for path in Path("/proc").glob("[0-9]*/status")}
    family = {root}
    for _ in statuses:
        family |= {pid for pid, each in statuses.items() if int(each.get("PPid", 0)) in family}
    peaks = (statuses[pid].get("VmHWM", "0").split()[0] for pid in family)
    return sum(map(int, peaks)) / 1024


def status(path: Path) -> dict[str, str]:
    """What the kernel says about a process; nothing if it has just ended."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
