"""Read files in folders and tar archives without unpacking them, and cache decoded images."""

import gzip
import hashlib
import json
import lzma
import os
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Self

from fedfm.core.errors import UserError, require
from fedfm.data.split import Split

Files = Iterator[tuple[str, Callable[[], bytes]]]
_DAMAGE = (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError)


@contextmanager
def user_errors(path: Path) -> Iterator[None]:
    """Turn the standard library's errors about a damaged file into a `UserError`."""
    try:
        yield
    except _DAMAGE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(":")
        raise UserError(
            f"cannot read {path}: {reason}\nIf it is incomplete or altered, download it again."
        ) from error


def gunzip(path: Path) -> bytes:
    """Return the content of the gzip file at `path`."""
    with user_errors(path), gzip.open(path) as stream:
        return stream.read()


def read_members(path: Path, names: Collection[str]) -> dict[str, bytes]:
    """Return the files called `names` in the tar at `path`, from any of its folders."""
    contents: dict[str, bytes] = {}
    for name, read in walk(path):
        base = PurePosixPath(name).name
        if base in names:
            contents[base] = read()
        if len(contents) == len(names):
            return contents
    missing = ", ".join(name for name in names if name not in contents)
    raise UserError(f"{path} lacks {missing}: download it again")


def walk(path: Path) -> Files:
    """Iterate over the files in the folder or tar at `path`: name and function to read it.

    Read a file before asking for the next one.
    """
    return _folder_files(path) if path.is_dir() else _tar_files(path)


def _folder_files(path: Path) -> Files:
    for file in _progress(_list_files(path), f"Reading {path.name}"):
        yield file.relative_to(path).as_posix(), partial(_read, file)


def _read(file: Path) -> bytes:
    with user_errors(file):
        return file.read_bytes()


def _list_files(path: Path) -> list[Path]:
    walked = os.walk(path, followlinks=True)
    return sorted(Path(folder) / file for folder, _, files in walked for file in files)


def _tar_files(path: Path) -> Files:
    with (
        user_errors(path),
        _open(path) as stream,
        tarfile.open(fileobj=stream, mode="r:*", tarinfo=_Header) as tar,
    ):
        for member in tar:
            if not member.isdir():
                yield member.name, partial(_extract, path, tar, member)
        while tar.fileobj and tar.fileobj.read(2**20):
            pass  # a compressed stream checks itself only at its very end


def _extract(path: Path, tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    with user_errors(path):
        stream = tar.extractfile(member) if member.isfile() else None
        require(
            stream is not None,
            f"{path}: {member.name} is a link or a device, not a file: replace it by the file",
        )
        return stream.read() if stream else b""


class _Header(tarfile.TarInfo):
    """A tar header that must be whole: tarfile itself accepts an archive that is cut off."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if buf and not any(buf):  # a block of zeros is how a tar ends
                raise
            raise tarfile.ReadError("the archive ends early or is damaged") from error


def _open(path: Path) -> AbstractContextManager[BinaryIO]:
    if not sys.stderr.isatty():
        return path.open("rb")
    from rich import progress
    from rich.console import Console

    text = f"Reading {path.name}"
    return progress.open(path, "rb", description=text, console=Console(stderr=True), transient=True)


def _progress(files: list[Path], text: str) -> Iterable[Path]:
    if not sys.stderr.isatty():
        return files
    from rich import progress
    from rich.console import Console

    return progress.track(files, text, console=Console(stderr=True), transient=True)


@dataclass(frozen=True)
class Decoded:
    """Images as read from files: two splits of uint8 inputs [N, C, H, W], and the classes."""

    train: Split
    test: Split
    classes: tuple[str, ...]
    clients: tuple[str, ...] = ()


def cache_key(path: Path, *options: object) -> str:
    """Return a key that changes with `options` and with any file at `path`."""
    with user_errors(path):
        files = _list_files(path) if path.is_dir() else [path]
        stats = [file.stat() for file in files]
    facts = [(str(f), s.st_size, s.st_mtime_ns) for f, s in zip(files, stats, strict=True)]
    text = repr((str(path.resolve()), options, facts))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def load_or_make(file: Path, make: Callable[[], Decoded]) -> Decoded:
    """Return the images cached in `file`; else make them and try to cache them."""
    images = _load(file)
    if images is None:
        images = make()
        with suppress(OSError):
            _save(file, images)
    return images


def _load(file: Path) -> Decoded | None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as cache:
            tensors = {key: cache.get_tensor(key) for key in cache.keys()}  # noqa: SIM118 - no mapping
            names = {key: tuple(json.loads(text)) for key, text in cache.metadata().items()}
    except (SafetensorError, OSError):
        return None
    train, test = (
        Split(*(tensors.get(f"{part}.{key}") for key in ("inputs", "labels", "clients")))  # type: ignore[arg-type]  # only clients may be None
        for part in ("train", "test")
    )
    return Decoded(train, test, **names)


def _save(file: Path, images: Decoded) -> None:
    from safetensors.torch import save_file

    splits = {"train": images.train, "test": images.test}
    tensors = {f"{name}.inputs": split.inputs for name, split in splits.items()}
    tensors |= {f"{name}.labels": split.labels for name, split in splits.items()}
    names = {"classes": images.classes}
    if images.clients:
        owners = {f"{name}.clients": split.clients for name, split in splits.items()}
        tensors |= {name: owner for name, owner in owners.items() if owner is not None}
        names["clients"] = images.clients
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
        metadata = {key: json.dumps(value) for key, value in names.items()}
        save_file(tensors, Path(scratch) / "new", metadata)
        os.replace(Path(scratch) / "new", file)  # noqa: PTH105 - the atomic one, by name
