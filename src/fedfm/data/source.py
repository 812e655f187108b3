"""Sources of data: the files they need, downloaded once and always checked, and their readers.

A source is one file in this folder, registered in `SOURCES` (data/__init__.py).
"""

import hashlib
import inspect
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from fedfm.core.errors import UserError, require
from fedfm.data.dataset import Dataset


@dataclass(frozen=True)
class File:
    """A file that a source needs.

    Examples:
        >>> url = "https://example.org/train.gz"
        >>> File("train.gz", url, md5="d41d8cd98f00b204e9800998ecf8427e").name
        'train.gz'
    """

    name: str
    """Its name in the source's folder."""
    url: str
    """Where it is downloaded from."""
    md5: str
    """Its checksum."""


@dataclass(frozen=True)
class Source:
    """A data set by name: `read(folder, **options)` reads it from the `files` in its folder.

    The keyword-only parameters of `read` are the options a user may give. Sizes are None if they
    depend on the user's data.

    Examples:
        >>> import fedfm
        >>> fedfm.data.SOURCES["folder"].options  # whether it needs them
        {'path': True, 'size': False, 'client': False}
    """

    name: str
    """The name in configs."""
    description: str
    """One line for `fedfm data`."""
    read: Callable[..., Dataset]
    """Reads the data set from its folder."""
    files: tuple[File, ...] = ()
    """The files that it needs."""
    classes: int | None = None
    """The number of classes."""
    train: int | None = None
    """The number of training samples."""
    test: int | None = None
    """The number of test samples."""

    @property
    def options(self) -> dict[str, bool]:
        """The options that `read` takes, and whether it needs them."""
        parameters = inspect.signature(self.read).parameters.values()
        named = (p for p in parameters if p.kind is p.KEYWORD_ONLY)
        return {p.name: p.default is p.empty for p in named}

    def check(self, given: dict[str, Any]) -> None:
        """Refuse options that this source does not take, and missing ones that it needs."""
        for option in given:
            takes = ", ".join(self.options) or "no options"
            require(option in self.options, f"data '{self.name}' takes {takes}, not '{option}'")
        for option, needed in self.options.items():
            require(option in given or not needed, f"data '{self.name}' needs '{option}'")

    def missing(self, root: Path) -> tuple[File, ...]:
        """Return the files that are missing in this source's folder below `root`."""
        return tuple(file for file in self.files if not (root / self.name / file.name).exists())


def data_folder(dir: Path | None = None) -> Path:
    """Return `dir`, or else $FEDFM_DATA, or else the user's cache folder."""
    chosen = dir or os.environ.get("FEDFM_DATA")
    if chosen:
        return Path(chosen).expanduser()
    import pooch

    return Path(pooch.os_cache("fedfm"))


def fetch(source: Source, root: Path, *, download: bool = True) -> Path:
    """Download the missing files of a source, check all of them, and return their folder."""
    folder = root / source.name
    for file in source.missing(root):
        require(download, f"{file.name} is missing. {_by_hand(source, root)}")
        try:
            _download(file, folder)
        except OSError as error:
            reason = shorten(f"{type(error).__name__}: {error}", 90)
            message = f"could not download {file.name} ({reason})."
            raise UserError(f"{message}\n{_by_hand(source, root)}") from error
        except ValueError as error:
            raise UserError(f"{file.url} sent an unexpected file: {error}") from error
    for file in source.files:
        _verify(folder / file.name, file.md5)
    return folder


def _by_hand(source: Source, root: Path) -> str:
    urls = " and ".join(file.url for file in source.missing(root))
    return f"Download {urls} by hand and put it into {root / source.name}"


def _verify(path: Path, md5: str) -> None:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    require(
        digest == md5,
        f"{path} is damaged or altered: its md5 is {digest}, expected {md5}.\n"
        "Delete it; the next run downloads it again.",
    )


def _download(file: File, folder: Path) -> None:
    """Download `file` with pooch; it appears in `folder` only if it is complete and correct."""
    import pooch

    log = pooch.get_logger()
    with ExitStack() as stack:
        stack.callback(log.setLevel, log.level)
        log.setLevel("WARNING")

        def close_later(response: Any, *_: Any, **__: Any) -> None:
            stack.callback(response.close)  # pooch leaves responses open when it fails

        bar = sys.stderr.isatty() and stack.enter_context(closing(Bar(file.name)))
        hooks = {"response": close_later}
        downloader = pooch.HTTPDownloader(progressbar=bar, chunk_size=2**16, hooks=hooks)
        pooch.retrieve(file.url, f"md5:{file.md5}", file.name, folder, downloader=downloader)


class Bar:
    """A progress bar with the interface that pooch expects (it sets `total`), drawn by rich."""

    def __init__(self, text: str) -> None:
        from rich import progress
        from rich.console import Console

        self.total = 0
        columns = (progress.BarColumn(), progress.DownloadColumn(), progress.TimeRemainingColumn())
        self._bar = progress.Progress(
            "{task.description}", *columns, console=Console(stderr=True), transient=True
        )
        self._task = self._bar.add_task(text, total=None)
        self._bar.start()

    def update(self, n: int) -> None:
        """Advance by `n` bytes."""
        self._bar.update(self._task, advance=n, total=self.total or None)

    def reset(self) -> None:
        """Go back to the beginning."""
        self._bar.reset(self._task)

    def close(self) -> None:
        """Remove the bar from the screen."""
        self._bar.stop()
