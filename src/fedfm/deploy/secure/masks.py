"""Masks: streams of AES-256 in counter mode, added to words or subtracted from them."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from fedfm.deploy.secure.masked_integers import Words

_CHUNK = 2**18  # bytes: a chunk, its sum and a stream's part stay in the processor's cache
_ZEROS = memoryview(bytes(_CHUNK))
_BLOCK = 16
_Signed = Sequence[tuple[np.ufunc, bytes]]


def apply_masks(words: Words, plus: Iterable[bytes], minus: Iterable[bytes]) -> Words:
    """Return words plus the masks of the keys `plus` [32 bytes each], minus those of `minus`.

    A key gives one stream per kind of words. Never mask two contributions with one key. The work
    uses as many threads as PyTorch may use.
    """
    signed = [(np.add, key) for key in plus] + [(np.subtract, key) for key in minus]
    return Words(_apply(words.bulk, signed, 0), _apply(words.fine, signed, 1))


def _apply(words: NDArray[Any], signed: _Signed, kind: int) -> NDArray[Any]:
    if not signed:
        return words.copy()
    masked = np.empty_like(words)
    span = _span(words.nbytes) // words.itemsize

    def work(start: int) -> None:
        streams = [(sign, _stream(key, kind, start * words.itemsize)) for sign, key in signed]
        _mask(words[start : start + span], masked[start : start + span], streams)

    starts = range(0, len(words), span)
    with ThreadPoolExecutor(max(1, len(starts))) as pool:
        list(pool.map(work, starts))
    return masked


def _span(size: int) -> int:
    """Return the bytes for each thread, a multiple of the chunk size."""
    chunks = -(-size // _CHUNK)
    return max(1, -(-chunks // torch.get_num_threads())) * _CHUNK


_Fill = Callable[[memoryview], object]


def _stream(key: bytes, kind: int, offset: int) -> _Fill:
    """Return a function that writes the next bytes of a key's stream, starting at `offset`."""
    counter = bytes([kind]) + (offset // _BLOCK).to_bytes(_BLOCK - 1, "big")
    cipher = Cipher(algorithms.AES256(key), modes.CTR(counter)).encryptor()
    return lambda out: cipher.update_into(_ZEROS[: len(out)], out)


def _mask(words: NDArray[Any], masked: NDArray[Any], streams: list[tuple[np.ufunc, _Fill]]) -> None:
    buffer = np.empty(_CHUNK, np.uint8)
    size, little = _CHUNK // words.itemsize, words.dtype.newbyteorder("<")
    for start in range(0, len(words), size):
        before, part = words[start : start + size], masked[start : start + size]
        mask = buffer[: part.nbytes]
        for sign, fill in streams:
            fill(mask.data)
            before = sign(before, mask.view(little), out=part)
