"""The batched product against torch's, values and gradients."""

import pytest
import torch

from fedfm.engine.stacking.product import VECTOR, multiply_rows


@pytest.mark.parametrize("inside", [9, VECTOR])
@pytest.mark.parametrize("outside", [5, 2 * VECTOR])
@pytest.mark.parametrize("with_bias", [True, False])
def test_it_agrees_with_einsum(inside: int, outside: int, with_bias: bool) -> None:
    rows = torch.randn(3, 7, inside, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, outside, inside, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(3, outside, dtype=torch.float64, requires_grad=True) if with_bias else None
    leaves = [leaf for leaf in (rows, weight, bias) if leaf is not None]
    expected = torch.einsum("sri,soi->sro", rows, weight)
    if bias is not None:
        expected = expected + bias.unsqueeze(1)
    y = multiply_rows(rows, weight, bias)
    slopes = torch.randn_like(y)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(
        torch.autograd.grad(y, leaves, slopes), torch.autograd.grad(expected, leaves, slopes)
    )


def test_rows_of_data_get_no_gradient() -> None:
    weight = torch.randn(2, 4, 3, requires_grad=True)
    y = multiply_rows(torch.randn(2, 5, 3), weight, None)
    (slope,) = torch.autograd.grad(y.sum(), [weight])
    assert slope.shape == weight.shape
