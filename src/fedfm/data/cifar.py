"""CIFAR-10 and CIFAR-100 from their official binary archives."""

from pathlib import Path

import numpy as np
import torch

from fedfm.core.errors import require
from fedfm.data.archives import read_members
from fedfm.data.dataset import Dataset
from fedfm.data.source import File, Source
from fedfm.data.split import Split

_PIXELS = 3 * 32 * 32


def read_cifar10(folder: Path) -> Dataset:
    """Read CIFAR-10: records of a label and 3x32x32 values, in five batches and a test batch."""
    batches = [f"data_batch_{number}.bin" for number in range(1, 6)]
    archive = folder / CIFAR10.files[0].name
    contents = read_members(archive, [*batches, "test_batch.bin", "batches.meta.txt"])
    return Dataset(
        "cifar10",
        _records(archive, contents, batches, 1),
        _records(archive, contents, ["test_batch.bin"], 1),
        _names(contents["batches.meta.txt"]),
        mean=(0.4914 * 255, 0.4822 * 255, 0.4465 * 255),
        std=(0.2023 * 255, 0.1994 * 255, 0.2010 * 255),
    )


def read_cifar100(folder: Path) -> Dataset:
    """Read CIFAR-100: records of a coarse label, a fine one (used) and 3x32x32 values."""
    archive = folder / CIFAR100.files[0].name
    contents = read_members(archive, ["train.bin", "test.bin", "fine_label_names.txt"])
    return Dataset(
        "cifar100",
        _records(archive, contents, ["train.bin"], 2),
        _records(archive, contents, ["test.bin"], 2),
        _names(contents["fine_label_names.txt"]),
        mean=(0.5071 * 255, 0.4865 * 255, 0.4409 * 255),
        std=(0.2673 * 255, 0.2564 * 255, 0.2762 * 255),
        augment=True,
    )


def _records(archive: Path, contents: dict[str, bytes], names: list[str], labels: int) -> Split:
    """Read records of `labels` label bytes and one image; use the last label."""
    length = labels + _PIXELS
    for name in names:
        require(
            len(contents[name]) % length == 0,
            f"{archive}: {name} has {len(contents[name])} bytes, not a multiple of {length}: the "
            "archive is damaged, download it again",
        )
    data = b"".join(contents[name] for name in names)
    records = np.frombuffer(data, np.uint8).reshape(-1, length)
    images = records[:, labels:].copy().reshape(-1, 3, 32, 32)
    return Split(
        torch.from_numpy(images), torch.from_numpy(records[:, labels - 1].astype(np.int64))
    )


def _names(text: bytes) -> tuple[str, ...]:
    return tuple(text.decode("utf-8", "replace").split())


def _file(name: str, md5: str) -> tuple[File]:
    return (File(name, f"https://www.cs.toronto.edu/~kriz/{name}", md5),)


CIFAR10 = Source(
    "cifar10",
    "32x32 colour photographs of 10 things",
    read_cifar10,
    _file("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    classes=10,
    train=50_000,
    test=10_000,
)
CIFAR100 = Source(
    "cifar100",
    "32x32 colour photographs of 100 things; augmented",
    read_cifar100,
    _file("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
    classes=100,
    train=50_000,
    test=10_000,
)
