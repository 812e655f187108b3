"""Batch norm of several clients against torch, client by client, in Triton's interpreter."""

import pytest
import torch
import torch.nn.functional as F

from fedfm.engine.kernels.batch_norm import stacked_batch_norm

MOMENTUM, EPS = 0.1, 1e-5
RESIDENT = (6, 5, 3, 2)  # [B, C, H, W]: every client fits into one program
CHUNKED = (5, 9, 15, 14)  # several chunks of rows, the last one shorter


def channels_last(*shape, dtype=torch.float32):
    moved = torch.randn(shape[0], *shape[2:], shape[1]) * 2 + 3
    return moved.to(dtype).movedim(-1, 1).requires_grad_()


def arguments(clients, shape, residual, dtype=torch.float32):
    torch.manual_seed(0)
    batch, c, *space = shape
    x = channels_last(clients * batch, c, *space, dtype=dtype)
    added = channels_last(clients * batch, c, *space, dtype=dtype) if residual else None
    weight, bias = (torch.randn(clients, c, requires_grad=True) for _ in range(2))
    return x, weight, bias, added


def ours(x, weight, bias, added, running, relu):
    mean, var = running
    return stacked_batch_norm(x, weight, bias, mean, var, MOMENTUM, EPS, relu, added)


def client_by_client(x, weight, bias, added, running, relu):
    """The same by torch, in double precision."""
    outputs = []
    size = len(x) // len(weight)
    for i, each in enumerate(x.double().split(size)):
        mean, var = (r[i] for r in running)
        y = F.batch_norm(each, mean, var, weight[i].double(), bias[i].double(), True, MOMENTUM, EPS)
        y = y if added is None else y + added[i * size : (i + 1) * size].double()
        outputs.append(y.relu() if relu else y)
    return torch.cat(outputs)


def running_statistics(weight, dtype):
    torch.manual_seed(1)
    mean, var = torch.randn(weight.shape), torch.rand(weight.shape)
    return mean.to(dtype), var.to(dtype)


def compare(inputs, relu, rtol, atol):
    leaves = [leaf for leaf in inputs if leaf is not None]
    x, weight, bias, added = inputs
    stacked, single = (running_statistics(weight, d) for d in (torch.float32, torch.float64))
    y = ours(x, weight, bias, added, stacked, relu)
    expected = client_by_client(x, weight, bias, added, single, relu)
    assert y.shape == x.shape
    assert y.dtype == x.dtype
    assert y.movedim(1, -1).is_contiguous()
    slope = torch.randn_like(y)
    found = torch.autograd.grad(y, leaves, slope)
    wanted = torch.autograd.grad(expected, leaves, slope.double())
    for mine, theirs in zip((y, *stacked, *found), (expected, *single, *wanted), strict=True):
        torch.testing.assert_close(mine.double(), theirs.double(), rtol=rtol, atol=atol)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(("clients", "shape"), [(1, RESIDENT), (3, RESIDENT), (2, CHUNKED)])
def test_every_client_gets_what_torch_gives_it_alone(clients, shape, residual, relu):
    compare(arguments(clients, shape, residual), relu, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("shape", [(2, 1), (2, 20), (7, 33), (64, 70, 2, 2), (1030, 40)])
def test_other_shapes(shape):
    compare(arguments(2, shape, residual=True), relu=True, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("shape", [RESIDENT, CHUNKED])
def test_bfloat16_activations(shape):
    compare(arguments(2, shape, False, torch.bfloat16), relu=False, rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize("shape", [RESIDENT, CHUNKED])
def test_variance_of_values_far_from_zero(shape):
    x, weight, bias, _ = arguments(2, shape, residual=False)
    x = x.detach() + 3000
    stacked, single = (running_statistics(weight, d) for d in (torch.float32, torch.float64))
    y = ours(x, weight, bias, None, stacked, relu=False)
    expected = client_by_client(x, weight, bias, None, single, relu=False)
    torch.testing.assert_close(y.double(), expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(stacked[1].double(), single[1], rtol=1e-5, atol=0)


@pytest.mark.parametrize("shape", [RESIDENT, CHUNKED])
def test_a_client_does_not_depend_on_its_company(shape):
    x, weight, bias, _ = arguments(3, shape, residual=False)
    mean, var = running_statistics(weight, torch.float32)
    together = ours(x, weight, bias, None, (mean, var), True)
    size = shape[0]
    alone = ours(x[size : 2 * size], weight[1:2], bias[1:2], None, (mean[1:2], var[1:2]), True)
    assert torch.equal(together[size : 2 * size], alone)


def test_any_memory_layout_is_accepted():
    x, weight, bias, _ = arguments(2, RESIDENT, residual=False)
    compare((x.detach().contiguous().requires_grad_(), weight, bias, None), True, 1e-4, 2e-5)


def test_refuses_what_it_cannot_do():
    x, weight, bias, _ = arguments(2, RESIDENT, residual=False)
    running = running_statistics(weight, torch.float32)
    with pytest.raises(ValueError, match="residual"):
        ours(x, weight, bias, x[1:], running, False)
    with pytest.raises(ValueError, match="single row"):
        ours(torch.randn(2, 5), weight, bias, None, running, False)
