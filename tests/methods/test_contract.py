"""Mistakes in a piece of one's own: each is refused by name, whatever runs it."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fedfm import Piece, UserError, compose
from fedfm.methods.contract import check_piece
from fedfm.rounds.round import run_round
from fedfm.verify import worlds


def piece(**hooks) -> Piece:
    """A piece with these hooks."""
    kind: Any = type("Mine", (Piece,), {"name": "mine", **hooks})
    made: Piece = dataclass(frozen=True)(kind)()
    return made


def zeros(self, task):
    return {"seen": torch.zeros(2)}


@pytest.mark.parametrize("executor", ["loop", "stacked"])
@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        (
            {"loss": lambda self, batch, held: batch.features.square().sum()},
            r"Mine\.loss must return a number for each client.* but returned a tensor \[\]",
        ),
        (
            {"loss": lambda self, batch, held: batch.features.square().sum(-1)},
            r"Mine\.loss .* but returned a tensor \[\d, 8\]",
        ),
        ({"loss": lambda self, batch, held: 0.5}, r"Mine\.loss .* but returned a float"),
        (
            {"weights": lambda self, weights, run: weights.sum()},
            r"Mine\.weights .* but returned a tensor \[\]",
        ),
        (
            {"finish": lambda self, client, run, down: None},
            r"Mine\.finish must return two trees, .* but returned nothing",
        ),
        (
            {"finish": lambda self, client, run, down: ({}, {"count": torch.ones(4)})},
            r"Mine\.finish must return a client's state .* not count",
        ),
        (
            {"step": lambda self, server, delta, total, turnout: delta},
            r"Mine\.step must return two trees, .* but returned a dict",
        ),
        (
            {"step": lambda self, server, delta, total, turnout: (server, {})},
            r"Mine\.step must return a step with key .*, which is missing",
        ),
        (
            {"step": lambda self, server, delta, total, turnout: ({"m": delta}, delta)},
            r"Mine\.step must return the server's state .* not m/",
        ),
        (
            {"server_state": zeros, "step": lambda self, s, d, total, turnout: ({"seen": 3}, d)},
            r"Mine\.step .* with 'seen' a tensor \[2\], but it is a int",
        ),
    ],
)
def test_what_hooks_give_back_is_looked_at(hooks, said, executor):
    module = worlds.make_network("mlp", hidden=[8], norm="batch")
    fed = worlds.make_federation(module, worlds.make_images(), piece(**hooks), executor=executor)
    with pytest.raises(UserError, match=said):
        run_round(worlds.start(fed), fed)


def test_hooks_that_nobody_would_call_are_refused():
    with pytest.raises(UserError, match=r"Mine\.corect is not a hook: did you mean 'correct'\?"):
        compose(piece(corect=lambda self, grads, params, held: grads))
    inherited = type("Heir", (type(piece(corect=lambda self, g, p, h: g)),), {})
    with pytest.raises(UserError, match=r"Heir\.corect is not a hook"):
        check_piece(inherited)
    compose(piece(weight=lambda self, x: x, strength_of=lambda self: 3.0))


def test_trees_may_be_dicts_of_any_kind_and_pairs_lists():
    def step(self, server, delta, total, turnout):
        return [server, OrderedDict(delta)]

    module = worlds.make_network("mlp", hidden=[8], norm="batch")
    fed = worlds.make_federation(module, worlds.make_images(), piece(step=step))
    assert run_round(worlds.start(fed), fed)[0].round == 1


def test_states_begin_with_tensors():
    numbers = piece(server_state=lambda self, task: {"t": 0.0})
    module = worlds.make_network("mlp", hidden=[8], norm="batch")
    fed = worlds.make_federation(module, worlds.make_images(), numbers)
    with pytest.raises(UserError, match="Mine must hold tensors, but 't' is a float"):
        run_round(worlds.start(fed), fed)


def test_a_name_may_depend_on_settings():
    assert compose(piece(name=property(lambda self: "mine, 3"))).name == "mine, 3"
    with pytest.raises(UserError, match="Mine has no name"):
        compose(piece(name=None))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (piece(), r"is not a method: a method is a class derived from fedfm\.Piece"),
        (dict, r"dict is not a method"),
    ],
)
def test_what_is_no_method(kind, said):
    with pytest.raises(UserError, match=said):
        check_piece(kind)
