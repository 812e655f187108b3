"""Write the document of the reproduction: every number, and the command that repeats it."""

import shutil
from pathlib import Path

from fedfm.core.files import write_atomically
from fedfm.grid.repeats import find_repeats_within
from fedfm.grid.store import Summary
from fedfm.paper.claim_results import render_claims
from fedfm.paper.costs import render_costs
from fedfm.paper.document import Document
from fedfm.paper.evidence import Evidence
from fedfm.paper.images import render_images
from fedfm.paper.introduction import render_introduction
from fedfm.paper.missing import render_missing
from fedfm.paper.plan import Section
from fedfm.paper.protocol import render_protocol
from fedfm.paper.sections import JPEG, Renderer
from fedfm.paper.stages import UNTRAINED
from fedfm.report.tables.formats import format_markdown_table
from fedfm.report.tables.table import Table

THEORY = """\
## Sec. V: convergence

[theory.md](theory.md) checks Lemma 2, Theorem 1 and Corollary 1 with numbers, and says where they
need more than the paper's assumptions: `fedfm verify --theory`.
"""


def write_document(made: Document) -> list[Path]:
    """Draw the pictures and write the text; return the files."""
    made.path.parent.mkdir(parents=True, exist_ok=True)
    drawn = [path for part in made.plan.parts for path in _draw(made, part)]
    write_atomically(made.path, render_document(made).encode())
    return [made.path, *drawn]


def _draw(made: Document, part: Section) -> list[Path]:
    """Draw the pictures of a section, or copy those that were drawn without runs."""
    from fedfm.paper.pictures import draw_picture

    if part.selection.output in UNTRAINED:
        pictures = list(made.list_pictures(part).values())
        for picture in pictures:
            name = picture.name.removeprefix(f"{made.path.stem}-{part.recipe}-")
            shutil.copyfile(made.results / part.recipe / name, picture)
        return pictures
    evidence, path = made.choose_evidence(part.recipe), made.picture(f"{part.recipe}.png")
    table = evidence.tables[part.recipe]
    note = f"{JPEG}: " if evidence is made.jpeg else ""
    if _has_curve(table) and draw_picture(
        part.selection, table, evidence.folder, False, path, note
    ):
        return [path]
    path.unlink(missing_ok=True)
    return []


def _has_curve(table: Table) -> bool:
    """Return whether a picture over the columns would show more than one of them."""
    places = {column.labels for (_, column), entry in table.entries.items() if entry.runs}
    return not table.recipe.columns or len(places) > 1


def render_document(made: Document) -> str:
    """Return the document as Markdown."""
    renderer = Renderer(made.path, made.exact, made.jpeg)
    sections = (renderer.render(part, made.list_pictures(part)) for part in made.plan.parts)
    parts = [
        render_introduction(made),
        render_claims(made.exact, made.jpeg),
        "## Discussion\n",
        made.discussion,
        render_images(made.exact, made.jpeg),
        render_protocol(made.exact, made.jpeg),
        render_costs(),
        *sections,
        THEORY,
        render_missing(made.inventory),
        render_repeats(made.exact, made.jpeg),
    ]
    return "\n".join(part for part in parts if part)


def render_repeats(*folders: Evidence | None) -> str:
    """Return the section about runs that were made twice; nothing if none was."""
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
