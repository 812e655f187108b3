"""The 8x8 handwritten digits that come with scikit-learn: nothing to download."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from fedfm.data.dataset import Dataset
from fedfm.data.preprocessing import channel_statistics, split_off_test
from fedfm.data.source import Source


def read(folder: Path) -> Dataset:
    """Read grey images [N, 1, 8, 8], values 0 to 16; a fixed fifth of each class is for testing."""
    rows = torch.from_numpy(np.loadtxt(_find_table(), delimiter=",", dtype=np.uint8))
    train, test = split_off_test(rows[:, :-1].reshape(-1, 1, 8, 8), rows[:, -1].long())
    mean, std = channel_statistics(train.inputs)
    return Dataset("digits", train, test, tuple("0123456789"), mean, std, keep_order=True)


def _find_table() -> Path:
    """Return the file with the pixels and the class in each row; scikit-learn imports slowly."""
    package = find_spec("sklearn")
    assert package is not None
    assert package.submodule_search_locations
    return Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")


DIGITS = Source(
    "digits", "8x8 grey digits, bundled with scikit-learn", read, classes=10, train=1438, test=359
)
