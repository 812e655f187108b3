"""Which textbook loop a method is compared with."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import nn

from fedfm.methods import Piece
from fedfm.rounds.federation import Federation
from fedfm.verify import textbook, textbook_methods
from fedfm.verify.checks import known_name
from fedfm.verify.worlds import Pieces, World


class Oracle(Protocol):
    """The textbook's federation: `round` replaces `model`."""

    model: nn.Module

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

    def __init__(self, method: textbook_methods.FedAvg, piece: Piece) -> None:
        self.method, self.settings = method, matching_settings(piece)
        self.anchors: textbook.Anchors = {}
        self.model = method.model

    def round(self, cohort: Sequence[textbook.Client]) -> None:
        """Play one round."""
        self.anchors = textbook_methods.matching_round(
            self.method, cohort, self.anchors, **self.settings
        )
        self.model = self.method.model


class Lite:
    """FedFM-Lite, which the textbook plays a whole cycle at a time."""

    def __init__(self, piece: Piece, world: World) -> None:
        self.every, self.model = piece.share_every, world.module
        self.settings = matching_settings(piece) | sgd_of(world)
        self.anchors: textbook.Anchors = {}
        self.waiting: list[Sequence[textbook.Client]] = []

    def round(self, cohort: Sequence[textbook.Client]) -> None:
        """Play one round, or wait for the end of the cycle."""
        self.waiting.append(cohort)
        if len(self.waiting) == self.every:
            self.model, self.anchors = textbook.fedfm_lite_cycle(
                self.model, self.waiting, self.anchors, **self.settings
            )
            self.waiting = []


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
    """The textbook's version of a method that `has_oracle`."""
    (piece,) = pieces
    if piece.name in METHODS:
        return method_oracle(piece, world, fed)
    if piece.name == "fedfm":
        plain = textbook_methods.FedAvg(world.module, len(fed.samples), **sgd_of(world))
        return Matching(plain, piece)
    return Lite(piece, world)
