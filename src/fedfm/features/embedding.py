"""t-SNE: features as points in the plane, reproducible by seed."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fedfm.core.errors import UserError, require
from fedfm.core.rng import generator

DIMENSIONS = 50
"""The dimensions that PCA keeps before t-SNE."""
PERPLEXITY = 30.0
"""The perplexity, if there are enough points."""
ITERATIONS = 750
"""The iterations after 250 with early exaggeration."""
MANY = 5000
"""From this many points on, FFT gradients are faster than Barnes-Hut's (18 s instead of 21 s)."""


def embed(features: NDArray[Any], seed: int) -> NDArray[np.float64]:
    """Embed features [N, d] as points [N, 2]: PCA to 50 dimensions, then t-SNE from PCA.

    The perplexity is 30, or a third of the points if there are fewer than 91. It runs on one
    thread, because several add in any order, and t-SNE would amplify the difference.
    """
    require(len(features) >= 4, f"t-SNE needs 4 points or more, not {len(features)}")
    if np.ptp(features, axis=0).max() == 0:
        return np.zeros((len(features), 2))
    start = int(generator(seed, "t-SNE").integers(2**31))
    gradient = "bh" if len(features) < MANY else "fft"
    with threadpool_limits(1):
        return t_sne(reduce_dimensions(features, start), start, gradient)


def reduce_dimensions(features: NDArray[Any], start: int) -> NDArray[np.float64]:
    """Project features [N, d] onto their first principal components [N, 2 to 50]."""
    from sklearn.decomposition import PCA

    components = min(DIMENSIONS, *features.shape)
    projected = PCA(components, random_state=start).fit_transform(features.astype(np.float64))
    return np.pad(projected, ((0, 0), (0, max(0, 2 - components))))


def t_sne(points: NDArray[np.float64], start: int, gradient: str) -> NDArray[np.float64]:
    """Embed points [N, d] in the plane by openTSNE; gradient is "bh" (Barnes-Hut) or "fft"."""
    try:
        from openTSNE import TSNE
    except ImportError as problem:
        raise UserError("t-SNE needs openTSNE: pip install openTSNE") from problem

    placed = TSNE(
        perplexity=min(PERPLEXITY, (len(points) - 1) / 3),
        initialization="pca",
        neighbors="exact",
        n_iter=ITERATIONS,
        negative_gradient_method=gradient,
        random_state=start,
        n_jobs=1,
    ).fit(points)
    return np.array(placed)
