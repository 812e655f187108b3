"""`fedfm features`: how well the best models of runs tell the classes apart."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedfm.cli.options import Format
from fedfm.config import Config
from fedfm.core.errors import require
from fedfm.data.dataset import Dataset
from fedfm.metrics.feature_space import load_features, load_finished_config, measure, save_measures
from fedfm.report.features import Panel, draw_methods
from fedfm.report.picture import check_picture
from fedfm.run.console import numeric_table, print_table
from fedfm.run.prepare import load_data


def features(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The picture, .png or .svg.")] = Path(
        "features.png"
    ),
    points: Annotated[
        int, typer.Option(help="At most so many samples of a run are drawn.", min=10)
    ] = 2000,
    format: Format = "text",
) -> None:
    """Measure the test features of runs' best models, and draw them by t-SNE.

    NMI of k-means clusters with the labels, and the silhouette of the labels; both are kept in each
    run's folder, as features.json. Stars in the picture are the classes' mean features.
    """
    check_picture(out)
    configs = [load_finished_config(folder) for folder in runs]
    datasets = load_all(configs)
    require_same_classes(runs, datasets)
    panels = [
        panel(*each) for each in zip(titles(runs, configs), runs, configs, datasets, strict=True)
    ]
    names = ", ".join(dict.fromkeys(dataset.name for dataset in datasets))
    title = f"test features, {names}"
    picture = draw_methods(panels, datasets[0].classes, out, title=title, points=points)
    show(runs, configs, panels, picture, format)


def load_all(configs: Sequence[Config]) -> list[Dataset]:
    """Each run's data; those of runs with the same are read once."""
    read = {config.data: load_data(config) for config in {c.data: c for c in configs}.values()}
    return [read[config.data] for config in configs]


def require_same_classes(runs: Sequence[Path], datasets: Sequence[Dataset]) -> None:
    """Refuse runs whose colours would mean different classes."""
    for folder, dataset in zip(runs, datasets, strict=True):
        require(
            dataset.classes == datasets[0].classes,
            f"{runs[0]} and {folder} have different classes (data {datasets[0].name} and "
            f"{dataset.name}); call fedfm features for each by itself",
        )


def titles(runs: Sequence[Path], configs: Sequence[Config]) -> list[str]:
    """The methods; where one comes twice with the seeds, and where those do too the folders."""
    methods = [config.composed.name for config in configs]
    seeded = [f"{name}, seed {config.seed}" for name, config in zip(methods, configs, strict=True)]
    for names in (methods, seeded):
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in runs]


def panel(title: str, folder: Path, config: Config, dataset: Dataset) -> Panel:
    """A run's features, measured and recorded."""
    found, labels = load_features(folder, dataset)
    return Panel(title, found, labels, save_measures(folder, measure(found, labels, config.seed)))


def show(
    runs: Sequence[Path],
    configs: Sequence[Config],
    panels: Sequence[Panel],
    picture: Path,
    format: str,
) -> None:
    """What was measured, for people or for programs."""
    rows: list[dict[str, Any]] = [
        {"run": str(folder), "method": config.composed.name, "seed": config.seed, **panel.measures}
        for folder, config, panel in zip(runs, configs, panels, strict=True)
    ]
    if format == "json":
        print(json.dumps({"picture": str(picture), "runs": rows}))
        return
    table = numeric_table("features of the best models", "run", list(rows[0])[1:])
    for run, method, seed, nmi, silhouette in (row.values() for row in rows):
        table.add_row(run, method, str(seed), f"{nmi:.4f}", f"{silhouette:.4f}")
    print_table(table)
    print(f"picture in {picture}")
