"""Finding runs: what is not whole is named, and the rest is read."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedfm.core.errors import require
from fedfm.grid.store import Store
from fedfm.report.html.reading import FoundRun, from_line, read_run

PICTURES = ("features", "tsne", "motivation")
"""How the names of feature-space pictures begin."""
NOT_RUNS = {"checkpoint", "clients", "flower", "app"}
"""Folders within a run's."""
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, OSError)
"""What reading a file raises that another version, or a person, has written."""


@dataclass(frozen=True)
class LeftOut:
    """Something that the report does not show."""

    what: str
    why: str


@dataclass
class Findings:
    """All runs below some folders, and what was left out."""

    runs: list[FoundRun] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    pictures: list[Path] = field(default_factory=list)
    quick: set[tuple[str, int]] = field(default_factory=set)
    """Identities of runs of reduced size, which are no evidence."""


def find(places: Sequence[Path]) -> Findings:
    """Everything in run folders, in folders of them, and in result folders."""
    findings = Findings()
    folders = list(dict.fromkeys(f.resolve() for place in places for f in _folders(place)))
    for folder in folders:
        findings.pictures += _pictures(folder)
        if (folder / "config.toml").is_file():
            _take(findings, folder)
    for folder in folders:
        if (folder / "results.jsonl").is_file():
            _take_results(findings, Store(folder))
    _drop_copies(findings)
    reasons = "".join(f"\n{out.what}: {out.why}" for out in findings.left_out[:5])
    where = ", ".join(map(str, places))
    require(bool(findings.runs), f"no finished run in {where}; `fedfm run` makes one{reasons}")
    return findings


def _folders(place: Path) -> Iterator[Path]:
    """The folder and all below it."""
    require(place.exists(), f"there is no folder {place}")
    start = place if place.is_dir() else place.parent
    for path, below, _ in os.walk(start):
        below[:] = sorted(set(below) - NOT_RUNS)
        yield Path(path)


def _pictures(folder: Path) -> list[Path]:
    found = (each for each in folder.iterdir() if each.name.startswith(PICTURES))
    return sorted(each for each in found if each.suffix in (".png", ".svg") and each.is_file())


def _take(findings: Findings, folder: Path) -> None:
    """Read a run, or say why not."""
    if not (folder / "summary.json").is_file():
        findings.left_out.append(LeftOut(shown(folder), "not finished: it has no summary.json"))
        return
    try:
        findings.runs.append(read_run(folder))
    except UNREADABLE as problem:
        findings.left_out.append(LeftOut(shown(folder), f"cannot be read: {_reason(problem)}"))


def shown(path: Path) -> str:
    """A path for the reader: from here if it is below, so that pages name no home folders."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _reason(problem: Exception) -> str:
    if isinstance(problem, KeyError):
        return f"there is no {problem}; another version of fedfm may have written it"
    return str(problem)


def _take_results(findings: Findings, store: Store) -> None:
    """Results whose run folders are elsewhere have a line in the tables, and no curve."""
    summaries = store.summaries()
    unread = len(store.path.read_bytes().splitlines()) - len(summaries)
    there = {run.identity for run in findings.runs}
    for summary in summaries:
        try:
            run = from_line(store, summary)
        except UNREADABLE:
            unread += 1
            continue
        if run.identity not in there:
            there.add(run.identity)
            findings.runs.append(run)
        if summary.quick:
            findings.quick.add(run.identity)
    if unread:
        why = f"{unread} of its lines cannot be read, or another version of fedfm wrote them"
        findings.left_out.append(LeftOut(shown(store.path), why))


def _drop_copies(findings: Findings) -> None:
    """A run that is there twice counts once."""
    kept: dict[tuple[str, int], FoundRun] = {}
    for run in findings.runs:
        first = kept.setdefault(run.identity, run)
        if first is not run:
            why = f"the same config and seed as {shown(first.folder)}"
            if run.test_accuracy != first.test_accuracy:
                there, here = f"{first.test_accuracy:.2%}", f"{run.test_accuracy:.2%}"
                why += f", but not the same result: {here} instead of {there}"
            findings.left_out.append(LeftOut(shown(run.folder), why))
    findings.runs = list(kept.values())


def common_folder(folders: Iterable[Path]) -> Path:
    """The folder that all lie in, for shorter names."""
    return Path(os.path.commonpath([folder.parent for folder in folders]))
