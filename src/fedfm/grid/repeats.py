"""Compare runs that were repeated with the same config and seed."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfm.grid.identity import digest
from fedfm.grid.store import Store, Summary, read_rounds

AGAIN = "again"
"""The subfolder of a results folder with the runs that were made again."""


@dataclass(frozen=True)
class Repeat:
    """Two runs of one config and seed; the second may be shorter than the first."""

    first: Summary
    second: Summary
    compared: int = 0
    """How many rounds both have; 0: they cannot be read."""
    differs_in: int | None = None
    """The first round in which they differ."""

    @property
    def same(self) -> bool:
        """Return whether accuracies, and all known rounds, agree to the last digit."""
        return self.first.test_accuracy == self.second.test_accuracy and not self.differs_in

    def __str__(self) -> str:
        """Describe the difference."""
        there, here = self.second.test_accuracy, self.first.test_accuracy
        when = f", first in round {self.differs_in}" if self.differs_in else ""
        return f"{self.second.title} has test accuracy {there:.4f}, here {here:.4f}{when}"


def find_repeats(other: Store, here: Store) -> list[Repeat]:
    """Return the runs of `other` that `here` has too; a copied run counts."""
    known = _index_by_key(here)
    pairs = ((known[key], run) for key, run in _index_by_key(other).items() if key in known)
    return [_compare(*pair) for pair in pairs]


def find_repeats_within(folder: Path) -> Iterator[Repeat]:
    """Yield the runs of a folder, and of its `again`, that differ at most in length.

    Each run is compared with the longest one, if the rounds of both can be read.
    """
    alike: defaultdict[tuple[str, int], list[tuple[Path, Summary]]] = defaultdict(list)
    for store in (Store(folder), Store(folder / AGAIN)):
        for path, run in _index_by_key(store).values():
            alike[_key_without_rounds(run)].append((path, run))
    for runs in alike.values():
        longest, *others = sorted(runs, key=lambda run: -run[1].rounds)
        yield from (repeat for run in others if (repeat := _compare(longest, run)).compared)


def _index_by_key(store: Store) -> dict[tuple[str, int], tuple[Path, Summary]]:
    """Return the first result of every config and seed, with its folder."""
    runs: dict[tuple[str, int], tuple[Path, Summary]] = {}
    for run in store.summaries():
        runs.setdefault(run.key, (store.folder / run.folder, run))
    return runs


def _key_without_rounds(run: Summary) -> tuple[str, int]:
    training = run.config.get("training", {}) | {"rounds": 0}
    return digest(run.config | {"training": training}), run.seed


def _compare(first: tuple[Path, Summary], second: tuple[Path, Summary]) -> Repeat:
    """Compare the rounds that two runs have in common."""
    try:
        rounds = (_read_timeless_rounds(path) for path, _ in (first, second))
        pairs = list(zip(*rounds, strict=False))
    except (OSError, ValueError):
        return Repeat(first[1], second[1])
    differs_in = next((n for n, (a, b) in enumerate(pairs, 1) if a != b), None)
    return Repeat(first[1], second[1], len(pairs), differs_in)


def _read_timeless_rounds(folder: Path) -> list[dict[str, Any]]:
    """Return the rounds of a run without their durations."""
    return [{k: v for k, v in each.items() if k != "seconds"} for each in read_rounds(folder)]
