"""Merge results of several machines, and pack results into a file that can be sent."""

import logging
import shutil
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from fedfm.core.errors import require
from fedfm.core.files import partial_path
from fedfm.data.archives import user_errors
from fedfm.grid.repeats import Repeat, find_repeats
from fedfm.grid.store import DRAWN_FILE, Store, Summary
from fedfm.run.folder import is_finished

logger = logging.getLogger(__name__)
STATE = ("checkpoint", "clients")
"""Folders that only an unfinished run needs."""
MODEL = "model.safetensors"
ARCHIVE = ".tgz"


@dataclass(frozen=True)
class MergeReport:
    """What a merge added, and which runs were there already."""

    results: int
    runs: int
    """Run folders that were copied."""
    repeats: tuple[Repeat, ...] = ()
    """Runs that were there already."""


def merge(source: Path, target: Path, models: bool = False) -> MergeReport:
    """Add the results of a folder and their run folders to another; models only on request.

    The source may be a .tgz file that `collect_results` wrote.
    """
    if source.suffix == ARCHIVE:
        with TemporaryDirectory() as folder:
            return merge(_unpack(source, Path(folder)), target, models)
    require(Store(source).path.exists(), f"{source} holds no results (it has no results.jsonl)")
    require(source.resolve() != target.resolve(), f"{source} cannot be merged into itself")
    new, there = Store(source), Store(target)
    repeated = tuple(find_repeats(new, there))
    _warn_of_conflicts(new.summaries(), there.summaries(), repeated, source)
    folders = dict.fromkeys(summary.folder for summary in new.summaries())
    _copy_drawn(source, target)
    copied = sum(_copy_run(source / folder, target / folder, models) for folder in folders)
    return MergeReport(there.merge(new), copied, repeated)


def collect_results(results: Path, target: Path) -> Path:
    """Copy all results and the small files of their runs to another folder or .tgz file.

    The file is replaced in one step, so a copy taken at any moment is complete.
    """
    if target.suffix != ARCHIVE:
        merge(results, target)
        return target
    with TemporaryDirectory() as folder:
        merge(results, Path(folder) / "results")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(partial_path(target), "w:gz") as archive:
            archive.add(Path(folder) / "results", "results")
    partial_path(target).replace(target)
    return target


def _unpack(archive: Path, folder: Path) -> Path:
    require(archive.is_file(), f"there is no file {archive}")
    with user_errors(archive), tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder / "results"


def _copy_drawn(source: Path, target: Path) -> None:
    """Copy what was drawn without runs (partitions, local models), unless it is there."""
    for record in source.glob(f"*/{DRAWN_FILE}"):
        folder = target / record.parent.name
        if not (folder / record.name).exists():
            shutil.copytree(record.parent, folder, dirs_exist_ok=True)


def _copy_run(source: Path, target: Path, models: bool) -> bool:
    """Copy the small files of a finished run, all or none, unless they are there."""
    if not is_finished(source):
        logger.warning("%s holds no finished run: its files are not copied", source)
        return False
    if is_finished(target):
        if models and (source / MODEL).exists() and not (target / MODEL).exists():
            shutil.copy2(source / MODEL, target / MODEL)
        return False
    if target.exists():
        logger.warning("%s is a run that is not finished here: it stays as it is", target)
        return False
    left_out = shutil.ignore_patterns(*STATE, *(() if models else (MODEL,)))
    partial = partial_path(target)
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(source, partial, ignore=left_out)
    partial.rename(target)
    return True


def _warn_of_conflicts(
    new: Iterable[Summary], there: Iterable[Summary], repeated: Iterable[Repeat], source: Path
) -> None:
    """Warn of cells with two configs, and of runs with two outcomes."""
    places = {summary.place: summary for summary in there}
    for each in new:
        if each.place in places and places[each.place].digest != each.digest:
            logger.warning("%s: %s has another config; tables use the newest", source, each.title)
    for repeat in repeated:
        if not repeat.same:
            logger.warning("%s: %s; what is here stays", source, repeat)
