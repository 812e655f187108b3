"""Which textbook loop a method is compared with."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import nn

from fedfm.methods import FedAvg, Piece
from fedfm.rounds.federation import Federation
from fedfm.verify import textbook, textbook_methods
from fedfm.verify.checks import known_name
from fedfm.verify.worlds import Pieces, World, schedule


class Oracle(Protocol):
    """The textbook's federation: `round` replaces `model`."""

    @property
    def model(self) -> nn.Module:
        """The global model."""
        ...

    def round(self, cohort: Sequence[textbook.Client]) -> None:
        """Play one round."""


Maker = Callable[..., textbook_methods.FedAvg]
METHODS: dict[str, tuple[Maker, dict[str, str]]] = {
    "fedavg": (textbook_methods.FedAvg, {}),
    "fedavgm": (textbook_methods.FedAvgM, {"beta": "beta"}),
    "fedprox": (textbook_methods.FedProx, {"mu": "mu"}),
    "scaffold": (textbook_methods.Scaffold, {}),
    "feddyn": (textbook_methods.FedDyn, {"alpha": "alpha"}),
    "fednova": (textbook_methods.FedNova, {}),
    "moon": (textbook_methods.Moon, {"mu": "mu", "tau": "tau"}),
    "fedproto": (textbook_methods.FedProto, {"strength": "strength"}),
}
"""The textbook's class of a method, and its arguments as fields of the piece."""


def sgd_of(world: World) -> dict[str, Any]:
    """The local optimiser's settings."""
    return {"lr": world.lr, "momentum": world.momentum, "weight_decay": world.weight_decay}


def method_oracle(
    piece: Piece, world: World, fed: Federation, **more: float
) -> textbook_methods.FedAvg:
    """The textbook's object for a method that changes FedAvg."""
    make, arguments = METHODS[piece.name]
    hyper = {name: getattr(piece, field) for name, field in arguments.items()}
    return make(world.module, len(fed.samples), **sgd_of(world), **hyper, **more)


class Matching:
    """FedFM on top of a method: anchors from the received model, then the method's round."""

    def __init__(self, method: textbook_methods.FedAvg, piece: Piece, wait: int) -> None:
        self.method, self.settings, self.wait = method, matching_settings(piece), wait
        self.anchors: textbook.Anchors = {}
        self.model = method.model

    def round(self, cohort: Sequence[textbook.Client]) -> None:
        """Play one round; the first `wait` ones are the method's own."""
        self.wait -= 1
        self.anchors = textbook_methods.matching_round(
            self.method, cohort, self.anchors, active=self.wait < 0, **self.settings
        )
        self.model = self.method.model


def matching_settings(piece: Piece) -> dict[str, Any]:
    """The textbook's arguments, from FedFM's fields."""
    fields: Mapping[str, Any] = vars(piece)
    wanted = ("strength", "guide", "temperature")
    return {name: fields[name] for name in wanted} | {"aggregation": fields["anchors"]}


def has_oracle(pieces: Pieces) -> bool:
    """Whether the textbook has this method."""
    name = known_name(pieces)
    uniform = name == "fedproto" and getattr(pieces[0], "anchors", "") == "uniform"
    return (name in METHODS or name in ("fedfm", "fedfm-lite")) and not uniform


def oracle(pieces: Pieces, world: World, fed: Federation) -> Oracle:
    """The textbook's version of pieces of which the last one may be FedFM or FedFM-Lite."""
    *others, last = pieces
    wait = schedule(pieces).wait
    if last.name == "fedproto":
        return method_oracle(last, world, fed, wait=wait)
    if last.name in METHODS:
        return method_oracle(last, world, fed)
    method = method_oracle(others[0] if others else FedAvg(), world, fed)
    if last.name == "fedfm":
        return Matching(method, last, wait)
    every = schedule(pieces).every
    return textbook_methods.FedFMLite(method, every=every, wait=wait, **matching_settings(last))
