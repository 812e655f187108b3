"""Steps of SGD and Adam in one pass over memory, with a lower-precision copy of the parameters."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: ANN001, ANN202 (Triton gives annotations in kernels a meaning of its own)

from math import inf, log

import triton
import triton.language as tl
from torch import Tensor

from fedfm.optim import Adam, Sgd

BLOCK = 2048
"""Elements of a program."""


def sgd_step(
    param: Tensor,
    grad: Tensor,
    momentum: Tensor,
    low: Tensor | None,
    sgd: Sgd,
    constant: Tensor | None = None,
    rate: float | Tensor | None = None,
    factor: float = 1.0,
) -> None:
    """Take a step of SGD in place: m = rho m + factor grad + constant + decay p, then p -= eta m.

    Nothing waits for the device, so a CUDA graph can capture it.

    Args:
        param: float32, contiguous, as are the others.
        grad: float32 or bfloat16.
        momentum: float32; neither read nor written if rho is zero.
        low: what receives the new parameter in its own dtype, or None.
        sgd: eta, rho, the weight decay, and whether the momentum is Nesterov's.
        constant: float32; what is added to the gradient, or None.
        rate: replaces eta; a captured step reads a tensor [] anew in every replay.
        factor: what the gradient is multiplied with; 1 costs nothing.
    """
    _require_contiguous(param, grad, momentum, low, constant)
    eta = sgd.lr if rate is None else rate
    _update[(triton.cdiv(param.numel(), BLOCK),)](
        param, grad, momentum if sgd.momentum else None, low, constant, param.numel(),
        eta, sgd.momentum, sgd.weight_decay, None if factor == 1 else factor, NESTEROV=sgd.nesterov,
        LOAD_RATE=isinstance(eta, Tensor), BLOCK=BLOCK, num_warps=8,
    )  # fmt: skip


def adam_step(
    param: Tensor,
    grad: Tensor,
    mean: Tensor,
    square: Tensor,
    low: Tensor | None,
    adam: Adam,
    count: Tensor,
    constant: Tensor | None = None,
    rate: float | Tensor | None = None,
) -> None:
    """Take a step of Adam or AdamW in place, as torch.optim does.

    Args:
        param: float32, contiguous, as are the others.
        grad: float32 or bfloat16.
        mean: float32, the running mean of the gradient.
        square: float32, the running mean of its square.
        low: what receives the new parameter in its own dtype, or None.
        adam: eta, the betas, eps, and the weight decay with its kind.
        count: float32 [], the number of the step, from 1; read anew in every replay.
        constant: float32; what is added to the gradient, or None.
        rate: replaces eta; a captured step reads a tensor [] anew in every replay.
    """
    _require_contiguous(param, grad, mean, square, low, constant)
    eta = adam.lr if rate is None else rate
    gains = [1 - beta for beta in adam.betas]
    logarithms = [log(beta) if beta else -inf for beta in adam.betas]
    _update_adam[(triton.cdiv(param.numel(), BLOCK),)](
        param, grad, mean, square, low, constant, count, param.numel(),
        eta, *adam.betas, *gains, *logarithms, adam.eps, adam.weight_decay,
        DECOUPLED=adam.decoupled, LOAD_RATE=isinstance(eta, Tensor), BLOCK=BLOCK, num_warps=8,
    )  # fmt: skip


def _require_contiguous(*tensors: Tensor | None) -> None:
    if not all(tensor is None or tensor.is_contiguous() for tensor in tensors):
        raise ValueError("the step takes contiguous tensors")


@triton.jit
def _update(
    p, g, m, low, c, size, lr, momentum, weight_decay, factor,
    NESTEROV: tl.constexpr, LOAD_RATE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Update a block of one parameter; `m`, `low`, `c`, `factor` may be None, `lr` a pointer."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    valid = at < size
    param = tl.load(p + at, mask=valid)
    grad = tl.load(g + at, mask=valid).to(tl.float32)
    if factor is not None:
        grad *= factor
    step = grad + weight_decay * param
    if c is not None:
        step += tl.load(c + at, mask=valid)
    if m is not None:
        velocity = step + momentum * tl.load(m + at, mask=valid)
        tl.store(m + at, velocity, mask=valid)
        if NESTEROV:
            step += momentum * velocity
        else:
            step = velocity
    if LOAD_RATE:
        param -= tl.load(lr) * step
    else:
        param -= lr * step
    tl.store(p + at, param, mask=valid)
    if low is not None:
        tl.store(low + at, param, mask=valid)


@triton.jit
def _update_adam(
    p, g, mean, square, low, c, count, size, lr, beta, beta_square, gain, gain_square,
    log_beta, log_beta_square, eps, weight_decay,
    DECOUPLED: tl.constexpr, LOAD_RATE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Update a block of one parameter; `low` and `c` may be None; `lr` may be a pointer.

    What the means lack of a whole, 1 - beta^count, is computed in double precision: beta is near 1.
    """
    eta = tl.load(lr) if LOAD_RATE else lr
    steps = tl.load(count).to(tl.float64)
    whole = (1 - tl.exp(steps * log_beta)).to(tl.float32)
    root = tl.sqrt((1 - tl.exp(steps * log_beta_square)).to(tl.float32))
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    valid = at < size
    param = tl.load(p + at, mask=valid)
    slope = tl.load(g + at, mask=valid).to(tl.float32)
    if c is not None:
        slope += tl.load(c + at, mask=valid)
    if DECOUPLED:
        param -= eta * weight_decay * param
    else:
        slope += weight_decay * param
    first = beta * tl.load(mean + at, mask=valid) + gain * slope
    second = beta_square * tl.load(square + at, mask=valid) + gain_square * slope * slope
    tl.store(mean + at, first, mask=valid)
    tl.store(square + at, second, mask=valid)
    param -= eta / whole * first / (tl.sqrt(second) / root + eps)
    tl.store(p + at, param, mask=valid)
    if low is not None:
        tl.store(low + at, param, mask=valid)
