"""Runs in order: settings (data, partition, clients, rounds), their methods, and their seeds."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedfm.core.tables import flatten_keys
from fedfm.grid.identity import digest
from fedfm.methods import PIECES
from fedfm.report.comparison import deviation
from fedfm.report.html.reading import Floats, FoundRun, identifying

SHARED = ("clients", "rounds", "epochs", "participation", "validation")
"""Keys of [training] that belong to the setting; the others may be a method's own."""
RELEVANT = {"niid1": "beta", "niid2": "dominance", "niid3": "missing"}
POINTS = 240
"""So many points of a curve are drawn at most."""
Item = TypeVar("Item")


@dataclass(frozen=True)
class Curve:
    """Test accuracy in percent over seeds, thinned, against rounds and bytes."""

    rounds: Floats
    sent: Floats
    mean: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class Entry:
    """A method in a setting: its runs, one for each seed."""

    label: str
    number: int
    """The same for the same label everywhere: it chooses colour, dashes and marker."""
    runs: tuple[FoundRun, ...]

    @property
    def accuracies(self) -> Floats:
        """Test accuracies in percent [seeds]."""
        return np.array([100 * run.test_accuracy for run in self.runs])

    @property
    def mean(self) -> float:
        """Of the test accuracies."""
        return float(self.accuracies.mean())

    @property
    def deviation(self) -> float:
        """Of the test accuracies."""
        return deviation(self.accuracies)

    def total(self, name: str) -> float:
        """What a run sent or took in all, the mean over seeds."""
        return float(np.mean([run.totals[name] for run in self.runs]))

    @cached_property
    def curve(self) -> Curve | None:
        """Of the round's model."""
        return self._over_seeds(lambda run: run.accuracy)

    @cached_property
    def reached(self) -> Curve | None:
        """Of the best model so far."""
        return self._over_seeds(lambda run: run.reached)

    def _over_seeds(self, accuracy_of: Callable[[FoundRun], Floats]) -> Curve | None:
        """Over the seeds that have a curve of the full length."""
        runs = [run for run in self.runs if len(run.accuracy) == self.runs[0].rounds > 0]
        if not runs:
            return None
        accuracy = 100 * np.stack([accuracy_of(run) for run in runs])
        sent = np.stack([run.sent for run in runs]).mean(0)
        shown = thinned(len(sent), POINTS)
        drawn = (np.arange(1, len(sent) + 1.0), sent, *(f(0) for f in _statistics(accuracy)))
        return Curve(*(values[shown] for values in drawn))


@dataclass(frozen=True)
class Setting:
    """What methods are compared in."""

    title: str
    entries: tuple[Entry, ...]

    @property
    def rounds(self) -> int:
        """Of its runs."""
        return self.entries[0].runs[0].rounds

    @property
    def best(self) -> Entry:
        """The method with the highest mean test accuracy."""
        return max(self.entries, key=lambda entry: entry.mean)


def _statistics(values: Floats) -> tuple[Any, Any, Any]:
    return values.mean, values.min, values.max


def thinned(count: int, most: int) -> np.ndarray:
    """At most so many indices, evenly spread, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def settings_of(runs: Iterable[FoundRun]) -> list[Setting]:
    """Runs by setting and method."""
    by_setting = _grouped((digest(_setting(run.setting)), run) for run in runs)
    labelled = [_labelled(group) for group in by_setting.values()]
    labels = dict.fromkeys(sorted({x for group in labelled for x in group}, key=_usual_order))
    numbers = {label: number for number, label in enumerate(labels)}
    found = []
    for title, group in zip(_titles(list(by_setting.values())), labelled, strict=True):
        entries = [Entry(x, numbers[x], _by_seed(members)) for x, members in group.items()]
        found.append(Setting(title, tuple(sorted(entries, key=lambda entry: entry.number))))
    return sorted(found, key=_prominence)


def _prominence(setting: Setting) -> tuple[Any, ...]:
    """Long runs of many methods first."""
    return -setting.rounds, -len(setting.entries), _natural(setting.title)


def _natural(title: str) -> list[tuple[float, str]]:
    """Numbers in a title sort by their value."""
    parts = re.split(r"(\d+(?:\.\d+)?)", title)
    return [(float(part), "") if i % 2 else (-1.0, part) for i, part in enumerate(parts)]


def _by_seed(runs: Sequence[FoundRun]) -> tuple[FoundRun, ...]:
    return tuple(sorted(runs, key=lambda run: run.seed))


def _usual_order(label: str) -> tuple[int, str]:
    names = list(PIECES)
    name = label.split(" ")[0]
    return names.index(name) if name in names else len(names), label


def _setting(config: dict[str, Any]) -> dict[str, Any]:
    """What methods that are compared have in common; of code one's own network, no method."""
    known = identifying(config)
    kept = {key: value for key, value in known.items() if key not in ("method", "code")}
    if network := {k: v for k, v in known.get("code", {}).items() if k.startswith("model.")}:
        kept["code"] = network
    training = known.get("training", {})
    return kept | {"training": {key: training[key] for key in SHARED if key in training}}


def _labelled(runs: Sequence[FoundRun]) -> dict[str, list[FoundRun]]:
    """Methods by name; those of one name also by the settings in which they differ."""
    found: dict[str, list[FoundRun]] = {}
    for method, same_name in _grouped((run.method, run) for run in runs).items():
        groups = _grouped((run.identity[0], run) for run in same_name)
        tables = [flatten_keys(identifying(group[0].config)) for group in groups.values()]
        for text, group in zip(_differences(tables), groups.values(), strict=True):
            label = f"{method} ({text})" if text else method
            found[label if label not in found else f"{label} [{group[0].identity[0]}]"] = group
    return found


def _titles(groups: Sequence[Sequence[FoundRun]]) -> list[str]:
    """A title for each setting, with what it differs in if another has the same."""
    titles = [_title(group[0].setting) for group in groups]
    same = _grouped((title, place) for place, title in enumerate(titles))
    for title, places in same.items():
        tables = [flatten_keys(_setting(groups[place][0].setting)) for place in places]
        for place, text in zip(places, _differences(tables), strict=True):
            titles[place] = f"{title}, {text}" if text else title
    return titles


def _title(config: dict[str, Any]) -> str:
    data, partition = config.get("data", {}), config.get("partition", {})
    training, model = config.get("training", {}), config.get("model", {})
    kind = str(partition.get("kind", "?"))
    option = RELEVANT.get(kind)
    dealt = f"{kind} ({option} {short(partition[option])})" if option in partition else kind
    counts = [f"{training.get(key, '?')} {key}" for key in ("clients", "rounds")]
    share = training.get("participation", 1)
    counts += [f"participation {short(share)}"] if share != 1 else []
    return ", ".join([_data(data), str(model.get("name", "?")), dealt, *counts])


def _data(data: dict[str, Any]) -> str:
    """The name of the data; of files of one's own the file's or folder's."""
    own = data.get("path")
    return Path(own).name.split(".")[0] if own else str(data.get("name", "?"))


def short(value: Any) -> str:
    """A setting's value, numbers with few digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _differences(tables: Sequence[dict[str, Any]]) -> list[str]:
    """For each table what distinguishes it from the others, in words; not what most have."""
    usual = {key: _of_most(key, tables) for table in tables for key in table}
    return [
        ", ".join(
            f"{key.rsplit('.')[-1]}={short(table[key])}"
            for key, value in usual.items()
            if key in table and repr(table[key]) != value
        )
        for table in tables
    ]


def _of_most(key: str, tables: Sequence[dict[str, Any]]) -> str | None:
    """The value, as Python writes it, that more than half of the tables have."""
    value, count = Counter(repr(table.get(key)) for table in tables).most_common(1)[0]
    return value if 2 * count > len(tables) else None


def _grouped(pairs: Iterable[tuple[Hashable, Item]]) -> dict[Any, list[Item]]:
    groups: dict[Any, list[Item]] = defaultdict(list)
    for key, item in pairs:
        groups[key].append(item)
    return dict(groups)
