"""Decide which of the paper's claims hold, from the tables."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt

from fedfm.paper.plan import Claim, expand_places
from fedfm.report.tables.table import Entry, Table

HEADS = ("claim", "paper's difference", "our difference", "in deviations", "seeds", "")
HOLDS, FAILS, UNKNOWN = "holds", "**does not hold**", "not enough runs"


@dataclass(frozen=True)
class Verdict:
    """A claim about two cells, and what the runs say."""

    says: str
    better: Entry
    rivals: Sequence[Entry]
    """The cells to beat; a verdict needs runs of all of them."""
    within: float = 0.0

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
    def deviations(self) -> float | None:
        """Return the difference in units of the pooled standard deviation over seeds."""
        spreads = [self.better.deviation, self.than.deviation]
        pooled = sqrt(sum(spread**2 for spread in spreads if spread) / 2)
        known = all(spread is not None for spread in spreads) and pooled > 0
        return self.difference / pooled if known and self.difference is not None else None

    @property
    def papers(self) -> float | None:
        """Return the difference of the paper's numbers, to its best rival."""
        ours, theirs = self.better.paper, [rival.paper for rival in self.rivals]
        if ours is None or None in theirs:
            return None
        return self._worth(ours.mean) - max(self._worth(each.mean) for each in theirs if each)

    @property
    def outcome(self) -> str:
        """Return whether the claim holds."""
        if self.difference is None:
            return UNKNOWN
        return HOLDS if self.difference > -self.within else FAILS

    def _worth(self, value: float | None) -> float:
        """Return the value with a sign so that more is better; -inf for a cell without runs."""
        return -inf if value is None else self.better.measure.better * value

    @property
    def row(self) -> list[str]:
        """Return the cells under `HEADS`."""
        differences = (
            "" if value is None else self.better.measure.text(value, "+")
            for value in (self.papers, self.difference)
        )
        deviations = "" if self.deviations is None else f"{self.deviations:+.1f}"
        return [self.says, *differences, deviations, str(len(self.seeds)), self.outcome]


def judge_claims(claims: Iterable[Claim], tables: Mapping[str, Table]) -> Iterator[Verdict]:
    """Yield a verdict on every claim, pair by pair."""
    for claim in claims:
        for at in expand_places(claim.at):
            for better in expand_places(claim.better):
                yield from _judge(claim, tables[claim.recipe], at, better)


def _judge(
    claim: Claim, table: Table, at: Mapping[str, str], better: Mapping[str, str]
) -> Iterator[Verdict]:
    ours = _find_entry(table, claim, {**at, **better})
    others = [_find_entry(table, claim, {**at, **than}) for than in expand_places(claim.than)]
    for rivals in [others] if claim.best else [[other] for other in others]:
        words: dict[str, Iterable[str]] = {"at": at.values(), "better": better.values()}
        words["than"] = [rivals[0].labels[axis] for axis in claim.than]
        statement = claim.says.format(**{name: ", ".join(each) for name, each in words.items()})
        yield Verdict(statement, ours, rivals, claim.within)


def _find_entry(table: Table, claim: Claim, labels: Mapping[str, str]) -> Entry:
    measure = claim.measure or table.columns[0].measure.name
    return next(
        entry
        for entry in table.entries.values()
        if entry.measure.name == measure and labels.items() <= entry.labels.items()
    )
