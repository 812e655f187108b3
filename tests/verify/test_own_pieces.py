"""A piece of the user's own: good ones pass, and each kind of bad one is caught."""

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from fedfm.core.trees import tree_map
from fedfm.methods import PIECES, FedDyn, FedFM, FedProx, Piece, Scaffold
from fedfm.verify import verify, verify_all
from fedfm.verify.checks import CHECKS
from fedfm.verify.suite import run_check

CALLS = itertools.count(1)


@dataclass(frozen=True)
class Shrinking(Piece):
    """A good piece with a state on both sides: the server's step shrinks round by round."""

    name = "shrinking"
    mu: float = 0.1

    def server_state(self, task):
        return {"scale": next(iter(task.params.values())).new_ones(())}

    def client_state(self, task):
        return {"visits": next(iter(task.params.values())).new_zeros(())}

    def finish(self, client, run, down):
        return {}, {"visits": client["visits"] + 1}

    def step(self, server, delta, up, fraction):
        scale = server["scale"] * (1 - self.mu)
        return {"scale": scale}, tree_map(lambda d: scale * d, delta)


@dataclass(frozen=True)
class MixesGradients(Shrinking):
    """Every client steps along the cohort's mean gradient."""

    def correct(self, grads, params, held):
        return tree_map(lambda g: g + self.mu * g.mean(0, keepdim=True), grads)


@dataclass(frozen=True)
class MixesStates(Shrinking):
    """A client counts the visits of others."""

    def finish(self, client, run, down):
        return {}, {"visits": client["visits"] + len(run.steps)}


@dataclass(frozen=True)
class Remembers(Shrinking):
    """Keeps a count on the piece itself, where no checkpoint finds it."""

    hidden: list[float] = field(default_factory=list)

    def step(self, server, delta, up, fraction):
        self.hidden.append(1.0)
        return server, tree_map(lambda d: d / len(self.hidden), delta)


@dataclass(frozen=True)
class RemembersGlobally(Shrinking):
    """Keeps a count in the module."""

    def step(self, server, delta, up, fraction):
        count = next(CALLS)
        return server, tree_map(lambda d: d / count, delta)


@dataclass(frozen=True)
class ChangesItsInput(Shrinking):
    """Works on the state in place."""

    def step(self, server, delta, up, fraction):
        server["scale"].mul_(1 - self.mu)
        return server, tree_map(lambda d: server["scale"] * d, delta)


@dataclass(frozen=True)
class FirstComesFirst(Shrinking):
    """The first of the cohort counts double."""

    def weights(self, weights, up):
        double = torch.ones_like(weights)
        double[0] = 2
        return weights * double


@dataclass(frozen=True)
class Explodes(Shrinking):
    """One NaN in a state."""

    def step(self, server, delta, up, fraction):
        return {"scale": server["scale"] / 0 * 0}, delta


@dataclass(frozen=True)
class SendsWhatItLikes(Shrinking):
    """Messages whose size depends on the values."""

    def finish(self, client, run, down):
        sent = {"extra": run.end.params["head.bias"].repeat(1, 1 + int(run.steps.max() > 2))}
        return sent, super().finish(client, run, down)[1]


def test_a_good_piece_passes():
    report = verify(Shrinking())
    assert report.passed, report
    assert {"zero strength", "resume", "costs"} <= {row.check for row in report.rows}
    assert not any(row.check.startswith("textbook") for row in report.rows)


@pytest.mark.parametrize(
    ("piece", "check"),
    [
        (MixesGradients(), "cohorts of one"),
        (MixesStates(), "cohorts of one"),
        (Remembers(), "resume"),
        (Remembers(), "pure"),
        (RemembersGlobally(), "pure"),
        (ChangesItsInput(), "pure"),
        (FirstComesFirst(), "renumbering"),
        (Explodes(), "finite"),
        (SendsWhatItLikes(), "costs"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Piece) else value,
)
def test_a_bad_piece_is_caught(piece, check):
    row = run_check(piece.name, CHECKS[check], (piece,))
    assert row is not None
    assert not row.passed


def test_a_piece_is_covered_by_registering_it(monkeypatch):
    monkeypatch.setitem(PIECES, "shrinking", Shrinking)
    report = verify_all(["shrinking"])
    assert report.passed, report
    assert {row.method for row in report.rows} == {"shrinking"}


def test_checking_a_piece_leaves_it_as_it_was():
    piece = Remembers()
    verify(piece)
    assert piece.hidden == []


def test_a_subclass_under_another_name_is_not_held_to_the_textbook():
    kind: Any = type("Stronger", (FedProx,), {"name": "stronger"})
    assert all("textbook" not in row.check for row in verify(kind()).rows)


def test_compositions_are_checked_too():
    report = verify([FedProx(mu=0.1), FedFM(strength=1.0)])
    assert report.passed, report
    assert {row.method for row in report.rows} == {"fedprox+fedfm"}


def test_pieces_that_contradict_each_other_are_reported_not_raised():
    report = verify([Scaffold(), FedDyn()])
    assert not report.passed
    assert all(name in report.failures[0].why for name in ("scaffold", "feddyn"))


def test_nothing_to_check_is_no_pass():
    assert not verify([]).passed


def test_a_piece_that_raises_is_reported():
    class Raises(Shrinking):
        def loss(self, batch, held):
            raise RuntimeError("[/no] luck")

    report = verify(Raises())
    reasons = {row.why for row in report.failures}
    start = "RuntimeError: [/no] luck (test_own_pieces.py, line "
    assert any(why.startswith(start) for why in reasons)
    assert any(why.endswith(", in loss)") for why in reasons)
    assert "luck" in str(report)
