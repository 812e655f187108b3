"""`fedfm features`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedfm.cli.options import Format
from fedfm.core.errors import require

if TYPE_CHECKING:
    from fedfm.config import Config
    from fedfm.data.dataset import Dataset


def features(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The picture, a .png or .svg file.")
    ] = Path("features.png"),
    points: Annotated[
        int, typer.Option(help="Draw at most this many samples of a run.", min=10)
    ] = 2000,
    format: Format = "text",
) -> None:
    """Measure how well the best models separate the classes, and draw their features by t-SNE.

    The measures are the NMI of k-means clusters with the labels, and the silhouette of the labels,
    both on test data. Every run's folder gets its measures as features.json. Stars in the picture
    are the mean features of the classes.
    """
    from fedfm.features.feature_space import (
        load_features,
        load_finished_config,
        measure,
        save_measures,
    )
    from fedfm.report.features import Panel, draw_methods
    from fedfm.report.figure import check_suffix

    check_suffix(out)
    configs = [load_finished_config(folder) for folder in runs]
    datasets = _load_datasets(configs)
    _require_same_classes(runs, datasets)
    panels = []
    titles = name_panels(runs, configs)
    for title, folder, config, dataset in zip(titles, runs, configs, datasets, strict=True):
        inputs, labels = load_features(folder, dataset)
        scores = save_measures(folder, measure(inputs, labels, config.seed))
        panels.append(Panel(title, inputs, labels, scores))
    names = ", ".join(dict.fromkeys(dataset.name for dataset in datasets))
    title = f"test features, {names}"
    picture = draw_methods(panels, datasets[0].classes, out, title=title, points=points)
    rows: list[dict[str, Any]] = [
        {"run": str(folder), "method": config.composed.name, "seed": config.seed, **panel.measures}
        for folder, config, panel in zip(runs, configs, panels, strict=True)
    ]
    _print_rows(rows, picture, format)


def _load_datasets(configs: Sequence[Config]) -> list[Dataset]:
    """Return the data of each run; runs that share data share the object."""
    from fedfm.run.prepare import load_data

    loaded = {config.data: load_data(config) for config in {c.data: c for c in configs}.values()}
    return [loaded[config.data] for config in configs]


def _require_same_classes(runs: Sequence[Path], datasets: Sequence[Dataset]) -> None:
    """Refuse runs in whose panels a colour would mean different classes."""
    for folder, dataset in zip(runs, datasets, strict=True):
        require(
            dataset.classes == datasets[0].classes,
            f"{runs[0]} and {folder} have different classes (data {datasets[0].name} and "
            f"{dataset.name}); run fedfm features for each of them separately",
        )


def name_panels(runs: Sequence[Path], configs: Sequence[Config]) -> list[str]:
    """Return the shortest titles that differ: methods, methods with seeds, or folders."""
    methods = [config.composed.name for config in configs]
    seeded = [f"{name}, seed {config.seed}" for name, config in zip(methods, configs, strict=True)]
    for titles in (methods, seeded):
        if len(set(titles)) == len(titles):
            return titles
    return [str(folder) for folder in runs]


def _print_rows(rows: list[dict[str, Any]], picture: Path, format: str) -> None:
    from fedfm.run.console import numeric_table, print_table

    if format == "json":
        print(json.dumps({"picture": str(picture), "runs": rows}))
        return
    table = numeric_table("features of the best models", "run", list(rows[0])[1:])
    for run, method, seed, nmi, silhouette in (row.values() for row in rows):
        table.add_row(run, method, str(seed), f"{nmi:.4f}", f"{silhouette:.4f}")
    print_table(table)
    print(f"picture in {picture}")
