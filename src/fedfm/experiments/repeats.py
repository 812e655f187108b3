"""Runs that were repeated: whether the same experiment with the same seed gave the same."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfm.experiments.rounds import read_rounds
from fedfm.experiments.store import Store, Summary


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
