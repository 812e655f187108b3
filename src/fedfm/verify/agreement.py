"""The library against the textbook: several rounds, partial participation, unequal steps."""

from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from fedfm.engine.networks import copy_model
from fedfm.methods import FedAvg, FedFM, FedFMLite, FedProx, Piece
from fedfm.rounds.round import run_round
from fedfm.rounds.state import State
from fedfm.verify import textbook, textbook_methods
from fedfm.verify.checks import Mismatch, check, only, registered_name, same, same_model
from fedfm.verify.textbook_ledger import round_bill
from fedfm.verify.worlds import Pieces, World, cohort_of, schedule, start

PULL = FedProx(mu=0.3)
MATCHING = FedFM(strength=1.0, start_round=0)
LITE = FedFMLite(strength=1.0, start_round=0, models_every=2)

WORLDS = {
    "plain SGD": World(momentum=0.0, weight_decay=0.0),
    "momentum": World("tiny cnn"),
    "batch norm": World("tiny cnn with batch norm"),
    "a failed client": World(broken=1),
    "float32": World(dtype=torch.float32, lr=0.001, momentum=0.5, weight_decay=0.0),
}
METHODS: dict[str, type[textbook_methods.FedAvg]] = {
    "fedavg": textbook_methods.FedAvg,
    "fedavgm": textbook_methods.FedAvgM,
    "fedprox": textbook_methods.FedProx,
    "scaffold": textbook_methods.Scaffold,
    "feddyn": textbook_methods.FedDyn,
    "fednova": textbook_methods.FedNova,
    "moon": textbook_methods.Moon,
    "fedproto": textbook_methods.FedProto,
}
"""The textbook's class of a method."""


class Oracle(Protocol):
    """The textbook's federation: `round` replaces `model`."""

    @property
    def model(self) -> nn.Module:
        """The global model."""
        ...

    def round(self, cohort: Sequence[textbook.Client]) -> None:
        """Play one round."""


def make_oracle(pieces: Pieces, world: World) -> Oracle:
    """Return the textbook's version of pieces of which the last may be FedFM or FedFM-Lite."""
    *others, last = pieces
    if last.name not in ("fedfm", "fedfm-lite"):
        return make_method(pieces, world)
    settings = {
        "method": make_method(tuple(others) or (FedAvg(),), world),
        "wait": schedule(pieces).wait,
        "aggregation": vars(last)["anchors"],
        **copy_settings(last, textbook_methods.FedFM),
    }
    if last.name == "fedfm":
        return textbook_methods.FedFM(**settings)
    return textbook_methods.FedFMLite(**settings, every=schedule(pieces).every)


def make_method(pieces: Pieces, world: World) -> textbook_methods.FedAvg:
    """Return the textbook's method for a piece, or for FedNova with FedProx."""
    first, *more = pieces
    kind = METHODS[first.name]
    settings = copy_settings(first, kind)
    for prox in more:
        settings |= copy_settings(prox, kind)
    if first.name == "fedproto":
        settings["wait"] = schedule(pieces).wait
    sgd = {"lr": world.lr, "momentum": world.momentum, "weight_decay": world.weight_decay}
    return kind(world.module, len(world.sizes), **sgd, **settings)


def copy_settings(piece: Piece, kind: Any) -> dict[str, Any]:
    """Return the hyper-parameters of a piece that the textbook's class has, too."""
    names = [field.name for field in fields(kind) if field.init]
    return {name: vars(piece)[name] for name in names if name in vars(piece)}


def has_oracle(pieces: Pieces) -> bool:
    """Return whether the textbook has this method."""
    name = registered_name(pieces)
    uniform = name == "fedproto" and vars(pieces[0])["anchors"] == "uniform"
    return (name in METHODS or name in ("fedfm", "fedfm-lite")) and not uniform


def agree(world: World, pieces: Pieces) -> None:
    """Play rounds from before T_s on both sides; compare models and anchors after each.

    A client whose data are broken trains in the library alone, which has to leave it out.
    """
    fed, theirs = world.make_federation(pieces), make_oracle(pieces, world)
    double = world.dtype is torch.float64
    begin, _, _, rounds = schedule(pieces, 4 if double else 2)
    state = start(fed, begin)
    for _ in range(rounds):
        cohort = cohort_of(fed, world.data, state.round)
        theirs.round([client for client in cohort if client["id"] != world.broken])
        state, log = run_round(state, fed)
        where, tolerance = f"round {state.round}: ", 1e-9 if double else 1e-4
        if log.failed != [client["id"] for client in cohort if client["id"] == world.broken]:
            raise Mismatch(f"{where}clients {log.failed} failed")
        same_model(state.model, copy_model(theirs.model), tolerance, where)
        if hasattr(theirs, "anchors"):
            expected = {f"anchor {c}": anchor for c, anchor in theirs.anchors.items()}
            same(read_anchors(state, pieces[-1]), expected, tolerance, where)


def read_anchors(state: State, piece: Piece) -> dict[str, Any]:
    """Return the server's anchors of the classes that have one."""
    server = state.server[piece.name]
    return {f"anchor {c}": server["anchors"][c] for c in server["seen"].nonzero().flatten()}


for _name, _world in WORLDS.items():
    check(f"textbook: {_name}", f"it is the textbook's method: {_name}", has_oracle)(
        partial(agree, _world)
    )


@check(
    "textbook: with a pull",
    "with FedProx on top, the normaliser knows the pull",
    only("fednova"),
)
def agree_with_pull(pieces: Pieces) -> None:
    """Compose FedNova with FedProx, which shortens the clients' way."""
    agree(World(), (*pieces, PULL))


def can_match(pieces: Pieces) -> bool:
    """Return whether this is a method of the textbook that has no anchors of its own."""
    return registered_name(pieces) in METHODS and "anchors" not in pieces[0].claims


@check(
    "textbook: with FedFM",
    "with feature matching on top it is its own maths plus the matching gradient",
    can_match,
)
def agree_with_matching(pieces: Pieces) -> None:
    """Compose the method with FedFM."""
    agree(World(), (*pieces, MATCHING))


@check(
    "textbook: with FedFM-Lite",
    "so it is with FedFM-Lite and models every second round",
    only("fedavg", "fedavgm", "fedprox"),
)
def agree_with_lite(pieces: Pieces) -> None:
    """Compose the method with FedFM-Lite: clients go on from their own models."""
    agree(World(), (*pieces, LITE))


@check("ledger", "every message of a round is counted, and what a client holds", has_oracle)
def compare_ledger(pieces: Pieces) -> None:
    """Compare the ledger of rounds from before T_s on with the textbook's."""
    ((piece,), world) = pieces, World("tiny cnn with batch norm")
    fed, (begin, _, every, rounds) = world.make_federation(pieces), schedule(pieces)
    sizes = fed.task.classes, fed.task.features
    state, visited = start(fed, begin), set[int]()
    for t in range(begin, begin + rounds):
        visited = set() if t % every == 0 else visited
        cohort = set(fed.cohort(t))
        clients = len(cohort), len(cohort - visited)
        bill = round_bill(world.module, *sizes, piece.name, vars(piece), t, *clients)
        state, log = run_round(state, fed)
        counted = {**log.traffic.as_dict(), "held": log.held}
        if counted != vars(bill):
            raise Mismatch(f"round {t + 1}: counted {counted}, by hand {vars(bill)}")
        visited |= cohort
