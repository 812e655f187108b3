"""Name settings and methods: as their recipe does, or by what distinguishes them."""

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

from fedfm.core.sorting import DECIMAL, natural_key
from fedfm.core.tables import flatten_keys
from fedfm.methods import PIECES
from fedfm.report.html.load import LoadedRun, identify

SHARED = ("clients", "rounds", "epochs", "participation", "validation")
"""Keys of [training] that belong to the setting; the others may be a method's own."""
RELEVANT = {"niid1": "beta", "niid2": "dominance", "niid3": "missing"}
Item = TypeVar("Item")


def name_by_recipe(settings: Sequence[Sequence[LoadedRun]]) -> dict[str, str]:
    """Return what recipes call the experiments that they have cells for, by digest.

    A name consists of the labels along the axes in which runs of one setting differ. Where several
    recipes have an experiment, the recipe with the most runs names it.
    """
    sizes = Counter(recipe for runs in settings for run in runs for recipe in run.cells)
    varying = {axis for runs in settings for axis in _find_varying_axes(runs)}
    names = {}
    for run in (run for runs in settings for run in runs if run.cells):
        recipe = max(run.cells, key=lambda name: sizes[name])
        cell = run.cells[recipe]
        labels = [label for axis, label in cell.items() if (recipe, axis) in varying]
        names[run.identity[0]] = " / ".join(labels or [cell.get("method", run.method)])
    return names


def _find_varying_axes(runs: Iterable[LoadedRun]) -> set[tuple[str, str]]:
    """Return (recipe, axis) wherever runs of one setting have more than one label."""
    labels = group_pairs(
        ((recipe, axis), label)
        for run in runs
        for recipe, cell in run.cells.items()
        for axis, label in cell.items()
    )
    return {place for place, several in labels.items() if len(set(several)) > 1}


def label_methods(
    runs: Sequence[LoadedRun], names: Mapping[str, str]
) -> dict[str, list[LoadedRun]]:
    """Group runs by name, and runs of one name by the settings in which they differ."""
    labelled: dict[str, list[LoadedRun]] = {}
    named = ((names.get(run.identity[0], run.method), run) for run in runs)
    for method, same_name in group_pairs(named).items():
        groups = group_pairs((run.identity[0], run) for run in same_name)
        tables = [flatten_keys(identify(group[0].config)) for group in groups.values()]
        for text, group in zip(_describe_differences(tables), groups.values(), strict=True):
            label = f"{method} ({text})" if text else method
            label += f" [{group[0].identity[0]}]" if label in labelled else ""
            labelled[label] = group
    return labelled


def title_settings(groups: Sequence[Sequence[LoadedRun]]) -> list[str]:
    """Return a title for each setting; equal titles get what the settings differ in."""
    titles = [_format_title(group[0].setting) for group in groups]
    same = group_pairs((title, place) for place, title in enumerate(titles))
    for title, places in same.items():
        tables = [flatten_keys(extract_setting(groups[place][0].setting)) for place in places]
        for place, text in zip(places, _describe_differences(tables), strict=True):
            titles[place] = f"{title}, {text}" if text else title
    return titles


def _format_title(config: dict[str, Any]) -> str:
    data, partition = config.get("data", {}), config.get("partition", {})
    training, model = config.get("training", {}), config.get("model", {})
    kind = str(partition.get("kind", "?"))
    option = RELEVANT.get(kind)
    dealt = f"{kind} ({option} {format_value(partition[option])})" if option in partition else kind
    counts = [f"{training.get(key, '?')} {key}" for key in ("clients", "rounds")]
    share = training.get("participation", 1)
    counts += [f"participation {format_value(share)}"] if share != 1 else []
    return ", ".join([_format_data(data), str(model.get("name", "?")), dealt, *counts])


def _format_data(data: dict[str, Any]) -> str:
    """Return the name of the data set; for a user's own data, the name of its file or folder."""
    path = data.get("path")
    return Path(path).name.split(".")[0] if path else str(data.get("name", "?"))


def format_value(value: Any) -> str:
    """Format the value of a setting, numbers with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _describe_differences(tables: Sequence[dict[str, Any]]) -> list[str]:
    """Describe how each table differs from the values that most tables have."""
    usual = {key: _find_majority(key, tables) for table in tables for key in table}
    return [
        ", ".join(
            f"{key.rsplit('.')[-1]}={format_value(table[key])}"
            for key, value in usual.items()
            if key in table and repr(table[key]) != value
        )
        for table in tables
    ]


def _find_majority(key: str, tables: Sequence[dict[str, Any]]) -> str | None:
    """Return the `repr` of the value that more than half of the tables have."""
    value, count = Counter(repr(table.get(key)) for table in tables).most_common(1)[0]
    return value if 2 * count > len(tables) else None


def extract_setting(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a config that compared methods share; a user's own network is in it."""
    known = identify(config)
    left_out = ("method", "metrics", "code")
    kept = {key: value for key, value in known.items() if key not in left_out}
    if network := {k: v for k, v in known.get("code", {}).items() if k.startswith("model.")}:
        kept["code"] = network
    training = known.get("training", {})
    return kept | {"training": {key: training[key] for key in SHARED if key in training}}


def method_order_key(label: str) -> tuple[int, list[tuple[Decimal, str]]]:
    """Sort labels in the order in which the library lists its methods."""
    names = list(PIECES)
    name = re.split("[ ,]", label)[0].lower()
    return names.index(name) if name in names else len(names), natural_key(label, DECIMAL)


def group_pairs(pairs: Iterable[tuple[Hashable, Item]]) -> dict[Any, list[Item]]:
    """Collect the items of every key."""
    groups: dict[Any, list[Item]] = defaultdict(list)
    for key, item in pairs:
        groups[key].append(item)
    return dict(groups)
