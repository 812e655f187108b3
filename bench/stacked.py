"""Seconds per round: clients trained as one stacked network, in a loop, and by plain PyTorch.

All systems train the same clients on the same number of batches of the same samples; that they
compute the same model is checked before anything is timed.
"""

import argparse
import copy
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from fedfm import FedAvg, FedFM, Partition, Piece, Protocol, compose, data, models
from fedfm.core.federation import Federation
from fedfm.core.rounds import run_round
from fedfm.data.dataset import Dataset, Split
from fedfm.engine.executors import StackedExecutor
from fedfm.simulation import Experiment, Simulation

THREADS = (1, 2)
SEED = 0
PLAIN, LOOP, STACKED = "plain PyTorch loop", "fedfm, loop", "fedfm, stacked"
METHODS: dict[str, Piece] = {"fedavg": FedAvg(), "fedfm": FedFM(start_round=0)}
System = tuple[str, str]
"""Who trains (one of the three above), and by which method."""


@dataclass(frozen=True)
class Workload:
    """A federation to time, how many rounds make one measurement, and how often it is repeated."""

    title: str
    data: Dataset
    protocol: Protocol
    model: Mapping[str, object]
    rounds: int
    repetitions: int

    def module(self) -> nn.Module:
        """The network, always with the same weights."""
        torch.manual_seed(SEED)
        shape, classes = self.data.shape, len(self.data.classes)
        return models.build("cnn", shape=shape, classes=classes, **self.model)


# ---- the yardstick: a federation as one writes it without a library ----------------------------

Batches = Callable[[int, int], Iterator[Tensor]]
"""The batches of indices [B] of (round, client)."""


def shuffled(fed: Federation) -> Batches:
    """A fresh order in every epoch, the last incomplete batch dropped."""
    training = fed.training

    def batches(_round: int, client: int) -> Iterator[Tensor]:
        own = fed.samples[client]
        size = min(len(own), training.batch_size)
        for _ in range(training.epochs):
            order = own[torch.randperm(len(own))]
            yield from order[: len(order) // size * size].split(size)

    return batches


def planned(fed: Federation) -> Batches:
    """The very batches that fedfm trains on."""
    return lambda round, client: iter(fed.plan(round, client).batches)


@dataclass
class PlainLoop:
    """FedAvg in plain PyTorch: one module, trained by each client in turn, then averaged."""

    model: nn.Module
    inputs: Tensor
    labels: Tensor
    fed: Federation
    batches: Batches
    round: int = 0
    steps: int = field(default=0, init=False)

    def client(self, client: int) -> dict[str, Tensor]:
        """Train `self.model` on a client's data; returns a copy of the weights."""
        sgd = self.fed.training.sgd
        optimizer = torch.optim.SGD(
            self.model.parameters(), sgd.lr, sgd.momentum, weight_decay=sgd.weight_decay
        )
        for batch in self.batches(self.round, client):
            optimizer.zero_grad()
            _, logits = self.model(self.inputs[batch])
            F.cross_entropy(logits, self.labels[batch]).backward()
            optimizer.step()
            self.steps += 1
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    def advance(self) -> None:
        """One round: train the cohort, average its weights by the clients' numbers of samples."""
        cohort = self.fed.cohort(self.round)
        start = copy.deepcopy(self.model.state_dict())
        sizes = torch.tensor([len(self.fed.samples[k]) for k in cohort], dtype=torch.float32)
        shares = (sizes / sizes.sum()).tolist()
        average: dict[str, Tensor] = {}
        self.model.train()
        for client, share in zip(cohort, shares, strict=True):
            self.model.load_state_dict(start)
            for name, value in self.client(client).items():
                if not value.is_floating_point():  # BatchNorm's counter of batches
                    average[name] = value
                elif name in average:
                    average[name] += share * value
                else:
                    average[name] = share * value
        self.model.load_state_dict(average)
        self.round += 1

    def weights(self) -> dict[str, Tensor]:
        """The global model."""
        return self.model.state_dict()


# ---- ours ----------------------------------------------------------------------------------------


class Ours:
    """A fedfm federation that goes on from round to round."""

    def __init__(self, workload: Workload, executor: str, method: Piece) -> None:
        experiment = Experiment(
            compose(method), Partition("iid"), workload.protocol, SEED, executor
        )
        simulation = Simulation(workload.module(), workload.data, experiment)
        self.fed, self.state = simulation.federation, simulation.start
        if executor == "stacked":
            assert isinstance(self.fed.executor, StackedExecutor), "the network was not stacked"

    def advance(self) -> None:
        """One round."""
        self.state, _ = run_round(self.state, self.fed)

    def weights(self) -> dict[str, Tensor]:
        """The global model."""
        return self.state.model.params | self.state.model.buffers


def plain(workload: Workload, fed: Federation, batches: Batches) -> PlainLoop:
    """The yardstick on the same clients, with all data normalised beforehand."""
    split, scale = workload.data.train, (-1, *[1] * (len(workload.data.shape) - 1))
    mean, std = (torch.tensor(v).view(scale) for v in (workload.data.mean, workload.data.std))
    return PlainLoop(
        workload.module(), (split.inputs.float() - mean) / std, split.labels, fed, batches
    )


# ---- do they do the same? ------------------------------------------------------------------------


def check(workload: Workload) -> int:
    """Given equal batches, all systems reach the same model in a round; returns its client steps.

    The comparison is in float32, so equal up to the order of summation.
    """
    steps = 0
    for name, method in METHODS.items():
        ours = [Ours(workload, executor, method) for executor in ("loop", "stacked")]
        reference: PlainLoop | Ours = ours[0]
        fed = ours[0].fed
        if name == "fedavg":
            reference, free = (plain(workload, fed, kind(fed)) for kind in (planned, shuffled))
            free.advance()
        for system in {id(s): s for s in (reference, *ours)}.values():
            system.advance()
        for system in ours:
            same(system.weights(), reference.weights())
        if isinstance(reference, PlainLoop):
            steps = sum(len(fed.plan(0, client).batches) for client in fed.cohort(0))
            assert reference.steps == free.steps == steps, "the systems differ in their work"
    return steps


def same(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    """Fail unless two models agree at float32's precision."""
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(
            value, theirs[name], rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )


# ---- timing --------------------------------------------------------------------------------------


def systems(workload: Workload) -> dict[System, Ours | PlainLoop]:
    """Everything that is timed on a workload."""
    ours: dict[System, Ours] = {
        (who, name): Ours(workload, executor, method)
        for name, method in METHODS.items()
        for who, executor in ((LOOP, "loop"), (STACKED, "stacked"))
    }
    fed = ours[LOOP, "fedavg"].fed
    return {(PLAIN, "fedavg"): plain(workload, fed, shuffled(fed)), **ours}


Times = dict[tuple[System, int], list[float]]
"""Milliseconds per round of each (system, threads), one for every repetition."""


def measure(workload: Workload) -> Times:
    """Every system in turn, again and again, so that a busy moment of the machine hits them all."""
    competitors = systems(workload)
    times: Times = {(key, threads): [] for key in competitors for threads in THREADS}
    for repetition in range(workload.repetitions + 1):
        for threads in THREADS:
            torch.set_num_threads(threads)
            for key, system in competitors.items():
                began = time.perf_counter()
                for _ in range(workload.rounds):
                    system.advance()
                seconds = time.perf_counter() - began
                if repetition:  # the first one warms up
                    times[key, threads].append(1000 * seconds / workload.rounds)
    return times


# ---- the report ----------------------------------------------------------------------------------


def table(workload: Workload, times: Times, steps: int) -> Table:
    """The medians by threads; ratios are between each system's best number of threads."""
    best = {key: min(median(times[key, n]) for n in THREADS) for key, _ in times}
    report = Table(title=f"{workload.title}; {steps} client steps a round", title_justify="left")
    report.add_column("system")
    report.add_column("method")
    for threads in THREADS:
        report.add_column(f"ms a round, {threads} thread{'s'[: threads - 1]}", justify="right")
    report.add_column("time / plain", justify="right")
    report.add_column("faster", justify="right")
    report.add_column("time / fedavg", justify="right")
    for (who, method), own in best.items():
        medians = [median(times[(who, method), n]) for n in THREADS]
        relative = own / best[PLAIN, "fedavg"]
        report.add_row(
            who,
            method,
            *(f"{value:.1f}" for value in medians),
            f"{relative:.2f}",
            f"{1 / relative:.1f}x",
            f"{own / best[who, 'fedavg']:.2f}",
        )
    return report


def machine() -> str:
    """What this runs on."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    cpu = f"{names[0]}, {len(names)} cores" if names else platform.machine()
    return f"{cpu}; Python {platform.python_version()}, torch {torch.__version__}"


def digits(title: str, rounds: int, repetitions: int, **model: object) -> Workload:
    """W1: 100 clients share the digits evenly, 10 of them train in a round."""
    protocol = Protocol(clients=100, participation=0.1, epochs=5, batch_size=8)
    return Workload(title, data.load("digits"), protocol, model, rounds, repetitions)


def larger(title: str, rounds: int, repetitions: int) -> Workload:
    """Ten clients with random images [1, 28, 28] and a network of 16 times the multiplications."""
    rng = torch.Generator().manual_seed(SEED)
    inputs = torch.randn(1600, 1, 28, 28, generator=rng)
    split = Split(inputs, torch.randint(10, (len(inputs),), generator=rng))
    images = Dataset("random", split, split, tuple(map(str, range(10))))
    protocol = Protocol(clients=10, epochs=1, batch_size=32)
    return Workload(title, images, protocol, {"channels": [32, 64]}, rounds, repetitions)


def workloads(repetitions: int) -> Iterator[Workload]:
    """What is compared, in the order of the report."""
    yield digits("W1: digits, small CNN, batch 8", 10, repetitions)
    yield digits("W1 with BatchNorm", 10, repetitions, norm="batch")
    yield larger("28x28 images, CNN of 32 and 64 channels, batch 32", 1, max(1, repetitions // 3))


def main() -> None:
    """Check and time every workload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=15)
    console = Console(width=110)
    console.print(machine())
    for workload in workloads(parser.parse_args().repetitions):
        steps = check(workload)
        console.print(table(workload, measure(workload), steps))


if __name__ == "__main__":
    main()
