"""The fused steps of SGD and Adam against torch's, under Triton's interpreter."""

from dataclasses import asdict
from itertools import product

import pytest
import torch

from fedfm.engine.kernels.update import BLOCK, adam_step, sgd_step
from fedfm.optim import Adam, AdamW, Sgd
from tests.pairs import pairwise

SGD = [Sgd(0.1, momentum, decay) for momentum, decay in product((0.0, 0.9), (0.0, 0.05))]
NESTEROV = Sgd(0.1, 0.9, 0.05, nesterov=True)
ADAM = [
    kind(0.01, betas, eps, decay)
    for kind in (Adam, AdamW)
    for betas, eps, decay in [((0.9, 0.999), 1e-8, 0.0), ((0.0, 0.95), 1e-3, 0.1)]
]
CASES = (
    [False, True],
    [torch.float32, torch.bfloat16],
    [False, True],
    [(3, 5), (2 * BLOCK + 7,), ()],
)
"""Whether weights are lowered, the gradient's type, whether it is corrected, and its shape."""


@pytest.mark.parametrize(
    ("sgd", "lowered", "dtype", "corrected", "shape"), pairwise([*SGD, NESTEROV], *CASES)
)
def test_the_same_steps_as_torch(shape, corrected, dtype, lowered, sgd):
    torch.manual_seed(0)
    param = torch.randn(shape)
    constant = torch.randn(shape) if corrected else None
    reference = param.clone().requires_grad_()
    optimizer = torch.optim.SGD([reference], **asdict(sgd))
    momentum = torch.zeros_like(param)
    low = param.bfloat16() if lowered else None
    for _ in range(3):
        grad = torch.randn(shape).to(dtype)
        reference.grad = grad.float() + (0 if constant is None else constant)
        optimizer.step()
        sgd_step(param, grad, momentum, low, sgd, constant)
    torch.testing.assert_close(param, reference.detach(), rtol=1e-6, atol=1e-6)
    if sgd.momentum:
        buffer = optimizer.state[reference]["momentum_buffer"]
        torch.testing.assert_close(momentum, buffer, rtol=1e-6, atol=1e-6)
    if low is not None:  # a device rounds, the interpreter truncates
        torch.testing.assert_close(low.float(), param, rtol=2**-7, atol=0)


@pytest.mark.parametrize("corrected", [False, True])
def test_the_gradient_may_have_a_factor(corrected):
    torch.manual_seed(0)
    param, grad, constant = (torch.randn(2 * BLOCK + 7) for _ in range(3))
    added = constant if corrected else None
    expected, momentum = param.clone(), torch.zeros_like(param)
    sgd_step(param, grad, momentum, None, SGD[3], added, factor=0.3)
    scaled = 0.3 * grad + (constant if corrected else 0)
    sgd_step(expected, scaled, torch.zeros_like(param), None, SGD[3])
    torch.testing.assert_close(param, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sgd", [SGD[3], NESTEROV])
@pytest.mark.parametrize("held", [False, True])
def test_the_rate_may_change_from_step_to_step(held, sgd):
    """A tensor is read in every step, so a captured step sees what was written to it last."""
    torch.manual_seed(0)
    param, momentum = torch.randn(3 * BLOCK // 2), torch.zeros(3 * BLOCK // 2)
    reference, rate = param.clone().requires_grad_(), torch.tensor(9.0)
    optimizer = torch.optim.SGD([reference], **asdict(sgd))
    for lr in (0.1, 0.5, 0.02):
        grad = torch.randn_like(param)
        reference.grad, optimizer.param_groups[0]["lr"] = grad, lr
        optimizer.step()
        rate.fill_(lr)
        sgd_step(param, grad, momentum, None, sgd, None, rate if held else lr)
    torch.testing.assert_close(param, reference.detach(), rtol=1e-6, atol=1e-6)


def torchs(adam: Adam) -> type[torch.optim.Optimizer]:
    return torch.optim.AdamW if adam.decoupled else torch.optim.Adam


@pytest.mark.parametrize(("adam", "lowered", "dtype", "corrected", "shape"), pairwise(ADAM, *CASES))
def test_the_same_steps_of_adam_as_torch(shape, corrected, dtype, lowered, adam):
    """Torch's in float64, with rates that change and that a captured step would read."""
    torch.manual_seed(0)
    param = torch.randn(shape)
    constant = torch.randn(shape) if corrected else None
    reference = param.double().requires_grad_()
    optimizer = torchs(adam)([reference], **asdict(adam))
    mean, square, count = torch.zeros_like(param), torch.zeros_like(param), torch.zeros(())
    low, rate = param.bfloat16() if lowered else None, torch.tensor(9.0)
    for step in range(1, 5):
        grad = torch.randn(shape).to(dtype)
        reference.grad = grad.double() + (0 if constant is None else constant)
        rate.fill_(0.02 / step)
        optimizer.param_groups[0]["lr"] = float(rate)
        optimizer.step()
        count.fill_(step)
        held = rate if lowered else float(rate)
        adam_step(param, grad, mean, square, low, adam, count, constant, held)
    state = optimizer.state[reference]
    for ours, theirs in ((param, reference.detach()), (mean, state["exp_avg"]),
                         (square, state["exp_avg_sq"])):  # fmt: skip
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-6, atol=1e-6)
    if low is not None:  # a device rounds, the interpreter truncates
        torch.testing.assert_close(low.float(), param, rtol=2**-7, atol=0)


def test_late_steps_of_adam_are_exact():
    adam, param = ADAM[0], torch.zeros(3)
    mean, square = torch.full((3,), 0.5), torch.full((3,), 0.25)
    adam_step(param, torch.ones(3), mean, square, None, adam, torch.tensor(1000.0))
    first, second = 0.9 * 0.5 + 0.1, 0.999 * 0.25 + 0.001
    whole, root = 1 - 0.9**1000, (1 - 0.999**1000) ** 0.5
    wanted = torch.full((3,), -0.01 * first / whole / (second**0.5 / root + 1e-8))
    torch.testing.assert_close(param, wanted, rtol=1e-6, atol=0)


def test_refuses_tensors_with_gaps():
    whole, gaps = torch.zeros(4, 6), torch.zeros(4, 12)[:, ::2]
    with pytest.raises(ValueError, match="contiguous"):
        sgd_step(whole, gaps, whole, None, SGD[0])
    with pytest.raises(ValueError, match="contiguous"):
        adam_step(whole, gaps, whole, whole, None, ADAM[0], torch.ones(()))
