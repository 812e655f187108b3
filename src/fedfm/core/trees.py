"""Trees of tensors: nested dicts of str whose leaves are tensors.

The client axis. What belongs to several clients has it as the first dimension of every leaf: S for
a cohort of S clients, or 1 for what all of them share. A leaf [1, ...] broadcasts against a leaf
[S, ...], so one hook serves a cohort, a single client, and a shared message.
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
    """Apply a function to corresponding leaves of trees of one structure.

    Args:
        fn: A function of as many tensors as there are trees.
        tree: The first tree.
        others: Further trees.

    Returns:
        The tree of results.

    Examples:
        >>> ones = {"layer": {"weight": torch.ones(2)}}
        >>> tree_map(torch.add, ones, ones)
        {'layer': {'weight': tensor([2., 2.])}}
    """
    return {
        key: tree_map(fn, value, *(other[key] for other in others))
        if isinstance(value, dict)
        else fn(value, *(other[key] for other in others))
        for key, value in tree.items()
    }


def flatten(tree: Tree, prefix: str = "") -> dict[str, Tensor]:
    """Return the leaves by path: {"a": {"b": x}} gives {"a/b": x}; a "/" in a key becomes "~1"."""
    flat: dict[str, Tensor] = {}
    for key, value in tree.items():
        path = prefix + key.replace("~", "~0").replace(SEPARATOR, "~1")
        flat |= flatten(value, path + SEPARATOR) if isinstance(value, dict) else {path: value}
    return flat


def unflatten(flat: dict[str, Tensor]) -> Tree:
    """Invert `flatten`, except for empty branches."""
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
    """Return the tree with the empty branches of `like`, which `flatten` loses."""
    return {
        key: complete(tree.get(key, {}), branch) if isinstance(branch, dict) else tree[key]
        for key, branch in like.items()
    }


def leaves(tree: Tree) -> Iterator[Tensor]:
    """Iterate over the leaves in the order of insertion."""
    for value in tree.values():
        if isinstance(value, dict):
            yield from leaves(value)
        else:
            yield value


def share(tree: Tree) -> Tree:
    """Give leaves [...] a client axis of 1, for what all clients share."""
    return tree_map(lambda leaf: leaf.unsqueeze(0), tree)


def repeat(tree: Tree, clients: int) -> Tree:
    """Copy leaves [1, ...] or [S, ...] to [S, ...], one per client."""
    return tree_map(
        lambda leaf: leaf.expand(clients, *leaf.shape[1:]).clone(
            memory_format=torch.contiguous_format
        ),
        tree,
    )


def expand(tree: Tree, clients: int) -> Tree:
    """View leaves [1, ...] or [S, ...] as [S, ...]."""
    return tree_map(lambda leaf: leaf.expand(clients, *leaf.shape[1:]), tree)


def rows(tree: Tree, which: slice | Tensor) -> Tree:
    """Return the rows `which` of leaves [S, ...]; shared leaves [1, ...] stay as they are."""
    return tree_map(lambda leaf: leaf if leaf.shape[0] == 1 else leaf[which], tree)


def stack(trees: Sequence[Tree]) -> Tree:
    """Stack trees of single clients [...] into the tree of a cohort [S, ...]."""
    return tree_map(lambda *leaves: torch.stack(leaves), *trees)


def concat(trees: Sequence[Tree]) -> Tree:
    """Concatenate cohorts: leaves [S1, ...], [S2, ...] become [S1 + S2, ...]."""
    return tree_map(lambda *leaves: torch.cat(leaves), *trees)


def unstack(tree: Tree, clients: int) -> list[Tree]:
    """Split a cohort's tree [S, ...] into S trees [...] that own their memory."""
    return [tree_map(lambda leaf, i=i: leaf[i].clone(), tree) for i in range(clients)]


def per_client(values: Tensor, like: Tensor) -> Tensor:
    """Reshape one number per client so that it broadcasts against a parameter.

    Args:
        values: [S].
        like: [S, ...].

    Returns:
        The values [S, 1, ...], on the device of `like` and, if they are floats, in its dtype.

    Examples:
        >>> per_client(torch.tensor([1.0, 2.0]), torch.zeros(2, 3, 4)).shape
        torch.Size([2, 1, 1])
    """
    shaped = values.reshape(-1, *[1] * (like.ndim - 1))
    return shaped.to(like if values.is_floating_point() else like.device)


def client_norms(tree: Tree) -> Tensor:
    """Return the norm of each client's leaves [S, ...] together: [S], in float32 at least."""
    parts = torch.stack([_norms(leaf) for leaf in leaves(tree)])
    norms: Tensor = torch.linalg.vector_norm(parts, dim=0)
    return norms


def _norms(leaf: Tensor) -> Tensor:
    dtype, inner = torch.promote_types(leaf.dtype, torch.float32), (*range(1, leaf.ndim),)
    if not inner:
        return leaf.abs().to(dtype)
    norms: Tensor = torch.linalg.vector_norm(leaf, dim=inner, dtype=dtype)
    return norms


def sum_clients(tree: Tree) -> Tree:
    """Sum over the client axis: [S, ...] becomes [...]."""
    return tree_map(lambda leaf: leaf.sum(0), tree)


def weighted_sum(weights: Tensor, leaf: Tensor) -> Tensor:
    """Return sum_i w_i leaf_i: weights [S], leaf [S, ...] -> [...]."""
    if leaf.is_meta:  # only the shape, without torch's slow inference for einsum
        return torch.empty_like(leaf[0])
    with full_precision():
        return torch.einsum("s,s...->...", weights, leaf)


def is_finite(tree: Tree) -> Tensor:
    """Return whether all numbers of each client are finite: leaves [S, ...] -> bool [S]."""
    first = next(leaves(tree))
    if first.is_meta:
        return torch.empty(len(first), dtype=torch.bool, device="meta")
    sums = [leaf.reshape(len(leaf), -1).sum(1) for leaf in leaves(tree)]
    return torch.isfinite(torch.stack(sums)).all(0)


def all_finite(tree: Tree) -> bool:
    """Return whether every number is finite; True on the meta device."""
    finite = is_finite(share(tree))
    return finite.is_meta or bool(finite)


def select(tree: Tree, which: Tensor) -> Tree:
    """Return the rows [S, ...] of the clients for which `which` [S] is true."""
    return tree_map(lambda leaf: leaf[which], tree)


def select_items(items: list[int], which: Tensor) -> list[int]:
    """Return the items for which `which` [S] is true."""
    if which.is_meta or bool(which.all()):
        return items
    return [item for item, chosen in zip(items, which.tolist(), strict=True) if chosen]


def copy_shapes(tree: Tree) -> Tree:
    """Return new tensors without values."""
    return tree_map(lambda leaf: torch.empty_like(leaf, device="meta"), tree)


def to_device(tree: Tree, device: torch.device | str) -> Tree:
    """Move a tree to another device."""
    return tree_map(lambda leaf: leaf.to(device), tree)
