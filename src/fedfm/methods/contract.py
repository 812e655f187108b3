"""Check what pieces are and what their hooks return, with messages for the author of a piece.

Without these checks, some mistakes would train something else, on some executors only.
"""

from difflib import get_close_matches
from functools import cache
from types import FunctionType
from typing import Any

from torch import Tensor

from fedfm.core.errors import UserError, require
from fedfm.core.trees import Tree, flatten
from fedfm.methods.base import Piece


def check_piece(kind: Any) -> None:
    """Refuse a class that is not a piece, and misspelt hooks, which would never be called."""
    title = getattr(kind, "__name__", repr(kind))
    is_piece = isinstance(kind, type) and issubclass(kind, Piece)
    require(is_piece, f"{title} is not a method: a method is a class derived from fedfm.Piece")
    hooks = _hooks()
    for base in kind.__mro__[: kind.__mro__.index(Piece)]:
        for name, value in vars(base).items():
            if isinstance(value, FunctionType) and name not in hooks:
                near = _nearest_hook(name)
                misspelt = near and _arguments(value) == _arguments(hooks[near])
                require(not misspelt, f"{title}.{name} is not a hook: did you mean '{near}'?")


def overrides(piece: Piece, hook: str) -> bool:
    """Return whether a piece has a hook of its own."""
    return getattr(type(piece), hook) is not getattr(Piece, hook)


def _hooks() -> dict[str, FunctionType]:
    return {name: value for name, value in vars(Piece).items() if isinstance(value, FunctionType)}


@cache
def _nearest_hook(name: str) -> str:
    """Return the hook that a name may stand for; "" if it resembles none."""
    return "".join(get_close_matches(name, _hooks(), 1, 0.8))


def check_piece_name(piece: Any) -> None:
    """Refuse a piece, or a class of pieces, without a name."""
    title = getattr(piece, "__name__", type(piece).__name__)
    named = isinstance(getattr(piece, "name", None), str)
    require(named, f"{title} has no name: write name = '...' into the class")


def _arguments(hook: FunctionType) -> int:
    return hook.__code__.co_argcount


def check_one_each(piece: Piece, hook: str, result: Any, clients: int) -> Tensor:
    """Return the result of a hook; refuse anything but a number for each client [S]."""
    if isinstance(result, Tensor) and result.shape == (clients,):
        return result
    raise UserError(
        f"{_title(piece, hook)} must return a number for each client, here a tensor [{clients}], "
        f"but returned {_describe(result)}"
    )


def check_logits(piece: Piece, result: Any, logits: Tensor) -> None:
    """Refuse adjusted logits that are not a tensor like the network's own [S, B, C]."""
    if result is logits:
        return
    fits = isinstance(result, Tensor) and result.shape == logits.shape
    require(
        fits and result.dtype == logits.dtype,
        f"{_title(piece, 'adjust_logits')} must return a tensor {list(logits.shape)} of "
        f"{logits.dtype}, but returned {_describe(result)}"
        + (f" of {result.dtype}" if fits else ""),
    )


def check_pair(piece: Piece, hook: str, result: Any, what: str) -> tuple[Tree, Tree]:
    """Return the result of a hook; refuse anything but two trees."""
    if isinstance(result, tuple | list) and [isinstance(r, dict) for r in result] == [True] * 2:
        return result[0], result[1]
    raise UserError(
        f"{_title(piece, hook)} must return two trees, {what}, but returned {_describe(result)}"
    )


def check_alike(piece: Piece, hook: str, result: Any, like: Tree, what: str) -> Tree:
    """Return the result of a hook; refuse a tree whose leaves differ from those of `like`."""
    title = f"{_title(piece, hook)} must return {what}"
    require(isinstance(result, dict), f"{title} as a tree, but returned {_describe(result)}")
    tree: Tree = result
    if _same_form(tree, like):
        return tree
    leaves, expected = flatten(tree), flatten(like)
    extra, missing = sorted(leaves.keys() - expected), sorted(expected.keys() - leaves)
    require(not extra, f"{title} with the keys of the initial state only, not {', '.join(extra)}")
    require(not missing, f"{title} with key {', '.join(missing)}, which is missing")
    for name, leaf in expected.items():
        initial = f"the initial state of {type(piece).__name__} must hold tensors"
        require(isinstance(leaf, Tensor), f"{initial}, but '{name}' is {_describe(leaf)}")
    for name, leaf in leaves.items():
        shape = expected[name].shape
        require(
            isinstance(leaf, Tensor) and leaf.shape == shape,
            f"{title} with '{name}' a tensor {list(shape)}, but it is {_describe(leaf)}",
        )
    return tree


def _same_form(tree: Any, like: Any) -> bool:
    """Return whether two trees have the same keys and shapes; quick, for hooks of every step."""
    if not isinstance(like, dict):
        return isinstance(tree, Tensor) and isinstance(like, Tensor) and tree.shape == like.shape
    if not isinstance(tree, dict) or tree.keys() != like.keys():
        return False
    return all(_same_form(tree[key], leaf) for key, leaf in like.items())


def _title(piece: Piece, hook: str) -> str:
    return f"{type(piece).__name__}.{hook}"


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_describe, value))})"
    return "nothing" if value is None else f"a {type(value).__name__}"
