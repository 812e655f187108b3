"""The config that a run's folder was begun with: read and written, compared, locked."""

import fcntl
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedfm.core.checkpoint import Damaged, write_atomically
from fedfm.core.errors import UserError

CONFIG = "config.toml"


def read_config(path: Path) -> dict[str, Any]:
    """The plain values of a recorded config."""
    try:
        return tomllib.loads(path.read_text())
    except ValueError as problem:
        raise Damaged(path, problem) from problem


def write_config(path: Path, config: dict[str, Any]) -> None:
    """Record a config, in one step."""
    import tomli_w

    write_atomically(path, tomli_w.dumps(config).encode())


def prolonged(before: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """A run's config with the rounds of `config`, if these are more and change nothing so far.

    The last round is evaluated in any case; it must be one that would be evaluated anyway.
    """
    begun, wanted = (each.get("protocol", {}) for each in (before, config))
    last, rounds = begun.get("rounds", 0), wanted.get("rounds", 0)
    if 0 < last < rounds and last % begun.get("evaluate_every", 1) == 0:
        return before | {"protocol": begun | {"rounds": rounds}}
    return before


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """For one process alone: an error where another has it."""
    with file.open("r+b") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            said = "is being run by another process: wait for it, or stop it"
            raise UserError(f"{file.parent} {said}") from problem
        yield


def differences(
    old: dict[str, Any],
    new: dict[str, Any],
    prefix: str = "",
    sides: tuple[str, str] = ("there", "here"),
) -> Iterator[str]:
    """The keys in which two configs differ, with both values; `sides` says whose they are."""
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from differences(before, after, f"{prefix}{key}.", sides)
        elif before != after:
            yield f"{prefix}{key} ({sides[0]} {before!r}, {sides[1]} {after!r})"
