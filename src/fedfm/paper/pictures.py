"""Draw the recipes that the paper shows as figures."""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedfm.config import Config
from fedfm.data import partition as partitions
from fedfm.data.dataset import Dataset
from fedfm.features.feature_space import LocalSpaces, compute_features
from fedfm.grid.feature_points import read_points
from fedfm.grid.recipe import Recipe, expand_cells
from fedfm.grid.store import Summary
from fedfm.report.curves import draw_curves
from fedfm.report.features import Panel, draw_clients, draw_methods
from fedfm.report.partition_picture import draw_partition
from fedfm.report.tables.table import REDUCED, Table
from fedfm.rounds.round import open_round, run_round
from fedfm.run.simulation import Simulation


def draw_picture(
    recipe: Recipe,
    table: Table,
    results: Path,
    quick: bool,
    path: Path | None = None,
    note: str = "",
) -> Path | None:
    """Draw the runs of a table, by default into the results folder; None if it has no picture.

    The title begins with `note`.
    """
    recipe = replace(recipe, title=note + recipe.title)
    table = replace(table, recipe=replace(table.recipe, title=note + table.recipe.title))
    entries = (entry for entry in table.entries.values() if entry.runs)
    runs = {tuple(entry.labels.values()): entry.runs[0] for entry in entries}
    if not runs or recipe.output not in ("curve", "features"):
        return None
    path = path or _make_path(recipe, results, quick)
    if recipe.output == "curve":
        return draw_curves(table, results, path)
    return _draw_features(runs, results, _format_title(recipe, quick), path)


def _make_path(recipe: Recipe, results: Path, quick: bool) -> Path:
    path = results / recipe.name / f"{recipe.output}{'-quick' if quick else ''}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _format_title(recipe: Recipe, quick: bool) -> str:
    return f"{REDUCED if quick else ''}{recipe.title} ({recipe.paper})"


def _draw_features(
    runs: dict[tuple[str, ...], Summary], results: Path, title: str, path: Path
) -> Path | None:
    """Draw the best models' test features, the first seed of every cell (Fig. 6)."""
    kept = {labels: (run, read_points(results / run.folder)) for labels, run in runs.items()}
    panels = [
        Panel(" / ".join(labels), points.features, points.labels, run.measures)
        for labels, (run, points) in kept.items()
        if points and run.measures
    ]
    classes = next((points.classes for _, points in kept.values() if points), ())
    return draw_methods(panels, classes, path, title=title) if panels else None


def draw_local_models(
    recipe: Recipe, quick: bool, overrides: Iterable[str], results: Path
) -> Iterator[dict[str, Any]]:
    """Draw the clients' models after local training (Fig. 2); yield a row per method."""
    from fedfm.run.prepare import build_model, device_of, load_data

    spaces: list[LocalSpaces] = []
    for cell in expand_cells(recipe, quick, overrides):
        config = cell.resolved
        dataset = load_data(config)
        model = build_model(config, dataset).to(device_of(config))
        spaces.append(compute_local_spaces(cell.title, model, dataset, config))
    path, title = _make_path(recipe, results, quick), _format_title(recipe, quick)
    draw_clients(spaces, dataset.classes, path, title=title)
    for space in spaces:
        yield {
            "method": space.title,
            "gap between clients": f"{space.gap:.3f}",
            "silhouette": f"{space.silhouette:.3f}",
            "picture": str(path),
        }


def train_local_models(model: nn.Module, dataset: Dataset, config: Config) -> Iterator[nn.Module]:
    """Yield the clients' models after the last round's local training, before averaging."""
    simulation = Simulation(model, dataset, config)
    state, federation = simulation.start, simulation.federation
    for _ in range(config.training.rounds - 1):
        state, _ = run_round(state, federation)
    last = open_round(state, federation)
    trained = federation.executor.train(last.job).model
    tensors = {**trained.params, **trained.buffers}
    for client in range(len(last.group.cohort)):
        local = copy.deepcopy(model)
        local.load_state_dict({name: tensor[client] for name, tensor in tensors.items()})
        yield local


def compute_local_spaces(
    title: str, model: nn.Module, dataset: Dataset, config: Config
) -> LocalSpaces:
    """Return the test features by the local models of all clients."""
    trained = train_local_models(model, dataset, config)
    features, labels = zip(*(compute_features(local, dataset) for local in trained), strict=True)
    return LocalSpaces(title, np.stack(features), labels[0])


def draw_partitions(
    recipe: Recipe, quick: bool, overrides: Iterable[str], results: Path
) -> Iterator[dict[str, Any]]:
    """Draw the partition of every cell; yield what it shows and where it is."""
    from fedfm.run.prepare import follow_data, load_data

    for cell in expand_cells(recipe, quick, overrides):
        config, dataset = follow_data(cell.resolved, load_data(cell.resolved))
        clients, seed = config.training.clients, config.seed
        kept = config.training.server_validation
        counts = partitions.tabulate(dataset, clients, config.partition, seed, kept)
        name = f"{'-'.join(cell.labels.values())}{'-quick' if quick else ''}.png"
        path = results / recipe.name / name
        source = Path(config.data.path).stem if config.data.path else dataset.name
        heading = f"{cell.title}: {source}, {clients} clients, seed {seed}"
        yield cell.labels | {
            "data": source,
            "clients": clients,
            "smallest": int(counts.sum(1).min()),
            "largest": int(counts.sum(1).max()),
            "picture": str(draw_partition(counts, dataset.classes, heading, path)),
        }
