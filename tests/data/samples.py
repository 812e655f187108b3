"""Small files in the official formats, and sources whose checksums fit them."""

import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fedfm.data import Source, Split

Pixels = NDArray[np.uint8]


def pixels(seed: int, *shape: int) -> Pixels:
    """Random uint8 values."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def png(image: Pixels) -> bytes:
    """A PNG file of an image [H, W] or [H, W, 3]."""
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "png")
    return stream.getvalue()


def tar(path: Path, files: Mapping[str, bytes], mode: str = "w:gz") -> Path:
    """A tar at `path` with `files`, in their order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    archive: tarfile.TarFile
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]  # mode is a variable
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def tree(path: Path, files: Mapping[str, bytes]) -> Path:
    """A folder at `path` with `files`."""
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def idx(array: Pixels) -> bytes:
    """A gzip idx file of bytes."""
    header = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes()
    return gzip.compress(header + array.tobytes(), 1)


def records(labels: NDArray[np.uint8], images: Pixels) -> bytes:
    """CIFAR records of labels [N, 1 or 2] and images [N, 3, 32, 32]."""
    return np.hstack([labels, images.reshape(len(images), -1)]).astype(np.uint8).tobytes()


def trusting(source: Source, root: Path) -> Source:
    """`source` with the checksums of the files that lie in its folder below `root`."""
    files = (
        replace(f, md5=hashlib.md5((root / source.name / f.name).read_bytes()).hexdigest())
        for f in source.files
    )
    return replace(source, files=tuple(files))


def assert_holds(split: Split, inputs: np.ndarray, labels: Sequence[int]) -> None:
    """The split has these samples, in the order of their content."""
    expected = Split(torch.from_numpy(inputs.copy()), torch.tensor(labels)).sort_by_content()
    assert torch.equal(split.inputs, expected.inputs)
    assert torch.equal(split.labels, expected.labels)
