"""What a planted mistake is: a registered piece's subclass that gets one thing wrong."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from fedfm.methods import Piece

P = TypeVar("P", bound=Piece)


@dataclass(frozen=True)
class Mistake:
    """A piece and what is wrong with it, or with the engine around it."""

    what: str
    piece: Piece
    within: Callable[[], AbstractContextManager[None]] = nullcontext
    """Where it is not the piece that is wrong: the engine, as long as the context lasts."""

    @property
    def method(self) -> str:
        """The method in which the mistake is made."""
        return self.piece.name


MISTAKES: list[Mistake] = []
"""Every planted mistake, by method."""


def plant(what: str, **settings: Any) -> Callable[[type[P]], type[P]]:
    """Register a wrong piece, with the settings under which it is checked."""

    def register(kind: type[P]) -> type[P]:
        MISTAKES.append(Mistake(what, kind(**settings)))
        return kind

    return register
