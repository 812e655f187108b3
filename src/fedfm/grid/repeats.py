"""Runs that were repeated: whether the same experiment with the same seed gave the same."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfm.grid.identity import digest
from fedfm.grid.rounds import read_rounds
from fedfm.grid.store import Store, Summary

AGAIN = "again"
"""The folder, beside the runs, of those that were made again."""


@dataclass(frozen=True)
class Repeat:
    """A run that two folders of results have."""

    title: str
    there: float
    """The test accuracy in the other folder."""
    here: float
    differs_in: int | None
    """The first round in which the two differ; 0: their rounds cannot be compared."""

    @property
    def same(self) -> bool:
        """Whether the accuracies are the same to the last digit, as are all rounds if known."""
        return self.there == self.here and not self.differs_in

    def __str__(self) -> str:
        """In words."""
        when = f", first in round {self.differs_in}" if self.differs_in else ""
        return f"{self.title} has test accuracy {self.there:.4f}, here {self.here:.4f}{when}"


@dataclass(frozen=True)
class Beginning:
    """The rounds that two runs of one experiment and seed have in common."""

    run: str
    again: str
    rounds: int
    differs_in: int | None
    """The first round in which they differ."""

    @property
    def row(self) -> list[str]:
        """As a line of a table: `HEADS`."""
        found = "none" if self.differs_in is None else f"round {self.differs_in}"
        return [self.run, self.again, str(self.rounds), found]


HEADS = ("run", "made again as", "rounds compared", "first difference")


def beginnings(folder: Path) -> list[Beginning]:
    """The runs in a folder of results that were made again: there, with more rounds, or in `again`.

    Each against the longest.
    """
    alike: defaultdict[tuple[str, int], list[tuple[Path, Summary]]] = defaultdict(list)
    for store in (Store(folder), Store(folder / AGAIN)):
        for run in _by_key(store.summaries()).values():
            alike[_without_length(run)].append((store.folder / run.folder, run))
    groups = (sorted(runs, key=lambda run: -run[1].rounds) for runs in alike.values())
    pairs = ((first, other) for first, *others in groups for other in others)
    return [found for pair in pairs if (found := _beginning(*pair))]


def _without_length(run: Summary) -> tuple[str, int]:
    """What two runs that differ at most in the number of rounds have in common."""
    training = run.config.get("training", {}) | {"rounds": 0}
    return digest(run.config | {"training": training}), run.seed


def _beginning(one: tuple[Path, Summary], other: tuple[Path, Summary]) -> Beginning | None:
    """What two runs have in common, if their rounds can be read."""
    try:
        pairs = list(zip(_timeless(one[0]), _timeless(other[0]), strict=False))
    except (OSError, ValueError):
        return None
    differs_in = next((n for n, (a, b) in enumerate(pairs, 1) if a != b), None)
    return Beginning(_dated(one[1]), _dated(other[1]), len(pairs), differs_in)


def _dated(run: Summary) -> str:
    """Its title, and when it ended."""
    return f"{_title(run)} ({run.finished[:16].replace('T', ' ')})"


def repeats(other: Store, here: Store) -> list[Repeat]:
    """The runs that both folders have, each once; one that was copied is a repeat too."""
    own = _by_key(here.summaries())
    return [
        Repeat(
            _title(each),
            each.test_accuracy,
            own[key].test_accuracy,
            _first_difference(other.folder / each.folder, here.folder / own[key].folder),
        )
        for key, each in _by_key(other.summaries()).items()
        if key in own
    ]


def _by_key(summaries: Iterable[Summary]) -> dict[tuple[str, int], Summary]:
    found: dict[tuple[str, int], Summary] = {}
    for summary in summaries:
        found.setdefault(summary.key, summary)
    return found


def _title(summary: Summary) -> str:
    return f"{summary.recipe} {' / '.join(summary.cell.values())}, seed {summary.seed}"


def _first_difference(one: Path, other: Path) -> int | None:
    try:
        pairs = zip(*map(_timeless, (one, other)), strict=True)
        return next((n for n, (a, b) in enumerate(pairs, 1) if a != b), None)
    except (OSError, ValueError):
        return 0


def _timeless(folder: Path) -> list[dict[str, Any]]:
    """The rounds of a run without how long they took."""
    return [{k: v for k, v in each.items() if k != "seconds"} for each in read_rounds(folder)]
