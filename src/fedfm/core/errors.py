"""Errors for the user: the command line prints their message and exits with code 2."""

import difflib
import errno
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from itertools import islice
from numbers import Integral, Real
from pathlib import Path
from typing import Any


class UserError(ValueError):
    """A problem that the user can fix; the message says what is wrong and what to do.

    Examples:
        >>> from fedfm import Training
        >>> Training(rounds=0)
        Traceback (most recent call last):
        fedfm.core.errors.UserError: rounds must be at least 1, not 0
    """


def require(condition: bool, message: str) -> None:
    """Raise a `UserError` with `message` unless `condition` holds."""
    if not condition:
        raise UserError(message)


def require_numbers(settings: Any, owner: str = "") -> None:
    """Raise a `UserError` if an `int`, `float` or `bool` field of a dataclass holds anything else.

    Convert numbers of other libraries, such as NumPy's, to Python's. `owner`, such as "fedprox: ",
    begins the message.
    """
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.type is bool:
            is_bool = isinstance(value, bool)
            require(is_bool, f"{owner}{field.name} must be true or false, not {value!r}")
        kind = (
            {int: Integral, float: Real}.get(field.type) if isinstance(field.type, type) else None
        )
        if kind and (isinstance(value, bool) or not isinstance(value, kind)):
            wanted = "a whole number" if kind is Integral else "a number"
            raise UserError(f"{owner}{field.name} must be {wanted}, not {value!r}")
        if kind and not isinstance(value, int | float):
            plain = int(value) if kind is Integral else float(value)
            object.__setattr__(settings, field.name, plain)


def unknown_name_error(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Return an error for an unknown name that suggests the nearest known one or lists all."""
    names = sorted(known)
    folded = {known_name.lower(): known_name for known_name in names}
    near = difflib.get_close_matches(name.lower(), folded, n=1)
    hint = f"did you mean '{folded[near[0]]}'?" if near else f"known: {', '.join(names) or 'none'}"
    return UserError(f"unknown {kind} '{name}': {hint}")


@contextmanager
def name_file(path: Path) -> Iterator[None]:
    """Add the file to a system's error inside the block: a write that fails does not name it."""
    try:
        yield
    except OSError as problem:
        problem.filename = problem.filename or str(path)
        raise


def is_disk_full(problem: BaseException) -> bool:
    """Return whether an error says that a disk, or the user's part of it, is full."""
    return isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT)


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: "1 client", "2 clients"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def list_some(items: Collection[object]) -> str:
    """Return the first few items as text."""
    shown = ", ".join(str(item) for item in islice(items, 10))
    return shown + (", ..." if len(items) > 10 else "")


def missing_package_error(what: str, extra: str) -> UserError:
    """Return an error for an optional package that is missing: who needs it, and its extra."""
    return UserError(f"{what}: pip install '.[{extra}]' in a checkout of FedFM")
