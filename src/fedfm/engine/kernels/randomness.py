"""Random numbers keyed by tensors, so that a captured step draws new ones in every replay."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: ANN001, ANN202 (Triton gives annotations in kernels a meaning of its own)

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
"""Numbers of a program."""


def fill_uniform(count: int, seeds: Tensor, step: Tensor, call: int) -> Tensor:
    """Return numbers uniform in [0, 1), by the counter-based generator Philox.

    Nothing waits for the device, so a CUDA graph can capture it.

    Args:
        count: how many numbers all S clients draw together.
        seeds: int64 [S], one key per client.
        step: int32 [1], the number of the step.
        call: the number of the call within the step.

    Returns:
        float32 [count], client after client; each number depends on the client's own numbers alone.
    """
    clients, each = len(seeds), count // len(seeds)
    numbers = torch.empty(clients * each, dtype=torch.float32, device=seeds.device)
    if each:
        _fill[(triton.cdiv(each, BLOCK), clients)](
            numbers, seeds, step, call, each, BLOCK=BLOCK, num_warps=4
        )
    return numbers


@triton.jit(do_not_specialize=["call"])
def _fill(numbers, seeds, step, call, each, BLOCK: tl.constexpr):
    """Fill a block of one client's numbers."""
    client = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    zeros = at * 0
    drawn, _, _, _ = tl.philox(
        tl.load(seeds + client), at, zeros + call, zeros + tl.load(step), zeros
    )
    uniform = tl.uint_to_uniform_float(drawn)
    tl.store(numbers + client.to(tl.int64) * each + at, uniform, mask=at < each)
