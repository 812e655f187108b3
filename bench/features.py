"""How much NMI owes to the length of features: of every method in a folder of results.

    python -m bench.features [results/cifar10]

From the 2,000 test features that runs keep (points.npz), so NMI differs a little from the tables',
which is of all 10,000: k-means as it is, with all features scaled to one length, and without those
more than five times as far from the mean as the median; then how often the ten nearest neighbours
are right. results/features.txt is its output for the reproduction.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.cluster import KMeans
from sklearn.metrics import normalized_mutual_info_score
from sklearn.neighbors import KNeighborsClassifier
from threadpoolctl import threadpool_limits

from fedfm.grid.feature_points import Points, read_points
from fedfm.grid.store import Store

Array = NDArray[Any]
HEADS = ("method", "farthest / median", "NMI", "in 5 smallest clusters", "scaled", "nearer ones")
FAR = 5


def clusters(features: Array) -> Array:
    """Ten, by k-means."""
    assigned: Array = KMeans(10, n_init=10, random_state=0).fit_predict(features)
    return assigned


def neighbours(points: Points) -> float:
    """How often a vote of the ten nearest of one half is right about the other."""
    fitted = KNeighborsClassifier(10).fit(points.features[::2], points.labels[::2])
    return float(fitted.score(points.features[1::2], points.labels[1::2]))


def row(method: str, points: Points) -> list[str]:
    """What is known of one method's features."""
    lengths = np.linalg.norm(points.features, axis=1)
    near = lengths < FAR * np.median(lengths)
    labels, plain = points.labels, clusters(points.features)
    scores = [
        normalized_mutual_info_score(labels, clusters(points.features / lengths[:, None])),
        normalized_mutual_info_score(labels[near], clusters(points.features[near])),
        neighbours(points),
    ]
    smallest = np.sort(np.bincount(plain))[:5].sum()
    nmi = normalized_mutual_info_score(labels, plain)
    far = f"{lengths.max() / np.median(lengths):.1f}"
    return [method, far, f"{nmi:.3f}", str(smallest), *(f"{each:.3f}" for each in scores)]


def main(folder: Path) -> None:
    """A line for every method, of its first run that kept features."""
    table = Table(*HEADS, "neighbours")
    seen = set()
    for run in Store(folder).summaries():
        points = read_points(folder / run.folder)
        if points and run.method not in seen:
            seen.add(run.method)
            table.add_row(*row(run.method, points))
    Console(width=120).print(table)


if __name__ == "__main__":
    with threadpool_limits(1):
        main(Path(sys.argv[1] if len(sys.argv) > 1 else "results/cifar10"))
