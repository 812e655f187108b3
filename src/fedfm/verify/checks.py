"""What a check is: a function of a method's pieces that raises where they are wrong."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfm.core.trees import Tree, flatten
from fedfm.methods import PIECES, Model
from fedfm.verify.worlds import Pieces


class Mismatch(Exception):
    """Two things that ought to be equal are not."""


@dataclass(frozen=True)
class Check:
    """A property, and which methods it is asked of."""

    name: str
    shows: str
    """What holds where the check passes."""
    run: Callable[[Pieces], None]
    applies: Callable[[Pieces], bool]


CHECKS: dict[str, Check] = {}
"""Every check by name, in the order in which they run."""


def everywhere(pieces: Pieces) -> bool:
    """Asked of every method, also of one that nobody has heard of."""
    return True


def only(*names: str) -> Callable[[Pieces], bool]:
    """Asked of a single piece of one of these names, if it is the registered one or like it."""
    return lambda pieces: len(pieces) == 1 and known_name(pieces) in names


def known_name(pieces: Pieces) -> str | None:
    """The name of a piece that is a registered one, or a subclass under the same name."""
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
    """Raise `Mismatch` unless trees agree, exactly where the tolerance is 0."""
    mine, theirs = flatten(ours), flatten(expected)
    if mine.keys() != theirs.keys():
        raise Mismatch(f"{where}other tensors: {sorted(mine.keys() ^ theirs.keys())[:3]}")
    for name, value in mine.items():
        if not _close(value, theirs[name], tolerance):
            off = (value.double() - theirs[name].double()).abs().max().item()
            raise Mismatch(f"{where}{name} is off by {off:.1e}")


def _close(ours: Tensor, expected: Tensor, tolerance: float) -> bool:
    if not tolerance:
        return torch.equal(ours, expected)
    return torch.allclose(ours, expected, rtol=tolerance, atol=tolerance)


def same_model(ours: Model, expected: Model, tolerance: float = 0.0, where: str = "") -> None:
    """`same` for parameters and buffers."""
    same(ours._asdict(), expected._asdict(), tolerance, where)
