"""Gradients beside the weights, by hand and in the limits in which they are something else."""

import pytest
import torch

from fedfm.verify.checks import Mismatch
from fedfm.verify.fixtures import SmallFederation
from fedfm.verify.textbook.drift import FedDyn
from fedfm.verify.textbook.loop import FedAvg
from fedfm.verify.textbook.server_optimizers import FedCM
from fedfm.verify.textbook.sharpness import FedSAM, FedSMOO, FedSpeed, MoFedSAM
from tests.verify.points import (
    ASKEW,
    FIVE_AWAY,
    FOUR,
    ORIGIN,
    agree,
    build,
    client,
    in_world,
    play,
    where,
)


def test_two_steps_of_fedsam_share_one_norm_over_both_parameters():
    """G = -(3, 4), e = -(0.6, 0.8): to (1.8, 2.4); g = -(1.2, 1.6), the same e: to (2.7, 3.6)."""
    method = build(FedSAM, radius=1.0)
    method.round([client("one", FIVE_AWAY, steps=2)])
    assert where(method) == pytest.approx([2.7, 3.6], abs=1e-12)


def test_a_step_of_adaptive_fedsam():
    """From (3, 0): T = (4, 1), g = -(0.75, 4), T g = -(3, 4), e = -(4 * 0.6, 0.8)."""
    method = build(FedSAM, at=(3.0, 0.0), radius=1.0, adaptive=1.0)
    method.round([client("one", ASKEW)])
    assert where(method) == pytest.approx([3 + 3.15 / 2, 4.8 / 2], abs=1e-12)


def test_where_the_gradient_is_zero_there_is_no_offset():
    method = build(FedSAM, radius=1.0)
    method.round([client("one", ORIGIN)])
    assert where(method) == [0, 0]


@pytest.mark.parametrize("adaptive", [0.0, 0.2])
def test_without_radius_fedsam_is_fedavg(adaptive):
    agree(play(in_world(FedSAM, radius=0.0, adaptive=adaptive)), play(in_world(FedAvg)))
    with pytest.raises(Mismatch):
        agree(play(in_world(FedSAM, adaptive=adaptive)), play(in_world(FedAvg)), 1e-4)


@pytest.mark.parametrize("kind", [FedSAM, MoFedSAM, FedSpeed, FedSMOO])
def test_statistics_of_batch_norm_are_those_of_the_first_pass(kind):
    """At rate 0 the first passes are FedAvg's, wherever the second ones are."""
    still = SmallFederation("tiny cnn with batch norm", lr=1e-30)
    ours, plain = (play(in_world(k, still), 1, still).model for k in (kind, FedAvg))
    expected = dict(plain.named_buffers())
    assert any(not torch.equal(expected[n], b) for n, b in still.module.named_buffers())
    for name, buffer in ours.named_buffers():
        torch.testing.assert_close(buffer, expected[name], rtol=0, atol=1e-12)


def test_two_rounds_of_mofedsam():
    """G + e = -5, so the step goes along -2.5: to 1.25, V = -2.5; then -0.5 * 3.75 - 1.25."""
    method = build(MoFedSAM, radius=1.0, alpha=0.5)
    method.round([client("one", FOUR)])
    assert where(method) == pytest.approx([1.25, 0], abs=1e-12)
    method.round([client("one", FOUR)])
    assert where(method) == pytest.approx([2.8125, 0], abs=1e-12)


def test_limits_of_mofedsam():
    agree(play(in_world(MoFedSAM, radius=0.0, alpha=0.3)), play(in_world(FedCM, alpha=0.3)))
    agree(play(in_world(MoFedSAM, alpha=1.0)), play(in_world(FedSAM)))


@pytest.mark.parametrize(("over_all", "end"), [(False, 5.625), (True, 4.21875)])
def test_two_rounds_of_fedspeed(over_all, end):
    """Far: -(4 + 5) / 2, to 2.25, h = -1.125, amended 4.5; near: 0. So a = 2.25, plainly averaged.

    Far alone: -(1.75 + 2.75) / 2 + 1.125 = -1.125, to 2.8125, h = -1.40625, amended 5.625. Over all
    clients h has the mean -0.703125: 2.8125 + 0.703125 / 0.5.
    """
    far, near = client("far", FOUR, samples=3), client("near", ORIGIN)
    method = build(FedSpeed, strength=0.5, radius=1.0, mix=0.5, over_all=over_all)
    method.round([far, near])
    assert where(method) == pytest.approx([2.25, 0], abs=1e-12)
    method.round([far])
    assert where(method) == pytest.approx([end, 0], abs=1e-12)


def test_fedspeed_pulls_to_the_received_model_within_a_round():
    """Without sharpness: to 2, then along (2 - 4) + 0.5 * 2, to 2.5; amended 5."""
    method = build(FedSpeed, strength=0.5, radius=0.0)
    method.round([client("far", FOUR, steps=2)])
    assert where(method) == pytest.approx([5.0, 0], abs=1e-12)


def test_the_public_form_of_fedspeed_without_radius_is_feddyn():
    plain = play(in_world(FedDyn, alpha=0.1))
    agree(play(in_world(FedSpeed, strength=0.1, radius=0.0, over_all=True)), plain)
    agree(play(in_world(FedSpeed, strength=0.1, mix=0.0, over_all=True)), plain)
    with pytest.raises(Mismatch):
        agree(play(in_world(FedSpeed, strength=0.1, radius=0.0)), plain, 1e-4)


def test_two_rounds_of_fedsmoo():
    """All vectors are multiples of (0.6, 0.8), here their numbers.

    Round 1, from 0: g = -5, e = -1, mu = -1, along -6, to 3. Then g = -2, e = -1 (of -2 + 1), mu =
    -2, along -3 + 0.5 * 3, to 3.75. u = mu - e = -1 = s. h_i = -1.875, h = -0.9375, so 3.75 +
    0.9375 / 0.5 = 5.625. Round 2: g = 0.625, e = 1 (of 0.625 + 2 + 1), mu = -2 + 1 + 1, along
    1.625 + 1.875, to 3.875. u = -1 = s. h = -0.9375 + 0.5 * 1.75 / 2, so 3.875 + 0.5 / 0.5.
    """
    method = build(FedSMOO, alpha=0.5, radius=1.0)
    method.round([client("one", FIVE_AWAY, steps=2)])
    assert where(method) == pytest.approx([0.6 * 5.625, 0.8 * 5.625], abs=1e-12)
    assert float(method.common["b"]) == pytest.approx(-0.8, abs=1e-12)
    assert float(method.duals["one"]["b"]) == pytest.approx(-0.8 * 2, abs=1e-12)
    method.round([client("one", FIVE_AWAY)])
    assert where(method) == pytest.approx([0.6 * 4.875, 0.8 * 4.875], abs=1e-12)
    assert float(method.common["b"]) == pytest.approx(-0.8, abs=1e-12)
    assert float(method.duals["one"]["b"]) == pytest.approx(0, abs=1e-12)


def test_the_public_form_of_fedsmoo_keeps_the_last_offset():
    """One step: mu = e, so the paper's s is 0 and the code's has the direction of e."""
    for last_offset, expected in ((True, 0.0), (False, -0.8)):
        method = build(FedSMOO, radius=1.0, last_offset=last_offset)
        method.round([client("one", FIVE_AWAY)])
        assert float(method.common["b"]) == pytest.approx(expected, abs=1e-12)


def test_without_radius_fedsmoo_is_feddyn():
    plain = play(in_world(FedDyn, alpha=0.1))
    agree(play(in_world(FedSMOO, radius=0.0)), plain)
    with pytest.raises(Mismatch):
        agree(play(in_world(FedSMOO)), plain, 1e-4)
