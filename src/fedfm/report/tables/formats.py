"""Render a table for people: terminal, Markdown, LaTeX. For programs: data.py."""

import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console
from rich.markup import escape as escape_rich
from rich.table import Table as RichTable

from fedfm.core.errors import unknown_name_error
from fedfm.report.tables.export import as_csv, as_json
from fedfm.report.tables.notes import write_notes
from fedfm.report.tables.table import Entry, Table


def render_table(table: Table, format: str) -> str:
    """Return the table as text in one of `FORMATS`."""
    if format not in FORMATS:
        raise unknown_name_error("format", format, FORMATS)
    return FORMATS[format](table)


@dataclass(frozen=True)
class Style:
    """How a format writes a number."""

    escape: Callable[[str], str]
    best: str
    second: str
    plus_minus: str = " ± "
    star: str = "*"
    signed: str = "({})"
    paper: str = "  paper"

    def ours(self, entry: Entry | None, seeds: int) -> str:
        """Format mean and deviation with all marks; empty if nothing was run."""
        if entry is None or entry.mean is None:
            return ""
        number = ("{}", self.best, self.second)[entry.rank].format(entry.measure.text(entry.mean))
        spread = entry.measure.spread(entry.deviation, self.plus_minus)
        star = self.star if entry.comparison and entry.comparison.significant else ""
        few = f" (n={len(entry.values)})" if len(entry.values) < seeds else ""
        return f"{number}{spread}{star}{few}"

    def papers(self, entry: Entry | None) -> str:
        """Format the paper's value, and our difference from it."""
        if entry is None or entry.paper is None:
            return ""
        value = entry.measure.text(entry.paper.mean)
        spread = entry.measure.spread(entry.paper.deviation, self.plus_minus)
        if entry.difference is None:
            return value + spread
        difference = entry.measure.text(entry.difference, "+")
        return f"{value}{spread} {self.signed.format(difference)}"

    def rows(self, table: Table) -> Iterator[tuple[bool, list[str]]]:
        """Yield our row, and below it the paper's if it has one; tell which of them it is."""
        for row, entries in table.lines:
            ours = [self.ours(entry, table.recipe.seeds) for entry in entries]
            yield False, [self.escape(" / ".join(row)), *ours]
            values = [self.papers(entry) for entry in entries]
            if any(values):
                yield True, [self.paper, *values]


def as_text(table: Table) -> str:
    """Render for a terminal, at full width; styled if standard output is a terminal."""
    styled = sys.stdout.isatty()
    grid = RichTable()
    grid.add_column(table.row_head, no_wrap=True)
    for head in table.heads:
        grid.add_column(escape_rich("\n".join(head)), justify="right", no_wrap=True)
    for papers, cells in RICH.rows(table):
        grid.add_row(*cells, style="dim" if papers else None)
    width = max(Console(width=10_000).measure(grid).maximum, Console().width)
    console = Console(file=io.StringIO(), width=width, force_terminal=styled, highlight=False)
    console.print(table.caption, style="bold", markup=False)
    console.print(grid)
    for note in write_notes(table, marks=styled):
        console.print(note, markup=False, width=max(Console().width, 40))
    assert isinstance(console.file, io.StringIO)
    return re.sub(" +$", "", console.file.getvalue(), flags=re.MULTILINE)


def as_markdown(table: Table) -> str:
    """Render as Markdown."""
    heads = [table.row_head, *("\0".join(head) for head in table.heads)]
    escaped = [escape_markdown(head).replace("\0", "<br>") for head in heads]
    body = format_markdown_table(escaped, (cells for _, cells in MARKDOWN.rows(table)), "---:")
    notes = "\n".join(f"- {escape_markdown(note)}" for note in write_notes(table))
    return f"**{escape_markdown(table.caption)}**\n\n{body}\n{notes}\n"


def format_markdown_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], align: str = "---"
) -> str:
    """Return a Markdown table; `align` is the rule below every head but the first."""
    lines = [heads, ["---", *[align] * (len(heads) - 1)], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def escape_markdown(text: str) -> str:
    """Escape the characters that Markdown interprets."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", text)


def as_latex(table: Table) -> str:
    r"""Render for LaTeX with booktabs; the paper's values have lines of their own."""
    notes = "\\par\n".join(_escape_latex(note) for note in write_notes(table))
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            "\\begin{table}[t]",
            "\\centering",
            f"\\caption{{{_escape_latex(table.caption)}}}",
            f"\\label{{tab:{re.sub('[^A-Za-z0-9-]', '-', table.recipe.name)}}}",
            f"\\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
            "\\toprule",
            *_format_latex_heads(table),
            "\\midrule",
            *(_format_latex_row(cells, papers) for papers, cells in LATEX.rows(table)),
            "\\bottomrule",
            "\\end{tabular}",
            f"\\par\\smallskip\\raggedright\\footnotesize\n{notes}",
            "\\end{table}\n",
        ]
    )


def _format_latex_heads(table: Table) -> Iterator[str]:
    """Yield a line for each level of the heading; equal neighbours share a cell."""
    levels = len(table.heads[0]) if table.heads else 0
    for level in range(levels):
        cells, rules, column = [], [], 2
        for head, group in groupby(table.heads, key=lambda head: head[: level + 1]):
            width = len(list(group))
            cells.append(f"\\multicolumn{{{width}}}{{c}}{{{_escape_latex(head[-1])}}}")
            rules.append(f"\\cmidrule(lr){{{column}-{column + width - 1}}}")
            column += width
        first = _escape_latex(table.row_head) if level == levels - 1 else ""
        yield _format_latex_row([first, *cells], small=False)
        if level < levels - 1:
            yield " ".join(rules)


def _format_latex_row(cells: Sequence[str], small: bool) -> str:
    texts = [f"{{\\scriptsize {each}}}" if each and small else each for each in cells]
    return f"{' & '.join(texts)} \\\\"


_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "*": "{*}",  # after a line's end it would be part of that command, as would the bracket
        "[": "{[}",
        "<": "$<$",
        ">": "$>$",
        "±": r"$\pm$",
        "\u00d7": r"$\times$",
        "…": r"\dots{}",
        "λ": r"$\lambda$",
        "β": r"$\beta$",
        "τ": r"$\tau$",
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    }
)


def _escape_latex(text: str) -> str:
    return text.translate(_LATEX)


RICH = Style(escape_rich, "[bold]{}[/]", "[underline]{}[/]")
MARKDOWN = Style(escape_markdown, "**{}**", "<u>{}</u>", star="\\*", paper="*paper*")
LATEX = Style(
    _escape_latex,
    r"\textbf{{{}}}",
    r"\underline{{{}}}",
    plus_minus=r" $\pm$ ",
    star="$^{*}$",
    signed="(${}$)",
    paper=r"\quad paper",
)
FORMATS: dict[str, Callable[[Table], str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "latex": as_latex,
    "csv": as_csv,
    "json": as_json,
}
