"""Discover runs in folders; name those that cannot be shown."""

import base64
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fedfm.core.errors import require
from fedfm.grid.store import Store
from fedfm.report.html.load import LoadedRun, load_run, load_summary

PICTURES = ("features", "tsne", "motivation")
"""How the names of feature-space pictures begin."""
LARGEST_PICTURE = 8_000_000
KINDS = {".png": "image/png", ".svg": "image/svg+xml"}
NOT_RUNS = {"checkpoint", "clients", "flower", "app"}
"""Folders within a run's."""
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, OSError)
"""What reading a file of another version, or one edited by hand, may raise."""


class SkippedRun(NamedTuple):
    """Something that the report does not show."""

    what: str
    why: str


@dataclass
class Discovery:
    """All runs below some folders, and what was left out."""

    runs: list[LoadedRun] = field(default_factory=list)
    left_out: list[SkippedRun] = field(default_factory=list)
    pictures: list[Path] = field(default_factory=list)
    quick: set[tuple[str, int]] = field(default_factory=set)
    """Identities of runs of reduced size, which must not be compared."""

    def leave_out(self, path: Path | str, why: str) -> None:
        """Note what is not shown; relative to the working folder, to name no home folder."""
        self.left_out.append(SkippedRun(format_path(path), why))


def discover_runs(places: Sequence[Path]) -> Discovery:
    """Load all runs in run folders, in folders of them, and in results folders."""
    findings = Discovery()
    folders = list(dict.fromkeys(f.resolve() for place in places for f in _walk_folders(place)))
    for folder in folders:
        findings.pictures += _find_pictures(folder)
        if (folder / "config.toml").is_file():
            _load_folder(findings, folder)
    for folder in folders:
        if (folder / "results.jsonl").is_file():
            _load_results(findings, Store(folder))
    _drop_copies(findings)
    reasons = "".join(f"\n{out.what}: {out.why}" for out in findings.left_out[:5])
    where = ", ".join(map(str, places))
    require(bool(findings.runs), f"no finished run in {where}; `fedfm run` makes one{reasons}")
    return findings


def _walk_folders(place: Path) -> Iterator[Path]:
    """Yield the folder and all below it."""
    require(place.exists(), f"there is no folder {place}")
    start = place if place.is_dir() else place.parent
    for path, below, _ in os.walk(start):
        below[:] = sorted(set(below) - NOT_RUNS)
        yield Path(path)


def _find_pictures(folder: Path) -> list[Path]:
    pictures = (each for each in folder.iterdir() if each.name.startswith(PICTURES))
    return sorted(each for each in pictures if each.suffix in KINDS and each.is_file())


def embed_picture(findings: Discovery, path: Path) -> dict[str, str] | None:
    """Return a picture as a data URI; an SVG in `img` runs no script."""
    if path.stat().st_size > LARGEST_PICTURE:
        findings.leave_out(path, f"larger than {LARGEST_PICTURE // 1_000_000} MB")
        return None
    content = base64.b64encode(path.read_bytes()).decode()
    name = f"{path.parent.name}/{path.name}"
    return {"name": name, "source": f"data:{KINDS[path.suffix]};base64,{content}"}


def _load_folder(findings: Discovery, folder: Path) -> None:
    """Load a run, or note why it cannot be loaded."""
    if not (folder / "summary.json").is_file():
        findings.leave_out(folder, "not finished: it has no summary.json")
        return
    try:
        findings.runs.append(load_run(folder))
    except UNREADABLE as problem:
        findings.leave_out(folder, f"cannot be read: {_explain(problem)}")


def format_path(path: Path | str) -> str:
    """Return a path relative to the working folder, if it is below it."""
    here = Path.cwd()
    return str(Path(path).relative_to(here) if Path(path).is_relative_to(here) else path)


def _explain(problem: Exception) -> str:
    if isinstance(problem, KeyError):
        return f"there is no {problem}; another version of fedfm may have written it"
    return str(problem)


def _load_results(findings: Discovery, store: Store) -> None:
    """Add results whose run folders are elsewhere; they have no curve."""
    summaries = store.summaries()
    unread = len(store.path.read_bytes().splitlines()) - len(summaries)
    known = {run.identity: run for run in findings.runs}
    for summary in summaries:
        try:
            run = load_summary(store.folder / summary.folder, summary)
        except UNREADABLE:
            unread += 1
            continue
        if run.identity not in known:
            known[run.identity] = run
            findings.runs.append(run)
        if summary.recipe and summary.cell:
            known[run.identity].cells.setdefault(summary.recipe, summary.cell)
        if summary.quick:
            findings.quick.add(run.identity)
    if unread:
        why = f"{unread} of its lines cannot be read, or another version of fedfm wrote them"
        findings.leave_out(store.path, why)


def _drop_copies(findings: Discovery) -> None:
    """Keep one of several copies of a run."""
    kept: dict[tuple[str, int], LoadedRun] = {}
    for run in findings.runs:
        first = kept.setdefault(run.identity, run)
        if first is not run:
            why = f"the same config and seed as {format_path(first.folder)}"
            if run.test_accuracy != first.test_accuracy:
                there, here = f"{first.test_accuracy:.2%}", f"{run.test_accuracy:.2%}"
                why += f", but not the same result: {here} instead of {there}"
            findings.leave_out(run.folder, why)
    findings.runs = list(kept.values())
