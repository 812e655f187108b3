"""Time per round: clients trained as one stacked network, in a loop, and by plain PyTorch.

All systems train the same clients on the same number of batches of the same samples; that they
arrive at the same model is checked before anything is timed.
"""

import argparse
import copy
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from statistics import median

import torch
import torch.nn.functional as F
from bench._shared import describe_machine, even_config, make_table, random_images
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from fedfm import FedAvg, FedFM, Piece, Training, data, models
from fedfm.data.dataset import Dataset
from fedfm.engine.choice import EXECUTORS
from fedfm.rounds.federation import Federation
from fedfm.rounds.round import run_round
from fedfm.run.prepare import keep_freed_memory
from fedfm.run.simulation import Simulation

SEED = 0
THREADS = (1, 2)
FEWEST = 3
"""Rounds that are timed in any case, however long they take."""
METHODS: dict[str, Piece] = {"fedavg": FedAvg(), "fedfm": FedFM(start_round=0)}


@dataclass(frozen=True)
class Workload:
    """A federation to time, and the seconds to spend on it."""

    title: str
    data: Dataset
    training: Training
    model: Mapping[str, object]
    seconds: float

    def module(self) -> nn.Module:
        """The network, always with the same weights."""
        torch.manual_seed(SEED)
        shape, classes = self.data.shape, len(self.data.classes)
        return models.build("cnn", shape=shape, classes=classes, **self.model)


# ---- the yardstick: FedAvg as one writes it without a library ------------------------------------

Batches = Callable[[int, int], Iterator[Tensor]]
"""The batches of indices [B] that (round, client) trains on."""


def shuffled(fed: Federation) -> Batches:
    """A fresh order in every epoch, the last incomplete batch dropped."""

    def batches(_round: int, client: int) -> Iterator[Tensor]:
        samples, size = fed.samples[client], fed.training.batch_size
        for _ in range(fed.training.epochs):
            order = samples[torch.randperm(len(samples))]
            for first in range(0, len(samples) - size + 1, size):
                yield order[first : first + size]

    return batches


def planned(fed: Federation) -> Batches:
    """The very batches that fedfm trains on."""
    return lambda round, client: iter(fed.plan(round, client).batches)


class PlainLoop:
    """One module that each client of the cohort trains in turn; then the average.

    All inputs are normalised beforehand. `tuned` is what PyTorch offers without a change of the
    loop: a memory layout and a fused optimiser.
    """

    def __init__(
        self, workload: Workload, fed: Federation, batches: Batches, tuned: bool = False
    ) -> None:
        self.fed, self.batches, self.round, self.steps = fed, batches, 0, 0
        layout = torch.channels_last if tuned else torch.contiguous_format
        inputs = workload.data.normalise(workload.data.train.inputs)
        self.inputs = inputs.contiguous(memory_format=layout)
        self.labels = workload.data.train.labels
        self.model = workload.module()
        self.model.to(memory_format=layout)  # type: ignore[call-overload]  # torch does not type it
        self.sgd = asdict(fed.training.optimizer) | {"fused": tuned}

    def train(self, client: int) -> None:
        """A client's local training, in place."""
        optimizer = torch.optim.SGD(self.model.parameters(), **self.sgd)
        for batch in self.batches(self.round, client):
            optimizer.zero_grad()
            _, logits = self.model(self.inputs[batch])
            loss = F.cross_entropy(logits, self.labels[batch])
            loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
            optimizer.step()
            self.steps += 1

    def advance(self) -> None:
        """One round; models are averaged by the clients' numbers of samples."""
        cohort = self.fed.cohort(self.round)
        total = sum(len(self.fed.samples[client]) for client in cohort)
        start = copy.deepcopy(self.model.state_dict())
        average = {name: torch.zeros_like(value) for name, value in start.items()}
        self.model.train()
        for client in cohort:
            self.model.load_state_dict(start)
            self.train(client)
            share = len(self.fed.samples[client]) / total
            for name, value in self.model.state_dict().items():
                if value.is_floating_point():
                    average[name].add_(value, alpha=share)
                else:  # BatchNorm's counter
                    average[name].copy_(value)
        self.model.load_state_dict(average)
        self.round += 1

    def weights(self) -> dict[str, Tensor]:
        """The global model."""
        return self.model.state_dict()


# ---- ours ----------------------------------------------------------------------------------------


class Ours:
    """A fedfm federation that goes on from round to round."""

    def __init__(self, workload: Workload, executor: str, method: str) -> None:
        config = even_config(METHODS[method], workload.training, executor)
        keep_freed_memory()  # as `fedfm run` does
        simulation = Simulation(workload.module(), workload.data, config)
        self.fed, self.state = simulation.federation, simulation.start
        assert type(self.fed.executor) is EXECUTORS[executor], "the network was not stacked"

    def advance(self) -> None:
        """One round."""
        self.state, _ = run_round(self.state, self.fed)

    def weights(self) -> dict[str, Tensor]:
        """The global model."""
        return self.state.model.params | self.state.model.buffers


def federations(workload: Workload) -> dict[tuple[str, str], Ours]:
    """Every executor with every method."""
    return {
        (executor, method): Ours(workload, executor, method)
        for method in METHODS
        for executor in ("loop", "stacked", "threads")
    }


# ---- do they do the same? ------------------------------------------------------------------------


def check(workload: Workload) -> int:
    """Fail unless all systems do the same work in a round; returns its client steps.

    Given the same batches they must reach the same model; given their own, take as many steps.
    """
    ours = federations(workload)
    fed = ours["loop", "fedavg"].fed
    guided = [PlainLoop(workload, fed, planned(fed), tuned) for tuned in (False, True)]
    free = PlainLoop(workload, fed, shuffled(fed))
    every: list[Ours | PlainLoop] = [*ours.values(), *guided, free]
    for system in every:
        system.advance()
    for system in (ours["loop", "fedavg"], ours["stacked", "fedavg"], guided[1]):
        same(system, guided[0])
    same(ours["stacked", "fedfm"], ours["loop", "fedfm"])
    steps = sum(len(fed.plan(0, client).batches) for client in fed.cohort(0))
    taken = {system.steps for system in (*guided, free)}
    assert taken == {steps}, "the systems differ in their number of steps"
    return steps


def same(one: Ours | PlainLoop, other: Ours | PlainLoop) -> None:
    """Fail unless two global models agree as well as float32 lets them."""
    ours, theirs = one.weights(), other.weights()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.allclose(value, theirs[name], rtol=1e-4, atol=1e-5), f"{name} differs"


# ---- timing --------------------------------------------------------------------------------------

System = tuple[str, str]
"""Who trains, by which method."""
PLAIN: System = ("plain PyTorch loop", "fedavg")
TUNED: System = ("the same, tuned", "fedavg")
Times = dict[tuple[System, int], list[float]]
"""Milliseconds of each (system, threads), one for every round."""


def systems(workload: Workload) -> dict[System, Ours | PlainLoop]:
    """Everything that is timed on a workload."""
    ours = federations(workload)
    fed = ours["loop", "fedavg"].fed
    return {
        PLAIN: PlainLoop(workload, fed, shuffled(fed)),
        TUNED: PlainLoop(workload, fed, shuffled(fed), tuned=True),
        **{(f"fedfm, {executor}", method): each for (executor, method), each in ours.items()},
    }


def measure(workload: Workload, patience: float) -> Times:
    """Every system in turn, again and again, so that a busy moment of the machine hits them all."""
    competitors = systems(workload)
    times: Times = {(name, threads): [] for name in competitors for threads in THREADS}
    end = time.perf_counter() + patience * workload.seconds
    number = 0
    while number <= FEWEST or time.perf_counter() < end:
        for name, threads in times:
            torch.set_num_threads(threads)
            began = time.perf_counter()
            competitors[name].advance()
            if number > 0:  # the first is to warm up
                times[name, threads].append(1000 * (time.perf_counter() - began))
        number += 1
    return times


# ---- the report ----------------------------------------------------------------------------------


def table(workload: Workload, times: Times, steps: int) -> Table:
    """Medians by threads; ratios compare each system at its best number of threads."""
    medians = {key: median(values) for key, values in times.items()}
    rounds = len(times[PLAIN, THREADS[0]])
    best = {name: min(medians[name, threads] for threads in THREADS) for name, _ in times}
    title = f"{workload.title}; {steps} client steps a round"
    heads = ("1 thread", "2 threads", "time / plain loop", "speed-up", "time / fedavg")
    report = make_table(title, f"ms a round, median of {rounds}", "method", *heads, names=2)
    for name, milliseconds in best.items():
        who, method = name
        report.add_row(
            who,
            method,
            *(f"{medians[name, threads]:.1f}" for threads in THREADS),
            f"{milliseconds / best[PLAIN]:.2f}",
            f"{best[PLAIN] / milliseconds:.1f}x",
            f"{milliseconds / best[who, 'fedavg']:.2f}",
        )
    return report


# ---- the workloads -------------------------------------------------------------------------------


def digits(title: str, **model: object) -> Workload:
    """W1: 100 clients share the digits evenly, 10 of them train in a round."""
    training = Training(clients=100, participation=0.1, epochs=5, batch_size=8)
    return Workload(title, data.load("digits"), training, model, seconds=15)


def larger(title: str) -> Workload:
    """10 clients, random images [1, 28, 28]; 180 times the multiplications of a step of W1."""
    images = random_images(800, shape=(1, 28, 28), largest=255)
    training = Training(clients=10, epochs=1, batch_size=32)
    return Workload(title, images, training, {"channels": [32, 64]}, seconds=30)


def main() -> None:
    """Check and time every workload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patience", type=float, default=1, help="times the usual duration")
    patience = parser.parse_args().patience
    console = Console(width=110, highlight=False)
    console.print(describe_machine())
    for workload in (
        digits("W1: digits 8x8, small CNN, batch 8"),
        digits("W1 with BatchNorm", norm="batch"),
        larger("Larger: images 28x28, 32 and 64 channels, batch 32"),
    ):
        steps = check(workload)
        console.print(table(workload, measure(workload, patience), steps))


if __name__ == "__main__":
    main()
