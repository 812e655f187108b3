"""FedCM: by hand on a quadratic, its limit, its stability, what it sends and refuses."""

from dataclasses import replace

import pytest
import torch

from fedfm import FedFM, UserError, compose
from fedfm.engine.networks import copy_model
from fedfm.methods import FedAvg, FedCM, FedPer, Scaffold
from fedfm.rounds.costs import measure_cost
from fedfm.verify.checks import same, same_model
from fedfm.verify.fixtures import CLASSES, SmallFederation, rounds_for
from fedfm.verify.quadratics import (
    SIZES,
    STEPS,
    flatten_model,
    make_problem,
    make_systems,
    train_quadratic,
)

NORM = SmallFederation("tiny cnn with batch norm")
SHARES = [size / sum(SIZES) for size in SIZES]


def weights(numbers: list[float]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_three_rounds_on_a_quadratic_by_hand():
    alpha, lr, curvatures, rights = 0.3, 0.1, *make_systems()
    x = flatten_model(copy_model(make_problem()[0]))
    direction = torch.zeros_like(x)
    for _ in range(3):
        ends = []
        for a, b, steps in zip(curvatures, rights, STEPS, strict=True):
            y = x
            for _ in range(steps):
                y = y - lr * (alpha * (a @ y - b) + (1 - alpha) * direction)
            ends.append(y)
        rates = [p / (lr * steps) for p, steps in zip(SHARES, STEPS, strict=True)]
        stacked = torch.stack(ends)
        direction = torch.einsum("i,iab->ab", weights(rates), x - stacked)
        x = torch.einsum("i,iab->ab", weights(SHARES), stacked)
    same({"V": train_quadratic((FedCM(alpha=alpha),), 3, lr)}, {"V": x}, 1e-11)


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_with_alpha_one_it_is_fedavg(executor):
    small = replace(NORM, executor=executor)
    ours, plain = (small.play((piece,), 3).model for piece in (FedCM(alpha=1.0), FedAvg()))
    same_model(ours, plain, 1e-12)


def test_local_momentum_does_not_make_the_direction_grow():
    """Divided by K_i, V would grow by up to 1 / (1 - rho) in every round."""
    small = SmallFederation(participation=1.0, momentum=0.9, epochs=20, lr=0.001, weight_decay=0.0)
    sizes = []
    for rounds in (2, 12):
        direction = small.play((FedCM(alpha=0.1),), rounds).server["fedcm"]["direction"]
        sizes.append(max(float(leaf.abs().max()) for leaf in direction.values()))
    assert sizes[1] < 10 * sizes[0]


def test_two_models_go_up_and_down():
    ours, plain = (
        measure_cost(compose(piece), NORM.module, CLASSES, 8) for piece in (FedCM(), FedAvg())
    )
    size = plain.memory
    assert (ours.memory, ours.floats_up, ours.floats_down) == (2 * size, 2 * size, 2 * size)
    assert ours.handshakes == plain.handshakes


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_feature_matching_on_top(executor):
    pieces = FedCM(), FedFM(strength=1.0, start_round=0)
    state = replace(NORM, executor=executor).play(pieces, rounds_for(pieces))
    assert all(leaf.isfinite().all() for leaf in state.model.params.values())


@pytest.mark.parametrize("other", [Scaffold(), FedPer()])
def test_contradictions_are_refused(other):
    with pytest.raises(UserError, match=r"fedcm|scaffold"):
        compose([FedCM(), other])


@pytest.mark.parametrize("alpha", [0.0, 1.1])
def test_settings_outside_their_range_are_refused(alpha):
    with pytest.raises(UserError, match="fedcm: alpha"):
        FedCM(alpha=alpha)
