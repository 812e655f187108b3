"""Integer words in which contributions add up modulo a power of two."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedfm.deploy.errors import insist

_PIECE = 2**20  # words


class Words(NamedTuple):
    """A contribution or a sum of contributions, modulo 2^32 and 2^64."""

    bulk: NDArray[np.uint32]
    fine: NDArray[np.uint64]

    @classmethod
    def zeros(cls, bulk: int, fine: int) -> Self:
        """Return zeros, `bulk` and `fine` words of them: an empty sum."""
        return cls(np.zeros(bulk, np.uint32), np.zeros(fine, np.uint64))

    def pieces(self) -> list[NDArray[Any]]:
        """Return the words as arrays of a few megabytes, whose memory is reused quickly."""
        each = (self.bulk, self.fine)
        return [words[i : i + _PIECE] for words in each for i in range(0, len(words), _PIECE)]


def add(total: Words, pieces: Sequence[NDArray[Any]], client: int) -> None:
    """Add the pieces that a client sent to the sum in place; refuse pieces of another form."""
    ours = total.pieces()
    fits = [_form(piece) for piece in pieces] == [_form(piece) for piece in ours]
    insist(fits, "its masked words differ in number or type from the sum", client)
    for part, piece in zip(ours, pieces, strict=True):
        np.add(part, piece, out=part)


def _form(piece: NDArray[Any]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    return piece.dtype, piece.shape
