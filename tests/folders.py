"""What lies in a run's folder, and a machine that dies while it is written."""

import csv
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


def contents(folder: Path) -> dict[str, bytes]:
    """Everything below a folder: the bytes of files by path; folders end in a slash."""
    return {
        f"{path.relative_to(folder)}{'/' if path.is_dir() else ''}": b""
        if path.is_dir()
        else path.read_bytes()
        for path in sorted(folder.rglob("*"))
    }


def timeless(folder: Path) -> dict[str, Any]:
    """Everything about a finished run that must not depend on the clock."""
    files: dict[str, Any] = contents(folder)
    files["rounds.jsonl"] = [line | {"seconds": 0} for line in lines(folder)]
    rows = list(csv.DictReader((folder / "rounds.csv").read_text().splitlines()))
    files["rounds.csv"] = [row | {"seconds": 0} for row in rows]
    files["summary.json"] = summary(folder)
    files["summary.json"]["totals"].pop("seconds")
    files["machine.json"] = json.loads((folder / "machine.json").read_text())
    files["machine.json"].pop("why")
    return files


def lines(folder: Path) -> list[dict[str, Any]]:
    """The rounds that a run wrote down."""
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def summary(folder: Path) -> dict[str, Any]:
    """A run's summary."""
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


class PowerFailure(BaseException):
    """The machine went off: nothing can catch this and go on."""


class FullDisk(OSError):
    """One write failed; the program goes on."""


@contextmanager
def failing(
    monkeypatch: pytest.MonkeyPatch, step: int, problem: type[BaseException]
) -> Iterator[Callable[[], int]]:
    """Let the step-th touch of the disk (from 1) fail; gives how many touches there were.

    Every file loses half of what was not synced by then. After a power failure every later touch
    fails as well, so that no tidying up can help.
    """
    touches, written, synced = 0, set[Path](), dict[int, int]()

    def guarded(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def touch(*args: Any, **options: Any) -> Any:
            nonlocal touches
            touches += 1
            if touches == step:
                lose_half(written, synced)
            if touches == step or (touches > step and problem is PowerFailure):
                raise problem(f"at step {touches}: {name}")
            if name == "fsync":
                synced[os.fstat(args[0]).st_ino] = os.fstat(args[0]).st_size
            if name == "replace" or (name == "open" and writes(*args[1:], **options)):
                written.add(Path(args[name == "replace"]))
            return real(*args, **options)

        return touch

    disk = ((os, "fsync"), (os, "replace"), (os, "unlink"), (Path, "open"), (Path, "mkdir"))
    with monkeypatch.context() as patch:
        for owner, name in disk:
            patch.setattr(owner, name, guarded(name, getattr(owner, name)))
        yield lambda: touches


def writes(mode: str = "r", *_: Any, **__: Any) -> bool:
    """Whether `open` with these arguments may change the file; one that is read loses nothing."""
    return not {"w", "a", "x", "+"}.isdisjoint(mode)


def lose_half(written: set[Path], synced: dict[int, int]) -> None:
    """Cut off half of what each file holds beyond what was synced."""
    for path in filter(Path.is_file, written):
        status = path.stat()
        kept = synced.get(status.st_ino, 0)
        os.truncate(path, kept + (status.st_size - kept) // 2)


def assert_private(folder: Path) -> None:
    """Only the owner can look into a folder."""
    for path in [folder, *folder.rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
