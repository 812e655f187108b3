"""Cohorts of captured steps: when they are used again, what is captured, what happens if not."""

import logging
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.engine import graphs
from fedfm.engine.cohort import TrainingJob
from fedfm.engine.objective import Objective
from fedfm.methods import FedAvg, FedFM, FedProx, Moon, Scaffold
from fedfm.rounds.round import run_round
from tests.engine import test_graphs
from tests.engine.test_graphs import FM, after, assert_same, cohorts, world

captured = test_graphs.captured


# --- Which cohorts are used again -----------------------------------------------------------------


def test_a_piece_that_sets_in_later_gets_a_cohort_of_its_own(captured):
    pieces = (FedProx(), FedFM(strength=1.0, start_round=2))
    state, used = cohorts(5, *pieces)
    assert [cohort is used[0] for cohort in used] == [True, True, False, False, False]
    assert used[2] is used[3] is used[4]
    assert_same(state, after(5, *pieces, executor="loop"))


@pytest.mark.parametrize("piece", [FM, Scaffold(), Moon(mu=0.5)], ids=lambda piece: piece.name)
def test_other_clients_use_the_same_cohort_and_capture_what_is_new(captured, piece):
    state, used = cohorts(5, piece, participation=0.5)
    assert len(set(map(id, used))) == 1
    assert len(set(captured)) == len(captured) > 1
    assert_same(state, after(5, piece, executor="loop", participation=0.5))


def test_a_cohort_fits_the_same_pieces_sgd_clients_and_shapes_alone(captured):
    fed, state = world(FM)
    run_round(state, fed)
    cohort, sgd = fed.executor.cohorts[-1], fed.training.optimizer
    pieces, held = cohort.objective.pieces, cohort.objective.held
    plans = [fed.plan(1, client) for client in range(4)]

    def fits(objective, sgd, clients):
        return cohort.fits(TrainingJob(state.model, plans[:clients], objective, sgd))

    assert fits(Objective(list(pieces), trees.tree_map(torch.zeros_like, held)), sgd, 4)
    assert not fits(Objective([replace(FM, strength=2.0)], held), sgd, 4)
    assert not fits(Objective([], {}), sgd, 4)
    assert not fits(Objective(pieces, held), replace(sgd, lr=0.1), 4)
    assert not fits(Objective(pieces, held), sgd, 3)
    assert not fits(Objective(pieces, trees.repeat(held, 4)), sgd, 4)
    assert not fits(Objective(pieces, trees.tree_map(Tensor.half, held)), sgd, 4)


def test_whatever_does_not_fit_is_trained_right_after_what_did(captured):
    """One executor, asked for four clients, three, the four with another SGD, and the first again.

    Every outcome is that of an executor of its own.
    """
    fed, state = world(FedAvg())
    start, sgd = state.model.map(trees.share), fed.training.optimizer
    plans, nothing = [fed.plan(0, k) for k in range(4)], Objective((), {})
    for some, how in ((4, sgd), (3, sgd), (4, replace(sgd, momentum=0.5)), (4, sgd)):
        job = TrainingJob(start, plans[:some], nothing, how)
        ours = fed.executor.train(job)
        fresh, _ = world(FedAvg(), executor="loop")
        theirs = fresh.executor.train(job)
        for name, value in ours.model.params.items():
            torch.testing.assert_close(value, theirs.model.params[name], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(ours.loss, theirs.loss, rtol=1e-9, atol=1e-9)


# --- What is captured -----------------------------------------------------------------------------


def test_blocks_that_are_too_short_run_as_they_are(captured, monkeypatch):
    """Two epochs of 23, 10, 5 and 16 samples in batches of 8: 4, 2, 2 and 4 steps."""
    monkeypatch.setattr(graphs, "MIN_STEPS", 3)
    state = after(3, FedAvg())
    assert captured == []
    assert_same(state, after(3, FedAvg(), executor="loop"))
    monkeypatch.setattr(graphs, "MIN_STEPS", 2)
    state = after(3, FedAvg())
    assert captured == [(0, 3, 8), (3, 4, 5), (0, 2, 8)]
    assert_same(state, after(3, FedAvg(), executor="loop"))


def test_single_steps_that_come_again_in_the_next_epoch_are_captured(captured, monkeypatch):
    """With last batches of 7, 2 and 5 samples hardly any two steps in a row are alike."""
    monkeypatch.setattr(graphs, "MIN_STEPS", 2)
    state = after(3, FedAvg(), keep_last=True)
    assert captured == [(3, 4, 5), (0, 1, 8), (1, 2, 2), (2, 3, 8), (0, 1, 7)]
    assert_same(state, after(3, FedAvg(), executor="loop", keep_last=True))


def test_there_are_only_so_many_graphs(captured, monkeypatch):
    monkeypatch.setattr(graphs, "MAX_GRAPHS", 2)
    state = after(3, FedAvg())
    assert captured == [(0, 3, 8), (3, 4, 5)]
    assert_same(state, after(3, FedAvg(), executor="loop"))


def test_what_cannot_be_captured_takes_plain_steps_and_says_so_once(monkeypatch, caplog):
    def fails(part, block, pool):
        part(block.indices[:, 0], None)
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graphs, "capture_step", fails)
    monkeypatch.setattr(graphs, "MIN_STEPS", 1)
    with caplog.at_level(logging.WARNING):
        state = after(4, Scaffold())
    assert [record.message for record in caplog.records] == [
        "steps are not captured as graphs: operation not permitted when stream is capturing"
    ]
    assert_same(state, after(4, Scaffold(), executor="loop"))


def test_memory_that_runs_out_while_capturing_splits_the_cohort(monkeypatch, captured, caplog):
    works = graphs.capture_step

    def hungry(part, block, pool):
        if len(part.cohort.losses) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB. GPU 0 has 1")
        return works(part, block, pool)

    monkeypatch.setattr(graphs, "capture_step", hungry)
    state = after(3, Moon(mu=0.5))
    (message,) = caplog.messages
    assert "4 clients" in message
    assert captured
    assert_same(state, after(3, Moon(mu=0.5), executor="loop"))
