"""Fill the discussion with numbers: its text names cells, and cannot go stale.

In the text `{main: FedFM / CIFAR-10 / NIID-1}` stands for our number of that cell, and

- `{quality[nmi]: FedFM}` for another measure than the table's first,
- `{main: A - B}` for the mean difference of two cells over the seeds that both have,
- `{jpeg main: A}` for the runs on JPEG images, `{paper main: A}` for the paper's number,
- `{seeds main: A}` or `{seeds main: A - B}` for how many seeds there are.

A paragraph or a list item of which a cell has not been run is left out.
"""

import re
from statistics import fmean

from fedfm.core.errors import UserError
from fedfm.paper.evidence import Evidence, make_anchor, make_title
from fedfm.report.tables.table import Entry

PLACEHOLDER = re.compile(r"\{(?:(jpeg|paper|seeds|jpeg seeds) )?([\w-]+)(?:\[(\w+)\])?: ([^{}]+)\}")


class NotRun(Exception):
    """A cell that a sentence is about has no run."""


def fill_discussion(text: str, exact: Evidence, jpeg: Evidence | None) -> str:
    """Return the text with numbers that link to their cells."""
    blocks = (_fill_block(block, exact, jpeg) for block in re.split(r"\n{2,}", text.strip()))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _fill_block(block: str, exact: Evidence, jpeg: Evidence | None) -> str:
    """Return a paragraph, or a list without the items about cells that have not been run."""
    parts = re.split(r"\n(?=- )", block) if block.startswith("- ") else [block]
    filled = []
    for part in parts:
        try:
            filled.append(PLACEHOLDER.sub(lambda match: _fill(match, exact, jpeg), part))
        except NotRun:
            continue
    return "\n".join(filled)


def _fill(match: re.Match[str], exact: Evidence, jpeg: Evidence | None) -> str:
    kind, recipe, measure, cells = match.groups(default="")
    evidence = jpeg if kind.startswith("jpeg") else exact
    if evidence is None:
        raise NotRun
    try:
        entries = [evidence.find(recipe, title, measure) for title in cells.split(" - ")]
    except (StopIteration, KeyError) as problem:
        raise UserError(f"the discussion names a cell that is not there: {match[0]}") from problem
    title = " minus ".join(make_title(entry) for entry in entries)
    images = " [JPEG images]" if kind.startswith("jpeg") else ""
    source = " [paper]" if kind == "paper" else images
    what = f" [{entries[0].measure.name}]" if measure else ""
    anchor = make_anchor(recipe, make_title(entries[0]))
    return f'[{_format(kind, entries)}](#{anchor} "{title}{what}{source}")'


def _format(kind: str, entries: list[Entry]) -> str:
    measure = entries[0].measure
    if kind == "paper":
        papers = [entry.paper.mean for entry in entries if entry.paper]
        if len(papers) < len(entries):
            raise NotRun
        return measure.text(papers[0] - papers[1], "+") if papers[1:] else measure.text(papers[0])
    seeds = sorted(set.intersection(*(set(entry.values) for entry in entries)))
    if not seeds:
        raise NotRun
    if kind.endswith("seeds"):
        return f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}"
    if len(entries) == 1:
        return measure.text(fmean(entries[0].values.values())) + measure.spread(
            entries[0].deviation
        )
    first, second = entries
    differences = [first.values[seed] - second.values[seed] for seed in seeds]
    return measure.text(fmean(differences), "+")
