"""FedAdagrad, FedAdam, FedYogi: their steps by hand, their limits, what they refuse."""

from math import sqrt

import pytest
import torch

from fedfm import FedFM, UserError, compose
from fedfm.methods import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedYogi,
    Model,
    Participation,
    Task,
)
from fedfm.verify.checks import same_model
from fedfm.verify.fixtures import SmallFederation

KINDS = [FedAdagrad, FedAdam, FedYogi]
TASK = Task(Model({"w": torch.zeros(2, dtype=torch.float64)}, {}), classes=2, features=1)
ALL = Participation(2, 2, torch.tensor(2.0), torch.tensor(2.0))
LR, B1, B2, TAU = 0.5, 0.75, 0.875, 0.25


def grow(kind, v, d):
    if kind is FedAdagrad:
        return v + d * d
    if kind is FedAdam:
        return B2 * v + (1 - B2) * d * d
    return v - (1 - B2) * d * d * (1 if v > d * d else -1 if v < d * d else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_three_steps_by_hand(kind):
    piece = kind(lr=LR, beta1=B1, tau=TAU, **({} if kind is FedAdagrad else {"beta2": B2}))
    server, m, v = piece.server_state(TASK), [0.0, 0.0], [TAU**2, TAU**2]
    for change in ([2.0, -0.125], [-1.0, 0.25], [0.5, 4.0]):
        delta = {"w": torch.tensor(change, dtype=torch.float64)}
        server, step = piece.step(server, delta, {}, ALL)
        m = [B1 * old + (1 - B1) * d for old, d in zip(m, change, strict=True)]
        v = [grow(kind, old, d) for old, d in zip(v, change, strict=True)]
        expected = [LR * a / (sqrt(b) + TAU) for a, b in zip(m, v, strict=True)]
        torch.testing.assert_close(step["w"].tolist(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_large_tau_gives_fedavg(kind):
    """With changes far below tau, v stays tau^2, or shrinks by beta_2 in FedAdam."""
    tau, small = 1e9, SmallFederation("tiny cnn with batch norm")
    shrunk = sqrt(B2) if kind is FedAdam else 1.0
    more = {} if kind is FedAdagrad else {"beta2": B2}
    ours = small.play((kind(lr=tau * (1 + shrunk), beta1=0.0, tau=tau, **more),), 1)
    same_model(ours.model, small.play((FedAvg(),), 1).model, 1e-12)


def test_statistics_of_batch_norm_are_averaged_as_in_fedavg():
    small = SmallFederation("tiny cnn with batch norm")
    ours, plain = (small.play((piece,), 1).model for piece in (FedAdam(), FedAvg()))
    assert all(torch.equal(ours.buffers[name], leaf) for name, leaf in plain.buffers.items())
    assert any(not torch.equal(ours.params[name], leaf) for name, leaf in plain.params.items())


@pytest.mark.parametrize("executor", ["loop", "stacked"])
@pytest.mark.parametrize("kind", KINDS)
def test_feature_matching_on_top(kind, executor):
    state = SmallFederation(executor=executor).play((kind(), FedFM(strength=1.0, start_round=0)), 2)
    assert all(leaf.isfinite().all() for leaf in state.model.params.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("key", "value"), [("lr", 0.0), ("tau", 0.0), ("beta1", 1.0), ("beta2", -0.1)]
)
def test_settings_outside_their_range_are_refused(kind, key, value):
    if key in kind.__dataclass_fields__:
        with pytest.raises(UserError, match=f"{kind.name}: {key}"):
            kind(**{key: value})


@pytest.mark.parametrize("other", [FedAvgM(), FedYogi()])
def test_one_optimizer_is_at_the_server(other):
    with pytest.raises(UserError, match=f"{other.name} and fedadam"):
        compose([other, FedAdam()])
