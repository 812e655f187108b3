"""FedSA's options, redrawn features and standardised filters in the textbook: by hand."""

from math import exp, log

import pytest
import torch
from torch import nn

from fedfm.verify.textbook.fedsa import calibration_loss, cg_loss_with_margin, moved
from fedfm.verify.textbook.standardised import StandardisedConvolution, standardised
from fedfm.verify.textbook.statistics import drawn_features, retrained_head


def number(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_a_first_anchor_is_taken_as_it_is():
    anchors = moved({0: number(1, 0)}, {0: number(3, 4), 2: number(5, 5)}, 0.75)
    assert {c: a.tolist() for c, a in anchors.items()} == {0: [1.5, 1.0], 2: [5.0, 5.0]}


def test_the_margin_is_taken_from_the_own_cosine_before_the_temperature():
    """Cosines 0.6 and 0.8, margin 0.1, temperature 0.5: z = 1.0 and 1.6."""
    anchors, features = {0: number(2, 0), 1: number(0, 3)}, number(3, 4).unsqueeze(0)
    loss = cg_loss_with_margin(features, torch.tensor([0]), anchors, 0.5, 0.1)
    assert loss.item() == pytest.approx(log(exp(1.0) + exp(1.6)) - 1.0)


def test_the_calibration_is_the_mean_over_classes_with_an_anchor():
    """Logits (1, 0, 0) of class 0 and (0, 0, 2) of class 2: CE by hand, gradient at the head."""
    head, anchors = nn.Linear(2, 3, bias=False).double(), {0: number(1, 0), 2: number(0, 1)}
    with torch.no_grad():
        head.weight.copy_(number(1, 0, 0, 0, 0, 2).view(3, 2))
    anchors[0].requires_grad_()
    loss = calibration_loss(head, anchors)
    first, second = log(exp(1) + 2) - 1, log(2 + exp(2)) - 2
    assert loss.item() == pytest.approx((first + second) / 2)
    torch.autograd.backward(loss)
    assert anchors[0].grad is None
    assert head.weight.grad is not None


def test_drawn_features_have_the_covariance():
    """The root of [[4, 0], [0, 0]] is [[2, 0], [0, 0]], whatever rounding makes of the 0."""
    covariance = number(4, 0, 0, -1e-20).view(2, 2)
    features = drawn_features(number(1, 1), covariance, number(1, 5, -3, 5).view(2, 2))
    assert features.tolist() == [[3.0, 1.0], [-5.0, 1.0]]


def test_the_head_takes_a_step_per_batch():
    """One feature, two classes, both logits 0: gradients are -z/2 and z/2."""
    head = nn.Linear(1, 2, bias=False).double()
    nn.init.zeros_(head.weight)
    features, labels = number(2, 2).view(2, 1), torch.tensor([0, 0])
    once = retrained_head(head, features, labels, [[0, 1]], 2, 0.1)
    assert once.weight.flatten().tolist() == pytest.approx([0.1, -0.1])
    twice = retrained_head(head, features, labels, [[1, 0]], 1, 0.1, momentum=0.5)
    second = 2 / (1 + exp(0.4))
    assert twice.weight[0].item() == pytest.approx(0.1 + 0.1 * (0.5 + second))
    assert head.weight.count_nonzero() == 0


def test_filters_by_hand():
    """Weights 0, 2, 4: mean 2, deviation sqrt(8 / 3), or 2 + 1e-5 in the authors' code."""
    w = number(0, 2, 4).view(3, 1, 1)
    found = standardised(w, 0.5).flatten().tolist()
    assert found == pytest.approx([-((3 / 8) ** 0.5), 0, (3 / 8) ** 0.5])
    assert standardised(w, 0.5, as_code=True)[2].item() == pytest.approx(1 / 2.00001)
    layer = StandardisedConvolution(nn.Conv2d(3, 1, 1).double(), 0.5)
    with torch.no_grad():
        layer.weight.copy_(w.unsqueeze(0))
        assert layer.bias is not None
        layer.bias.fill_(1.0)
    assert layer(number(0, 0, 2).view(1, 3, 1, 1)).item() == pytest.approx(1 + 2 * (3 / 8) ** 0.5)
