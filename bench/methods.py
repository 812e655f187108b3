"""What each method's local step costs, relative to FedAvg's, in both executors."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from fedfm import Partition, Piece, Training, data, models
from fedfm.config import make_config
from fedfm.core.trees import Tree
from fedfm.engine.cohort import TrainingJob, TrainingResult
from fedfm.engine.device_data import DeviceData
from fedfm.engine.executors import Executor
from fedfm.engine.forward import Statistic
from fedfm.methods import PIECES, Model
from fedfm.rounds.round import run_round
from fedfm.run.simulation import Simulation

TURNS = 7
PROTOCOL = Training(clients=10, rounds=1, epochs=2, batch_size=16)


def prepared(piece: Piece, executor: str) -> Simulation:
    """A federation of ten clients on digits, every piece at work from the first round."""
    torch.manual_seed(0)
    digits = data.load("digits")
    model = models.build("cnn", shape=digits.shape, classes=10, channels=[32, 64], norm="batch")
    config = make_config(
        piece, partition=Partition("iid"), training=PROTOCOL, seed=0, executor=executor
    )
    return Simulation(model, digits, config)


@dataclass
class Timed:
    """An executor that adds up the time of local training."""

    executor: Executor
    seconds: float = 0.0

    def train(self, job: TrainingJob) -> TrainingResult:
        """Train and take the time."""
        began = time.perf_counter()
        result = self.executor.train(job)
        self.seconds += time.perf_counter() - began
        return result

    def measure(
        self,
        model: Model,
        samples: Sequence[Tensor],
        statistic: Statistic,
        data: DeviceData | None = None,
    ) -> Tree:
        """Measure as it is."""
        return self.executor.measure(model, samples, statistic, data)


def seconds(simulation: Simulation) -> tuple[float, float]:
    """(local training, whole round without evaluation)."""
    timed, began = Timed(simulation.federation.executor), time.perf_counter()
    run_round(simulation.start, replace(simulation.federation, executor=timed))
    return timed.seconds, time.perf_counter() - began


def started(kind: type[Piece]) -> Piece:
    """The method with its defaults, from the first round on."""
    fields = getattr(kind, "__dataclass_fields__", {})
    return kind(**({"start_round": 0} if "start_round" in fields else {}))


def relative(executor: str) -> dict[str, list[str]]:
    """The medians of each method relative to FedAvg's: local training, whole round."""
    ready = {name: prepared(started(kind), executor) for name, kind in PIECES.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in PIECES}
    for _ in range(TURNS):
        for name, simulation in ready.items():
            times[name].append(seconds(simulation))
    medians = {name: [statistics.median(part) for part in zip(*found, strict=True)]
               for name, found in times.items()}  # fmt: skip
    base = medians["fedavg"]
    return {
        name: [f"{mine / plain:.2f}" for mine, plain in zip(found, base, strict=True)]
        for name, found in medians.items()
    }


def main() -> None:
    """The methods take turns; medians, relative to FedAvg."""
    torch.set_num_threads(1)
    heads = ("method", "loop: step", "loop: round", "stacked: step", "stacked: round")
    table = Table(*heads, title="seconds relative to FedAvg: local steps, and whole rounds")
    loop, stacked = relative("loop"), relative("stacked")
    for name in PIECES:
        table.add_row(name, *loop[name], *stacked[name])
    Console().print(table)
    print(f"torch {torch.__version__}, 1 thread; digits, 10 clients, CNN with batch norm")


if __name__ == "__main__":
    main()
