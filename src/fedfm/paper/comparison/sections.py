"""The tables of the comparison's document."""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import sqrt
from pathlib import Path

from fedfm.grid.budget import format_duration
from fedfm.paper.comparison.budgets import BudgetRanking, judge_budgets
from fedfm.paper.comparison.rows import MethodRow
from fedfm.paper.comparison.tuning import Candidate, Choice, Tuned
from fedfm.paper.sections import NOT_RUN, sum_seconds
from fedfm.report.tables.formats import escape_markdown, format_markdown_table
from fedfm.report.tables.table import Column, Entry, Labels, Table

HELPS, HURTS, UNDECIDED = "helps", "hurts", "undecided"


def render_budgets(table: Table, column: Labels, rows: Sequence[MethodRow]) -> str:
    """Render who leads under which budget, and which methods are not run."""
    absent = [" / ".join(row) for row in table.rows if " / ".join(row) not in _names(rows)]
    parts = [f"### {' / '.join(column)}\n"]
    rankings = list(judge_budgets(rows))
    if rankings:
        heads = ("budget", "best", "test accuracy (%)", "not told apart from it")
        parts.append(format_markdown_table(heads, map(_format_ranking, rankings)))
    if absent:
        parts.append(f"Not run: {', '.join(absent)}.\n")
    return "\n".join(parts)


def _names(rows: Iterable[MethodRow]) -> set[str]:
    return {row.method for row in rows}


def _format_ranking(ranking: BudgetRanking) -> list[str]:
    shares = {1.0: "all"}
    share = shares.get(ranking.share, f"1/{1 / ranking.share:g}")
    budget = f"{share}: {ranking.budget:,.4g} {ranking.kind.unit}"
    leader = ranking.leader
    if ranking.deviation is None:
        others = "any of them: no method has several seeds"
    else:
        others = ", ".join(f"{r.method} ({r.reached:.2f})" for r in ranking.rivals) or "none"
    seeds = "one seed" if leader.seeds == 1 else f"{leader.seeds} seeds"
    return [budget, leader.method, f"{leader.reached:.2f} ({seeds})", others]


def render_methods(
    table: Table, column: Labels, rows: Sequence[MethodRow], tuned: Tuned, results: Path
) -> str:
    """Render all methods in a column of the main table."""
    heads = ("method", "setting", "test accuracy", "last round", "seeds", "GB sent")
    ran = {row.method: row for row in rows}
    lines = []
    for labels in table.rows:
        method = " / ".join(labels)
        best = tuned.choices[method].best if method in tuned.choices else None
        setting = best.words if best else ""
        cells = _format_row(ran[method], results) if method in ran else [NOT_RUN, *[""] * 6]
        lines.append([method, setting, *cells])
    return format_markdown_table((*heads, "client compute", "time", "command"), lines)


def _format_row(row: MethodRow, results: Path) -> list[str]:
    best, last = (row.entries[name] for name in ("test_accuracy", "last_test_accuracy"))
    return [
        f"**{_format_entry(best)}**" if best.rank == 1 else _format_entry(best),
        _format_entry(last),
        str(len(row.runs)),
        f"{row.curve.gigabytes[-1]:.0f}",
        f"{row.work:g}",
        format_duration(sum_seconds(row.runs)),
        _format_command(best, results),
    ]


def _format_entry(entry: Entry) -> str:
    if entry.mean is None:
        return NOT_RUN
    return entry.measure.text(entry.mean) + entry.measure.spread(entry.deviation)


def _format_command(entry: Entry, results: Path) -> str:
    """Return the command that repeats a cell's first run."""
    config = results / entry.runs[0].folder / "config.toml"
    return f"`{shlex.join(['fedfm', 'run', str(config), '--out', 'again'])}`"


def render_published(table: Table, results: Path) -> str:
    """Render the published numbers beside ours."""
    heads = (*table.recipe.columns, *table.recipe.rows, "published", "ours", "difference")
    lines = []
    for place in dict.fromkeys(column.labels for column in table.columns):
        for row in table.rows:
            scored, last = _entries_at(table, row, place)
            paper = "" if scored.paper is None else scored.measure.text(scored.paper.mean)
            less = scored.difference
            lines.append(
                [
                    *(*place, *row, paper, _format_entry(scored)),
                    "" if less is None else scored.measure.text(less, "+"),
                    _format_entry(last) if scored.runs else "",
                    format_duration(sum_seconds(scored.runs)) if scored.runs else "",
                    _format_command(scored, results) if scored.runs else "",
                ]
            )
    return format_markdown_table((*heads, "ours, last round", "time", "command"), lines)


def _entries_at(table: Table, row: Labels, place: Labels) -> list[Entry]:
    """Return the entries of a cell, one for each measure."""
    return [
        table.entries[row, column]
        for column in table.columns
        if column.labels == place and (row, column) in table.entries
    ]


def render_tuning(tuned: Tuned) -> str:
    """Render what was tried for each method, and what was chosen."""
    budgets = {len(choice.candidates) for choice in tuned.choices.values()}
    each = " or ".join(map(str, sorted(budgets)))
    about = (
        f"## Tuning (`{tuned.recipe.tuned}`)\n\nEvery method has {each} settings to choose from; "
        "in brackets the accuracy on the server's images in percent. The chosen one is bold.\n"
    )
    lines = [[name, *_format_choice(choice)] for name, choice in tuned.choices.items()]
    return f"{about}\n{format_markdown_table(('method', 'settings', 'chosen'), lines)}"


def _format_choice(choice: Choice) -> list[str]:
    best = choice.best
    tried = [_format_candidate(each, each == best) for each in choice.candidates]
    edge = ", an end of the range" if choice.at_an_end else ""
    return ["; ".join(tried), best.words + edge if best else "not yet"]


def _format_candidate(candidate: Candidate, chosen: bool) -> str:
    value = NOT_RUN if candidate.value is None else f"{100 * candidate.value:.2f}"
    text = f"{candidate.words} ({value})"
    return f"**{text}**" if chosen else text


def render_matching(table: Table) -> str:
    """Render each method by itself and with feature matching."""
    places = list(dict.fromkeys(column.labels for column in table.columns))
    pairs = [
        (" / ".join((*place[:-1], *row)), *_find_pair(table, (row, place), (row, other)))
        for place, other in zip(places[::2], places[1::2], strict=True)
        for row in table.rows
    ]
    return _render_gains(pairs, "alone", "with FedFM")


def render_anchors(table: Table) -> str:
    """Render what each option adds to the first row."""
    (place,) = dict.fromkeys(column.labels for column in table.columns)
    first, *others = table.rows
    pairs = [(" / ".join(o), *_find_pair(table, (first, place), (o, place))) for o in others]
    return _render_gains(pairs, "FedFM", "with the option")


def _find_pair(
    table: Table, plain: tuple[Labels, Labels], other: tuple[Labels, Labels]
) -> tuple[Entry, Entry]:
    measure = table.columns[0].measure
    entries = [table.entries[row, Column(place, measure)] for row, place in (plain, other)]
    return entries[0], entries[1]


def _render_gains(pairs: Iterable[tuple[str, Entry, Entry]], plain: str, added: str) -> str:
    lines = []
    for name, before, after in pairs:
        gain, verdict, seeds = judge_gain(before.values, after.values)
        less = "" if gain is None else before.measure.text(gain, "+")
        scores = [_format_entry(before), _format_entry(after)]
        lines.append([escape_markdown(name), *scores, less, str(seeds), verdict])
    return format_markdown_table(("", plain, added, "gain", "seeds", ""), lines)


def judge_gain(
    before: Mapping[int, float], after: Mapping[int, float]
) -> tuple[float | None, str, int]:
    """Return the mean difference over common seeds, a verdict, and how many seeds these are."""
    seeds = sorted(before.keys() & after.keys())
    if not seeds:
        return None, "", 0
    gain = sum(after[seed] - before[seed] for seed in seeds) / len(seeds)
    if len(seeds) == 1:
        return gain, UNDECIDED, 1
    parts = [[values[seed] for seed in seeds] for values in (before, after)]
    pooled = sqrt(sum(_variance(part) for part in parts) / 2)
    verdict = UNDECIDED if abs(gain) <= pooled else HELPS if gain > 0 else HURTS
    return gain, verdict, len(seeds)


def _variance(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


GAINS: Mapping[str, Callable[[Table], str]] = {
    "field-matching": render_matching,
    "field-anchors": render_anchors,
}
"""The recipes that measure what something adds."""
