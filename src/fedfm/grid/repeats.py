"""Compare runs that were repeated with the same config and seed."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfm.grid.identity import digest
from fedfm.grid.store import Store, Summary, read_rounds

AGAIN = "again"
"""The folder, beside the runs, of those that were made again."""


@dataclass(frozen=True)
class Repeat:
    """A run that two results folders have."""

    title: str
    there: float
    """The test accuracy in the other folder."""
    here: float
    differs_in: int | None
    """The first round in which the two differ; 0: their rounds cannot be compared."""

    @property
    def same(self) -> bool:
        """Return whether accuracies, and all known rounds, agree to the last digit."""
        return self.there == self.here and not self.differs_in

    def __str__(self) -> str:
        """Describe the difference."""
        when = f", first in round {self.differs_in}" if self.differs_in else ""
        return f"{self.title} has test accuracy {self.there:.4f}, here {self.here:.4f}{when}"


@dataclass(frozen=True)
class CommonRounds:
    """The rounds that two runs of one config and seed share."""

    run: str
    again: str
    rounds: int
    differs_in: int | None
    """The first round in which they differ."""

    @property
    def row(self) -> list[str]:
        """Return the cells under `HEADS`."""
        found = "none" if self.differs_in is None else f"round {self.differs_in}"
        return [self.run, self.again, str(self.rounds), found]


HEADS = ("run", "made again as", "rounds compared", "first difference")


def compare_repeated_runs(folder: Path) -> list[CommonRounds]:
    """Compare runs of one folder, and of its `again`, that differ at most in length.

    Each run is compared with the longest one.
    """
    alike: defaultdict[tuple[str, int], list[tuple[Path, Summary]]] = defaultdict(list)
    for store in (Store(folder), Store(folder / AGAIN)):
        for run in _index_by_key(store.summaries()).values():
            alike[_key_without_rounds(run)].append((store.folder / run.folder, run))
    groups = (sorted(runs, key=lambda run: -run[1].rounds) for runs in alike.values())
    pairs = ((first, other) for first, *others in groups for other in others)
    return [found for pair in pairs if (found := _compare_rounds(*pair))]


def _key_without_rounds(run: Summary) -> tuple[str, int]:
    """Return the key of a run, whatever its number of rounds."""
    training = run.config.get("training", {}) | {"rounds": 0}
    return digest(run.config | {"training": training}), run.seed


def _compare_rounds(one: tuple[Path, Summary], other: tuple[Path, Summary]) -> CommonRounds | None:
    """Compare the rounds of two runs, if they can be read."""
    try:
        pairs = list(
            zip(_read_timeless_rounds(one[0]), _read_timeless_rounds(other[0]), strict=False)
        )
    except (OSError, ValueError):
        return None
    differs_in = next((n for n, (a, b) in enumerate(pairs, 1) if a != b), None)
    return CommonRounds(
        _format_title_and_date(one[1]), _format_title_and_date(other[1]), len(pairs), differs_in
    )


def _format_title_and_date(run: Summary) -> str:
    """Return a run's title, and when it ended."""
    return f"{_format_title(run)} ({run.finished[:16].replace('T', ' ')})"


def find_repeats(other: Store, here: Store) -> list[Repeat]:
    """Return the runs that both folders have; a copied run counts too."""
    own = _index_by_key(here.summaries())
    return [
        Repeat(
            _format_title(each),
            each.test_accuracy,
            own[key].test_accuracy,
            _find_first_difference(other.folder / each.folder, here.folder / own[key].folder),
        )
        for key, each in _index_by_key(other.summaries()).items()
        if key in own
    ]


def _index_by_key(summaries: Iterable[Summary]) -> dict[tuple[str, int], Summary]:
    found: dict[tuple[str, int], Summary] = {}
    for summary in summaries:
        found.setdefault(summary.key, summary)
    return found


def _format_title(summary: Summary) -> str:
    return f"{summary.recipe} {' / '.join(summary.cell.values())}, seed {summary.seed}"


def _find_first_difference(one: Path, other: Path) -> int | None:
    try:
        pairs = zip(*map(_read_timeless_rounds, (one, other)), strict=True)
        return next((n for n, (a, b) in enumerate(pairs, 1) if a != b), None)
    except (OSError, ValueError):
        return 0


def _read_timeless_rounds(folder: Path) -> list[dict[str, Any]]:
    """Return the rounds of a run without their durations."""
    return [{k: v for k, v in each.items() if k != "seconds"} for each in read_rounds(folder)]
