"""t-SNE of features: openTSNE, which fedfm uses, against scikit-learn, on one thread.

    python -m bench.embedding

CPU seconds, 1,000 iterations each, from points of 512 dimensions that PCA reduced to 50. openTSNE
took 0.9 of scikit-learn's time with Barnes and Hut's gradients (500 and 2,000 points) and 0.8 with
those by FFT (5,000 points); all keep neighbours equally well (results/embedding-2core.txt).
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.manifold import TSNE, trustworthiness
from threadpoolctl import threadpool_limits

from fedfm.metrics.embedding import PERPLEXITY, reduce_dimensions, t_sne

SIZES, DIMENSIONS, CLASSES = (500, 2000, 5000), 512, 10
Points = NDArray[Any]


def clusters(samples: int) -> Points:
    """Made-up features [N, 512] of ten classes."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES, DIMENSIONS))
    noise = 2 * rng.normal(size=(samples, DIMENSIONS))
    return centres[rng.integers(CLASSES, size=samples)] + noise


def scikit_learn(points: Points) -> Points:
    """The same points by scikit-learn, with as many iterations."""
    placed: Points = TSNE(perplexity=PERPLEXITY, init="pca", random_state=0).fit_transform(points)
    return placed


SYSTEMS: dict[str, Callable[[Points], Points]] = {
    "scikit-learn": scikit_learn,
    "openTSNE, Barnes-Hut": lambda points: t_sne(points, 0, "bh"),
    "openTSNE, FFT": lambda points: t_sne(points, 0, "fft"),
}


def main() -> None:
    """Every system on the same points; CPU seconds, and relative to scikit-learn's."""
    table = Table("points", "system", "seconds", "relative", "trustworthiness")
    for size in SIZES:
        points, first = reduce_dimensions(clusters(size), 0), 0.0
        for name, system in SYSTEMS.items():
            began = time.process_time()
            with threadpool_limits(1):
                placed = system(points)
            seconds = time.process_time() - began
            first = first or seconds
            trust = trustworthiness(points, placed, n_neighbors=10)
            table.add_row(
                f"{size:,}", name, f"{seconds:.2f}", f"{seconds / first:.2f}", f"{trust:.3f}"
            )
    Console().print(table)


if __name__ == "__main__":
    main()
