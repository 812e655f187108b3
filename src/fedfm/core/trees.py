"""Trees of tensors: nested dicts of str whose leaves are tensors.

The client axis. What belongs to several clients carries it as the first dimension of every leaf:
S for a cohort of S clients, or 1 for what all of them share. A leaf of lead 1 broadcasts against
one of lead S, so a hook written once serves a cohort, a single client, and a shared message.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fedfm.core.precision import full_precision

Tree = dict[str, Any]
"""A nested dict with tensors as leaves; parameter trees are flat: name -> tensor."""

SEPARATOR = "/"


def tree_map(fn: Callable[..., Tensor], tree: Tree, *others: Tree) -> Tree:
    """Apply `fn` to corresponding leaves of trees of one structure."""
    return {
        key: tree_map(fn, value, *(other[key] for other in others))
        if isinstance(value, dict)
        else fn(value, *(other[key] for other in others))
        for key, value in tree.items()
    }


def flatten(tree: Tree, prefix: str = "") -> dict[str, Tensor]:
    """The leaves by path: {"a": {"b": x}} becomes {"a/b": x}; a "/" in a key becomes "~1"."""
    flat: dict[str, Tensor] = {}
    for key, value in tree.items():
        path = prefix + key.replace("~", "~0").replace(SEPARATOR, "~1")
        flat |= flatten(value, path + SEPARATOR) if isinstance(value, dict) else {path: value}
    return flat


def unflatten(flat: dict[str, Tensor]) -> Tree:
    """The inverse of `flatten`, empty branches aside."""
    tree: Tree = {}
    for path, leaf in flat.items():
        keys = path.split(SEPARATOR)
        *branches, last = (key.replace("~1", SEPARATOR).replace("~0", "~") for key in keys)
        node = tree
        for branch in branches:
            node = node.setdefault(branch, {})
        node[last] = leaf
    return tree


def complete(tree: Tree, like: Tree) -> Tree:
    """The tree with the empty branches that `like` has, which `flatten` loses."""
    return {
        key: complete(tree.get(key, {}), branch) if isinstance(branch, dict) else tree[key]
        for key, branch in like.items()
    }


def leaves(tree: Tree) -> Iterator[Tensor]:
    """The leaves in the order of insertion."""
    for value in tree.values():
        if isinstance(value, dict):
            yield from leaves(value)
        else:
            yield value


def share(tree: Tree) -> Tree:
    """Give leaves [...] a client axis of 1: something all clients share."""
    return tree_map(lambda leaf: leaf.unsqueeze(0), tree)


def repeat(tree: Tree, clients: int) -> Tree:
    """Fresh copies [S, ...] of leaves [1, ...] or [S, ...], one per client."""
    return tree_map(
        lambda leaf: leaf.expand(clients, *leaf.shape[1:]).clone(
            memory_format=torch.contiguous_format
        ),
        tree,
    )


def rows(tree: Tree, which: slice | Tensor) -> Tree:
    """The clients `which` of leaves [S, ...]; what is shared ([1, ...]) stays as it is."""
    return tree_map(lambda leaf: leaf if leaf.shape[0] == 1 else leaf[which], tree)


def stack(trees: Sequence[Tree]) -> Tree:
    """Trees of single clients [...] as the tree of a cohort [S, ...]."""
    return tree_map(lambda *each: torch.stack(each), *trees)


def concat(trees: Sequence[Tree]) -> Tree:
    """Cohorts one after another: leaves [S1, ...], [S2, ...] become [S1 + S2, ...]."""
    return tree_map(lambda *each: torch.cat(each), *trees)


def unstack(tree: Tree, clients: int) -> list[Tree]:
    """A cohort's tree [S, ...] as S trees [...] that own their memory."""
    return [tree_map(lambda leaf, i=i: leaf[i].clone(), tree) for i in range(clients)]


def per_client(values: Tensor, like: Tensor) -> Tensor:
    """Values [S] shaped [S, 1, ...] so that they broadcast against `like` [S, ...]."""
    shaped = values.reshape(-1, *[1] * (like.ndim - 1)).to(like.device)
    return shaped.to(like.dtype) if values.is_floating_point() else shaped


def sum_clients(tree: Tree) -> Tree:
    """The sum over the client axis: [S, ...] becomes [...]."""
    return tree_map(lambda leaf: leaf.sum(0), tree)


def weighted_sum(weights: Tensor, leaf: Tensor) -> Tensor:
    """sum_i w_i leaf_i: weights [S], leaf [S, ...] -> [...]."""
    with full_precision():
        return torch.einsum("s,s...->...", weights, leaf)


def is_finite(tree: Tree) -> Tensor:
    """Whether every number of each client is finite: leaves [S, ...] give a bool [S]."""
    sums = (leaf.reshape(len(leaf), -1).sum(1) for leaf in leaves(tree))
    return torch.stack([torch.isfinite(each) for each in sums]).all(0)


def all_finite(tree: Tree) -> bool:
    """Whether every number is finite; numbers without a value are."""
    fine = is_finite(share(tree))
    return fine.is_meta or bool(fine)


def select(tree: Tree, which: Tensor) -> Tree:
    """The rows [S, ...] of the clients for which `which` [S] holds."""
    return tree_map(lambda leaf: leaf[which], tree)


def select_items(items: list[int], which: Tensor) -> list[int]:
    """The items for which `which` [S] holds."""
    if which.is_meta or bool(which.all()):
        return items
    return [item for item, holds in zip(items, which.tolist(), strict=True) if holds]


def to_device(tree: Tree, device: torch.device | str) -> Tree:
    """The same tree on another device."""
    return tree_map(lambda leaf: leaf.to(device), tree)
