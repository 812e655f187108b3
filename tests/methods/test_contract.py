"""Mistakes in a piece of one's own: each is refused by name, whatever runs it."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fedfm import Piece, UserError, compose
from fedfm.methods.contract import check_piece
from fedfm.rounds.round import run_round
from fedfm.verify import fixtures


def piece(**hooks) -> Piece:
    """A piece with these hooks."""
    kind: Any = type("Mine", (Piece,), {"name": "mine", **hooks})
    made: Piece = dataclass(frozen=True)(kind)()
    return made


def zeros(self, task):
    return {"seen": torch.zeros(2)}


@pytest.mark.parametrize("executor", ["loop", "stacked"])
@pytest.mark.parametrize(
    ("hooks", "words"),
    [
        (
            {"loss": lambda self, batch, held: batch.features.square().sum()},
            ["Mine.loss", "tensor []"],
        ),
        (
            {"loss": lambda self, batch, held: batch.features.square().sum(-1)},
            ["Mine.loss", ", 8]"],
        ),
        ({"loss": lambda self, batch, held: 0.5}, ["Mine.loss", "float"]),
        ({"weights": lambda self, weights, run: weights.sum()}, ["Mine.weights", "tensor []"]),
        ({"finish": lambda self, client, run, down: None}, ["Mine.finish", "nothing"]),
        (
            {"finish": lambda self, client, run, down: ({}, {"count": torch.ones(4)})},
            ["Mine.finish", "count"],
        ),
        ({"step": lambda self, server, delta, total, participation: delta}, ["Mine.step", "dict"]),
        (
            {"step": lambda self, server, delta, total, participation: (server, {})},
            ["Mine.step", "head.weight", "head.bias"],
        ),
        (
            {"step": lambda self, server, delta, total, participation: ({"m": delta}, delta)},
            ["Mine.step", "m/"],
        ),
        (
            {
                "server_state": zeros,
                "step": lambda self, s, d, total, participation: ({"seen": 3}, d),
            },
            ["Mine.step", "'seen'", "tensor [2]", "int"],
        ),
    ],
)
def test_what_hooks_give_back_is_looked_at(hooks, words, executor):
    module = fixtures.make_network("mlp", hidden=[8], norm="batch")
    fed = fixtures.make_federation(
        module, fixtures.make_images(), piece(**hooks), executor=executor
    )
    with pytest.raises(UserError) as error:
        run_round(fixtures.start(fed), fed)
    assert [word for word in words if word not in str(error.value)] == []


def test_hooks_that_nobody_would_call_are_refused():
    with pytest.raises(UserError, match=r"Mine\.corect.*'correct'"):
        compose(piece(corect=lambda self, grads, params, held: grads))
    inherited = type("Heir", (type(piece(corect=lambda self, g, p, h: g)),), {})
    with pytest.raises(UserError, match=r"Heir\.corect"):
        check_piece(inherited)
    compose(piece(weight=lambda self, x: x, strength_of=lambda self: 3.0))


def test_trees_may_be_dicts_of_any_kind_and_pairs_lists():
    def step(self, server, delta, total, participation):
        return [server, OrderedDict(delta)]

    module = fixtures.make_network("mlp", hidden=[8], norm="batch")
    fed = fixtures.make_federation(module, fixtures.make_images(), piece(step=step))
    assert run_round(fixtures.start(fed), fed)[0].round == 1


def test_states_begin_with_tensors():
    numbers = piece(server_state=lambda self, task: {"t": 0.0})
    module = fixtures.make_network("mlp", hidden=[8], norm="batch")
    fed = fixtures.make_federation(module, fixtures.make_images(), numbers)
    with pytest.raises(UserError, match=r"Mine.*'t'.*float"):
        run_round(fixtures.start(fed), fed)


def test_a_name_may_depend_on_settings():
    assert compose(piece(name=property(lambda self: "mine, 3"))).name == "mine, 3"
    with pytest.raises(UserError, match="Mine"):
        compose(piece(name=None))


@pytest.mark.parametrize(("kind", "name"), [(piece(), "Mine"), (dict, "dict")])
def test_what_is_no_method(kind, name):
    with pytest.raises(UserError, match=rf"{name}.*fedfm\.Piece"):
        check_piece(kind)
