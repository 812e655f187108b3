"""Render which runs were made twice, and whether they agree."""

from fedfm.grid.repeats import find_repeats_within
from fedfm.grid.store import Summary
from fedfm.paper.evidence import Evidence
from fedfm.report.tables.formats import format_markdown_table


def render_repeats(*folders: Evidence | None) -> str:
    """Return the section; nothing if no run was made twice."""
    rows = [
        [
            _format_title_and_date(each.first),
            _format_title_and_date(each.second),
            str(each.compared),
            f"round {each.differs_in}" if each.differs_in else "none",
        ]
        for evidence in folders
        if evidence
        for each in find_repeats_within(evidence.folder)
    ]
    about = "Every value of a round except its time is compared, to the last digit."
    heads = ("run", "made again as", "rounds compared", "first difference")
    table = format_markdown_table(heads, rows)
    return f"## Runs made twice\n\n{about}\n\n{table}" if rows else ""


def _format_title_and_date(run: Summary) -> str:
    return f"{run.title} ({run.finished[:16].replace('T', ' ')})"
