"""Attention of all clients at once: clients become part of the batch.

On a CPU torch lacks a batching rule. Without one it maps the operation by a loop over clients, and
the gradient takes a third of a transformer's step. On a GPU torch has rules, but the gradient
misreads the layout in which they hand over the sums of the softmax: an error in float32, NaN in
bf16. So the whole call leaves the map.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch as functorch
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch.overrides import TorchFunctionMode

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


Attend = Callable[[list[Tensor]], list[Tensor]]
ARGUMENTS = "query", "key", "value", "attn_mask", "dropout_p", "is_causal"
"""The arguments that may be given by position."""


class AttendTogether(TorchFunctionMode):
    """Lets `F.scaled_dot_product_attention` leave a map over clients.

    `leave` calls a function on the whole tensors [S, ...] and maps its results; None if no tensor
    is mapped.
    """

    def __init__(self, leave: Callable[[Attend, list[Tensor]], list[Tensor] | None]) -> None:
        super().__init__()
        self.leave = leave

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function; attend in all clients' batches as in one."""
        given = kwargs or {}
        if func is not F.scaled_dot_product_attention:
            return func(*args, **given)
        arguments = dict(zip(ARGUMENTS, args, strict=False)) | given
        names = [name for name in ARGUMENTS if isinstance(arguments.get(name), Tensor)]

        def attend(tensors: list[Tensor]) -> list[Tensor]:
            folded = _fold_samples(dict(zip(names, tensors, strict=True)))
            size = len(tensors[0])
            attended = func(**(arguments | folded))
            return [attended if tensors[0].ndim < 4 else torch.unflatten(attended, 0, (size, -1))]

        attended = self.leave(attend, [arguments[name] for name in names])
        return func(*args, **given) if attended is None else attended[0]


def _fold_samples(whole: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors [S, B, ..., T, e] as [S*B, ..., T, e]; without samples as they are.

    A mask that is broadcast over samples and heads is expanded to the samples.
    """
    query = whole["query"]
    if query.ndim < 4:
        return whole
    mask = whole.get("attn_mask")
    if mask is not None:
        missing = [1] * (query.ndim - mask.ndim)
        mask = mask.reshape(len(mask), *missing, *mask.shape[1:])
        whole = whole | {"attn_mask": mask.expand(-1, query.shape[1], *mask.shape[2:])}
    return {name: tensor.flatten(0, 1) for name, tensor in whole.items()}
