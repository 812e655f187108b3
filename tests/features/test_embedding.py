"""t-SNE that is the same for the same seed."""

import subprocess
import sys

import numpy as np
import pytest

from fedfm.core.errors import UserError
from fedfm.features import embedding
from fedfm.features.embedding import embed


def clusters(samples: int = 240) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.arange(samples) % 4
    centres = rng.normal(size=(4, 80))
    return (centres[labels] + 0.3 * rng.normal(size=(samples, 80))).astype(np.float32), labels


def test_clusters_stay_clusters():
    from sklearn.metrics import silhouette_score

    features, labels = clusters()
    places = embed(features, seed=0)
    assert places.shape == (240, 2)
    assert silhouette_score(places, labels) > 0.6


def test_the_same_seed_gives_the_same_places():
    features, _ = clusters(120)
    assert np.array_equal(embed(features, seed=1), embed(features, seed=1))


def test_another_process_gives_the_same_places():
    program = (
        "from tests.features.test_embedding import clusters, embed; "
        "print(embed(clusters(60)[0], seed=1).tobytes().hex())"
    )
    other = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == embed(clusters(60)[0], seed=1).tobytes().hex()


@pytest.mark.parametrize(("samples", "gradient"), [(59, "bh"), (60, "fft")])
def test_many_points_are_placed_by_fft(samples, gradient, monkeypatch):
    asked = []
    monkeypatch.setattr(embedding, "MANY", 60)
    monkeypatch.setattr(embedding, "t_sne", lambda points, start, gradient: asked.append(gradient))
    embed(clusters(samples)[0], seed=0)
    assert asked == [gradient]


def test_without_opentsne_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "openTSNE", None)
    with pytest.raises(UserError, match="pip install openTSNE"):
        embed(clusters(40)[0], seed=0)


@pytest.mark.parametrize(("samples", "dimensions"), [(4, 80), (12, 80), (40, 1), (40, 3)])
def test_few_points_and_few_dimensions_are_placed_too(samples, dimensions):
    features, _ = clusters(samples)
    places = embed(features[:, :dimensions], seed=0)
    assert places.shape == (samples, 2)
    assert np.isfinite(places).all()


def test_points_that_are_all_alike_are_placed_too():
    assert np.isfinite(embed(np.ones((30, 5), np.float32), seed=0)).all()


def test_samples_that_coincide_are_placed_too():
    places = embed(np.repeat(np.eye(4, 20, dtype=np.float32), 30, axis=0), seed=0)
    assert np.isfinite(places).all()


def test_too_few_points_are_refused():
    with pytest.raises(UserError, match=r"t-SNE.*\b4\b.*\b3\b"):
        embed(np.zeros((3, 5)), seed=0)
