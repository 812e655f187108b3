"""Results of several machines in one folder."""

import logging
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedfm.core.errors import require
from fedfm.experiments.harvest import finished
from fedfm.experiments.store import Store, Summary

logger = logging.getLogger(__name__)
STATE = ("checkpoint", "clients")
"""What a run needs to go on, and a finished one no more."""
MODEL = "model.safetensors"


@dataclass(frozen=True)
class Merged:
    """What came from a folder."""

    results: int
    runs: int
    """Run folders that were copied."""


def merge(source: Path, target: Path, models: bool = False) -> Merged:
    """Add the results of a folder to another, and the folders of their runs, models on request."""
    require(Store(source).path.exists(), f"{source} holds no results (it has no results.jsonl)")
    require(source.resolve() != target.resolve(), f"{source} cannot be merged into itself")
    new, there = Store(source).summaries(), Store(target).summaries()
    _say_conflicts(new, there, source)
    folders = dict.fromkeys(summary.folder for summary in new)
    copied = sum(_copy(source / folder, target / folder, models) for folder in folders)
    return Merged(Store(target).merge(Store(source)), copied)


def _copy(source: Path, target: Path, models: bool) -> bool:
    """Copy a finished run's small files, unless they are there; whole or not at all."""
    if not finished(source):
        logger.warning("%s holds no finished run: its files are not copied", source)
        return False
    if finished(target):
        if models and (source / MODEL).exists() and not (target / MODEL).exists():
            shutil.copy2(source / MODEL, target / MODEL)
        return False
    if target.exists():
        logger.warning("%s is a run that is not finished here: it stays as it is", target)
        return False
    left_out = shutil.ignore_patterns(*STATE, *(() if models else (MODEL,)))
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(source, partial, ignore=left_out)
    partial.rename(target)
    return True


def _say_conflicts(new: Iterable[Summary], there: Iterable[Summary], source: Path) -> None:
    """Name the places with two configs, and the runs with two outcomes."""
    places = {summary.place: summary for summary in there}
    outcomes = {summary.key: summary for summary in there}
    for each in new:
        cell = f"{each.recipe} {' / '.join(each.cell.values())}, seed {each.seed}"
        if each.place in places and places[each.place].digest != each.digest:
            logger.warning("%s: %s is of another config; tables use the newest", source, cell)
        twin = outcomes.get(each.key, each)
        if twin.test_accuracy != each.test_accuracy:
            logger.warning(
                "%s: %s has test accuracy %.4f, here %.4f; what is here stays",
                source,
                cell,
                each.test_accuracy,
                twin.test_accuracy,
            )
