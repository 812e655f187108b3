"""MOON on a network with a projection head, by the textbook."""

from typing import Any

import pytest
import torch

from fedfm import models
from fedfm.core.errors import UserError
from fedfm.methods import Moon
from fedfm.verify import compare_textbook, fixtures
from fedfm.verify.fixtures import CLASSES, TINY, SmallFederation

NAME = "tiny resnet with a projection head"
OPTIONS = {"width": 4, "stem": "cifar", "norm": "group", "groups": 2}


def build(projection: int) -> Any:
    return models.build("resnet18", shape=TINY, classes=CLASSES, projection=projection, **OPTIONS)


def test_features_are_those_of_two_layers_which_the_last_one_classifies():
    """As in MOON's code: z = W2 relu(W1 h + b1) + b2, logits = W3 z + b3."""
    torch.manual_seed(0)
    model = build(6).eval()
    w1, b1, w2, b2 = (p.detach() for p in model.projection.parameters())
    x = torch.randn(3, *TINY)
    pooled: list[torch.Tensor] = []
    model.avgpool.register_forward_hook(lambda module, inputs, output: pooled.append(output))
    features, logits = model(x)
    h = pooled[0].flatten(1)
    expected = torch.relu(h @ w1.T + b1) @ w2.T + b2
    torch.testing.assert_close(features, expected)
    torch.testing.assert_close(logits, expected @ model.fc.weight.T + model.fc.bias)
    assert features.shape == (3, 6)


def test_without_a_projection_the_network_is_the_plain_one():
    plain = models.build("resnet18", shape=TINY, classes=CLASSES, **OPTIONS)
    assert build(0).state_dict().keys() == plain.state_dict().keys()


def test_a_negative_width_is_refused():
    with pytest.raises(UserError, match="projection"):
        build(-1)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_moon_with_a_projection_head_is_the_textbooks(monkeypatch, momentum):
    monkeypatch.setitem(fixtures.NETWORKS, NAME, lambda: build(6))
    compare_textbook.agree(SmallFederation(NAME, momentum=momentum), (Moon(mu=2.0),))
