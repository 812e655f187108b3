"""Packets: the questions and answers of server and clients; `wire` converts them for Flower."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from fedfm.core.errors import UserError, require
from fedfm.core.trees import Tree, complete, flatten

PROTOCOL_VERSION = 1
"""The version of the packets and of the words in a secure sum; both sides need the same."""


class Packet(NamedTuple):
    """A question or an answer."""

    facts: dict[str, Any]
    trees: Mapping[str, Tree] = {}


def match_tree(tree: Tree, like: Tree) -> Tree:
    """Return `tree` with the empty branches of `like`; its leaves must match in name and form."""
    leaves, wanted = flatten(tree), flatten(like)
    for name in sorted(leaves.keys() ^ wanted.keys()):
        raise UserError(f"'{name}' is {'not expected' if name in leaves else 'missing'}")
    for name, leaf in wanted.items():
        _check_leaf(name, leaves[name], leaf)
    return complete(tree, like)


def _check_leaf(name: str, leaf: Tensor, like: Tensor) -> None:
    for what, given, expected in (
        ("shape", tuple(leaf.shape), tuple(like.shape)),
        ("type", leaf.dtype, like.dtype),
    ):
        require(given == expected, f"'{name}' has {what} {given}; expected {expected}")
