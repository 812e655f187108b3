"""Statistics over seeds: measures, deviations, ranks, paired tests."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from fedfm.core.errors import unknown_name_error
from fedfm.grid.store import Summary
from fedfm.metrics import METRICS

FEWEST_PAIRS = 3
"""Seeds that two rows must share for a paired test."""


@dataclass(frozen=True)
class TableMetric:
    """A number of a run, and how to format it."""

    name: str
    heading: str
    decimals: int
    scale: float = 1
    better: int = 1
    """1: more is better; -1: less is; 0: neither."""

    @property
    def unit(self) -> str:
        """Return what follows a number: " %" or nothing."""
        return " %" if self.scale == 100 else ""

    def of(self, summary: Summary) -> float | None:
        """Return the number of a run, scaled; None if it is missing or not finite."""
        value = _collect_numbers(summary).get(self.name)
        return None if value is None or not math.isfinite(value) else self.scale * value

    def text(self, value: float, sign: str = "") -> str:
        """Format a value with the measure's decimals; sign "+" for a difference."""
        return f"{value:{sign},.{self.decimals}f}"

    def spread(self, deviation: float | None, plus_minus: str = " ± ") -> str:
        """Format what follows a mean: nothing for one seed, or for a count that no seed changes."""
        exact = not self.decimals and not deviation
        return "" if deviation is None or exact else plus_minus + self.text(deviation)


MEASURES = {
    measure.name: measure
    for measure in (
        TableMetric("test_accuracy", "test accuracy (%)", 2, scale=100),
        TableMetric("val_accuracy", "validation accuracy (%)", 2, scale=100),
        TableMetric("last_test_accuracy", "test accuracy of the last round (%)", 2, scale=100),
        TableMetric("best_test_accuracy", "best test accuracy of any round (%)", 2, scale=100),
        TableMetric("nmi", "NMI", 3),
        TableMetric("silhouette", "silhouette", 3),
        TableMetric("floats_up", "floats up", 0, better=-1),
        TableMetric("floats_down", "floats down", 0, better=-1),
        TableMetric("floats_total", "floats up and down", 0, better=-1),
        TableMetric("bytes_up", "bytes up", 0, better=-1),
        TableMetric("bytes_down", "bytes down", 0, better=-1),
        TableMetric("handshakes", "handshakes", 0, better=-1),
        TableMetric("seconds", "seconds", 1, better=0),
        TableMetric("best_round", "best round", 0, better=0),
    )
}


PREFIXES = {
    "test": "test",
    "val": "validation",
    "mean": "mean over clients,",
    "worst": "worst client,",
    "p10": "10th percentile of clients,",
    "deviation": "deviation over clients,",
}
"""What stands before a metric in the name of a measure, and in its heading."""
FINE_TUNED = "fine_tuned_"


def get_table_metric(name: str) -> TableMetric:
    """Return the measure of a name: one of `MEASURES`, or a metric such as "test_auc".

    Statistics over clients are "worst_accuracy", "p10_auc" and so on; after fine-tuning
    "fine_tuned_mean_accuracy".
    """
    if name in MEASURES:
        return MEASURES[name]
    prefix, _, metric = name.removeprefix(FINE_TUNED).partition("_")
    if prefix not in PREFIXES or metric not in METRICS or METRICS[metric].form != "number":
        known = [f"test_{each.name}" for each in METRICS.values() if each.form == "number"]
        raise unknown_name_error("measure", name, [*MEASURES, *known])
    kind = METRICS[metric]
    heading = f"{PREFIXES[prefix]} {metric.replace('_', ' ')}"
    heading += ", fine-tuned" if name.startswith(FINE_TUNED) else ""
    lower = prefix == "deviation" or kind.better == "lower"
    if kind.percent:
        return TableMetric(name, f"{heading} (%)", 2, scale=100, better=-1 if lower else 1)
    return TableMetric(name, heading, 4, better=-1 if lower else 1)


def _collect_numbers(summary: Summary) -> Mapping[str, float | None]:
    totals = summary.totals
    return {
        **totals,
        "floats_total": totals.get("floats_up", math.nan) + totals.get("floats_down", math.nan),
        "test_accuracy": summary.test_accuracy,
        "val_accuracy": summary.val_accuracy,
        "best_round": summary.best_round,
        **summary.measures,
        **summary.metrics,
    }


def compute_deviation(values: Sequence[float] | np.ndarray) -> float | None:
    """Return the sample standard deviation; None for a single value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def rank_values(values: Sequence[float | None], measure: TableMetric) -> list[int]:
    """Return 1 for the best, 2 for the second best, else 0; values shown equal share a rank.

    A single value has rank 0.
    """
    shown = [None if value is None else round(value, measure.decimals) for value in values]
    there = [value for value in shown if value is not None]
    if len(there) < 2 or not measure.better:
        return [0] * len(shown)
    order = sorted(set(there), reverse=measure.better > 0)[:2]
    return [order.index(value) + 1 if value in order else 0 for value in shown]


def compute_paired_p(
    ours: Mapping[int, float], theirs: Mapping[int, float]
) -> tuple[float, int] | None:
    """Return the p-value of a two-sided paired t-test, and the number of common seeds.

    None for fewer than `FEWEST_PAIRS` seeds, and where all differences are equal.
    """
    seeds = sorted(ours.keys() & theirs.keys())
    first, second = (np.array([of[seed] for seed in seeds]) for of in (ours, theirs))
    if len(seeds) < FEWEST_PAIRS or np.ptp(first - second) < 1e-9:
        return None
    return float(scipy.stats.ttest_rel(first, second).pvalue), len(seeds)
