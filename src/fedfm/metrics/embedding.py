"""t-SNE: features as points on a plane, the same ones for the same seed."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fedfm.core.errors import UserError, require
from fedfm.core.rng import generator

DIMENSIONS = 50
"""What features are reduced to by PCA first."""
PERPLEXITY = 30.0
"""How many neighbours count, for enough points."""
MANY = 5000
"""From so many points on gradients by FFT are faster than Barnes and Hut's (bench/embedding.py)."""


def embed(features: NDArray[Any], seed: int) -> NDArray[np.float64]:
    """Points [N, 2] for features [N, d]: PCA to 50 dimensions, then t-SNE that starts from PCA.

    The perplexity is 30, and for fewer than 91 points a third of them. On one thread, since more
    add up in any order, which t-SNE would make visible.
    """
    require(len(features) >= 4, f"t-SNE needs 4 points or more, not {len(features)}")
    if np.ptp(features, axis=0).max() == 0:
        return np.zeros((len(features), 2))
    start = int(generator(seed, "t-SNE").integers(2**31))
    gradient = "bh" if len(features) < MANY else "fft"
    with threadpool_limits(1):
        return t_sne(reduce_dimensions(features, start), start, gradient)


def reduce_dimensions(features: NDArray[Any], start: int) -> NDArray[np.float64]:
    """Features [N, d] by their first principal components [N, 2 to 50]."""
    from sklearn.decomposition import PCA

    components = min(DIMENSIONS, *features.shape)
    found = PCA(components, random_state=start).fit_transform(features.astype(np.float64))
    return np.pad(found, ((0, 0), (0, max(0, 2 - components))))


def t_sne(points: NDArray[np.float64], start: int, gradient: str) -> NDArray[np.float64]:
    """Points [N, d] on a plane by openTSNE; gradient is "bh" (Barnes and Hut) or "fft"."""
    try:
        from openTSNE import TSNE
    except ImportError as problem:
        raise UserError(
            "t-SNE needs openTSNE, which is not installed: pip install openTSNE"
        ) from problem

    placed = TSNE(
        perplexity=min(PERPLEXITY, (len(points) - 1) / 3),
        initialization="pca",
        neighbors="exact",
        n_iter=750,  # after 250 with early exaggeration
        negative_gradient_method=gradient,
        random_state=start,
        n_jobs=1,
    ).fit(points)
    return np.array(placed)
