from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedfm.engine.kernels.depthwise import stacked_depthwise

# clients, batch, channels, map, kernel, stride, padding, dilation
SHAPES = {
    "plain": (2, 2, 16, (5, 4), (3, 3), (1, 1), (1, 1), (1, 1)),
    "odd channels": (2, 3, 5, (3, 4), (3, 3), (1, 1), (0, 1), (1, 1)),
    "several blocks": (2, 2, 70, (4, 4), (3, 3), (1, 1), (1, 1), (1, 1)),
    "several chunks": (2, 12, 8, (7, 7), (3, 3), (1, 1), (1, 1), (1, 1)),
    "strides": (2, 2, 16, (7, 6), (3, 3), (2, 3), (1, 1), (1, 1)),
    "dilated": (2, 2, 8, (7, 7), (3, 2), (2, 1), (2, 0), (2, 3)),
    "large filters": (1, 2, 8, (6, 6), (7, 7), (1, 1), (3, 3), (1, 1)),
    "pointwise": (2, 2, 8, (2, 3), (1, 1), (1, 1), (0, 0), (1, 1)),
}


def arguments(clients, batch, channels, space, kernel, dtype=torch.float32):
    torch.manual_seed(0)
    x = torch.randn(clients * batch, *space, channels).movedim(-1, 1).requires_grad_()
    weight = torch.randn(clients, channels, 1, *kernel).to(dtype).requires_grad_()
    return x, weight, torch.randn(clients, channels, requires_grad=True)


def client_by_client(x, weight, bias, stride, padding, dilation):
    """The same by torch, in double precision."""
    each = zip(x.double().chunk(len(weight)), weight.double(), bias.double(), strict=True)
    return torch.cat([F.conv2d(a, w, b, stride, padding, dilation, len(b)) for a, w, b in each])


def compare(leaves, settings, tolerance=1e-5):
    y, expected = (f(*leaves, *settings) for f in (stacked_depthwise, client_by_client))
    assert y.shape == expected.shape
    assert y.dtype == leaves[1].dtype
    assert y.movedim(1, -1).is_contiguous()
    slope = torch.randn(expected.shape).to(y.dtype)
    found = torch.autograd.grad(y, leaves, slope)
    wanted = torch.autograd.grad(expected, leaves, slope.double())
    for mine, theirs in zip((y, *found), (expected, *wanted), strict=True):
        close = tolerance * float(theirs.detach().abs().max())
        torch.testing.assert_close(mine.double(), theirs.double(), rtol=0, atol=close)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_pass_is_torchs_for_each_client(shape):
    compare(arguments(*shape[:-3]), shape[-3:])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_sums_in_float32(dtype):
    compare(arguments(*SHAPES["plain"][:-3], dtype), SHAPES["plain"][-3:], tolerance=2e-2)


def test_activations_are_rounded_to_the_filters_precision():
    # The interpreter cuts float32 off where a GPU rounds it to bfloat16.
    x, weight, bias = arguments(*SHAPES["plain"][:-3], torch.float16)
    settings: Any = SHAPES["plain"][-3:]
    results = []
    for each in (x.detach(), x.detach().half()):
        y = stacked_depthwise(each, weight, bias, *settings)
        results.append((y.detach(), *torch.autograd.grad(y, weight, y.detach())))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_a_client_does_not_depend_on_its_company():
    x, weight, bias = arguments(3, *SHAPES["several chunks"][1:-3])
    settings: Any = SHAPES["several chunks"][-3:]

    def gradients(rows, own, shift):
        leaves = [each.detach().requires_grad_() for each in (rows, own, shift)]
        y = stacked_depthwise(*leaves, *settings)
        return torch.autograd.grad(y, leaves, y.detach())

    together, size = gradients(x, weight, bias), len(x) // 3
    alone = gradients(x[size : 2 * size], weight[1:2], bias[1:2])
    assert torch.equal(together[0][size : 2 * size], alone[0])
    assert torch.equal(together[1][1:2], alone[1])
    assert torch.equal(together[2][1:2], alone[2])


def test_refuses_filters_larger_than_the_map():
    x, weight, bias = arguments(1, 1, 4, (2, 2), (3, 3))
    with pytest.raises(ValueError, match="exceed"):
        stacked_depthwise(x, weight, bias, (1, 1), (0, 0), (1, 1))
