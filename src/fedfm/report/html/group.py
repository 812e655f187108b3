"""Group runs: by setting (data, partition, clients, rounds), then by method, then by seed."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedfm.core.sorting import DECIMAL, natural_key
from fedfm.grid.identity import digest
from fedfm.report.html import labels
from fedfm.report.html.load import Floats, LoadedRun
from fedfm.report.tables.statistics import compute_deviation

POINTS = 240
"""The most points of a curve that are drawn."""


@dataclass(frozen=True)
class MetricCurve:
    """A metric of the test samples over seeds, thinned, against rounds and bytes."""

    rounds: Floats
    sent: Floats
    mean: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class MethodGroup:
    """A method in a setting: its runs, one for each seed."""

    label: str
    number: int
    """Chooses colour, dashes and marker; a label has the same number in all settings."""
    runs: tuple[LoadedRun, ...]

    @property
    def accuracies(self) -> Floats:
        """Return test accuracies in percent [seeds]."""
        return np.array([100 * run.test_accuracy for run in self.runs])

    @property
    def mean(self) -> float:
        """Return the mean test accuracy."""
        return float(self.accuracies.mean())

    @property
    def deviation(self) -> float:
        """Return the sample standard deviation of the test accuracies; 0 for one seed."""
        return compute_deviation(self.accuracies) or 0.0

    def total(self, name: str) -> float:
        """Return one of a run's totals, averaged over seeds."""
        return float(np.mean([run.totals[name] for run in self.runs]))

    @cached_property
    def curve(self) -> MetricCurve | None:
        """Return the curve of the model after each round."""
        return self._over_seeds(lambda run: 100 * run.accuracy)

    @cached_property
    def best_curve(self) -> MetricCurve | None:
        """Return the curve of the best model so far."""
        return self._over_seeds(lambda run: 100 * run.best_so_far)

    def metric_curve(self, name: str, scale: float) -> MetricCurve | None:
        """Return the curve of another metric, times `scale`, if all values are known."""
        if not all(name in run.curves and np.isfinite(run.curves[name]).all() for run in self.runs):
            return None
        return self._over_seeds(lambda run: scale * run.curves[name])

    def _over_seeds(self, values_of: Callable[[LoadedRun], Floats]) -> MetricCurve | None:
        """Average over the seeds that have a curve of full length."""
        runs = [run for run in self.runs if len(run.accuracy) == self.runs[0].rounds > 0]
        if not runs:
            return None
        values = np.stack([values_of(run) for run in runs])
        sent = np.stack([run.sent for run in runs]).mean(0)
        shown = thin_indices(len(sent), POINTS)
        mean, low, high = values.mean(0), values.min(0), values.max(0)
        rounds = np.arange(1, len(sent) + 1.0)
        return MetricCurve(*(each[shown] for each in (rounds, sent, mean, low, high)))


@dataclass(frozen=True)
class Setting:
    """A setting in which methods are compared."""

    title: str
    entries: tuple[MethodGroup, ...]

    @property
    def rounds(self) -> int:
        """Return the number of rounds of its runs."""
        return self.entries[0].runs[0].rounds

    @property
    def best(self) -> MethodGroup:
        """Return the method with the highest mean test accuracy."""
        return max(self.entries, key=lambda entry: entry.mean)


def thin_indices(count: int, most: int) -> np.ndarray:
    """Return at most `most` indices, evenly spread, with the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def group_by_setting(runs: Iterable[LoadedRun]) -> list[Setting]:
    """Group runs by setting and method."""
    pairs = ((digest(labels.extract_setting(run.setting)), run) for run in runs)
    groups = list(labels.group_pairs(pairs).values())
    names = labels.name_by_recipe(groups)
    labelled = [labels.label_methods(group, names) for group in groups]
    ordered = sorted({x for group in labelled for x in group}, key=labels.method_order_key)
    numbers = {label: number for number, label in enumerate(ordered)}
    settings = []
    for title, group in zip(labels.title_settings(groups), labelled, strict=True):
        entries = [
            MethodGroup(x, numbers[x], tuple(sorted(members, key=lambda run: run.seed)))
            for x, members in group.items()
        ]
        settings.append(Setting(title, tuple(sorted(entries, key=lambda entry: entry.number))))
    return sorted(settings, key=_prominence_key)


def _prominence_key(setting: Setting) -> tuple[Any, ...]:
    """Sort long runs of many methods first."""
    return -setting.rounds, -len(setting.entries), natural_key(setting.title, DECIMAL)
