"""The feature space of a model: its features of a data set, and how well they tell classes apart.

NMI compares k-means clusters of the features with the labels; the silhouette says how much nearer
a sample is to its own class than to the next one. scikit-learn, which has both, takes a second to
import, so that is done where it is used.
"""

import copy
import json
import logging
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from threadpoolctl import threadpool_limits
from torch import nn

from fedfm import models
from fedfm.config import Config, load_config
from fedfm.core.checkpoint import Damaged, write_atomically
from fedfm.core.errors import UserError, require
from fedfm.core.precision import full_precision
from fedfm.core.rng import generator
from fedfm.data.dataset import Dataset
from fedfm.engine.device_data import Feed

logger = logging.getLogger(__name__)
Features = NDArray[np.float32]
Labels = NDArray[np.int64]
SplitName = Literal["train", "test"]

BATCH = 500
"""Samples that go through a network at once."""
K_MEANS_STARTS = 10
"""scikit-learn's `n_init`: k-means begins so often from other centres, and the best one counts."""
SILHOUETTE_SAMPLES = 10_000
"""The silhouette compares all pairs of samples, so it is taken of at most so many."""


def features_of(
    folder: Path,
    dataset: Dataset,
    split: SplitName = "test",
    device: torch.device | str | None = None,
) -> tuple[Features, Labels]:
    """Features [N, d] and labels [N] of a split, by the best model of a finished run.

    The network runs on `device`; by default on the GPU, if there is one.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return features_by(best_model(folder, dataset).to(device), dataset, split)


def features_by(
    model: nn.Module, dataset: Dataset, split: SplitName = "test"
) -> tuple[Features, Labels]:
    """The same by a given model, in evaluation mode and where it lies; it is left as it is."""
    like = next(model.parameters())
    feed = Feed.of(getattr(dataset, split), dataset, like.device, like.dtype)
    network = copy.deepcopy(model).eval()
    everything = torch.arange(len(feed.labels), device=like.device)
    batches = torch.split(everything, BATCH)
    with torch.inference_mode(), full_precision():
        parts = [network(feed.fetch(some)[0])[0].float().cpu() for some in batches]
    return torch.cat(parts).numpy(), feed.labels.cpu().numpy()


def best_model(folder: Path, dataset: Dataset) -> nn.Module:
    """The best model of a finished run on such data, on the CPU."""
    chosen, path = finished_config(folder).model, folder / "model.safetensors"
    classes = len(dataset.classes)
    with torch.device("meta"):
        model = models.build(chosen.name, shape=dataset.shape, classes=classes, **chosen.options)
    try:
        model.load_state_dict(load_file(path), assign=True)
    except (SafetensorError, FileNotFoundError) as problem:
        raise Damaged(path, problem) from problem
    except RuntimeError as problem:
        reason = str(problem).splitlines()[-1].strip()
        raise UserError(f"{path} does not fit its config.toml on these data: {reason}") from problem
    return model


def finished_config(folder: Path) -> Config:
    """The config of a finished run."""
    recorded = folder / "config.toml"
    require(recorded.is_file(), f"{folder} holds no run (it has no config.toml)")
    require(
        (folder / "summary.json").is_file(),
        f"the run in {folder} is not finished; go on with fedfm run ... --resume",
    )
    try:
        config = load_config(str(recorded))
    except UserError as problem:
        raise UserError(f"{recorded} is no config here: {problem}") from problem
    require(
        config.data.digest is None,
        f"the run in {folder} was given its model and data in Python: take its features there, "
        "as docs/own-data-and-model.md shows",
    )
    return config


def measures(features: NDArray[Any], labels: NDArray[Any], seed: int) -> dict[str, float]:
    """NMI and silhouette of features [N, d] with labels [N]; the same for the same seed.

    NMI: of the labels with k-means clusters, k the number of classes among the labels, the best
    of 10 starts. Silhouette: Euclidean, of the true labels; of more than 10,000 samples it takes
    10,000, drawn by the seed. On one thread, since more add up in any order.
    """
    classes = len(np.unique(labels))
    require(
        2 <= classes < len(labels),
        f"NMI and silhouette need two classes or more, and more samples than classes; "
        f"there are {classes} classes and {len(labels)} samples",
    )
    require(bool(np.isfinite(features).all()), "NMI and silhouette need finite features")
    with threadpool_limits(1):
        return {
            "nmi": _nmi(features, labels, classes, seed),
            "silhouette": silhouette(features, labels, seed),
        }


def _nmi(features: NDArray[Any], labels: NDArray[Any], classes: int, seed: int) -> float:
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.metrics import normalized_mutual_info_score

    start = int(generator(seed, "k-means").integers(2**32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        clusters = KMeans(classes, n_init=K_MEANS_STARTS, random_state=start).fit_predict(features)
    if (found := len(np.unique(clusters))) < classes:
        logger.warning("the features of %d classes have collapsed to %d points", classes, found)
    return float(normalized_mutual_info_score(labels, clusters))


def silhouette(features: NDArray[Any], labels: NDArray[Any], seed: int) -> float:
    """The silhouette of labels [N] on features [N, d], as `measures` takes it."""
    from sklearn.metrics import silhouette_score

    some = sample(len(labels), SILHOUETTE_SAMPLES, seed)
    return float(silhouette_score(features[some], labels[some]))


def sample(total: int, most: int, seed: int) -> NDArray[np.int64]:
    """At most so many of the numbers below `total`, drawn by the seed, ascending."""
    if total <= most:
        return np.arange(total)
    return np.sort(generator(seed, "sample", total, most).choice(total, most, replace=False))


def class_means(features: NDArray[Any], labels: NDArray[Any]) -> NDArray[Any]:
    """The anchors [c, d] of the c classes that there are samples of, in the classes' order."""
    return np.stack([features[labels == each].mean(0) for each in np.unique(labels)])


def record(folder: Path, found: dict[str, float]) -> dict[str, float]:
    """Write measures into a run's folder, as features.json."""
    write_atomically(folder / "features.json", (json.dumps(found, indent=2) + "\n").encode())
    return found


@dataclass(frozen=True)
class LocalSpaces:
    """The same samples through the model of each client: features [K, N, d], labels [N]."""

    title: str
    features: Features
    labels: Labels

    @property
    def gap(self) -> float:
        """How far the clients' means of a class lie apart, relative to the means of two classes.

        0 where the feature spaces agree; at 1 another client's class is as far away as another
        class; infinite where no classes are told apart.
        """
        means = np.stack([class_means(own, self.labels) for own in self.features])
        clients, classes = _mean_distance(means.swapaxes(0, 1)), _mean_distance(means)
        return clients / classes if classes else float("inf")

    @property
    def silhouette(self) -> float:
        """Of the classes, in one space with the features of all clients."""
        together = np.concatenate(self.features)
        return silhouette(together, np.tile(self.labels, len(self.features)), seed=0)


def _mean_distance(groups: NDArray[Any]) -> float:
    """Of all pairs within groups of points [G, n, d]."""
    from scipy.spatial.distance import pdist

    return float(np.mean([pdist(points) for points in groups]))
