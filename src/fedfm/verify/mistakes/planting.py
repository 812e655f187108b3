"""Planted mistakes: pieces, or functions around them, that get one thing wrong."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar
from unittest.mock import patch

from fedfm.methods import Piece

P = TypeVar("P", bound=Piece)
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Mistake:
    """A piece and what is wrong with it, or with the engine around it."""

    what: str
    piece: Piece
    within: Callable[[], AbstractContextManager[Any]] = nullcontext
    """The context in which the engine is wrong, if the piece is right."""

    @property
    def method(self) -> str:
        """The method that has the mistake."""
        return self.piece.name


MISTAKES: list[Mistake] = []
"""Every planted mistake."""


def plant(what: str, **settings: Any) -> Callable[[type[P]], type[P]]:
    """Register a wrong piece, with the settings under which it is checked."""

    def register(kind: type[P]) -> type[P]:
        MISTAKES.append(Mistake(what, kind(**settings)))
        return kind

    return register


def plant_in(owner: Any, name: str, what: str, *pieces: Piece) -> Callable[[F], F]:
    """Register a function that takes the place of `owner.name` while the pieces are checked."""

    def register(wrong: F) -> F:
        for piece in pieces:
            MISTAKES.append(Mistake(what, piece, lambda: patch.object(owner, name, wrong)))
        return wrong

    return register
