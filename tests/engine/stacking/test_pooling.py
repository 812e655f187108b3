"""Max-pooling of few channels against torch's: the same numbers, the same gradients."""

from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfm.engine.stacking import pooling
from fedfm.engine.stacking.layers import stack_module
from fedfm.engine.stacking.pooling import max_pool_halves


def with_gradient(pool, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = pool(x)
    (grad,) = torch.autograd.grad((y * torch.arange(1.0, y.numel() + 1).view_as(y)).sum(), x)
    return y, grad


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("values", ["different", "equal"])
def test_blocks_of_four_are_pooled_as_torch_does(values, layout):
    torch.manual_seed(0)
    x = torch.randn(5, 6, 8, 10)
    if values == "equal":  # every way in which four numbers can be equal
        x = torch.randint(3, x.shape).float()
    x = x.contiguous(memory_format=layout)
    ours, theirs = with_gradient(max_pool_halves, x), with_gradient(lambda x: F.max_pool2d(x, 2), x)
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])
    assert ours[0].is_contiguous(memory_format=layout)


def test_what_is_not_a_number_spreads():
    x = torch.zeros(1, 1, 2, 4)
    x[0, 0, 1, 0] = torch.nan
    assert max_pool_halves(x).isnan().tolist() == [[[[True, False]]]]


@pytest.mark.parametrize(
    ("pool", "shape", "ours"),
    [
        (nn.MaxPool2d(2), (2, 6, 4, 4), True),
        (nn.MaxPool2d(2), (2, 8, 4, 4), False),
        (nn.MaxPool2d(2), (2, 6, 5, 4), False),
        (nn.MaxPool2d(2), (2, 6, 4, 5), False),
        (nn.MaxPool2d(2, stride=1), (2, 6, 4, 4), False),
        (nn.MaxPool2d(3), (2, 6, 6, 6), False),
        (nn.MaxPool2d(2, padding=1), (2, 6, 4, 4), False),
        (nn.MaxPool2d(2, dilation=2), (2, 6, 4, 4), False),
        (nn.MaxPool2d(2, ceil_mode=True), (2, 6, 4, 4), False),
        (nn.MaxPool2d((2, 2)), (2, 6, 4, 4), False),
    ],
    ids=str,
)
def test_only_such_blocks_of_few_channels_are_ours(monkeypatch, pool, shape, ours):
    spy = Mock(side_effect=max_pool_halves)
    monkeypatch.setattr(pooling, "max_pool_halves", spy)
    x = torch.randn(shape)
    assert torch.equal(stack_module(pool)(x), pool(x))
    assert spy.called == ours
