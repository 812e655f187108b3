"""A fixed classifier, by hand and in a world."""

import copy
from math import log, sqrt
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedfm.verify.fixtures import CLASSES, FEATURES
from fedfm.verify.textbook.losses import BalancedSoftmax
from fedfm.verify.textbook.simplex import FedETF, SimplexNet, simplex, simplex_logits
from tests.verify.points import HARD, agree, in_world, play


def rotation(size: int) -> Tensor:
    noise = torch.randn(size, size, generator=torch.Generator().manual_seed(3)).double()
    return torch.linalg.qr(noise).Q


def test_the_vertices_of_two_classes_are_opposite():
    """sqrt(2) (I - 1/2): columns (1, -1) / sqrt(2) and its negative."""
    expected = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]) / sqrt(2)
    torch.testing.assert_close(simplex(torch.eye(2)), expected)


@pytest.mark.parametrize("classes", [3, 10])
def test_all_vertices_are_unit_vectors_at_the_same_angle(classes):
    m = simplex(rotation(classes))
    gram = torch.full((classes, classes), -1 / (classes - 1), dtype=torch.float64)
    torch.testing.assert_close(m.T @ m, gram.fill_diagonal_(1.0))


def test_logits_by_hand():
    """W z + b = (3, 4), u = (0.6, 0.8), M^T u = (-0.2, 0.2) / sqrt(2), times 2."""
    z, w = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0], [0.0, 2.5]])
    logits = simplex_logits(
        z, w, torch.tensor([2.0, -1.0]), simplex(torch.eye(2)), torch.tensor(2.0)
    )
    torch.testing.assert_close(logits, torch.tensor([[-0.4, 0.4]]) / sqrt(2))


def simplex_net() -> SimplexNet:
    body: Any = HARD.module.body
    projection = nn.Linear(FEATURES, CLASSES).double()
    return SimplexNet(copy.deepcopy(body), projection, rotation(CLASSES))


def test_a_federation_with_a_fixed_classifier_moves_all_but_the_classifier():
    net = simplex_net()
    method = in_world(FedETF)
    method.model = net
    play(method, 2)
    moved = {
        n: not torch.equal(p, dict(net.named_parameters())[n])
        for n, p in method.model.named_parameters()
    }
    assert moved["scale"]
    assert moved["projection.weight"]
    assert all(moved.values())
    torch.testing.assert_close(method.model.vertices, net.vertices, rtol=0, atol=0)


def test_fedetf_is_balanced_softmax_on_its_network():
    net, methods = simplex_net(), [in_world(FedETF), in_world(BalancedSoftmax)]
    for method in methods:
        method.model = copy.deepcopy(net)
        play(method, 2)
    agree(*methods)


def test_the_loss_of_fedetf_knows_the_counts():
    """Of one sample and three, equal logits give the second class 3/4."""
    client = {"data": (None, torch.tensor([0, 1, 1, 1]))}
    batch, logits = (torch.zeros(1, 1), torch.tensor([1])), torch.zeros(1, 2).double()
    loss = in_world(FedETF).data_loss(client, batch, logits, logits)
    assert float(loss) == pytest.approx(log(4 / 3), abs=1e-12)
