"""What servers and clients say to each other; how Flower carries it is in `wire`."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from fedfm.core.errors import UserError, require
from fedfm.core.trees import Tree, complete, flatten

MESSAGES = 1
"""The version of what is said, and of how numbers lie in a secure sum: both sides need the same."""


class Packet(NamedTuple):
    """A question or an answer."""

    facts: dict[str, Any]
    trees: Mapping[str, Tree] = {}


def fitted(tree: Tree, like: Tree) -> Tree:
    """The tree in the form of `like`, if its leaves have the same names, shapes and types."""
    found, wanted = flatten(tree), flatten(like)
    for name in sorted(found.keys() ^ wanted.keys()):
        raise UserError(f"'{name}' is {'not asked for' if name in found else 'missing'}")
    for name, leaf in wanted.items():
        _check_leaf(name, found[name], leaf)
    return complete(tree, like)


def _check_leaf(name: str, leaf: Tensor, like: Tensor) -> None:
    for what, got, expected in (
        ("shape", tuple(leaf.shape), tuple(like.shape)),
        ("type", leaf.dtype, like.dtype),
    ):
        require(got == expected, f"'{name}' has {what} {got} where {expected} was expected")
