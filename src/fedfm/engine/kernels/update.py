"""The step of SGD in one pass over memory, with a lower-precision copy of the new parameters."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: ANN001, ANN202 (Triton gives annotations in kernels a meaning of its own)

import triton
import triton.language as tl
from torch import Tensor

from fedfm.optim import Sgd

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
    together = [tensor for tensor in (param, grad, momentum, low, constant) if tensor is not None]
    if not all(tensor.is_contiguous() for tensor in together):
        raise ValueError("the step takes contiguous tensors")
    eta = sgd.lr if rate is None else rate
    _update[(triton.cdiv(param.numel(), BLOCK),)](
        param, grad, momentum if sgd.momentum else None, low, constant, param.numel(),
        eta, sgd.momentum, sgd.weight_decay, None if factor == 1 else factor, NESTEROV=sgd.nesterov,
        LOAD_RATE=isinstance(eta, Tensor), BLOCK=BLOCK, num_warps=8,
    )  # fmt: skip


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
