"""Decide which of the paper's claims hold, from the tables."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf, sqrt
from typing import Any

import scipy

from fedfm.grid.store import Summary
from fedfm.paper.catalogue import load_recipe
from fedfm.paper.plan import Claim, expand_places
from fedfm.report.tables.statistics import TableMetric, compute_deviation
from fedfm.report.tables.table import Entry, Table

HOLDS, FAILS = "holds", "**does not hold**"
UNDECIDED, UNKNOWN = "undecided", "not enough runs"
HEADS = ("claim", "paper's difference", "our difference", "95 % interval", "seeds", "verdict")
CONFIDENCE = 0.95
L2 = "fedfm, l2"
"""The name under which a choice of settings has L2 guiding, which FedFM's own does not cover."""
Choice = Mapping[str, Mapping[str, Any]]
"""The settings that were chosen on validation, by method."""


@dataclass(frozen=True)
class ClaimResult:
    """A claim about two cells, and what the runs say."""

    claim: Claim
    says: str
    better: Entry
    rivals: Sequence[Entry]
    """The cells to beat; a verdict needs runs of all of them."""
    untuned: Sequence[str] = ()
    """The rivals whose settings were not chosen on validation."""

    @property
    def than(self) -> Entry:
        """Return the best of the rivals."""
        return max(self.rivals, key=lambda each: self._worth(each.mean))

    @property
    def seeds(self) -> list[int]:
        """Return the seeds that both cells were run with."""
        complete = all(rival.values for rival in self.rivals)
        return sorted(self.better.values.keys() & self.than.values.keys()) if complete else []

    @property
    def differences(self) -> list[float]:
        """Return how much better one is, seed by seed; below 0: how much worse."""
        sign = self.better.measure.better
        pairs = ((self.better.values[seed], self.than.values[seed]) for seed in self.seeds)
        return [sign * (ours - theirs) for ours, theirs in pairs]

    @property
    def difference(self) -> float | None:
        """Return the mean difference over common seeds."""
        return sum(self.differences) / len(self.seeds) if self.seeds else None

    @property
    def deviation(self) -> float | None:
        """Return the sample standard deviation of the differences; None for fewer than two."""
        return compute_deviation(self.differences)

    @property
    def papers(self) -> float | None:
        """Return the difference of the paper's numbers, to its best rival."""
        ours, theirs = self.better.paper, [rival.paper for rival in self.rivals]
        if ours is None or None in theirs:
            return None
        return self._worth(ours.mean) - max(self._worth(each.mean) for each in theirs if each)

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
        """Return the confidence interval of the mean difference.

        It is Student's for paired differences. With one seed it is the difference and a point to
        each side, which is no statistics: about what a second seed has been seen to change.
        """
        middle, seeds = self.difference, len(self.seeds)
        if middle is None:
            return None
        if seeds == 1 or not self.better.measure.decimals:
            half = compute_point(self.better.measure)
        else:
            quantile = float(scipy.stats.t.ppf((1 + confidence) / 2, seeds - 1))
            half = quantile * (self.deviation or 0.0) / sqrt(seeds)
        return middle - half, middle + half

    @property
    def outcome(self) -> str:
        """Return whether the claim holds: the whole interval must be on one side of its limit."""
        within = self.claim.within * compute_point(self.better.measure)
        if self.claim.kind == "comparable":
            # Two one-sided tests at 5 % each are an interval of 90 %.
            return _judge_equivalence(self.interval(2 * CONFIDENCE - 1), within, len(self.seeds))
        interval = self.interval()
        if interval is None:
            return UNKNOWN
        if interval[0] >= -within:
            return HOLDS if max(interval) > -within else UNDECIDED
        return FAILS if interval[1] <= -within else UNDECIDED

    @property
    def row(self) -> list[str]:
        """Return the cells under `HEADS`."""
        measure, interval = self.better.measure, self.interval()
        known = interval and len(self.seeds) > 1 and measure.decimals
        ours = "" if self.difference is None else measure.text(self.difference, "+")
        tunable = self.untuned and measure.decimals  # no setting changes what is counted
        untuned = f" ({', '.join(self.untuned)} not tuned)" if tunable else ""
        return [
            self.says,
            "" if self.papers is None else measure.text(self.papers, "+"),
            ours + measure.spread(self.deviation),
            " to ".join(measure.text(end, "+") for end in interval) if known and interval else "",
            str(len(self.seeds)),
            self.outcome + (untuned if self.seeds else ""),
        ]

    def _worth(self, value: float | None) -> float:
        """Return the value with a sign so that more is better; -inf for a cell without runs."""
        return -inf if value is None else self.better.measure.better * value


def _judge_equivalence(interval: tuple[float, float] | None, margin: float, seeds: int) -> str:
    """Return whether a difference is shown to be within the margin; one seed cannot show it."""
    if interval is None:
        return UNKNOWN
    if seeds > 1 and -margin < interval[0] and interval[1] < margin:
        return HOLDS
    return FAILS if interval[0] >= margin or interval[1] <= -margin else UNDECIDED


def compute_point(measure: TableMetric) -> float:
    """Return what one point is: 1 of percents, 0.01 of shares, and nothing of exact counts."""
    return measure.scale / 100 if measure.decimals else 0.0


def judge_claims(
    claims: Iterable[Claim], tables: Mapping[str, Table], choice: Choice | None = None
) -> Iterator[ClaimResult]:
    """Yield a verdict on every claim, pair by pair; `choice` says which methods were tuned."""
    for claim in claims:
        for at in expand_places(claim.at):
            for better in expand_places(claim.better):
                yield from _judge(claim, tables, at, better, choice or {})


def _judge(
    claim: Claim,
    tables: Mapping[str, Table],
    at: Mapping[str, str],
    better: Mapping[str, str],
    choice: Choice,
) -> Iterator[ClaimResult]:
    ours = _find_entry(tables[claim.recipe], claim, {**at, **better})
    elsewhere = claim.than_recipe
    others = [
        _find_entry(tables[elsewhere or claim.recipe], claim, than if elsewhere else {**at, **than})
        for than in expand_places(claim.than)
    ]
    for rivals in [others] if claim.best else [[other] for other in others]:
        words: dict[str, Iterable[str]] = {"at": at.values(), "better": better.values()}
        words["than"] = [rivals[0].labels[axis] for axis in claim.than]
        statement = claim.says.format(**{name: ", ".join(each) for name, each in words.items()})
        untuned = [_name(rival) for rival in rivals if _is_untuned(rival.runs, choice)]
        yield ClaimResult(claim, statement, ours, rivals, tuple(dict.fromkeys(untuned)))


def _name(entry: Entry) -> str:
    return entry.labels.get("method") or " / ".join(entry.labels.values())


def _is_untuned(runs: Iterable[Summary], choice: Choice) -> bool:
    """Return whether a run has settings that validation has not chosen, and could have."""
    for run in runs:
        for name, settings in run.config["method"].items():
            chosen = choice.get(L2 if settings.get("guide") == "l2" else name)
            if name in _list_tunable() and not (chosen and chosen.items() <= settings.items()):
                return True
    return False


@cache
def _list_tunable() -> frozenset[str]:
    """Return the methods that have a setting of their own."""
    settings = load_recipe("tune").axes["setting"].values()
    return frozenset(name for each in settings for name in each["method"])


def _find_entry(table: Table, claim: Claim, labels: Mapping[str, str]) -> Entry:
    measure = claim.measure or table.columns[0].measure.name
    return next(
        entry
        for entry in table.entries.values()
        if entry.measure.name == measure and labels.items() <= entry.labels.items()
    )
