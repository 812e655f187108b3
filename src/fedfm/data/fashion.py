"""Fashion-MNIST: four gzip files in the idx format of MNIST."""

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedfm.core.errors import require
from fedfm.data.archives import gunzip
from fedfm.data.dataset import Dataset
from fedfm.data.source import File, Source
from fedfm.data.split import Split

CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


def read(folder: Path) -> Dataset:
    """Read grey images [N, 1, 28, 28] of clothes."""
    train, test = (
        Split(
            read_idx(folder / f"{part}-images-idx3-ubyte.gz", 3).unsqueeze(1),
            read_idx(folder / f"{part}-labels-idx1-ubyte.gz", 1).long(),
        )
        for part in ("train", "t10k")
    )
    return Dataset("fashion-mnist", train, test, CLASSES, (0.2860 * 255,), (0.3530 * 255,))


def read_idx(path: Path, dimensions: int) -> Tensor:
    """Read the uint8 array in a gzip idx file: 0, 0, type 8, `dimensions`, shape, bytes."""
    data = gunzip(path)
    start = 4 + 4 * dimensions
    magic = bytes((0, 0, 8, dimensions))
    require(
        data[:4] == magic and len(data) >= start,
        f"{path} is not an idx file of {dimensions}-dimensional bytes: download it again",
    )
    shape = np.frombuffer(data[4:start], ">u4").tolist()
    expected = math.prod(shape)
    require(
        len(data) - start == expected,
        f"{path} should hold {shape} values, {expected} bytes, but holds {len(data) - start}: "
        "download it again",
    )
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy())


def _file(name: str, md5: str) -> File:
    return File(name, f"http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{name}", md5)


FASHION_MNIST = Source(
    "fashion-mnist",
    "28x28 grey pictures of clothes",
    read,
    (
        _file("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        _file("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
        _file("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
        _file("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    classes=10,
    train=60_000,
    test=10_000,
)
