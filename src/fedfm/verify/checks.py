"""Checks: functions of a method's pieces that raise if the pieces are wrong."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfm.core.trees import Tree, flatten
from fedfm.methods import PIECES, Model, compose
from fedfm.verify.fixtures import Pieces


class Mismatch(Exception):
    """Two results that must be equal differ."""


@dataclass(frozen=True)
class Check:
    """A property, and the methods that must have it."""

    name: str
    shows: str
    """The property in words, for docs/conformance.md."""
    run: Callable[[Pieces], None]
    applies: Callable[[Pieces], bool]


CHECKS: dict[str, Check] = {}
"""Every check by name, in the order in which they run."""


def everywhere(pieces: Pieces) -> bool:
    """Apply a check to every method, also to one that is not registered."""
    return True


def is_federated(pieces: Pieces) -> bool:
    """Apply a check to methods with several clients."""
    return not compose(pieces).pools_data


def only(*names: str) -> Callable[[Pieces], bool]:
    """Apply a check to single pieces with one of these names that are registered, or subclasses."""
    return lambda pieces: len(pieces) == 1 and registered_name(pieces) in names


def registered_name(pieces: Pieces) -> str | None:
    """Return the name of a registered piece, or of its subclass under the same name."""
    (first, *more) = pieces
    known = PIECES.get(first.name)
    return first.name if known and isinstance(first, known) and not more else None


def check(
    name: str, shows: str, applies: Callable[[Pieces], bool] = everywhere
) -> Callable[[Callable[[Pieces], None]], Callable[[Pieces], None]]:
    """Register a function as a check."""

    def register(run: Callable[[Pieces], None]) -> Callable[[Pieces], None]:
        CHECKS[name] = Check(name, shows, run, applies)
        return run

    return register


def same(ours: Tree, expected: Tree, tolerance: float = 0.0, where: str = "") -> None:
    """Raise `Mismatch` unless trees agree, bit by bit if the tolerance is 0."""
    mine, theirs = flatten(ours), flatten(expected)
    if mine.keys() != theirs.keys():
        raise Mismatch(f"{where}tensors differ in name: {sorted(mine.keys() ^ theirs.keys())[:3]}")
    for name, value in mine.items():
        if not _close(value, theirs[name], tolerance):
            off = (value.double() - theirs[name].double()).abs().max().item()
            raise Mismatch(f"{where}{name} is off by {off:.1e}")


def _close(ours: Tensor, expected: Tensor, tolerance: float) -> bool:
    if not tolerance:
        return torch.equal(ours, expected)
    return torch.allclose(ours, expected, rtol=tolerance, atol=tolerance)


def same_model(ours: Model, expected: Model, tolerance: float = 0.0, where: str = "") -> None:
    """Call `same` on parameters and buffers."""
    same(ours._asdict(), expected._asdict(), tolerance, where)
