"""Networks that cannot be trained as written are refused, with the cause by name."""

import pytest
import torch
from torch import Tensor, nn

from fedfm import models
from fedfm.core.errors import UserError
from fedfm.models.forward_checks import check_forward, check_tensors


class Net(nn.Module):
    """A body and a head, with a trick in between."""

    def __init__(self, trick=None) -> None:
        super().__init__()
        self.body, self.head, self.trick = nn.Linear(4, 6), nn.Linear(6, 3), trick
        self.calls, self.seen = 0, list[float]()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        features = self.trick(self, features) if self.trick else features
        return features, self.head(features)


def count(net: Net, x: Tensor) -> Tensor:
    net.calls += 1
    return x


def collect(net: Net, x: Tensor) -> Tensor:
    net.seen.append(float(x.sum()))
    return x


EXAMPLE = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def test_a_plain_network_passes_and_is_left_as_it_is():
    net = Net(lambda net, x: nn.functional.dropout(x, 0.5, net.training))
    before = torch.get_rng_state()
    check_forward(net, EXAMPLE)
    assert models.check_model(net, EXAMPLE, 3) == 6
    assert net.training
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("trick", "why"),
    [
        (lambda net, x: x.softmax(0), "rest of its batch"),
        (lambda net, x: x - x.mean(0), "rest of its batch"),
        (count, r"'calls'.*register_buffer"),
        (collect, r"'seen'.*register_buffer"),
        (lambda net, x: x + torch.randn_like(x), r"self\.training"),
    ],
)
def test_the_cause_is_named(trick, why):
    with pytest.raises(UserError, match=why):
        models.check_model(Net(trick), EXAMPLE, 3)


def test_one_sample_is_no_batch_to_depend_on():
    check_forward(Net(lambda net, x: x.softmax(0)), EXAMPLE[:1])


def test_parameters_of_several_types_or_devices_are_named():
    mixed = Net()
    mixed.head.double()
    with pytest.raises(UserError, match=r"'head\.weight' is torch\.float64.*'body\.weight'"):
        models.check_model(mixed, EXAMPLE, 3)
    mixed = Net()
    mixed.head.to("meta")
    with pytest.raises(UserError, match=r"'head\.weight' is meta.*'body\.weight' is cpu"):
        check_tensors(mixed)
