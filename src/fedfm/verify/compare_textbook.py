"""The library against the textbook: several rounds, partial participation, unequal steps."""

from functools import partial
from typing import Any

import torch

from fedfm.engine.networks import copy_model
from fedfm.methods import FedFM, FedFMLite, FedProx, Piece
from fedfm.rounds.group import OWN, SECOND
from fedfm.rounds.round import RoundLog, run_round
from fedfm.rounds.state import State
from fedfm.verify.checks import (
    Mismatch,
    check,
    is_federated,
    only,
    registered_name,
    same,
    same_model,
)
from fedfm.verify.fixtures import Pieces, SmallFederation, start
from fedfm.verify.textbook.ledger import ExpectedTraffic, count_round
from fedfm.verify.textbook_federation import (
    METHODS,
    choose_compared_rounds,
    cohort_of,
    has_textbook,
    make_textbook_federation,
)

SMALL_FEDERATIONS = {
    "plain SGD": SmallFederation(momentum=0.0, weight_decay=0.0),
    "momentum": SmallFederation("tiny cnn"),
    "batch norm": SmallFederation("tiny cnn with batch norm"),
    "a failed client": SmallFederation(broken=1),
    "a decaying rate and clipping": SmallFederation(lr_gamma=0.7, clip_norm=1.0),
    "float32": SmallFederation(dtype=torch.float32, lr=0.001, momentum=0.5, weight_decay=0.0),
}
LOSSES = "fedntd", "fedlc", "fedrs", "balancedsoftmax", "feddecorr", "feduv"
"""Methods that change the loss of a batch and nothing else."""
ADAPTIVE = "fedadagrad", "fedadam", "fedyogi"
"""Methods that change the step of the server and nothing else."""
AFTERWARDS = ("ccvr",)
"""Methods that change nothing but the model after the last round."""
FEW = "plain SGD", "batch norm"
"""The small federations for these, in which there is everything that they could confuse."""
ONE_SAMPLE = SmallFederation(sizes=(13, 6, 1, 9), keep_last=True)
"""A client with one sample, and so with one class, and batches of one at others, too."""


def agree(small: SmallFederation, pieces: Pieces) -> None:
    """Play rounds from before T_s on both sides; compare models and anchors after each.

    A client whose data are broken trains in the library alone, which has to leave it out.
    """
    fed, theirs = small.make_federation(pieces), make_textbook_federation(pieces, small)
    double = small.dtype is torch.float64
    begin, _, _, rounds = choose_compared_rounds(pieces, 4 if double else 2)
    state = start(fed, begin)
    for _ in range(rounds):
        cohort = cohort_of(fed, small.data, state.round)
        theirs.round([client for client in cohort if client["id"] != small.broken])
        state, log = run_round(state, fed)
        where, tolerance = f"round {state.round}: ", 1e-9 if double else 1e-4
        if log.failed != [client["id"] for client in cohort if client["id"] == small.broken]:
            raise Mismatch(f"{where}clients {log.failed} failed")
        same_model(state.model, copy_model(theirs.model), tolerance, where)
        if hasattr(theirs, "anchors"):
            expected = {f"anchor {c}": anchor for c, anchor in theirs.anchors.items()}
            same(read_anchors(state, pieces[-1]), expected, tolerance, where)
        for client, leaves in getattr(theirs, "personal", {}).items():
            same(read_personal(state, client), leaves, tolerance, f"{where}client {client}: ")


def read_anchors(state: State, piece: Piece) -> dict[str, Any]:
    """Return the server's anchors of the classes that have one."""
    server = state.server[piece.name]
    return {f"anchor {c}": server["anchors"][c] for c in server["seen"].nonzero().flatten()}


def read_personal(state: State, client: int) -> dict[str, Any]:
    """Return the parameters and buffers that a client keeps as its own."""
    kept = state.clients.get(client)
    personal = kept.get(SECOND) or kept.get(OWN, {})
    return {**personal.get("params", {}), **personal.get("buffers", {})}


def agree_with(added: Piece, pieces: Pieces) -> None:
    """Compose the method with another piece."""
    agree(SmallFederation("tiny cnn with batch norm"), (*pieces, added))


def can_match(pieces: Pieces) -> bool:
    """Return whether this is a method of the textbook that has no anchors of its own."""
    name = registered_name(pieces)
    return (
        name in METHODS and name not in ADAPTIVE + AFTERWARDS and "anchors" not in pieces[0].claims
    )


def fits(name: str, pieces: Pieces) -> bool:
    """Return whether the textbook has this method, and compares it in this federation."""
    enough = name in FEW or registered_name(pieces) not in LOSSES + ADAPTIVE + AFTERWARDS
    return (
        has_textbook(pieces)
        and enough
        and (SMALL_FEDERATIONS[name].broken is None or is_federated(pieces))
    )


for _name, _small in SMALL_FEDERATIONS.items():
    _fits = partial(fits, _name)
    check(f"textbook: {_name}", f"every round equals the textbook's: {_name}", _fits)(
        partial(agree, _small)
    )
check(
    "textbook: clipping before corrections",
    "with `clip_first`, corrections are added to the clipped gradient",
    only("scaffold", "fedspeed", "fedsmoo"),
)(partial(agree, SmallFederation(clip_norm=1.0, clip_first=True)))
check(
    "textbook: one sample",
    "with a client of one sample, and batches of one, every round equals the textbook's",
    only(*LOSSES),
)(partial(agree, ONE_SAMPLE))
check(
    "textbook: with a pull",
    "with FedProx it equals the textbook, whose normaliser includes the pull",
    only("fednova"),
)(partial(agree_with, FedProx(mu=0.3)))
check(
    "textbook: with FedFM",
    "with FedFM it equals the textbook's method plus the matching gradient",
    can_match,
)(partial(agree_with, FedFM(strength=1.0, start_round=0)))
check(
    "textbook: with FedFM-Lite",
    "with FedFM-Lite and models every second round it equals the textbook, too",
    only("fedavg", "fedavgm", "fedprox"),
)(partial(agree_with, FedFMLite(strength=1.0, start_round=0, models_every=2)))


@check("ledger", "floats, bytes, handshakes and memory equal a count by hand", has_textbook)
def compare_ledger(pieces: Pieces) -> None:
    """Compare the ledger of rounds from before T_s on with the textbook's."""
    ((piece,), small) = pieces, SmallFederation("tiny cnn with batch norm")
    fed, (begin, _, every, rounds) = small.make_federation(pieces), choose_compared_rounds(pieces)
    sizes = fed.task.classes, fed.task.features
    state, visited, seen = start(fed, begin), set[int](), set[int]()
    for t in range(begin, begin + rounds):
        visited = set() if t % every == 0 else visited
        cohort = set(fed.cohort(t))
        clients = len(cohort), len(cohort - visited), len(cohort - seen)
        expected = count_round(small.module, *sizes, piece.name, vars(piece), t, *clients)
        state, log = run_round(state, fed)
        compare_traffic(log, expected, f"round {t + 1}: ")
        visited, seen = visited | cohort, seen | cohort


def compare_traffic(log: RoundLog, expected: ExpectedTraffic, where: str = "") -> None:
    """Raise `Mismatch` unless the ledger of a round equals the textbook's count."""
    counted = {**log.traffic.as_dict(), "held": log.held}
    if counted != vars(expected):
        raise Mismatch(f"{where}counted {counted}, by hand {vars(expected)}")
