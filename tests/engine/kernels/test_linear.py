"""Linear layers of several clients against products in float64."""

import pytest
import torch
from torch import Tensor

from fedfm.engine.kernels.linear import CHUNK, fill_rows, stacked_linear, sum_rows

SIZES = [(5, 3, 2), (CHUNK + 9, 70, 130), (1, 1, 1)]
"""R, I, O."""


def arguments(size: tuple[int, int, int], low: bool, bias: bool) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    rows, inside, outside = size
    dtype = torch.bfloat16 if low else torch.float32
    x, weight = torch.randn(3, rows, inside).to(dtype), torch.randn(3, outside, inside).to(dtype)
    leaves = (x, weight, torch.randn(3, outside)) if bias else (x, weight)
    return tuple(leaf.requires_grad_() for leaf in leaves)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_values_and_gradients_are_those_of_products(size, low, bias):
    leaves = arguments(size, low, bias)
    x, weight, *shifts = leaves
    shift = shifts[0] if shifts else None
    y = stacked_linear(x, weight, shift, torch.bfloat16)
    assert y.dtype == torch.bfloat16
    exact_x, exact_weight = (leaf.bfloat16().double() for leaf in (x, weight))
    expected = exact_x @ exact_weight.mT + (0 if shift is None else shift.double().unsqueeze(1))
    near = {"rtol": 2**-6, "atol": 2**-6 * size[1] ** 0.5}
    torch.testing.assert_close(y.double(), expected, **near)
    slope = torch.randn_like(y)
    found = torch.autograd.grad(y, leaves, slope)
    wanted = torch.autograd.grad(expected, leaves, slope.double())
    for leaf, own, other in zip(leaves, found, wanted, strict=True):
        assert (own.shape, own.dtype) == (leaf.shape, leaf.dtype)
        size_of_sums = 2**-6 * float(other.abs().max())
        torch.testing.assert_close(own, other, rtol=2**-6, atol=size_of_sums)


def test_frozen_weights_get_no_gradient():
    x, weight, bias = arguments((5, 3, 2), low=False, bias=True)
    y = stacked_linear(x, weight.detach(), bias.detach(), torch.bfloat16)
    (grad,) = torch.autograd.grad(y.float().sum(), x)
    wanted = weight.bfloat16().float().sum(1, keepdim=True).expand_as(grad)
    torch.testing.assert_close(grad, wanted, rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize("size", [(1, 1), (3, 64), (CHUNK, 65), (2 * CHUNK + 1, 10)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_filled_and_added_up(dtype, size):
    torch.manual_seed(0)
    rows, columns = size
    row = torch.randn(2, columns).bfloat16()
    assert torch.equal(fill_rows(row, rows, dtype), row.unsqueeze(1).expand(-1, rows, -1).to(dtype))
    x = torch.randn(2, rows, columns).to(dtype)
    total = sum_rows(x)
    assert total.dtype == torch.float32
    torch.testing.assert_close(total.double(), x.double().sum(1), rtol=1e-5, atol=1e-5)
    assert torch.equal(sum_rows(x[:1]), total[:1])
    assert torch.equal(sum_rows(x.mT.contiguous().mT), total)
