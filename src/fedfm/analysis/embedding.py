"""t-SNE: features as points on a plane, the same ones for the same seed."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fedfm.core.errors import require
from fedfm.core.rng import generator

DIMENSIONS = 50
"""What features are reduced to by PCA first."""
PERPLEXITY = 30.0
"""How many neighbours count, for enough points."""


def embedded(features: NDArray[Any], seed: int) -> NDArray[np.float64]:
    """Points [N, 2] for features [N, d]: PCA to 50 dimensions, then t-SNE that starts from PCA.

    The perplexity is 30, and for fewer than 91 points a third of them. On one thread, since more
    add up in any order, which t-SNE would make visible.
    """
    require(len(features) >= 4, f"t-SNE needs 4 points or more, not {len(features)}")
    if np.ptp(features, axis=0).max() == 0:
        return np.zeros((len(features), 2))
    start = int(generator(seed, "t-SNE").integers(2**31))
    with threadpool_limits(1):
        return t_sne(reduced(features, start), start)


def reduced(features: NDArray[Any], start: int) -> NDArray[np.float64]:
    """Features [N, d] by their first principal components [N, 2 to 50]."""
    from sklearn.decomposition import PCA

    components = min(DIMENSIONS, *features.shape)
    found = PCA(components, random_state=start).fit_transform(features.astype(np.float64))
    return np.pad(found, ((0, 0), (0, max(0, 2 - components))))


def t_sne(features: NDArray[np.float64], start: int) -> NDArray[np.float64]:
    """scikit-learn's: openTSNE took 0.8 to 0.9 of its time at best (bench/embedding.py)."""
    from sklearn.manifold import TSNE

    perplexity = min(PERPLEXITY, (len(features) - 1) / 3)
    places: NDArray[np.float64] = TSNE(
        perplexity=perplexity, init="pca", random_state=start
    ).fit_transform(features)
    return places
