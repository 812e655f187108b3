"""Compare several methods: a table with deviations over seeds, and accuracy curves."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator

from fedfm.report.figure import COLOURS, new_figure, save_figure, tidy_axes
from fedfm.report.tables.statistics import compute_deviation
from fedfm.run.records import Result


@dataclass(frozen=True)
class MethodRuns:
    """A method's runs, one for each seed."""

    label: str
    results: Sequence[Result]

    @property
    def accuracies(self) -> np.ndarray:
        """Return test accuracies in percent [seeds]."""
        return np.array([100 * result.test_accuracy for result in self.results])

    @property
    def curves(self) -> np.ndarray:
        """Return test accuracy in percent after every round [seeds, rounds]."""
        rounds = [[record.test_accuracy for record in result.rounds] for result in self.results]
        return 100 * np.array(rounds)


HEADS = ("test accuracy", "floats up", "floats down", "handshakes", "best rounds")


def format_cells(entry: MethodRuns) -> list[str]:
    """Return a row under `HEADS`: accuracy over seeds, and the traffic of one run."""
    totals = entry.results[0].totals
    return [
        f"{entry.accuracies.mean():.2f} ± {compute_deviation(entry.accuracies) or 0:.2f}",
        f"{totals.floats_up:,}",
        f"{totals.floats_down:,}",
        f"{totals.handshakes}",
        ", ".join(str(result.best.round) for result in entry.results),
    ]


def draw_comparison(entries: Sequence[MethodRuns], title: str, path: Path) -> Path:
    """Draw accuracy over rounds with bands over seeds, and accuracy against traffic."""
    figure = new_figure(10, 4.2)
    over_rounds, over_floats = figure.subplots(1, 2, sharey=True)
    for entry, colour in zip(entries, COLOURS, strict=False):
        mean, low, high = (f(entry.curves, axis=0) for f in (np.mean, np.min, np.max))
        sent = np.cumsum([record.floats_up for record in entry.results[0].rounds]) / 1e6
        rounds = np.arange(1, len(mean) + 1)
        over_rounds.plot(rounds, mean, color=colour, label=entry.label)
        over_rounds.fill_between(rounds, low, high, color=colour, alpha=0.18, linewidth=0)
        over_floats.plot(sent, mean, color=colour, label=entry.label)
    over_rounds.set(xlabel="round", ylabel="test accuracy (%)")
    over_rounds.xaxis.set_major_locator(MaxNLocator(integer=True))
    over_floats.set(xlabel="million floats sent by the clients")
    for axes in (over_rounds, over_floats):
        tidy_axes(axes)
    over_rounds.legend(frameon=False, loc="lower right")
    figure.suptitle(title)
    return save_figure(figure, path)
