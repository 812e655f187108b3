"""Corrections and update compiled into one pass: what they are one by one, for any cohort."""

from functools import partial

import pytest
import torch

from fedfm.algorithms import FedAvg, FedDyn, FedFM, FedProx, Scaffold
from fedfm.core import trees
from fedfm.core.rounds import opened
from fedfm.core.sgd import Sgd
from fedfm.core.trees import Tree
from fedfm.engine.fusion import corrects, fused
from fedfm.engine.layout import owned
from fedfm.engine.update import update
from tests import worlds

SGD = Sgd(0.1, 0.9, 1e-3)


@pytest.fixture(autouse=True)
def traced(monkeypatch):
    """Everything of the compiler but its code generation, which wants a C++ compiler."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))


def test_who_corrects_the_gradient():
    assert corrects([FedAvg(), Scaffold()])
    assert corrects([FedProx()])
    assert corrects([FedDyn()])
    assert not corrects([FedAvg(), FedFM()])


def random(like: Tree) -> Tree:
    return trees.tree_map(lambda leaf: owned(torch.randn_like(leaf)), like)


@pytest.mark.parametrize("pieces", [(Scaffold(),), (FedProx(mu=0.5),), (FedDyn(alpha=0.3),)])
def test_one_pass_is_the_corrections_and_the_update(pieces):
    torch.manual_seed(0)
    module, data = worlds.network(), worlds.images()
    fed = worlds.federation(module, data, *pieces)
    held = random(opened(worlds.start(module, fed), fed).job.objective.held)
    finish = fused(pieces, SGD)
    for clients in (4, 3, 2, 1):
        some = trees.rows(held, slice(0, clients))
        params = random(worlds.start(module, fed).model.map(trees.share).params)
        params = trees.tree_map(
            lambda leaf, n=clients: owned(leaf.repeat(n, *[1] * (leaf.ndim - 1))), params
        )
        ours, theirs = random(params), {}
        theirs = trees.tree_map(owned, ours)
        momenta, velocities = (trees.tree_map(torch.zeros_like, params) for _ in range(2))
        lowered = {name: owned(leaf.bfloat16()) for name, leaf in ours.items() if leaf.ndim > 2}
        for _ in range(3):
            grads = random(params)
            finish(ours, grads, momenta, lowered, some)
            for piece in pieces:
                grads = piece.correct(grads, theirs, some[piece.name])
            update(theirs, grads, velocities, {}, SGD)
        for name, value in ours.items():
            torch.testing.assert_close(value, theirs[name])
        for name, low in lowered.items():
            assert torch.equal(low, ours[name].bfloat16())
