"""Local losses, by hand and in the limits in which they are cross-entropy."""

from math import exp, log, sqrt
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedfm.verify.checks import Mismatch
from fedfm.verify.textbook.loop import FedAvg
from fedfm.verify.textbook.losses import BalancedSoftmax, FedDecorr, FedLC, FedNTD, FedRS, FedUV
from tests.verify.points import agree, in_world, play


class Fixed(nn.Module):
    """Answers with the same logits, whatever it is asked."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, self.logits


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def loss_of(
    kind: Any, logits: Any, labels: list[int], held: tuple[int, ...] = (), **options: Any
) -> float:
    """The loss of logits, on a client that has so many samples of each class."""
    classes = torch.cat([torch.full((n,), c) for c, n in enumerate(held)] or [torch.tensor(labels)])
    method = kind(Fixed(double([[0.0]])), 1, 0.1, **options)
    batch = torch.zeros(len(labels), 1), torch.tensor(labels)
    loss = method.data_loss({"data": (None, classes)}, batch, double([[0.0]]), double(logits))
    return float(loss.detach())


@pytest.mark.parametrize(("temperature", "others"), [(1.0, log(3)), (2.0, log(9))])
def test_fedntd(temperature, others):
    """Without the true class p = (3/4, 1/4) and q = (1/4, 3/4), so KL(q || p) = (log 3) / 2."""
    method = FedNTD(
        Fixed(double([[-7.0, 0.0, others]])), 1, 0.1, strength=2.0, temperature=temperature
    )
    batch = torch.zeros(1, 1), torch.tensor([0])
    loss = method.data_loss({}, batch, double([[0.0]]), double([[5.0, others, 0.0]]))
    plain = log(exp(5) + exp(others) + 1) - 5
    assert float(loss.detach()) == pytest.approx(plain + temperature**2 * log(3), abs=1e-12)


def test_the_true_class_has_no_gradient_of_distillation():
    logits, teacher = double([[2.0, 1.0, 0.5]]), Fixed(double([[1.0, -1.0, 0.0]]))
    batch = torch.zeros(1, 1), torch.tensor([0])
    both = [FedNTD(teacher, 1, 0.1), FedAvg(teacher, 1, 0.1)]
    ours, plain = (
        torch.autograd.grad(each.data_loss({}, batch, double([[0.0]]), logits), logits)[0]
        for each in both
    )
    extra = ours - plain
    assert float(extra[0, 0]) == pytest.approx(0, abs=1e-15)
    assert float(extra[0, 1]) == pytest.approx(-float(extra[0, 2]), abs=1e-15)
    assert abs(float(extra[0, 1])) > 0.1


def test_fedlc():
    """With 16 and 1 samples the logits lose 0.5 and 1; nobody has the last class."""
    held = (16, 1, 0)
    assert loss_of(FedLC, [[3.0, 1.0, 50.0]], [0], held) == pytest.approx(-2.5, abs=1e-12)
    assert loss_of(FedLC, [[3.0, 1.0, 50.0]], [1], held) == pytest.approx(2.5, abs=1e-12)
    both = loss_of(FedLC, [[1.5, 2.0, 50.0]], [1], held, exclude_true=False)
    assert both == pytest.approx(log(2), abs=1e-12)
    none = loss_of(FedLC, [[1.5, 2.0, 50.0]], [0], held, strength=0.0)
    assert none == pytest.approx(0.5, abs=1e-12)


def test_fedlc_of_a_single_class_is_zero_and_has_a_gradient_of_zero():
    logits = double([[3.0, 1.0]])
    client = {"data": (None, torch.zeros(4, dtype=torch.long))}
    batch = torch.zeros(1, 1), torch.tensor([0])
    loss = FedLC(Fixed(logits), 1, 0.1).data_loss(client, batch, logits, logits)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert float(loss.detach()) == 0
    assert gradient.tolist() == [[0, 0]]


def test_fedrs():
    """The missing class has half its logit: log(1 + 3). Graded, 2 of 4 samples have 0.75."""
    plain = loss_of(FedRS, [[0.0, 2 * log(3)]], [0], (4, 0))
    graded = loss_of(FedRS, [[0.0, log(3) / 0.75]], [0], (4, 2), graded=True)
    assert (plain, graded) == pytest.approx((log(4), log(4)), abs=1e-12)


def test_balanced_softmax():
    """With 3 samples and 1, equal logits have probabilities 3/4 and 1/4."""
    loss = loss_of(BalancedSoftmax, [[2.0, 2.0, 90.0], [2.0, 2.0, 90.0]], [0, 1], (3, 1, 0))
    assert loss == pytest.approx((log(4 / 3) + log(4)) / 2, abs=1e-12)


def test_balanced_softmax_of_equal_counts_is_cross_entropy():
    logits = [[1.0, -2.0, 0.5], [0.0, 1.0, 3.0]]
    plain = loss_of(FedAvg, logits, [2, 0])
    assert loss_of(BalancedSoftmax, logits, [2, 0], (4, 4, 4)) == pytest.approx(plain, abs=1e-12)
    assert loss_of(FedLC, logits, [2, 0], (4, 4, 4), exclude_true=False) == pytest.approx(plain)
    assert loss_of(FedRS, logits, [2, 0], (4, 1, 2)) == pytest.approx(plain, abs=1e-12)


def decorr(features: Any, **options: Any) -> Tensor:
    model = Fixed(double([[0.0]]))
    batch = torch.zeros(1, 1), torch.tensor([0])
    return FedDecorr(model, 1, 0.1, **options).penalty(model, {}, batch, features)


def test_feddecorr():
    """Features (1, -1, 0) and (1, 0, -1) have correlation 1/2: (1 + 1 + 2 / 4) / 2^2."""
    features = double([[1.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    assert float(decorr(features, strength=0.1).detach()) == pytest.approx(0.0625, abs=1e-12)
    code = decorr(features, strength=0.1, averaged=True)
    assert float(code.detach()) == pytest.approx(0.1 * 4 / 3 / 4, abs=1e-12)


def test_the_public_form_of_feddecorr_is_that_of_standardised_features():
    features = torch.randn(6, 4, generator=torch.Generator().manual_seed(1)).double()
    z = (features - features.mean(0)) / features.std(0)
    square = (z.T @ z) ** 2
    off = square.sum() - square.diagonal().sum()
    torch.testing.assert_close(decorr(features, strength=1.0, averaged=True), off / (4 * 3) / 6)
    matrix = torch.corrcoef(features.T)
    torch.testing.assert_close(decorr(features, strength=1.0), (matrix**2).sum() / 16)


def test_feddecorr_of_one_sample_or_of_a_constant_feature():
    assert float(decorr(double([[3.0, 1.0]])).detach()) == 0
    features = double([[1.0, 5.0], [2.0, 5.0], [4.0, 5.0]])
    loss = decorr(features, strength=1.0)
    (gradient,) = torch.autograd.grad(loss, features)
    assert float(loss.detach()) == pytest.approx(0.25, abs=1e-12)
    assert gradient.abs().max() < 1e-12


def crowding(features: Tensor, **options: Any) -> Tensor:
    return FedUV(Fixed(features), 1, 0.1, **options).crowding(features)


def test_feduv_of_predictions():
    """The deviation of (3/4, 1/4), with B - 1, is sqrt(2) / 4; the bound is sqrt(2) / 2."""
    logits = double([[log(3), 0.0], [0.0, log(3)]])
    loss = FedUV(Fixed(logits), 1, 0.1).missing_variance(logits)
    assert float(loss.detach()) == pytest.approx(sqrt(2) / 4, abs=1e-12)
    sharp = double([[50.0, 0.0], [0.0, 50.0]])
    assert float(FedUV(Fixed(sharp), 1, 0.1).missing_variance(sharp).detach()) < 1e-12


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([0, 1, 3], (exp(-1 / 4) + exp(-9 / 4) + exp(-1)) / 3),  # squares 1, 4, 9
        ([0, 0, 1], (1 + 2 * exp(-1)) / 3),  # squares 0, 1, 1: the median of 1, 1
        ([0, 1, 3, 7], None),  # squares 1, 4, 9, 16, 36, 49: the lower median is 9
    ],
)
def test_feduv_of_features(points, expected):
    features = double([[float(point)] for point in points])
    if expected is None:
        expected = sum(exp(-square / 9) for square in (1, 4, 9, 16, 36, 49)) / 6
    assert float(crowding(features).detach()) == pytest.approx(expected, abs=1e-12)


def test_the_gradient_of_feduv_passes_through_the_median():
    """Of two samples U is 1 / e wherever they are, unless the width is fixed."""
    features = double([[0.0], [2.0]])
    (free,) = torch.autograd.grad(crowding(features), features)
    (fixed,) = torch.autograd.grad(crowding(features, fixed_width=True), features)
    assert free.abs().max() < 1e-15
    assert float(fixed[1, 0]) == pytest.approx(-exp(-1), abs=1e-12)  # -2 * 2 / 4 exp(-4 / 4)


def test_feduv_adds_both_terms():
    logits, features = double([[log(3), 0.0], [0.0, log(3)]]), double([[0.0], [2.0]])
    method = FedUV(Fixed(logits), 1, 0.1)
    batch = torch.zeros(2, 1), torch.tensor([0, 1])
    loss = method.data_loss({}, batch, features, logits)
    expected = log(4 / 3) + 2.5 * sqrt(2) / 4 + 0.5 * exp(-1)
    assert float(loss.detach()) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("kind", "off"),
    [
        (FedNTD, {"strength": 0.0}),
        (FedRS, {"alpha": 1.0}),
        (FedDecorr, {"strength": 0.0}),
        (FedUV, {"variance": 0.0, "uniformity": 0.0}),
    ],
)
def test_switched_off_it_is_fedavg(kind, off):
    plain = play(in_world(FedAvg))
    agree(play(in_world(kind, **off)), plain)
    with pytest.raises(Mismatch):
        agree(play(in_world(kind)), plain, 1e-4)


@pytest.mark.parametrize("exclude_true", [True, False])
def test_a_stronger_fedlc_is_another_method(exclude_true):
    off, on = (play(in_world(FedLC, strength=s, exclude_true=exclude_true)) for s in (0.0, 1.0))
    with pytest.raises(Mismatch):
        agree(off, on, 1e-4)


def test_fedlc_of_strength_0_with_the_true_class_is_cross_entropy_but_for_missing_classes():
    """Cross-entropy over the classes that a client has; with all their logits it is FedAvg."""
    logits, labels = [[1.0, -2.0, 0.5]], [0]
    few = loss_of(FedLC, logits, labels, (2, 1, 0), strength=0.0, exclude_true=False)
    assert few == pytest.approx(log(1 + exp(-3)), abs=1e-12)
    every = loss_of(FedLC, logits, labels, (2, 1, 1), strength=0.0, exclude_true=False)
    assert every == pytest.approx(loss_of(FedAvg, logits, labels), abs=1e-12)
