"""The feature space of a model: its features of a data set, and how well they separate classes.

NMI compares k-means clusters of the features with the labels. The silhouette says how much nearer a
sample is to its own class than to the next one. scikit-learn takes a second to import, so it is
imported where it is used.
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
from fedfm.core.checkpoint import Damaged
from fedfm.core.errors import UserError, require
from fedfm.core.files import write_atomically
from fedfm.core.inputs import call_network
from fedfm.core.precision import full_precision
from fedfm.core.rng import generator
from fedfm.data.dataset import Dataset
from fedfm.engine.device_data import DeviceData

logger = logging.getLogger(__name__)
Features = NDArray[np.float32]
Labels = NDArray[np.int64]
SplitName = Literal["train", "test"]

BATCH = 500
"""Samples that go through the network at once."""
K_MEANS_STARTS = 10
"""scikit-learn's `n_init`: how many k-means starts to try; the best one counts."""
SILHOUETTE_SAMPLES = 10_000
"""The most samples of a silhouette, which compares all pairs of them."""


def load_features(
    folder: Path,
    dataset: Dataset,
    split: SplitName = "test",
    device: torch.device | str | None = None,
) -> tuple[Features, Labels]:
    """Return features [N, d] and labels [N] of a split, by the best model of a finished run.

    The network runs on `device`, by default on the GPU if there is one.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return compute_features(load_best_model(folder, dataset).to(device), dataset, split)


def compute_features(
    model: nn.Module, dataset: Dataset, split: SplitName = "test"
) -> tuple[Features, Labels]:
    """Return features [N, d] and labels [N] of a split, by a model; the model is not changed."""
    like = next(model.parameters())
    samples = DeviceData.from_split(getattr(dataset, split), dataset, like.device, like.dtype)
    network = copy.deepcopy(model).eval()
    batches = torch.split(torch.arange(len(samples.labels), device=like.device), BATCH)
    with torch.inference_mode(), full_precision():
        features = [
            call_network(network, samples.fetch(batch)[0])[0].float().cpu() for batch in batches
        ]
    return torch.cat(features).numpy(), samples.labels.cpu().numpy()


def load_best_model(folder: Path, dataset: Dataset) -> nn.Module:
    """Load the best model of a finished run on such data to the CPU."""
    chosen, path = load_finished_config(folder).model, folder / "model.safetensors"
    with torch.device("meta"):
        model = models.build_for(dataset, chosen.name, **chosen.options)
    try:
        model.load_state_dict(load_file(path), assign=True)
    except (SafetensorError, FileNotFoundError) as problem:
        raise Damaged(path, problem) from problem
    except RuntimeError as problem:
        reason = str(problem).splitlines()[-1].strip()
        raise UserError(f"{path} does not fit its config.toml on these data: {reason}") from problem
    return model


def load_finished_config(folder: Path) -> Config:
    """Load the config of a finished run."""
    recorded = folder / "config.toml"
    require(recorded.is_file(), f"{folder} is not the folder of a run: it has no config.toml")
    require(
        (folder / "summary.json").is_file(),
        f"the run in {folder} is not finished: resume it first",
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


def measure(features: NDArray[Any], labels: NDArray[Any], seed: int) -> dict[str, float]:
    """Return NMI and silhouette of features [N, d] with labels [N], reproducible by seed.

    NMI compares the labels with k-means clusters, k being the number of classes among the labels,
    the best of 10 starts. The silhouette is Euclidean and uses at most 10,000 samples, drawn by the
    seed. Both run on one thread, because several add in any order.
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
    if (points := len(np.unique(clusters))) < classes:
        logger.warning("the features of %d classes have collapsed to %d points", classes, points)
    return float(normalized_mutual_info_score(labels, clusters))


def silhouette(features: NDArray[Any], labels: NDArray[Any], seed: int) -> float:
    """Return the silhouette of labels [N] on features [N, d], as in `measure`."""
    from sklearn.metrics import silhouette_score

    sample = draw_sample(len(labels), SILHOUETTE_SAMPLES, seed)
    return float(silhouette_score(features[sample], labels[sample]))


def draw_sample(total: int, most: int, seed: int) -> NDArray[np.int64]:
    """Draw at most `most` of the numbers below `total` by the seed, ascending."""
    if total <= most:
        return np.arange(total)
    return np.sort(generator(seed, "sample", total, most).choice(total, most, replace=False))


def class_means(features: NDArray[Any], labels: NDArray[Any]) -> NDArray[Any]:
    """Return the mean features [c, d] of the c classes that have samples, in class order."""
    return np.stack([features[labels == label].mean(0) for label in np.unique(labels)])


def save_measures(folder: Path, measures: dict[str, float]) -> dict[str, float]:
    """Write measures into a run's folder, as features.json."""
    write_atomically(folder / "features.json", (json.dumps(measures, indent=2) + "\n").encode())
    return measures


@dataclass(frozen=True)
class LocalSpaces:
    """The features of the same samples by each client's model: [K, N, d], labels [N]."""

    title: str
    features: Features
    labels: Labels

    @property
    def gap(self) -> float:
        """The distance of the clients' means of a class, relative to that of two classes' means.

        It is 0 if the feature spaces agree. At 1, the same class of another client is as far away
        as another class. It is infinite if all classes have the same mean.
        """
        means = np.stack([class_means(features, self.labels) for features in self.features])
        clients, classes = _mean_distance(means.swapaxes(0, 1)), _mean_distance(means)
        return clients / classes if classes else float("inf")

    @property
    def silhouette(self) -> float:
        """The silhouette of the classes, in one space with the features of all clients."""
        together = np.concatenate(self.features)
        return silhouette(together, np.tile(self.labels, len(self.features)), seed=0)


def _mean_distance(groups: NDArray[Any]) -> float:
    """Return the mean distance of all pairs within groups of points [G, n, d]."""
    from scipy.spatial.distance import pdist

    return float(np.mean([pdist(points) for points in groups]))
