"""One GPU: the paper's local training, client after client in eager PyTorch and by fedfm.

All systems train the same ten clients on the same number of batches of random images of CIFAR-10's
shape. Everything is a ratio taken in one run; medians, warm.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from bench._shared import describe_machine, random_images
from torch import Tensor, nn

from fedfm import FedAvg, FedFM, Partition, Piece, Training, models
from fedfm.config import make_config
from fedfm.data.dataset import Dataset
from fedfm.methods import FedProx, Moon, Scaffold
from fedfm.rounds.round import open_round
from fedfm.run.records import Progress
from fedfm.run.simulation import Simulation, advance

CLASSES, CLIENTS, BATCH = 10, 10, 64
GUIDED = FedFM(start_round=0)
EAGER_STEPS, STEPS = 6, 100
NETWORKS: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("resnet18", {}, ("fp32", "tf32", "bf16")),
    ("resnet18", {"stem": "cifar"}, ("fp32", "tf32", "bf16")),
    ("resnet50", {}, ("bf16",)),
]
"""The paper's networks, ResNet18 with both stems, and the precisions they are timed in."""


def network(name: str, device: torch.device, **options: Any) -> nn.Module:
    """A network of the paper."""
    torch.manual_seed(0)
    return models.build(name, shape=(3, 32, 32), classes=CLASSES, **options).to(device)


def simulation(
    data: Dataset,
    module: nn.Module,
    piece: Piece,
    sibling: Simulation | None = None,
    **settings: Any,
) -> Simulation:
    """Ten clients by the paper's protocol, with further settings of a config."""
    training = Training(clients=CLIENTS, rounds=100, batch_size=BATCH)
    defaults = {"partition": Partition("iid"), "training": training, "executor": "graph"}
    return Simulation(module, data, make_config(piece, **defaults | settings), sibling=sibling)


# ---- the yardstick -------------------------------------------------------------------------------


class EagerLoop:
    """FedFM's local training as research code has it: a module and an optimizer per client."""

    def __init__(self, simulation: Simulation, module: nn.Module) -> None:
        self.simulation, self.module = simulation, module
        self.anchors = F.normalize(torch.randn(CLASSES, module.fc.in_features), dim=1)  # type: ignore[union-attr, arg-type]  # a ResNet
        self.anchors = self.anchors.to(next(module.parameters()))

    def __call__(self, steps: int) -> None:
        """So many steps of every client, one client after another."""
        fed = self.simulation.federation
        feed = self.simulation.device_data[0]
        for client in range(CLIENTS):
            optimizer = torch.optim.SGD(self.module.parameters(), **asdict(fed.training.optimizer))
            for batch in fed.plan(0, client).first(steps).batches:
                inputs, labels = feed.fetch(batch.to(self.anchors.device))
                optimizer.zero_grad()
                torch.autograd.backward(self.loss(inputs, labels))
                optimizer.step()

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy and contrastive guiding."""
        features, logits = self.module(inputs)
        guide = F.cross_entropy(F.normalize(features, dim=1) @ self.anchors.T / 0.1, labels)
        return F.cross_entropy(logits, labels) + 50 * guide


def timed(work: Callable[[], object], turns: int) -> float:
    """The median seconds of some turns, the first one not counted."""
    times = []
    for _ in range(turns + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return median(times[1:])


def training(simulation: Simulation, steps: int) -> Callable[[], object]:
    """So many local steps of every client, and nothing else of a round."""
    fed = simulation.federation
    job = open_round(simulation.start, fed).job
    short = replace(job, plans=[plan.first(steps) for plan in job.plans])
    return lambda: fed.executor.train(short)


def step_times(data: Dataset, module: nn.Module, precisions: Sequence[str]) -> dict[str, float]:
    """Milliseconds for a step of all ten clients, FedFM with contrastive guiding."""
    eager = EagerLoop(simulation(data, module, GUIDED, executor="loop", precision="fp32"), module)
    seconds = {"eager loop, fp32": timed(lambda: eager(EAGER_STEPS), 3) / EAGER_STEPS}
    for precision in precisions:
        ours = training(simulation(data, module, GUIDED, precision=precision), STEPS)
        seconds[f"graph, {precision}"] = timed(ours, 3) / STEPS
    return {way: 1e3 * each for way, each in seconds.items()}


def round_time(simulations: Sequence[Simulation]) -> float:
    """Seconds of a whole round, evaluation included, all simulations together."""
    progresses = [Progress(simulation.start) for simulation in simulations]
    return timed(lambda: advance(simulations, progresses), 3)


def steps(data: Dataset, device: torch.device) -> None:
    """Local steps of the paper's networks."""
    for name, options, precisions in NETWORKS:
        times = step_times(data, network(name, device, **options), precisions)
        ratios = {way: times["eager loop, fp32"] / each for way, each in times.items()}
        show(f"{name} {options or ''} ms a step of 10 clients", times)
        show(f"{name} {options or ''} times the eager loop", ratios)


def rounds(data: Dataset, device: torch.device) -> None:
    """Whole rounds of the paper's protocol: 10 epochs of 4,000 samples a client, evaluated."""
    one = simulation(data, network("resnet18", device), GUIDED)
    others = [
        simulation(data, network("resnet18", device), GUIDED, one, seed=seed) for seed in (1, 2)
    ]
    single, three = round_time([one]), round_time([one, *others])
    times = {"one seed": single, "three seeds together": three, "three / one": three / single}
    show("round, seconds", times)


def methods(data: Dataset, device: torch.device) -> None:
    """Whole rounds of some methods, relative to FedAvg's."""
    times: dict[str, float] = {}
    for piece in (FedAvg(), GUIDED, Scaffold(), FedProx(), Moon()):
        seconds = round_time([simulation(data, network("resnet18", device), piece)])
        times[piece.name] = seconds
        show(piece.name, {"round, seconds": seconds, "round / FedAvg's": seconds / times["fedavg"]})


def unequal(data: Dataset, device: torch.device) -> None:
    """Time per sample when clients hold different amounts of data."""
    times = {}
    for title, partition in (("equal", Partition("iid")), ("niid1", Partition("niid1"))):
        one = simulation(data, network("resnet18", device), GUIDED, partition=partition)
        job = open_round(one.start, one.federation).job
        samples = sum(len(plan.indices) for plan in job.plans)
        train = partial(one.federation.executor.train, job)
        times[title] = 1e6 * timed(train, 3) / samples
        print(title, "steps", [plan.steps for plan in job.plans])
    show("microseconds a sample", times | {"ratio": times["niid1"] / times["equal"]})


PARTS = {"steps": steps, "rounds": rounds, "methods": methods, "unequal": unequal}


def show(title: str, values: dict[str, float]) -> None:
    """A line of results, at once."""
    rounded = {name: float(f"{value:.4g}") for name, value in values.items()}
    print(title, json.dumps(rounded), flush=True)


def main() -> None:
    """Run the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="*", default=[*PARTS], choices=[*PARTS])
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no NVIDIA GPU here: nothing to measure")
        return
    print(torch.cuda.get_device_name(), describe_machine())
    data = random_images(50_000, 10_000, (3, 32, 32), 255)
    device = torch.device("cuda")
    for part in options.parts:
        PARTS[part](data, device)


if __name__ == "__main__":
    main()
