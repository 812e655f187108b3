"""A sample of a run's test features, to draw them later without the model or the data."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedfm.core.files import partial_path
from fedfm.data.dataset import Dataset
from fedfm.features.embedding import reduce_dimensions
from fedfm.features.feature_space import (
    draw_sample,
    load_features,
    load_finished_config,
    measure,
    save_measures,
)
from fedfm.grid.store import POINTS_FILE

POINTS = 2000
"""The number of points that a picture shows."""


class Points(NamedTuple):
    """Principal components of some samples' features, with their classes."""

    features: NDArray[Any]
    """[N, 50 at most], scaled to at most 1, since t-SNE uses only ratios of distances."""
    labels: NDArray[Any]
    classes: tuple[str, ...]


def write_measures(folder: Path, dataset: Dataset) -> dict[str, float]:
    """Measure NMI and silhouette of a run's best model on the test split; keep its points."""
    features, labels = load_features(folder, dataset)
    seed = load_finished_config(folder).seed
    some = draw_sample(len(labels), POINTS, 0)  # the same ones for all runs
    components = reduce_dimensions(features[some], seed)
    small = (components / max(np.abs(components).max(), 1e-30)).astype(np.float16)
    points = Points(small, labels[some].astype(np.int16), dataset.classes)
    path = partial_path(folder / POINTS_FILE)
    with path.open("wb") as file:
        arrays: dict[str, Any] = points._asdict() | {"classes": np.array(points.classes)}
        np.savez_compressed(file, **arrays)
    path.replace(folder / POINTS_FILE)
    return save_measures(folder, measure(features, labels, seed))


def read_points(folder: Path) -> Points | None:
    """Return the points of a run, if it has any."""
    if not (folder / POINTS_FILE).exists():
        return None
    with np.load(folder / POINTS_FILE) as arrays:
        classes = tuple(map(str, arrays["classes"]))
        return Points(arrays["features"].astype(np.float32), arrays["labels"], classes)
