"""FedDecorr and FedUV: terms by hand, batches that distort them, their limits."""

import numpy as np
import pytest
import torch

from fedfm import UserError
from fedfm.methods import Batch, FedDecorr, FedUV
from fedfm.verify.fixtures import SmallFederation
from tests.methods.equal import assert_fedavg


def make_batch(size=7, width=5, classes=4) -> Batch:
    rng = torch.Generator().manual_seed(9)
    features = torch.randn(2, size, width, generator=rng, dtype=torch.float64).requires_grad_()
    logits = torch.randn(2, size, classes, generator=rng, dtype=torch.float64).requires_grad_()
    labels = torch.randint(classes, (2, size), generator=rng)
    return Batch(features, logits, labels, torch.ones_like(labels, dtype=torch.bool))


def test_feddecorr_is_the_mean_square_of_correlations():
    batch = make_batch()
    found = FedDecorr(strength=0.2).loss(batch, {})
    assert found is not None
    for k in range(2):
        r = np.corrcoef(batch.features[k].detach().numpy().T)
        expected = 0.2 * ((r**2).sum() - 5) / 25
        assert found[k].item() == pytest.approx(expected, rel=1e-10)


def test_feddecorr_of_constant_features_is_finite():
    features = torch.zeros(1, 6, 4, dtype=torch.float64)
    features[0, :, 0] = torch.arange(6)
    features[0, :, 1] = 0.3  # whose mean is rounded
    features[0, :, 2] = -torch.arange(6)
    features.requires_grad_()
    batch = make_batch()._replace(features=features)
    loss = FedDecorr(strength=16.0).loss(batch, {})
    assert loss is not None
    assert loss.item() == pytest.approx(2.0)  # the two that move are perfectly correlated
    assert torch.autograd.grad(loss.sum(), features)[0].isfinite().all()


def test_feduv_is_its_formula():
    batch = make_batch()
    found = FedUV(variance=1.5, uniformity=0.25).loss(batch, {})
    assert found is not None
    for k in range(2):
        p = np.exp(batch.logits[k].detach().numpy())
        p /= p.sum(1, keepdims=True)
        variance = np.maximum(4**-0.5 - p.std(0, ddof=1), 0).mean()
        f = batch.features[k].detach().numpy()
        squares = [((f[i] - f[j]) ** 2).sum() for i in range(7) for j in range(i)]
        median = sorted(squares)[(len(squares) - 1) // 2]
        uniformity = np.mean([np.exp(-s / median) for s in squares])
        assert found[k].item() == pytest.approx(1.5 * variance + 0.25 * uniformity)


def test_feduv_of_equal_features_and_sure_predictions_is_finite():
    batch = make_batch()
    features = torch.ones(2, 7, 5, dtype=torch.float64, requires_grad=True)
    logits = torch.zeros(2, 7, 4, dtype=torch.float64)
    logits[..., 1] = 1e4
    logits.requires_grad_()
    loss = FedUV().loss(batch._replace(features=features, logits=logits), {})
    assert loss is not None
    assert loss.tolist() == pytest.approx([2.5 * 0.5 + 0.5] * 2)
    for slope in torch.autograd.grad(loss.sum(), (features, logits)):
        assert slope.isfinite().all()


def test_predictions_of_balanced_classes_lack_no_variance():
    logits = 1e3 * torch.eye(4, dtype=torch.float64).expand(2, 4, 4)
    loss = FedUV(uniformity=0.0).loss(make_batch(4)._replace(logits=logits), {})
    assert loss is not None
    assert loss.tolist() == pytest.approx([0.0, 0.0], abs=1e-12)


@pytest.mark.parametrize("piece", [FedDecorr(), FedUV()], ids=repr)
def test_batches_of_one_are_left_out(piece):
    assert piece.loss(make_batch(size=1), {}) is None
    assert_fedavg(SmallFederation(batch_size=1, epochs=1), piece)


@pytest.mark.parametrize(
    "piece", [FedDecorr(strength=0.0), FedUV(variance=0.0, uniformity=0.0)], ids=repr
)
def test_without_weight_they_are_fedavg(piece):
    assert_fedavg(SmallFederation("tiny cnn with batch norm"), piece)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(FedDecorr, {"strength": -1.0}), (FedUV, {"variance": -1.0}), (FedUV, {"uniformity": -0.1})],
)
def test_settings_outside_their_range_are_refused(kind, settings):
    with pytest.raises(UserError, match=next(iter(settings))):
        kind(**settings)
