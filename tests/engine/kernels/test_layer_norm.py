"""Layer norm of several clients against torch in float64, client by client."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedfm.engine.kernels.layer_norm import CHUNK, TILE, stacked_layer_norm
from fedfm.engine.stacking.tokens import WIDEST

EPS = 1e-5
SHAPES = {
    "one row": (1, 8),
    "a few": (5, 6),
    "several chunks, the last one shorter": (2 * CHUNK + 7, 192),
    "more features than a tile has": (3, TILE + 5),
}


def arguments(shape: tuple[int, int], dtype: torch.dtype, bias: bool = True):
    """Return rows [3, R, F], weights and biases [3, F]."""
    torch.manual_seed(0)
    x = (2 * torch.randn(3, *shape) + 3).to(dtype).requires_grad_()
    weight, shift = (torch.randn(3, shape[1], requires_grad=True) for _ in range(2))
    return x, weight, shift if bias else None


def by_torch(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = zip(x, weight, [None] * len(x) if bias is None else bias.double(), strict=True)
    return torch.stack([F.layer_norm(r.double(), r.shape[-1:], w.double(), b, EPS)
                        for r, w, b in rows])  # fmt: skip


def compare(inputs, dtype: torch.dtype, rtol: float, atol: float) -> None:
    leaves = [leaf for leaf in inputs if leaf is not None]
    x, weight, bias = inputs
    y, expected = stacked_layer_norm(x, weight, bias, EPS, dtype), by_torch(x, weight, bias)
    assert (y.shape, y.dtype) == (expected.shape, dtype)
    torch.testing.assert_close(y.double(), expected, rtol=rtol, atol=atol)
    slope = torch.randn_like(y)
    ours = torch.autograd.grad(y, leaves, slope)
    theirs = torch.autograd.grad(expected, leaves, slope.double())
    for own, other, leaf in zip(ours, theirs, leaves, strict=True):
        assert (own.shape, own.dtype) == (leaf.shape, leaf.dtype)
        torch.testing.assert_close(own.double(), other.double(), rtol=rtol, atol=atol)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_values_and_gradients_are_torchs(shape, bias):
    compare(arguments(shape, torch.float32, bias), torch.float32, rtol=1e-5, atol=5e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_rows_in_bf16_are_normalised_in_fp32(shape, dtype):
    rtol, atol = (2**-7, 0.02) if dtype == torch.bfloat16 else (1e-5, 5e-5)
    x, weight, bias = arguments(shape, torch.bfloat16)
    y = stacked_layer_norm(x, weight, bias, EPS, dtype)
    torch.testing.assert_close(y.double(), by_torch(x, weight, bias), rtol=rtol, atol=atol)
    compare((x, weight, bias), dtype, rtol=2**-6, atol=0.03)


def test_rows_far_from_zero_keep_their_variance():
    x = (1000 + torch.randn(2, 3, 40)).requires_grad_()
    ones, zeros = torch.ones(2, 40, requires_grad=True), torch.zeros(2, 40, requires_grad=True)
    compare((x, ones, zeros), torch.float32, rtol=1e-3, atol=1e-3)


def test_a_gradient_may_be_one_number_for_all_rows():
    x, weight, bias = arguments((6, 4), torch.float32)
    for y in (stacked_layer_norm(x, weight, bias, EPS, x.dtype), by_torch(x, weight, bias)):
        torch.autograd.backward(y.sum())
    torch.testing.assert_close(bias.grad, torch.full((3, 4), 12.0))


@pytest.mark.parametrize("clients", [1, 2])
def test_a_client_does_not_depend_on_its_company(clients):
    x, weight, bias = arguments(SHAPES["several chunks, the last one shorter"], torch.float32)
    slope, ends = torch.randn_like(x), []
    for own in (slice(None), slice(clients)):
        rows, scale, shift = (leaf[own].detach().requires_grad_() for leaf in (x, weight, bias))
        y = stacked_layer_norm(rows, scale, shift, EPS, torch.float32)
        ends.append([y, *torch.autograd.grad(y, (rows, scale, shift), slope[own])])
    assert all(torch.equal(one[:clients], other) for one, other in zip(*ends, strict=True))


def test_refuses_rows_that_no_program_can_keep():
    x = torch.zeros(1, 1, WIDEST + 1)
    with pytest.raises(ValueError, match=str(WIDEST)):
        stacked_layer_norm(x, x[0], None, EPS, x.dtype)
