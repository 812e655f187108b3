"""Random numbers of a forward pass, keyed by client, step and call.

A network that drops activations draws the same numbers in every executor: what client s draws in
the i-th call of step t is a function of the client's seed, t and i, however clients are packed and
whatever ran before. This holds for dropout layers, for `torch.nn.functional`, for attention with
dropout, and for `torch.rand` in a forward pass.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import tau
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedfm.core.errors import UserError
from fedfm.engine.plain_operations import plain_operations

Arguments = dict[str, Any]
"""The arguments of an operation by name, defaults included."""
_active = threading.local()


class Unkeyed(UserError):
    """An operation draws random numbers that cannot be keyed."""


class KeyedDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not type it
    """Replaces the random numbers of S clients while it is entered.

    An operation draws S * n numbers, client after client: its first dimension is the clients if the
    network is mapped over clients, and the clients' samples if these are one batch. The n numbers
    of client s are those that its network would draw alone.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not type it
        self.seeds: Seeds = DeviceSeeds(seeds, device) if device.type == "cuda" else Seeds(seeds)
        self.used, self.calls = False, 0
        self._plain = ExitStack()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Spare torch the import of its compiler, which takes a second: nothing is compiled."""
        return False

    def rows(self, which: slice) -> "KeyedDraws":
        """Return the draws of some of the clients; they follow the steps of these."""
        part = KeyedDraws((), torch.device("cpu"))
        part.seeds = self.seeds.rows(which)
        return part

    def __enter__(self) -> "KeyedDraws":
        """Begin a forward pass: its first call is number 0."""
        self.calls, _active.draws = 0, self
        if isinstance(self.seeds, DeviceSeeds):
            self._plain.enter_context(plain_operations())
        super().__enter__()  # type: ignore[no-untyped-call]  # torch does not type it
        return self

    def __exit__(self, *problem: Any) -> None:
        """End the forward pass."""
        _active.draws = None
        self._plain.close()
        super().__exit__(*problem)  # type: ignore[no-untyped-call]  # torch does not type it

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation; take the random numbers that it draws from the clients' streams."""
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        arguments = _name_arguments(func, args, kwargs or {})
        if not arguments.get("dropout_p", arguments.get("dropout", 1)):
            return func(*args, **(kwargs or {}))  # attention, or recurrent layers
        self.used = True
        draw = DRAWS.get(func._schema.name.removeprefix("aten::"))
        if draw is None:
            raise Unkeyed(
                f"{func._schema.name.removeprefix('aten::')} draws random numbers that cannot be "
                "repeated: use dropout, torch.rand or torch.randn"
            )
        drawn = draw(self, arguments)
        self.calls += 1
        return drawn

    def fill(self, like: Tensor, kind: str, p: float = 0.5) -> Tensor:
        """Return numbers like a tensor: "uniform" in [0, 1), "normal", or "chance", 1 by chance p.

        Numbers are drawn in the order of indices, whatever the tensor's memory layout is.
        """
        if like.numel() % self.seeds.clients:
            raise Unkeyed(f"{like.numel()} random numbers are drawn for several clients together")
        numbers = self.seeds.fill(like.numel(), self.calls, kind, p)
        return numbers.view(like.shape).to(like.dtype)


@contextmanager
def draw_for(client: int, calls: int) -> Iterator[None]:
    """Draw for one client of a cohort only, beginning with the call of that number."""
    draws: KeyedDraws | None = getattr(_active, "draws", None)
    if draws is None:
        yield
        return
    everybody = draws.seeds
    draws.seeds, draws.calls = everybody.rows(slice(client, client + 1)), calls
    try:
        yield
    finally:
        draws.seeds = everybody


def count_calls() -> int:
    """Return how often the forward pass has drawn numbers."""
    draws: KeyedDraws | None = getattr(_active, "draws", None)
    return draws.calls if draws else 0


class Seeds:
    """The seeds of S clients and the number of their step, on a CPU."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.seeds, self.step = [*seeds], [0]
        self.which = range(len(seeds))
        self.generator = torch.Generator()

    @property
    def clients(self) -> int:
        """S."""
        return len(self.which)

    def rows(self, which: slice) -> "Seeds":
        """Return some of the clients, who share seeds and step with these."""
        part = Seeds(())
        part.seeds, part.step, part.which = self.seeds, self.step, self.which[which]
        return part

    def load(self, seeds: Sequence[int]) -> None:
        """Replace the clients' seeds."""
        self.seeds[:] = seeds

    def set_step(self, step: int) -> None:
        """Begin a step, which is counted from 0 in a round."""
        self.step[0] = step

    def fill(self, count: int, call: int, kind: str, p: float) -> Tensor:
        """Return float32 numbers [count], client after client."""
        rows = torch.empty(self.clients, count // self.clients)
        for client, row in zip(self.which, rows, strict=True):
            generator = self.generator.manual_seed(mix(self.seeds[client], self.step[0], call))
            if kind == "chance":
                row.bernoulli_(p, generator=generator)
            elif kind == "normal":
                row.normal_(generator=generator)
            else:
                row.uniform_(generator=generator)
        return rows.flatten()


class DeviceSeeds(Seeds):
    """The same on a GPU: captured steps read seeds [S] and step [1] at fixed addresses."""

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        super().__init__(())
        self.keys = torch.tensor(seeds, dtype=torch.int64, device=device)
        self.number = torch.zeros(1, dtype=torch.int32, device=device)

    @property
    def clients(self) -> int:
        """S."""
        return len(self.keys)

    def rows(self, which: slice) -> "Seeds":
        """Return some of the clients, who share seeds and step with these."""
        part = DeviceSeeds((), self.keys.device)
        part.keys, part.number = self.keys[which], self.number
        return part

    def load(self, seeds: Sequence[int]) -> None:
        """Replace the clients' seeds."""
        self.keys.copy_(torch.tensor(seeds, dtype=torch.int64))

    def set_step(self, step: int) -> None:
        """Begin a step, which is counted from 0 in a round."""
        self.number.fill_(step)

    def fill(self, count: int, call: int, kind: str, p: float) -> Tensor:
        """Return float32 numbers [count], client after client."""
        from fedfm.engine.kernels.randomness import fill_uniform

        if kind == "normal":  # by the Box-Muller transform
            radius, angle = fill_uniform(2 * count, self.keys, self.number, call).view(
                self.clients, 2, -1
            ).unbind(1)  # fmt: skip
            return ((-2 * torch.log1p(-radius)).sqrt() * torch.cos(tau * angle)).flatten()
        uniform = fill_uniform(count, self.keys, self.number, call)
        return uniform if kind == "uniform" else (uniform < p).float()


def mix(*numbers: int) -> int:
    """Return a seed for a generator, by the finaliser of splitmix64 after each number."""
    mixed = 0
    for number in numbers:
        mixed = (mixed + number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return mixed


# --- The operations that draw ---------------------------------------------------------------------

Draw = Callable[[KeyedDraws, Arguments], Any]


def _name_arguments(func: Any, args: tuple[Any, ...], kwargs: Arguments) -> Arguments:
    schema = func._schema.arguments
    defaults = {argument.name: argument.default_value for argument in schema}
    return defaults | {a.name: value for a, value in zip(schema, args, strict=False)} | kwargs


def _allocate(arguments: Arguments) -> Tensor:
    """Return the tensor that an operation makes, without numbers."""
    options = {name: arguments.get(name) for name in ("dtype", "device")}
    if isinstance(options["dtype"], int):  # the schema's default is int64
        options["dtype"] = torch.int64
    if isinstance(like := arguments.get("self"), Tensor):
        return torch.empty_like(like, **options)
    return torch.empty(arguments["size"], **options)


def _drop(draws: KeyedDraws, arguments: Arguments) -> tuple[Tensor, Tensor]:
    """native_dropout: the input times mask / (1 - p), and the mask."""
    x, p = arguments["input"], arguments["p"]
    mask = draws.fill(x, "chance", 1 - p)
    return x * mask * (1 / (1 - p) if p < 1 else 0.0), mask.bool()


def _throw(draws: KeyedDraws, arguments: Arguments) -> Any:
    """bernoulli: 1 by a chance, which is one number or one per element (p, or else self)."""
    p = arguments.get("p")
    if isinstance(p, float):
        return draws.fill(arguments["self"], "chance", p)
    chances = arguments["self"] if p is None else p
    like = arguments["self"]
    return (draws.fill(like.to(torch.float32), "uniform") < chances).to(like.dtype)


def _uniform(draws: KeyedDraws, arguments: Arguments) -> Any:
    low, high = arguments.get("from", 0.0), arguments.get("to", 1.0)
    return draws.fill(_allocate(arguments), "uniform") * (high - low) + low


def _normal(draws: KeyedDraws, arguments: Arguments) -> Any:
    mean, std = arguments.get("mean", 0.0), arguments.get("std", 1.0)
    given = isinstance(mean, Tensor) or isinstance(std, Tensor)
    like = torch.as_tensor(mean) + torch.as_tensor(std) if given else _allocate(arguments)
    return draws.fill(like, "normal") * std + mean


def _exponential(draws: KeyedDraws, arguments: Arguments) -> Any:
    uniform = draws.fill(arguments["self"], "uniform")
    return -torch.log1p(-uniform) / arguments["lambd"]


def _integers(draws: KeyedDraws, arguments: Arguments) -> Any:
    low, high, made = arguments.get("low", 0), arguments["high"], _allocate(arguments)
    uniform = draws.fill(made.float(), "uniform").double()
    return (uniform * (high - low)).floor().add(low).to(made.dtype)


def _leak(draws: KeyedDraws, arguments: Arguments) -> Any:
    """rrelu_with_noise: negative numbers times a slope, which `noise` receives."""
    x, low, high = (arguments[name] for name in ("self", "lower", "upper"))
    slopes = draws.fill(x, "uniform") * (high - low) + low
    return x * arguments["noise"].copy_(torch.where(x <= 0, slopes, 1.0))


def _permute(draws: KeyedDraws, arguments: Arguments) -> Any:
    if draws.seeds.clients > 1:
        raise Unkeyed("randperm draws one order for several clients together")
    device = arguments.get("device")
    return draws.fill(torch.empty(arguments["n"], device=device), "uniform").argsort()


def _in_place(draw: Draw) -> Draw:
    return lambda draws, arguments: arguments["self"].copy_(draw(draws, arguments))


DRAWS: dict[str, Draw] = {
    "native_dropout": _drop,
    "bernoulli": _throw,
    "bernoulli_": _in_place(_throw),
    "rand": _uniform,
    "rand_like": _uniform,
    "uniform_": _in_place(_uniform),
    "randn": _normal,
    "randn_like": _normal,
    "normal": _normal,
    "normal_": _in_place(_normal),
    "randint": _integers,
    "randint_like": _integers,
    "randperm": _permute,
    "exponential_": _in_place(_exponential),
    "rrelu_with_noise": _leak,
    "rrelu_with_noise_": _in_place(_leak),
}
