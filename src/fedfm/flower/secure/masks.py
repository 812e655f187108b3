"""Words that add up, and the streams of AES-256 in counter mode that hide them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from fedfm.flower.secure.errors import insist

_CHUNK = 2**18  # bytes: a chunk, its sum and a stream's part stay in the processor's cache
_PIECE = 2**20  # words
_ZEROS = memoryview(bytes(_CHUNK))
_BLOCK = 16


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


def with_masks(words: Words, plus: Iterable[bytes], minus: Iterable[bytes]) -> Words:
    """Words plus the masks of some keys [32 bytes each], minus those of others.

    A key gives one stream per kind of words and must never mask two contributions.
    """
    signs = [(np.add, key) for key in plus] + [(np.subtract, key) for key in minus]
    return Words(
        _applied(words.bulk, [(sign, _stream(key, 0)) for sign, key in signs]),
        _applied(words.fine, [(sign, _stream(key, 1)) for sign, key in signs]),
    )


_Fill = Callable[[memoryview], object]


def _stream(key: bytes, kind: int) -> _Fill:
    start = bytes([kind]) + bytes(_BLOCK - 1)
    cipher = Cipher(algorithms.AES256(key), modes.CTR(start)).encryptor()
    return lambda out: cipher.update_into(_ZEROS[: len(out)], out)


def _applied(words: NDArray[Any], streams: list[tuple[np.ufunc, _Fill]]) -> NDArray[Any]:
    masked = np.empty_like(words) if streams else words.copy()
    buffer = np.empty(_CHUNK, np.uint8)
    size, little = _CHUNK // words.itemsize, words.dtype.newbyteorder("<")
    for start in range(0, len(words), size):
        before, part = words[start : start + size], masked[start : start + size]
        mask = buffer[: part.nbytes]
        for sign, fill in streams:
            fill(mask.data)
            before = sign(before, mask.view(little), out=part)
    return masked
