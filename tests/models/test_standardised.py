"""Weight-standardised convolutions: by hand, in every executor, what they refuse."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedfm import FedFM, UserError, models
from fedfm.engine.stacked_networks import MappedNetwork, stack_network
from fedfm.models.standardised import StandardisedConv2d
from fedfm.verify import fixtures
from fedfm.verify.checks import same_model
from fedfm.verify.fixtures import play_rounds, start

NETWORK: dict[str, Any] = {
    "channels": [4, 6],
    "features": 5,
    "norm": "group",
    "groups": 2,
    "standardise": 0.001,
}


def test_filters_are_standardised_before_the_convolution():
    model = models.build("cnn", shape=(2, 8, 8), classes=3, **NETWORK).double()
    layer = model.get_submodule("body.0")
    assert isinstance(layer, StandardisedConv2d)
    filters = torch.empty_like(layer.weight)
    for i, weight in enumerate(layer.weight.detach()):
        filters[i] = 0.001 * (weight - weight.mean()) / weight.std(correction=0)
    images = torch.randn(4, 2, 8, 8, dtype=torch.float64)
    expected = F.conv2d(images, filters, padding=1)
    torch.testing.assert_close(layer(images), expected, rtol=1e-6, atol=1e-12)


def test_every_convolution_of_a_resnet_has_it_under_its_own_name():
    options: dict[str, Any] = {"shape": (3, 8, 8), "classes": 3, "width": 4, "groups": 2}
    options["norm"] = "group"
    plain = models.build("resnet18", **options)
    model = models.build("resnet18", standardise=0.001, **options)
    kinds = [type(m) for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    assert kinds == [StandardisedConv2d] * 20
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert not any(isinstance(m, StandardisedConv2d) for m in plain.modules())


def test_scaled_weights_are_the_same_network():
    model = models.build("cnn", shape=(2, 8, 8), classes=3, **NETWORK).double()
    images = torch.randn(4, 2, 8, 8, dtype=torch.float64)
    before = model(images)[1]
    with torch.no_grad():
        dict(model.named_parameters())["body.0.weight"].mul_(7.0)
    torch.testing.assert_close(model(images)[1], before, rtol=1e-6, atol=1e-9)


def test_it_is_the_same_in_every_executor():
    module = fixtures.make_network("cnn", dtype=torch.float64, **NETWORK)
    assert not isinstance(stack_network(module, torch.randn(2, 3, 1, 8, 8)), MappedNetwork)
    ends = []
    for executor in ("loop", "stacked"):
        data = fixtures.make_images(dtype=torch.float64)
        matching = FedFM(strength=1.0, start_round=0)
        fed = fixtures.make_federation(module, data, matching, executor=executor)
        ends.append(play_rounds(start(fed), fed, 2).model)
    same_model(ends[0], ends[1], 1e-9)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"standardise": 0.001, "norm": "none"}, "norm"),
        ({"standardise": -1.0, "norm": "group"}, "-1.0"),
        ({"standardise": True, "norm": "group"}, "True"),
    ],
)
def test_what_is_refused(settings, named):
    with pytest.raises(UserError, match=rf"standardise.*{named}"):
        models.build("cnn", shape=(1, 8, 8), classes=3, **settings)
