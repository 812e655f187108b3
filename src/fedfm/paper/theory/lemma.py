"""Lemma 2 on a network and data: new anchors never raise the global objective.

    Phi(w(t+1); A(t+1)) <= Phi(w(t+1); A(t)),    Phi = sum_k p_k [F_k(w) + lambda Q_k(w; A)]

with the squared distance of raw features to their class anchor as Q (Eq. 3), which is the loss of
FedProto. As the anchors are class means and p_k is the share of the data, the decrease is known:
lambda sum_c n_c/n |a_c(t) - a_c(t+1)|^2.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fedfm import data, models
from fedfm.config import make_config
from fedfm.config.training import Training
from fedfm.core import trees
from fedfm.core.trees import Tree
from fedfm.data.partition import Partition
from fedfm.methods import FedProto
from fedfm.methods.base import Batch
from fedfm.methods.fedfm import l2_guiding
from fedfm.rounds.clients import count_samples
from fedfm.rounds.federation import Federation
from fedfm.rounds.round import run_round
from fedfm.rounds.state import State
from fedfm.run.simulation import Simulation

ROUNDING = 1e-12
"""How far, relative to Phi, double precision may be off."""


@dataclass(frozen=True)
class AnchorUpdate:
    """Phi at one model, over the clients whose data make the new anchors."""

    round: int
    """t + 1, from 1."""
    before: float
    """Phi(w(t+1); A(t))."""
    after: float
    """Phi(w(t+1); A(t+1))."""
    predicted: float
    """The decrease that class means must give."""

    @property
    def decrease(self) -> float:
        """Return how much the new anchors lower Phi."""
        return self.before - self.after

    @property
    def holds(self) -> bool:
        """Return whether Lemma 2 holds, up to rounding."""
        return self.decrease >= -ROUNDING * self.before

    @property
    def exact(self) -> bool:
        """Return whether the decrease is that of class means, up to rounding."""
        return abs(self.decrease - self.predicted) <= ROUNDING * self.before


def compute_digits_updates(
    piece: FedProto,
    *,
    norm: str = "none",
    participation: float = 1.0,
    rounds: int = 16,
    seed: int = 0,
) -> list[AnchorUpdate]:
    """Return every update of the anchors in a run on the digits: ten NIID-1 clients, a small CNN.

    Everything is in double precision; features and Phi are taken in evaluation mode.
    """
    digits = data.load("digits")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        sizes = {"channels": (8, 16), "features": 32}
        shape, classes = digits.shape, len(digits.classes)
        model = models.build("cnn", shape=shape, classes=classes, norm=norm, **sizes).double()
    training = Training(
        rounds=rounds + 1, participation=participation, epochs=2, batch_size=32, lr=0.1
    )
    chosen = {"partition": Partition("niid1"), "training": training, "executor": "stacked"}
    simulation = Simulation(model, digits, make_config(piece, seed=seed, **chosen))
    return list(track_updates(simulation, piece, digits.train.labels, rounds))


def track_updates(
    simulation: Simulation, piece: FedProto, labels: Tensor, rounds: int
) -> Iterator[AnchorUpdate]:
    """Run `rounds` + 1 rounds; yield a comparison of each round's anchors with those before it.

    A state holds the model after its round and the anchors from before it: w(t+1) and A(t).
    """
    fed = simulation.federation
    state, _ = run_round(simulation.start, fed)
    for _ in range(rounds):
        following, _ = run_round(state, fed)
        old, new = state.server[piece.name], following.server[piece.name]
        samples = [fed.samples[client] for client in fed.cohort(state.round)]
        before, after = compute_objective(state, fed, piece.strength, samples, old, new)
        moved = (old["anchors"] - new["anchors"]).square().sum(-1) * old["seen"]
        predicted = piece.strength * float(moved[labels[torch.cat(samples)]].mean())
        yield AnchorUpdate(state.round, before, after, predicted)
        state = following


def compute_objective(
    state: State, fed: Federation, strength: float, samples: Sequence[Tensor], old: Tree, new: Tree
) -> tuple[float, float]:
    """Return Phi at the state's model over clients' `samples`, with old and with new anchors.

    A class that had no anchor so far counts in neither.
    """
    sums = fed.executor.measure(
        state.model.map(trees.share), samples, partial(compute_losses, old=old, new=new)
    )
    total = count_samples(samples).sum()
    task, before, after = (float(sums[name].sum() / total) for name in ("task", "old", "new"))
    return task + strength * before, task + strength * after


def compute_losses(batch: Batch, old: Tree, new: Tree) -> Tree:
    """Return sums [S] of the task's loss and of the distances to old and new anchors."""
    task = F.cross_entropy(batch.logits.mT, batch.labels, reduction="none")
    known = batch.mask & old["seen"][batch.labels]
    before, after = (
        l2_guiding(batch.features, batch.labels, server["anchors"].unsqueeze(0)) * known
        for server in (old, new)
    )
    return {"task": (task * batch.mask).sum(-1), "old": before.sum(-1), "new": after.sum(-1)}
