"""Networks of every kind: a step of all clients by fedfm, and by an eager fp32 loop.

    python -m bench.networks                    # small networks, on a CPU
    python -m bench.networks --size full        # the usual sizes, on a GPU
    python -m bench.networks --profile          # also list the kernels that take most of the time

All systems train the same clients on the same batches. On a CPU the times are processor times of
one thread, in turns. On a GPU they are times of a warm step, beside floor A (one model with all
clients' samples as its batch, compiled and captured, without the update) and the update alone
(torch's fused SGD with momentum and weight decay on the parameters of all clients, captured).
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from bench._shared import describe_machine, even_config, make_table
from rich.console import Console
from torch import Tensor, nn

from fedfm import FedAvg, Training, models
from fedfm.data.dataset import Dataset
from fedfm.data.split import Split
from fedfm.engine.cohort import TrainingJob
from fedfm.engine.executors import LoopExecutor
from fedfm.rounds.round import open_round
from fedfm.run.simulation import Simulation

CLASSES, TURNS, GPU_TURNS = 10, 7, 3


# ---- the networks --------------------------------------------------------------------------------


class Block(nn.Module):
    """A transformer's block, pre-norm: tokens [B, T, d] -> [B, T, d]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend, then transform each token."""
        parts = self.inputs(self.first(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value)
        x = x + self.output(attended.transpose(1, 2).flatten(2))
        change: Tensor = self.narrow(F.gelu(self.wide(self.second(x))))
        return x + change


class VisionTransformer(nn.Module):
    """A ViT with a class token and free positions, as users write it."""

    def __init__(self, width: int, depth: int, heads: int, patch: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (32 // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Images [B, 3, 32, 32] -> features [B, d], logits [B, C]."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        features = self.norm(self.blocks(x))[:, 0]
        return features, self.head(features)


class TextTransformer(nn.Module):
    """Embeddings with free positions, blocks, the mean over tokens."""

    def __init__(self, width: int, depth: int, heads: int, tokens: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(tokens, width))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Ids [B, T] -> features [B, d], logits [B, C]."""
        features = self.norm(self.blocks(self.tokens(ids) + self.positions)).mean(1)
        return features, self.head(features)


class Depthwise(nn.Module):
    """Depthwise convolutions with group norm and SiLU, shortcuts scaled by parameters."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, 2, 1)
        self.blocks = nn.ModuleList(self._block(width) for _ in range(depth))
        self.scales = nn.Parameter(0.5 * torch.ones(depth, width, 1, 1))
        self.head = nn.Linear(width, CLASSES)

    def _block(self, width: int) -> nn.Module:
        depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        wide, narrow = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(2 * width, width, 1)
        return nn.Sequential(depthwise, nn.GroupNorm(8, width), nn.SiLU(), wide, nn.SiLU(), narrow)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Images [B, 3, 32, 32] -> features [B, d], logits [B, C]."""
        x = self.stem(x)
        for scale, block in zip(self.scales, self.blocks, strict=True):
            x = x + scale * block(x)
        features = x.mean((2, 3))
        return features, self.head(features)


@dataclass(frozen=True)
class Case:
    """A network, its inputs, and how its clients train."""

    module: Callable[[], nn.Module]
    vocabulary: int = 0
    tokens: int = 0
    clients: int = 10
    batch: int = 64
    steps: int = 4

    def data(self) -> Dataset:
        """Return random samples, as many as all clients need for their steps."""
        count = self.clients * self.batch * self.steps
        rng = torch.Generator().manual_seed(0)
        if self.vocabulary:
            inputs = torch.randint(self.vocabulary, (count, self.tokens), generator=rng)
        else:
            size = (count, 3, 32, 32)
            inputs = torch.randint(256, size, generator=rng, dtype=torch.uint8)
        split = Split(inputs, torch.randint(CLASSES, (count,), generator=rng))
        mean, std = ((0.0,), (1.0,)) if self.vocabulary else ((128.0,), (64.0,))
        return Dataset("random", split, split, tuple("0123456789"), mean, std, keep_order=True)


def _build(name: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: models.build(name, shape=(3, 32, 32), classes=CLASSES, **options)


SIZES: dict[str, dict[str, Case]] = {
    "full": {
        "ViT-Ti/4": Case(lambda: VisionTransformer(192, 6, 3, 4), steps=20),
        "ViT-S/4": Case(lambda: VisionTransformer(384, 8, 6, 4), steps=20),
        "text transformer": Case(
            lambda: TextTransformer(128, 4, 4, 64, 8000), vocabulary=8000, tokens=64, steps=20
        ),
        "depthwise CNN": Case(lambda: Depthwise(64, 8), steps=20),
        "ResNet18, group norm": Case(_build("resnet18", norm="group"), steps=20),
        "small CNN, 100 clients": Case(_build("cnn"), clients=100, steps=2),
        "ResNet18": Case(_build("resnet18"), steps=20),
        "ResNet50": Case(_build("resnet50"), steps=10),
    },
    "small": {
        "ViT-Ti/4": Case(lambda: VisionTransformer(48, 3, 3, 8), batch=16),
        "ViT-S/4": Case(lambda: VisionTransformer(96, 4, 6, 8), batch=16),
        "text transformer": Case(
            lambda: TextTransformer(32, 2, 4, 16, 2000), vocabulary=2000, tokens=16, batch=8
        ),
        "text transformer, batch 16": Case(
            lambda: TextTransformer(32, 2, 4, 16, 2000), vocabulary=2000, tokens=16, batch=16
        ),
        "depthwise CNN": Case(lambda: Depthwise(16, 3), batch=16),
        "ResNet18, group norm": Case(_build("resnet18", norm="group", width=8, groups=4), batch=16),
        "small CNN, 100 clients": Case(_build("cnn"), clients=100, batch=16, steps=2),
    },
}


# ---- the systems ---------------------------------------------------------------------------------


class EagerLoop:
    """A module and torch's optimizer, one client after another, in fp32."""

    def __init__(self, simulation: Simulation, module: nn.Module, job: TrainingJob) -> None:
        self.data, self.module, self.job = simulation.device_data[0], module, job
        self.sgd = asdict(simulation.federation.training.optimizer)
        self.start = {name: value.clone() for name, value in module.state_dict().items()}

    def __call__(self) -> None:
        """Train every client from the same start."""
        for plan in self.job.plans:
            self.module.load_state_dict(self.start)
            self.module.train()
            optimizer = torch.optim.SGD(self.module.parameters(), **self.sgd)
            for batch in plan.batches:
                inputs, labels = self.data.fetch(batch)
                optimizer.zero_grad()
                _, logits = self.module(inputs)
                torch.autograd.backward(F.cross_entropy(logits, labels))
                optimizer.step()


def make_floor(case: Case, module: nn.Module, data: Tensor) -> Callable[[], None]:
    """Return floor A: forward and backward pass of one compiled model on all clients' samples."""
    compiled = torch.compile(module)
    labels = torch.zeros(len(data), dtype=torch.int64, device=data.device)

    def step() -> None:
        module.zero_grad(set_to_none=False)
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(compiled(data)[1].float(), labels)
        torch.autograd.backward(loss)

    return capture(step, case.steps)


def make_update(case: Case, module: nn.Module) -> Callable[[], None]:
    """Return torch's fused update of as many models as there are clients."""
    parameters = [
        nn.Parameter(torch.randn_like(leaf))
        for _ in range(case.clients)
        for leaf in module.parameters()
    ]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    sgd = torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, weight_decay=1e-5, fused=True)
    return capture(sgd.step, case.steps)


def capture(step: Callable[[], object], steps: int) -> Callable[[], None]:
    """Return a function that replays a captured step so many times."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch does not type it
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay() -> None:
        for _ in range(steps):
            graph.replay()

    return replay


def make_systems(
    case: Case, device: torch.device, floor: bool = True
) -> dict[str, Callable[[], object]]:
    """Return what is timed: each call trains every client for the case's steps."""
    data = case.data()
    training = Training(clients=case.clients, epochs=1, batch_size=case.batch, validation=0.0)
    executors = {"fedfm, loop": ("loop", training), "fedfm, stacked": ("stacked", training)}
    if device.type == "cuda":
        adamw = replace(training, optimizer="adamw", lr=1e-3)
        executors = {"fedfm, graph": ("graph", training), "fedfm, graph, AdamW": ("graph", adamw)}
    systems: dict[str, Callable[[], object]] = {}
    for name, (executor, training) in executors.items():
        torch.manual_seed(0)
        module = case.module().to(device)
        simulation = Simulation(module, data, even_config(FedAvg(), training, executor))
        fed = simulation.federation
        job = open_round(simulation.start, fed).job
        job = replace(job, plans=[plan.first(case.steps) for plan in job.plans])
        if not systems:
            systems["eager loop"] = EagerLoop(simulation, module, job)
        if executor != "loop":
            assert type(fed.executor) is not LoopExecutor, "the network was not stacked"
        systems[name] = partial(fed.executor.train, job)
    if device.type == "cuda" and floor:
        first = simulation.device_data[0].fetch_first(case.clients * case.batch)
        systems["floor A"] = make_floor(case, case.module().to(device), first)
        systems["update alone"] = make_update(case, case.module().to(device))
    return systems


def measure(systems: dict[str, Callable[[], object]], on_gpu: bool) -> dict[str, list[float]]:
    """Return the times of all systems in turns, the first one not counted."""
    times: dict[str, list[float]] = {name: [] for name in systems}
    clock = time.perf_counter if on_gpu else time.process_time
    for turn in range(1 + (GPU_TURNS if on_gpu else TURNS)):
        for name, system in systems.items():
            began = clock()
            system()
            if on_gpu:
                torch.cuda.synchronize()
            if turn:
                times[name].append(clock() - began)
    return times


def profile(system: Callable[[], object], steps: int) -> str:
    """Return the kernels of a system that take most of a GPU's time, for all of its steps."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        system()
        torch.cuda.synchronize()
    kernels = [k for k in profiler.key_averages() if k.self_device_time_total > 0]
    kernels.sort(key=lambda kernel: -kernel.self_device_time_total)
    times = [kernel.self_device_time_total / 1e3 / steps for kernel in kernels]
    lines = [
        f"{time:8.3f} ms {kernel.count / steps:7.1f}x {kernel.key[:150]}"
        for time, kernel in zip(times[:30], kernels, strict=False)
    ]
    return "\n".join([f"{sum(times):8.3f} ms of kernels in a step of all", *lines])


def main() -> None:
    """Measure every network."""
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=[*SIZES], default="full" if on_gpu else "small")
    parser.add_argument("--only", default="", help="networks whose names contain this")
    parser.add_argument("--no-floor", action="store_true", help="compile nothing, no floors")
    parser.add_argument("--profile", action="store_true", help="list kernels (on a GPU)")
    options = parser.parse_args()
    device = torch.device("cuda" if on_gpu else "cpu")
    torch.set_num_threads(1)
    console = Console(width=110, highlight=False)
    console.print(describe_machine(), torch.cuda.get_device_name() if on_gpu else "one thread")
    for name, case in SIZES[options.size].items():
        if options.only not in name:
            continue
        systems = make_systems(case, device, not options.no_floor)
        times = measure(systems, on_gpu)
        title = f"{name}: {case.clients} clients, batch {case.batch}"
        table = make_table(title, "system", "ms a step of all", "speed-up, median of turns")
        for system, seconds in times.items():
            pairs = zip(times["eager loop"], seconds, strict=True)
            ratio = median(eager / own for eager, own in pairs)
            table.add_row(system, f"{1e3 * median(seconds) / case.steps:.2f}", f"{ratio:.2f}x")
        console.print(table)
        if options.profile and on_gpu:
            print(profile(systems["fedfm, graph"], case.steps))


if __name__ == "__main__":
    main()
