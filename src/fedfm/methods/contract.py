"""What pieces must be and give back; mistakes are said in the words of whoever wrote the piece.

Without these checks some of them would train something else, on some executors only.
"""

from difflib import get_close_matches
from types import FunctionType
from typing import Any

from torch import Tensor

from fedfm.core.errors import require
from fedfm.core.trees import Tree, flatten
from fedfm.methods.base import Piece


def check_piece(kind: Any) -> None:
    """Refuse what is no kind of piece, and hooks that nobody would call."""
    said = getattr(kind, "__name__", repr(kind))
    known = isinstance(kind, type) and issubclass(kind, Piece)
    require(known, f"{said} is no method: a method is a class derived from fedfm.Piece")
    hooks = {name: own for name, own in vars(Piece).items() if isinstance(own, FunctionType)}
    for base in kind.__mro__[: kind.__mro__.index(Piece)]:
        for name, own in vars(base).items():
            if isinstance(own, FunctionType) and name not in hooks:
                near = get_close_matches(name, hooks, 1, 0.8)
                meant = near and _arguments(own) == _arguments(hooks[near[0]])
                require(not meant, f"{said}.{name} is no hook: did you mean '{''.join(near)}'?")


def check_name(piece: Any) -> None:
    """Refuse a piece, or a kind of piece, without a name."""
    said = getattr(piece, "__name__", type(piece).__name__)
    named = isinstance(getattr(piece, "name", None), str)
    require(named, f"{said} has no name: write name = '...' into the class")


def _arguments(hook: FunctionType) -> int:
    return hook.__code__.co_argcount


def check_one_each(piece: Piece, hook: str, found: Any, clients: int) -> Tensor:
    """A number for each client [S]."""
    require(
        isinstance(found, Tensor) and found.shape == (clients,),
        f"{_named(piece, hook)} must give a number for each client, a tensor [{clients}] here, but "
        f"gave {_kind(found)}",
    )
    numbers: Tensor = found
    return numbers


def check_pair(piece: Piece, hook: str, found: Any, what: str) -> tuple[Tree, Tree]:
    """Two trees."""
    several = isinstance(found, tuple | list) and len(found) == 2
    fine = several and all(isinstance(each, dict) for each in found)
    require(fine, f"{_named(piece, hook)} must give two trees, {what}, but gave {_kind(found)}")
    first, second = found
    return first, second


def check_alike(piece: Piece, hook: str, found: Any, like: Tree, what: str) -> Tree:
    """A tree with the leaves that another has."""
    said = f"{_named(piece, hook)} must give {what}"
    require(isinstance(found, dict), f"{said} as a tree, but gave {_kind(found)}")
    tree: Tree = found
    ours, theirs = flatten(tree), flatten(like)
    more, less = sorted(ours.keys() - theirs.keys()), sorted(theirs.keys() - ours.keys())
    require(not more, f"{said} with what is there from the beginning, not with {', '.join(more)}")
    require(not less, f"{said} with {', '.join(less)}, which it is without")
    for name, leaf in theirs.items():
        first = f"{type(piece).__name__} must begin with tensors, but '{name}' is {_kind(leaf)}"
        require(isinstance(leaf, Tensor), first)
    for name, leaf in ours.items():
        fine = isinstance(leaf, Tensor) and leaf.shape == theirs[name].shape
        shape = list(theirs[name].shape)
        require(fine, f"{said} with '{name}' a tensor {shape}, but that is {_kind(leaf)}")
    return tree


def _named(piece: Piece, hook: str) -> str:
    return f"{type(piece).__name__}.{hook}"


def _kind(found: Any) -> str:
    if isinstance(found, Tensor):
        return f"a tensor {list(found.shape)}"
    if isinstance(found, tuple):
        return f"({', '.join(_kind(each) for each in found)})"
    return "nothing" if found is None else f"a {type(found).__name__}"
