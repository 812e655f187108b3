"""The 8x8 handwritten digits that come with scikit-learn: nothing to download."""

from pathlib import Path

import torch

from fedfm.data.dataset import Dataset
from fedfm.data.folder import channel_statistics, split_off_test
from fedfm.data.source import Source


def read(folder: Path) -> Dataset:
    """Read grey images [N, 1, 8, 8], values 0 to 16; a fixed fifth of each class is for testing."""
    from sklearn.datasets import load_digits

    bundled = load_digits()
    inputs = torch.tensor(bundled.images, dtype=torch.uint8).unsqueeze(1)
    train, test = split_off_test(inputs, torch.tensor(bundled.target, dtype=torch.int64))
    mean, std = channel_statistics(train.inputs)
    names = tuple(map(str, bundled.target_names))
    return Dataset("digits", train, test, names, mean, std, keep_order=True)


DIGITS = Source(
    "digits", "8x8 grey digits, bundled with scikit-learn", read, classes=10, train=1438, test=359
)
