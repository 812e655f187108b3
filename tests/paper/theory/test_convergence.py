"""Theorem 1 and Corollary 1 on the quadratic problem; every constant of it checked on its own."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedfm.paper.theory import quadratic
from fedfm.paper.theory.alternation import compute_expectation, simulate
from fedfm.paper.theory.checks import check_theory
from fedfm.paper.theory.convergence import TAUS, compute_bound
from fedfm.paper.theory.quadratic import make_problem


@pytest.fixture(scope="module")
def problem():
    return make_problem()


@pytest.fixture(scope="module")
def start(problem):
    return np.ones_like(problem.targets[0])


def gradients(problem, point):
    """All clients' gradients [K, d, m] at a point and its best anchors."""
    return point @ problem.slopes - problem.targets


def test_a_clients_gradient_is_that_of_its_loss(problem):
    rng = np.random.default_rng(0)
    x, labels, anchors = rng.normal(size=(9, 6)), np.arange(9) % 4, rng.normal(size=(4, 4))
    second, shares, means, targets = quadratic._statistics(x, np.eye(4)[labels])
    alone = quadratic.Problem(
        np.ones(1), second[None], shares[None], means[None], targets[None], 0.5, 0.2, 0.0
    )
    w = torch.tensor(rng.normal(size=(4, 6)), requires_grad=True)
    features, own = torch.tensor(x) @ w.T, torch.tensor(anchors)[labels]
    task = (features - torch.eye(4)[labels]).square().sum(1) / 2
    matching = 0.5 * (features - own).square().sum(1)
    ((task + matching).mean() + 0.1 * w.square().sum()).backward()
    pull = np.einsum("c,cd,cm->dm", shares, anchors, means)
    ours = w.detach().numpy() @ alone.hessians[0] - targets - pull
    assert w.grad is not None
    assert np.allclose(ours, w.grad.numpy(), rtol=1e-12)


def test_phi_is_least_at_its_minimiser_and_its_gradient_is_the_clients_mean(problem, start):
    assert np.allclose(problem.mean(gradients(problem, problem.best)), 0, atol=1e-12)
    towards = np.random.default_rng(0).normal(size=start.shape)
    rise = problem.value(start + 1e-5 * towards) - problem.value(start - 1e-5 * towards)
    assert rise / 2e-5 == pytest.approx(np.sum(problem.mean(gradients(problem, start)) * towards))
    assert problem.value(start) > problem.value(problem.best)


def test_dissimilarity_is_bounded_everywhere_and_no_tighter_bound_would_do(problem, start):
    constants = problem.constants(start)

    def excess(point):
        all_of_them = gradients(problem, point)
        squares = problem.mean(np.sum(all_of_them**2, (1, 2)))
        return squares - constants.beta2 * np.sum(problem.mean(all_of_them) ** 2)

    rng = np.random.default_rng(0)
    scales = 10.0 ** rng.uniform(-3, 2, 500)
    points = problem.best + scales[:, None, None] * rng.normal(size=(500, *start.shape))
    assert max(map(excess, points)) <= constants.kappa2
    assert excess(problem.best) > 0.5 * constants.kappa2 > 0
    assert constants.beta2 > 1
    assert constants.smoothness == pytest.approx(1)


@pytest.mark.parametrize("tau", TAUS)
def test_a_run_without_noise_is_its_expectation(problem, start, tau):
    settings = {"rounds": 30, "tau": tau, "rate": 0.04}
    quiet = replace(problem, sigma=0.0)
    exact, deviation = compute_expectation(quiet, start, **settings)
    assert np.allclose(simulate(quiet, start, repeats=2, **settings).T, exact, rtol=1e-9)
    assert not deviation.any()


def test_runs_depend_on_the_seed_alone(problem, start):
    def runs(seed):
        return simulate(problem, start, rounds=5, tau=2, rate=0.1, repeats=3, seed=seed)

    assert np.array_equal(runs(1), runs(1))
    assert not np.array_equal(runs(1), runs(2))


def test_the_bound_holds_in_every_cell_and_runs_agree_with_the_expectation(found):
    assert len(found.fixed) == 20
    assert len(found.shrinking) == 17
    for cell in (*found.fixed, *found.shrinking):
        assert cell.smallest <= cell.average <= cell.bound.total
        assert cell.agrees


def test_without_its_noise_or_its_start_the_bound_is_violated(found):
    cells = found.fixed
    assert any(c.smallest > c.bound.start + c.bound.drift for c in cells)
    assert any(c.average > c.bound.total - c.bound.start for c in cells)


def test_without_its_drift_the_bound_is_violated(problem):
    quiet, near = replace(problem, sigma=0.0), problem.best + 0.02
    constants = quiet.constants(near)
    for tau in (2, 5, 10):
        settings = {"rounds": 1000, "tau": tau, "rate": constants.largest_rate(tau)}
        limit, smallest = (
            compute_bound(constants, **settings),
            compute_expectation(quiet, near, **settings)[0].min(),
        )
        assert limit.total - limit.drift < smallest <= limit.total


def test_noise_that_clients_share_breaks_the_bound(problem, start):
    constants = problem.constants(start)
    settings = {"rounds": 1000, "tau": 1, "rate": constants.largest_rate(1)}
    smallest = compute_expectation(problem, start, shared_noise=True, **settings)[0].min()
    together = compute_bound(replace(constants, spread=1.0), **settings).total
    assert compute_bound(constants, **settings).total < smallest <= together


def test_the_report_passes_and_can_fail(found):
    assert found.passed
    assert {row.check for row in found.rows} == {"Lemma 2", "Theorem 1", "Corollary 1", "rate in T"}
    high = [replace(each, average=10.0) for each in found.fixed]
    assert not replace(found, fixed=high).passed
    flat = [replace(each, smallest=1.0) for each in found.shrinking]
    assert not replace(found, shrinking=flat).passed


def test_the_report_draws_only_where_asked(found, monkeypatch):
    assert found.picture.name == "theory.png"
    assert found.picture.read_bytes().startswith(b"\x89PNG")
    for check in ("checks.compute_digits_updates", "convergence.check_bounds"):
        monkeypatch.setattr(f"fedfm.paper.theory.{check}", lambda *_, **__: [])
    assert check_theory().picture is None
