"""The tables of docs/conformance.md; `python -m fedfm.verify.document FILE` updates them."""

import sys
from collections.abc import Iterable
from pathlib import Path

from fedfm.verify.checks import CHECKS
from fedfm.verify.report import Report
from fedfm.verify.suite import verify_all


def update_tables(text: str, report: Report) -> str:
    """Return the document with new text between <!-- name --> and <!-- end -->."""
    for name, table in (("checks", checks_table(report)), ("mistakes", mistakes_table(report))):
        before, mark, rest = text.partition(f"<!-- {name} -->\n")
        text = before + mark + table + rest[rest.index("<!-- end -->") :]
    return text


def checks_table(report: Report) -> str:
    """Return a table of what each check shows, and of which methods."""
    rows = []
    for check in CHECKS.values():
        methods = [row.method for row in report.rows if row.check == check.name]
        names = dict.fromkeys(method.partition(",")[0] for method in methods)
        everyone = len(names) == len({row.method.partition(",")[0] for row in report.rows})
        rows.append((check.name, check.shows, "all" if everyone else ", ".join(names)))
    return table(("check", "what holds", "methods"), rows)


def mistakes_table(report: Report) -> str:
    """Return a table of planted mistakes and the check that caught each."""
    rows = [(caught.method, caught.mistake, str(caught.by)) for caught in report.mistakes]
    return table(("method", "planted mistake", "caught by"), rows)


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(update_tables(path.read_text(), verify_all()))
