"""Words that add up."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedfm.deploy.secure.errors import insist

_PIECE = 2**20  # words


class Words(NamedTuple):
    """A contribution or a sum of them, modulo 2^32 and 2^64."""

    bulk: NDArray[np.uint32]
    fine: NDArray[np.uint64]

    @classmethod
    def zeros(cls, bulk: int, fine: int) -> Self:
        """So many words of each kind: where a sum begins."""
        return cls(np.zeros(bulk, np.uint32), np.zeros(fine, np.uint64))

    def pieces(self) -> list[NDArray[Any]]:
        """The words as arrays to send: of a few megabytes, whose memory is quickly used again."""
        each = (self.bulk, self.fine)
        return [words[i : i + _PIECE] for words in each for i in range(0, len(words), _PIECE)]


def add(total: Words, pieces: Sequence[NDArray[Any]], client: int) -> None:
    """Add the pieces that a client sent to the sum, in place; refuse what has another form."""
    ours = total.pieces()
    fits = [_form(piece) for piece in pieces] == [_form(piece) for piece in ours]
    insist(fits, "its masked words have another number or type than the sum has", client)
    for part, piece in zip(ours, pieces, strict=True):
        np.add(part, piece, out=part)


def _form(piece: NDArray[Any]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    return piece.dtype, piece.shape
