"""The batching rule of attention on a CPU, which torch lacks: clients become part of the batch.

Without it, torch maps this operation by a loop over clients, and its gradient takes a third of a
transformer's step.
"""

from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

OPERATION = "_scaled_dot_product_flash_attention_for_cpu"
KEY = "FuncTorchBatched"


def _attend_mapped(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attend in [S*B, h, T, e] where each client has [B, h, T, e]; masks may be broadcast."""
    level = retrieve_current_functorch_interpreter().level()
    given = [query, key, value] if attn_mask is None else [query, key, value, attn_mask]
    size = next(len(whole) for whole in (_unwrap(t, level) for t in given) if whole is not None)
    folded = [_fold(tensor, level, size) for tensor in given]
    mask = None if attn_mask is None else folded.pop()
    if mask is not None:  # [S*1, ...] or [S*B, ...]
        mask = mask.repeat_interleave(len(folded[0]) // len(mask), 0)
    attend: Any = getattr(torch.ops.aten, OPERATION)
    outputs = attend(*folded, dropout_p, is_causal, attn_mask=mask, scale=scale)
    attended, sums = (
        functorch._add_batch_dim(torch.unflatten(output, 0, (size, -1)), 0, level)
        for output in outputs
    )
    return attended, sums


def _unwrap(tensor: Tensor, level: int) -> Tensor | None:
    """Return a mapped tensor with its clients as first dimension; None if it is not mapped."""
    if functorch.is_batchedtensor(tensor) and functorch.maybe_get_level(tensor) == level:
        whole: Tensor = functorch.get_unwrapped(tensor)
        return whole.movedim(functorch.maybe_get_bdim(tensor), 0)
    return None


def _fold(tensor: Tensor, level: int, size: int) -> Tensor:
    whole = _unwrap(tensor, level)
    whole = tensor.expand(size, *tensor.shape) if whole is None else whole
    before = [1] * (5 - whole.ndim)  # a mask may have fewer dimensions
    return whole.reshape(size, *before, *whole.shape[1:]).flatten(0, 1)


def add_rule() -> torch.library.Library | None:
    """Register the rule, unless this version of torch has one."""
    if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{OPERATION}", KEY):
        return None
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]  # torch does not type it
    library.impl(OPERATION, _attend_mapped, KEY)  # type: ignore[no-untyped-call]  # torch does not type it
    return library


RULE = add_rule()
