"""The pictures of recipes that the paper shows as figures."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fedfm.config import parse
from fedfm.grid.points import NAME, Points, read_points, write_measures
from fedfm.grid.recipe import Recipe, cells
from fedfm.grid.store import Summary
from fedfm.metrics.feature_space import LocalSpaces
from fedfm.paper.motivation import local_spaces
from fedfm.report.features import Panel, draw_clients, draw_methods
from fedfm.report.tables import curves
from fedfm.report.tables.table import REDUCED, Table


def draw(
    recipe: Recipe, table: Table, results: Path, quick: bool, path: Path | None = None
) -> Path | None:
    """The picture of a table's runs, by default in the folder of the results, if there is one."""
    runs = {tuple(entry.labels.values()): entry.runs[0] for entry in _run(table)}
    if not runs or recipe.output not in ("curve", "features"):
        return None
    path = path or _path(recipe, results, quick)
    if recipe.output == "curve":
        return curves.draw(table, results, path)
    return _draw_features(runs, results, _title(recipe, quick), path)


def _run(table: Table) -> Iterator[Any]:
    return (entry for entry in table.entries.values() if entry.runs)


def _path(recipe: Recipe, results: Path, quick: bool) -> Path:
    path = results / recipe.name / f"{recipe.output}{'-quick' if quick else ''}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _title(recipe: Recipe, quick: bool) -> str:
    return f"{REDUCED if quick else ''}{recipe.title} ({recipe.paper})"


def _draw_features(
    runs: dict[tuple[str, ...], Summary], results: Path, title: str, path: Path
) -> Path | None:
    """The best models' test features, the first seed of every cell that kept them (Fig. 5)."""
    kept = {labels: (run, _points(run, results)) for labels, run in runs.items()}
    panels = [
        Panel(" / ".join(labels), points.features, points.labels, run.measures)
        for labels, (run, points) in kept.items()
        if points and run.measures
    ]
    classes = next((points.classes for _, points in kept.values() if points), ())
    return draw_methods(panels, classes, path, title=title) if panels else None


def _points(run: Summary, results: Path) -> Points | None:
    """What a run kept; of one that kept nothing, as far as its model is there."""
    folder = results / run.folder
    if not (folder / NAME).exists() and (folder / "model.safetensors").exists():
        from fedfm.run.prepare import load_data

        write_measures(folder, load_data(parse(run.config)))
    return read_points(folder)


def draw_local_models(
    recipe: Recipe, quick: bool, overrides: Iterable[str], results: Path
) -> Iterator[dict[str, Any]]:
    """The clients' own models after local training, in one picture (Fig. 2); a row per method."""
    from fedfm.run.prepare import build_model, device_of, load_data

    spaces: list[LocalSpaces] = []
    for cell in cells(recipe, quick, overrides):
        config = cell.resolved
        dataset = load_data(config)
        model = build_model(config, dataset).to(device_of(config))
        spaces.append(local_spaces(cell.title, model, dataset, config))
    path = draw_clients(
        spaces, dataset.classes, _path(recipe, results, quick), title=_title(recipe, quick)
    )
    for space in spaces:
        yield {
            "method": space.title,
            "gap between clients": f"{space.gap:.3f}",
            "silhouette": f"{space.silhouette:.3f}",
            "picture": str(path),
        }
