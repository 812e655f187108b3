"""t-SNE of features: openTSNE against scikit-learn, on one thread.

    python bench/embedding.py        (`pip install openTSNE` first: else scikit-learn runs alone)

CPU seconds on one thread, 1,000 iterations each, openTSNE 1.0.4 and scikit-learn 1.9.1, from points
of 512 dimensions that PCA reduced to 50:

    points  scikit-learn  openTSNE, Barnes-Hut  openTSNE, FFT
     2,000          7.12           6.38 (0.90)   14.86 (2.09)
     5,000         23.67          22.27 (0.94)   19.10 (0.81)

All keep neighbours equally well. A tenth to a fifth is not worth a dependency and pictures that
depend on what is installed, so fedfm uses scikit-learn.
"""

import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.manifold import trustworthiness
from threadpoolctl import threadpool_limits

from fedfm.analysis.embedding import PERPLEXITY, reduced, t_sne

SIZES, DIMENSIONS, CLASSES = (2000, 5000), 512, 10
Points = NDArray[Any]


def clusters(samples: int) -> Points:
    """Made-up features [N, 512] of ten classes."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES, DIMENSIONS))
    noise = 2 * rng.normal(size=(samples, DIMENSIONS))
    return centres[rng.integers(CLASSES, size=samples)] + noise


def open_tsne(gradient: str) -> Callable[[Points], Points]:
    """OpenTSNE with a way to take the gradient: "bh" (Barnes and Hut) or "fft"."""
    from openTSNE import TSNE

    tsne = TSNE(
        perplexity=PERPLEXITY,
        initialization="pca",
        neighbors="exact",
        n_iter=750,  # after 250 with early exaggeration: 1000, as scikit-learn
        negative_gradient_method=gradient,
        random_state=0,
        n_jobs=1,
    )
    return lambda points: np.asarray(tsne.fit(points))


def main() -> None:
    """Every system on the same points; CPU seconds, and relative to scikit-learn's."""
    systems: dict[str, Callable[[Points], Points]] = {
        "scikit-learn": lambda points: t_sne(points, 0)
    }
    if find_spec("openTSNE"):
        systems |= {
            "openTSNE, Barnes-Hut": open_tsne("bh"),
            "openTSNE, FFT": open_tsne("fft"),
        }
    table = Table("points", "system", "seconds", "relative", "trustworthiness")
    for size in SIZES:
        points, first = reduced(clusters(size), 0), 0.0
        for name, system in systems.items():
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
