"""Mistakes around the pieces: who counts, in which batches, towards which model, and the ledger."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from fedfm.core import ledger, trees
from fedfm.core.ledger import Ledger, Traffic
from fedfm.core.trees import Tree
from fedfm.data.batches import BatchPlan, plan_batches
from fedfm.engine.cohort import TrainingJob
from fedfm.methods import FedAvg, FedDyn, FedFM, FedFMLite, FedProx, Piece
from fedfm.rounds import clients, federation
from fedfm.rounds import round as talk
from fedfm.rounds.clients import ClientGroup, Work, answer_measure, answer_train, make_job
from fedfm.rounds.exchange import Request, Sums
from fedfm.rounds.federation import Federation
from fedfm.verify.mistakes.engine import replaced
from fedfm.verify.mistakes.planting import MISTAKES, Mistake

count_uploads, record_handshake = clients.count_uploads, Ledger.record_handshake


def towards_its_own(group: ClientGroup, fed: Federation, request: Request) -> TrainingJob:
    """The pieces get the model that a client goes on from for the received one."""
    return make_job(group._replace(base=group.start), fed, request)


def with_everybody(answer: Callable[..., Sums]) -> Callable[..., Sums]:
    """Those who failed are counted with the others."""

    def wrong(*args: Any) -> Sums:
        sums = answer(*args)
        return sums._replace(clients=sums.present)

    return wrong


def in_one_order(indices: np.ndarray, *, epochs: int, **how: Any) -> BatchPlan:
    """Every epoch has the batches of the first one."""
    whole = plan_batches(indices, epochs=epochs, **how)
    first = whole.first(whole.steps // epochs)
    return replace(whole, indices=first.indices.repeat(epochs))


def every_float(message: Tree) -> Iterator[Tensor]:
    """Buffers count as the paper's floats do."""
    return (leaf for leaf in trees.leaves(message) if leaf.is_floating_point())


def bytes_of_floats(message: Tree) -> int:
    """Counts and flags weigh nothing."""
    return sum(leaf.numel() * leaf.element_size() for leaf in every_float(message))


def once_a_round(self: Ledger, answers: Traffic) -> None:
    """However often server and clients meet."""
    record_handshake(self, answers)
    self.traffic = replace(self.traffic, handshakes=1)


def always_sharing(work: Work, sharing: bool) -> Traffic:
    """A model that stays at home is counted."""
    return count_uploads(work, sharing=True)


def swapped(what: str, piece: Piece, owner: Any, name: str, wrong: Any) -> Mistake:
    """A mistake that takes the place of an attribute while the piece is checked."""
    return Mistake(what, piece, lambda: replaced(owner, name, wrong))


FM, LITE = FedFM(strength=1.0, start_round=0), FedFMLite(strength=1.0, start_round=0)
UNIFORM_FM, UNIFORM_LITE = replace(FM, anchors="uniform"), replace(LITE, anchors="uniform")
OWN = "between exchanges of models the pull is towards the client's own"
FAILED = "a client whose training failed is counted"
UNMEASURED = "a client whose features are not finite is counted"
ORDER = "all epochs have their batches in one order"
FLOATS = "the ledger has buffers among the floats"
INTEGERS = "the ledger leaves out the bytes of integers"
HANDSHAKES = "the ledger has one handshake in every round"
AT_HOME = "the ledger has models that were not sent"
MISTAKES += [
    swapped(OWN, FedProx(mu=0.3), talk, "make_job", towards_its_own),
    swapped(FAILED, FedDyn(alpha=0.2), talk, "answer_train", with_everybody(answer_train)),
    swapped(FAILED, UNIFORM_LITE, talk, "answer_train", with_everybody(answer_train)),
    swapped(UNMEASURED, UNIFORM_FM, talk, "answer_measure", with_everybody(answer_measure)),
    swapped(ORDER, FedAvg(), federation, "plan_batches", in_one_order),
    swapped(FLOATS, FedAvg(), ledger, "float_leaves", every_float),
    swapped(INTEGERS, LITE, ledger, "count_bytes", bytes_of_floats),
    swapped(HANDSHAKES, FM, Ledger, "record_handshake", once_a_round),
    swapped(AT_HOME, replace(LITE, models_every=2), clients, "count_uploads", always_sharing),
]
