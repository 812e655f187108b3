"""The results of the checks, for people and for programs."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from typing import Any

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table


@dataclass(frozen=True)
class CheckResult:
    """One check of one method."""

    method: str
    check: str
    passed: bool
    why: str = ""
    """The reason, if it failed."""


@dataclass(frozen=True)
class Caught:
    """One planted mistake and the first check that failed on it, if any did."""

    method: str
    mistake: str
    by: str | None


@dataclass(frozen=True)
class Report:
    """All checks that were run; `print` it as a table."""

    rows: tuple[CheckResult, ...]
    mistakes: tuple[Caught, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether checks were run and passed, and every planted mistake was caught."""
        checks = bool(self.rows) and all(row.passed for row in self.rows)
        return checks and all(mistake.by for mistake in self.mistakes)

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """The checks that failed."""
        return tuple(row for row in self.rows if not row.passed)

    @property
    def survivors(self) -> tuple[Caught, ...]:
        """The planted mistakes that no check caught."""
        return tuple(mistake for mistake in self.mistakes if not mistake.by)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values by name."""
        return {"passed": self.passed} | asdict(self)

    def __rich__(self) -> Group:
        """Return the tables and the verdict."""
        parts = [methods_table(self.rows)]
        if self.mistakes:
            parts.append(mistakes_table(self.mistakes))
        return Group(*parts, self.verdict())

    def verdict(self) -> str:
        """Return the outcome in a line."""
        passed = len(self.rows) - len(self.failures)
        line = f"{passed} of {len(self.rows)} checks passed"
        if self.mistakes:
            caught = len(self.mistakes) - len(self.survivors)
            line += f", {caught} of {len(self.mistakes)} planted mistakes caught"
        if self.without_textbook:
            names = ", ".join(self.without_textbook)
            line += f"\nthe textbook does not have {names}: no formula was checked"
        return line

    @property
    def without_textbook(self) -> list[str]:
        """The methods that were not compared with the textbook."""
        compared = {row.method for row in self.rows if row.check.startswith("textbook")}
        methods = dict.fromkeys(row.method for row in self.rows)
        return [name for name in methods if name not in compared]

    def __str__(self) -> str:
        """Return the tables as text."""
        text = StringIO()
        Console(file=text, width=110).print(self)
        return text.getvalue()


def methods_table(rows: Sequence[CheckResult]) -> Table:
    """Return a table with a line per method, and one for every check that failed."""
    table = Table(title="checks", title_justify="left")
    table.add_column("method", no_wrap=True)
    table.add_column("passed", justify="right", no_wrap=True)
    table.add_column("checks")
    for method in dict.fromkeys(row.method for row in rows):
        checks = [row for row in rows if row.method == method]
        passed = [row.check for row in checks if row.passed]
        table.add_row(method, f"{len(passed)}/{len(checks)}", ", ".join(group_checks(passed)))
        for row in checks:
            if not row.passed:
                table.add_row("", "[red]FAILED[/red]", f"[red]{row.check}[/red]: {escape(row.why)}")
    return table


def mistakes_table(mistakes: Sequence[Caught]) -> Table:
    """Return a table with a line per planted mistake."""
    table = Table(title="planted mistakes", title_justify="left")
    table.add_column("method", no_wrap=True)
    table.add_column("mistake")
    table.add_column("caught by")
    for caught in mistakes:
        table.add_row(caught.method, caught.mistake, caught.by or "[red]NOTHING[/red]")
    return table


def group_checks(checks: Iterable[str]) -> list[str]:
    """Return names of checks with those of a family in one: 'textbook (plain SGD, momentum)'."""
    families: dict[str, list[str]] = {}
    for name in checks:
        family, _, member = name.partition(": ")
        families.setdefault(family, []).extend([member] if member else [])
    return [f"{name} ({', '.join(some)})" if some else name for name, some in families.items()]
