"""Let Optuna propose the settings of a sweep, one trial after another.

The proposals depend only on the sampler's seed and on the results so far. A search that was stopped
therefore proposes the same again, and finds the finished runs among the results: nothing else has
to be stored.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from fedfm.core.errors import missing_package_error
from fedfm.grid.jobs import Job
from fedfm.grid.recipe import Cell
from fedfm.grid.store import Store
from fedfm.grid.sweep import Axis, Sweep, is_lower_better, mean_of

SEED = 0
"""The seed of the sampler."""
DIGITS = 4
"""Significant digits of a proposed number."""


class Search:
    """A number of trials of a sweep; `cells` has the proposals so far."""

    def __init__(self, sweep: Sweep, trials: int, store: Store) -> None:
        try:
            self.optuna: Any = import_module("optuna")
        except ModuleNotFoundError as problem:
            raise missing_package_error("a search needs Optuna", "search") from problem
        self.optuna.logging.set_verbosity(self.optuna.logging.WARNING)
        self.sweep, self.trials, self.store = sweep, trials, store
        self.cells: list[Cell] = []
        low, _ = (  # refuse a wrong range before anything is trained
            self.sweep.make_cell({axis.key: _corner(axis, corner) for axis in sweep.swept})
            for corner in ("low", "high")
        )
        self.direction = "minimize" if is_lower_better(low.resolved) else "maximize"

    def propose(self) -> Iterator[list[Job]]:
        """Yield the job of every trial, and learn from its result when the next is asked for."""
        sampler = self.optuna.samplers.TPESampler(seed=SEED)
        study = self.optuna.create_study(direction=self.direction, sampler=sampler)
        space = {axis.key: self._distribution(axis) for axis in self.sweep.swept}
        for _ in range(self.trials):
            trial = study.ask(space)
            cell = self.sweep.make_cell(
                {axis.key: _to_text(trial.params[axis.key], axis) for axis in self.sweep.swept}
            )
            self.cells.append(cell)
            (job,) = jobs = self.sweep.plan([cell])
            yield jobs
            mean = mean_of(job, self.store.summaries())
            failed = self.optuna.trial.TrialState.FAIL
            study.tell(trial, mean, state=failed if mean is None else None)

    def replay(self) -> None:
        """Propose as far as there are results."""
        for (job,) in self.propose():
            if mean_of(job, self.store.summaries()) is None:
                return

    def _distribution(self, axis: Axis) -> Any:
        distributions, span = self.optuna.distributions, axis.span
        if span is None:
            return distributions.CategoricalDistribution(axis.values)
        kind = "IntDistribution" if span.whole else "FloatDistribution"
        return getattr(distributions, kind)(span.low, span.high, log=span.log)


def _corner(axis: Axis, corner: str) -> str:
    return str(getattr(axis.span, corner)) if axis.span else axis.values[0]


def _to_text(value: Any, axis: Axis) -> str:
    """Return a proposed value as the user would write it."""
    if axis.span is None or axis.span.whole:
        return str(value)
    rounded = float(f"{value:.{DIGITS}g}")
    return str(min(max(rounded, axis.span.low), axis.span.high))
