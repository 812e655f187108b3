"""The tables of docs/conformance.md: `python -m fedfm.verify.document FILE` renews them."""

import sys
from collections.abc import Iterable
from pathlib import Path

from fedfm.verify.checks import CHECKS
from fedfm.verify.report import Report, short
from fedfm.verify.suite import verify_all


def updated(text: str, report: Report) -> str:
    """The document with what stands between <!-- name --> and <!-- end --> written anew."""
    for name, table in (("checks", checks_table(report)), ("mistakes", mistakes_table(report))):
        before, mark, rest = text.partition(f"<!-- {name} -->\n")
        text = before + mark + table + rest[rest.index("<!-- end -->") :]
    return text


def checks_table(report: Report) -> str:
    """What each check shows, and of which methods."""
    rows = []
    for check in CHECKS.values():
        methods = [row.method for row in report.rows if row.check == check.name]
        names = dict.fromkeys(method.partition(",")[0] for method in methods)
        everyone = len(names) == len({row.method.partition(",")[0] for row in report.rows})
        rows.append((check.name, check.shows, "all" if everyone else ", ".join(names)))
    return table(("check", "what holds", "methods"), rows)


def mistakes_table(report: Report) -> str:
    """Each planted mistake and what caught it, single precision aside, which is near its limit."""
    rows = []
    for found in report.mistakes:
        checks = [check for check in found.by if not check.endswith("float32")]
        rows.append((found.method, found.mistake, ", ".join(short(checks))))
    return table(("method", "planted mistake", "caught by"), rows)


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(updated(path.read_text(), verify_all()))
