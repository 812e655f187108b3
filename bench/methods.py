"""What each method's local step costs, relative to FedAvg's, in both executors."""

import time
from statistics import median

import torch
from bench._shared import even_config, make_table
from rich.console import Console

from fedfm import Piece, Training, data, models
from fedfm.methods import PIECES
from fedfm.rounds.round import close_round, open_round, train_in_step
from fedfm.run.simulation import Simulation

TURNS = 7
TRAINING = Training(clients=10, rounds=2, epochs=2, batch_size=16)


def prepare(kind: type[Piece], executor: str) -> Simulation:
    """Return a federation of ten clients on digits, its method active from the first round on."""
    torch.manual_seed(0)
    digits = data.load("digits")
    model = models.build("cnn", shape=digits.shape, classes=10, channels=[32, 64], norm="batch")
    fields = getattr(kind, "__dataclass_fields__", {})
    piece = kind(**({"start_round": 0} if "start_round" in fields else {}))
    return Simulation(model, digits, even_config(piece, TRAINING, executor))


def time_round(simulation: Simulation) -> tuple[float, float]:
    """Return the processor time of local training, and of a whole round without evaluation."""
    fed, times = simulation.federation, [time.process_time()]
    opened = open_round(simulation.start, fed)
    times.append(time.process_time())
    (trained,) = train_in_step([opened], fed.executor)
    times.append(time.process_time())
    close_round(opened, fed, trained)
    return times[2] - times[1], time.process_time() - times[0]


def compare(executor: str) -> dict[str, list[str]]:
    """Return the medians of each method relative to FedAvg's; the methods take turns."""
    ready = {name: prepare(kind, executor) for name, kind in PIECES.items()}
    turns = [{name: time_round(each) for name, each in ready.items()} for _ in range(TURNS)]
    medians = {
        name: [median(part) for part in zip(*(turn[name] for turn in turns), strict=True)]
        for name in ready
    }
    return {
        name: [f"{mine / plain:.2f}" for mine, plain in zip(times, medians["fedavg"], strict=True)]
        for name, times in medians.items()
    }


def main() -> None:
    """Compare all methods in both executors."""
    torch.set_num_threads(1)
    heads = ("method", "loop: step", "loop: round", "stacked: step", "stacked: round")
    table = make_table("processor time relative to FedAvg's: local steps, and whole rounds", *heads)
    loop, stacked = compare("loop"), compare("stacked")
    for name in PIECES:
        table.add_row(name, *loop[name], *stacked[name])
    Console().print(table)
    print(f"torch {torch.__version__}, 1 thread; digits, 10 clients, CNN with batch norm")


if __name__ == "__main__":
    main()
