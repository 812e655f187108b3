"""Pieces whose client-side hooks see one client at a time, and so cannot mix clients."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedfm.methods import Piece
from fedfm.methods.contract import overrides

HOOKS = (
    *("statistic", "report", "prepare", "use_counts", "views", "adjust_logits", "loss", "perturb"),
    *("blend", "advance", "correct", "finish", "amend", "weights"),
)
"""The hooks that see a cohort."""


def separate_clients(piece: Piece) -> Piece:
    """Return the same piece with hooks that are called once per client."""
    single = copy.copy(piece)
    overridden = [name for name in HOOKS if overrides(piece, name)]
    hooks = {name: _call_per_client(getattr(type(piece), name)) for name in overridden}
    kind = type(f"{type(piece).__name__}Alone", (type(piece),), hooks)
    object.__setattr__(single, "__class__", kind)
    return single


def _call_per_client(hook: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Piece, *args: Any) -> Any:
        clients = range(max(map(count_clients, args)))
        return join_rows([hook(self, *(take_row(arg, i) for arg in args)) for i in clients])

    return call


def count_clients(value: Any) -> int:
    """Return S, given tensors [S, ...] and [1, ...] in dicts and tuples."""
    if isinstance(value, Tensor):
        return len(value)
    parts = value.values() if isinstance(value, Mapping) else value
    return max(map(count_clients, parts), default=1) if isinstance(value, Mapping | tuple) else 1


def take_row(value: Any, client: int) -> Any:
    """Return the same for one client: tensors [1, ...], whether they were shared or not."""
    if isinstance(value, Tensor):
        return value if len(value) == 1 else value[client : client + 1]
    if isinstance(value, Mapping):
        return {name: take_row(part, client) for name, part in value.items()}
    if isinstance(value, tuple):
        return type(value)(*(take_row(part, client) for part in value))
    return value


def join_rows(rows: Sequence[Any]) -> Any:
    """Invert `take_row`, given the results for every client."""
    first = rows[0]
    if isinstance(first, Tensor):
        return torch.cat(list(rows))
    if isinstance(first, Mapping):
        return {name: join_rows([row[name] for row in rows]) for name in first}
    if isinstance(first, tuple):
        parts = [join_rows(part) for part in zip(*rows, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    return first
