"""Corrections as a part of the step: which are linear, and what they are one by one."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fedfm.core import trees
from fedfm.core.trees import Tree
from fedfm.engine.corrections import Linear, find_linear_correction
from fedfm.engine.layout import copy_arranged
from fedfm.engine.objective import Objective
from fedfm.engine.update import Clock, update
from fedfm.methods import FedAvg, FedCM, FedDyn, FedFM, FedProx, Piece, Scaffold
from fedfm.optim import Sgd
from fedfm.rounds.round import open_round
from fedfm.verify import fixtures

SGD = Sgd(0.1, 0.9, 1e-3)
CLIENTS = 4
G: Any = Linear(1.0, 0.0)
P: Any = Linear(0.0, 1.0)


def random(like: Tree) -> Tree:
    return trees.tree_map(lambda leaf: copy_arranged(torch.randn(leaf.shape)), like)


def job(*pieces: Piece) -> tuple[Objective, Tree]:
    """What pieces hold, with random values, and random parameters [S, ...]."""
    torch.manual_seed(0)
    module, data = fixtures.make_network(), fixtures.make_images()
    fed = fixtures.make_federation(module, data, *pieces)
    state = fixtures.start(fed)
    objective = open_round(state, fed).job.objective
    params = trees.repeat(state.model.map(trees.share).params, CLIENTS)
    return Objective(objective.pieces, random(objective.held)), random(params)


def test_without_corrections_nothing_is_added():
    correction = find_linear_correction(*job(FedAvg(), FedFM(start_round=0)))
    assert correction is not None
    assert (correction.decay, correction.constants, correction.factor) == (0.0, {}, 1.0)


@dataclass(frozen=True)
class Clipped(Piece):
    """Looks at the gradient's size."""

    name = "clipped"

    def correct(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        return trees.tree_map(lambda g: g.clamp(-1, 1), grads)


@dataclass(frozen=True)
class Halved(Clipped):
    """A factor on the gradient, and a decay."""

    def correct(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        return trees.tree_map(lambda g, p: g / 2 + 3 * p, grads, params)


@dataclass(frozen=True)
class Halves(Clipped):
    """Another factor for every leaf."""

    def correct(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        return {name: g / (2 + i) for i, (name, g) in enumerate(grads.items())}


@dataclass(frozen=True)
class Uneven(Clipped):
    """Another decay for every leaf."""

    def correct(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        return {name: g + i * params[name] for i, (name, g) in enumerate(grads.items())}


@dataclass(frozen=True)
class Forgetful(Clipped):
    """The gradient does not matter."""

    def correct(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        return dict.fromkeys(grads, 0.0)


@pytest.mark.parametrize(
    "pieces",
    [
        (Scaffold(),),
        (FedProx(mu=0.5),),
        (FedDyn(alpha=0.3),),
        (FedProx(mu=0.5), Scaffold()),
        (Halved(), Scaffold()),
        (FedCM(alpha=0.3),),
    ],
    ids=lambda pieces: "+".join(piece.name for piece in pieces),
)
def test_one_pass_is_the_corrections_and_the_update(pieces):
    objective, ours = job(*pieces)
    theirs = trees.tree_map(copy_arranged, ours)
    momenta, velocities = ({"momentum": trees.tree_map(torch.zeros_like, ours)} for _ in range(2))
    clock = Clock(SGD, (), torch.device("cpu"))
    correction = find_linear_correction(objective, ours)
    assert correction
    for _ in range(3):
        grads = random(ours)
        how = correction.into(SGD), clock, correction.constants, correction.factor
        update(ours, grads, momenta, {}, *how)
        update(theirs, objective.correct(grads, theirs), velocities, {}, SGD, clock)
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name])


@pytest.mark.parametrize("piece", [Clipped(), Halves(), Uneven(), Forgetful()])
def test_what_is_not_a_factor_a_decay_and_a_constant_is_left_alone(piece):
    assert find_linear_correction(*job(piece)) is None


def test_the_arithmetic_of_linear_expressions():
    tensor = torch.tensor([1.0, 2.0])
    found = torch.sub(3 * (G - P), tensor) + (tensor - G) * 2 - P / 4 + 1 + torch.add(tensor, P)
    assert (found.gradient, found.param) == (1.0, -2.25)
    assert torch.equal(torch.as_tensor(found.constant), 2 * tensor + 1)


@pytest.mark.parametrize(
    "nonlinear",
    [
        lambda: G * P,
        lambda: G * torch.ones(2),
        lambda: torch.ones(2) * G,
        lambda: torch.ones(2) / G,
        lambda: torch.add(torch.ones(2), G, alpha=2),
        lambda: torch.sign(G),
        lambda: G.norm(),
        lambda: G > 0,
    ],
)
def test_what_is_not_linear_is_refused(nonlinear):
    with pytest.raises((TypeError, AttributeError)):
        nonlinear()
