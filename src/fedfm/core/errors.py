"""Errors whose message is for the user: the command line prints them and exits with code 2."""

import difflib
from collections.abc import Iterable
from dataclasses import fields
from numbers import Integral, Real
from typing import Any


class UserError(ValueError):
    """Something the user can mend; the message says what and how, in a line or two."""


def require(condition: bool, message: str) -> None:
    """Raise a `UserError` with `message` unless `condition` holds."""
    if not condition:
        raise UserError(message)


def require_numbers(settings: Any) -> None:
    """Raise a `UserError` where a dataclass has something else for an `int` or a `float`.

    Numbers of other libraries become Python's, which files can hold.
    """
    for each in fields(settings):
        value = getattr(settings, each.name)
        kind = {int: Integral, float: Real}.get(each.type) if isinstance(each.type, type) else None
        if kind and (isinstance(value, bool) or not isinstance(value, kind)):
            wanted = "a whole number" if kind is Integral else "a number"
            raise UserError(f"{each.name} must be {wanted}, not {value!r}")
        if kind and not isinstance(value, int | float):
            plain = int(value) if kind is Integral else float(value)
            object.__setattr__(settings, each.name, plain)


def unknown(kind: str, name: str, known: Iterable[str], more: str = "") -> UserError:
    """An error for a name nobody knows, with the nearest right one, or all of them, and `more`."""
    names = sorted(known)
    folded = {each.lower(): each for each in names}
    near = difflib.get_close_matches(name.lower(), folded, n=1)
    hint = f"did you mean '{folded[near[0]]}'?" if near else f"known: {', '.join(names) or 'none'}"
    return UserError(f"unknown {kind} '{name}': {hint}" + (f" {more}" if more else ""))


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: "1 client", "2 clients"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def not_installed(what: str, extra: str) -> UserError:
    """An error for an optional part that is not there: what lacks, and the extra that brings it."""
    return UserError(f"{what}: pip install '.[{extra}]' in a checkout of FedFM")
