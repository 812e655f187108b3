"""What came out of the checks, for people and for programs."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from typing import Any

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table


@dataclass(frozen=True)
class Row:
    """One check of one method."""

    method: str
    check: str
    passed: bool
    why: str = ""
    """What was found instead, where it failed."""


@dataclass(frozen=True)
class Caught:
    """One planted mistake and the checks that failed on it."""

    method: str
    mistake: str
    by: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """All checks that were run; `print` it for a table."""

    rows: tuple[Row, ...]
    mistakes: tuple[Caught, ...] = ()

    @property
    def passed(self) -> bool:
        """Every check passed, at least one was run, and no planted mistake survived."""
        checks = bool(self.rows) and all(row.passed for row in self.rows)
        return checks and all(mistake.by for mistake in self.mistakes)

    @property
    def failures(self) -> tuple[Row, ...]:
        """The checks that failed."""
        return tuple(row for row in self.rows if not row.passed)

    @property
    def survivors(self) -> tuple[Caught, ...]:
        """The planted mistakes that no check noticed."""
        return tuple(mistake for mistake in self.mistakes if not mistake.by)

    def as_dict(self) -> dict[str, Any]:
        """Plain values by name."""
        return {"passed": self.passed} | asdict(self)

    def __rich__(self) -> Group:
        """Tables."""
        parts = [methods_table(self.rows)]
        if self.mistakes:
            parts.append(mistakes_table(self.mistakes))
        return Group(*parts, self.verdict())

    def verdict(self) -> str:
        """The outcome in a line."""
        good = len(self.rows) - len(self.failures)
        line = f"{good} of {len(self.rows)} checks passed"
        if self.mistakes:
            caught = len(self.mistakes) - len(self.survivors)
            line += f", {caught} of {len(self.mistakes)} planted mistakes caught"
        if self.unread:
            line += f"\nno textbook of {', '.join(self.unread)}: its formula is not checked"
        return line

    @property
    def unread(self) -> list[str]:
        """Methods that were compared with no textbook version."""
        read = {row.method for row in self.rows if row.check.startswith("textbook")}
        return [name for name in dict.fromkeys(row.method for row in self.rows) if name not in read]

    def __str__(self) -> str:
        """The tables as text."""
        text = StringIO()
        Console(file=text, width=110).print(self)
        return text.getvalue()


def methods_table(rows: Sequence[Row]) -> Table:
    """A line per method, and one for every check that failed."""
    table = Table(title="checks", title_justify="left")
    table.add_column("method", no_wrap=True)
    table.add_column("passed", justify="right", no_wrap=True)
    table.add_column("checks")
    for method in dict.fromkeys(row.method for row in rows):
        own = [row for row in rows if row.method == method]
        good = [row.check for row in own if row.passed]
        table.add_row(method, f"{len(good)}/{len(own)}", ", ".join(short(good)))
        for row in own:
            if not row.passed:
                table.add_row("", "[red]FAILED[/red]", f"[red]{row.check}[/red]: {escape(row.why)}")
    return table


def mistakes_table(mistakes: Sequence[Caught]) -> Table:
    """A line per planted mistake."""
    table = Table(title="planted mistakes", title_justify="left")
    table.add_column("method", no_wrap=True)
    table.add_column("mistake")
    table.add_column("caught by")
    for found in mistakes:
        by = ", ".join(short(found.by)) or "[red]NOTHING[/red]"
        table.add_row(found.method, found.mistake, by)
    return table


def short(checks: Iterable[str]) -> list[str]:
    """Names of checks, those of a family behind one word: 'textbook (plain SGD, momentum)'."""
    families: dict[str, list[str]] = {}
    for name in checks:
        family, _, member = name.partition(": ")
        families.setdefault(family, []).extend([member] if member else [])
    return [f"{name} ({', '.join(own)})" if own else name for name, own in families.items()]
