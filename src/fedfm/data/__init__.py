"""Data sets by name.

To add one, write a module with `read(folder, *, options...) -> Dataset`, describe it by a `Source`
(data/source.py), and add that to `SOURCES` below.
"""

from dataclasses import replace
from pathlib import Path

from fedfm.core.errors import require, unknown
from fedfm.data.augment import Augmentation
from fedfm.data.cifar import CIFAR10, CIFAR100
from fedfm.data.cinic import CINIC10
from fedfm.data.dataset import Dataset, Split
from fedfm.data.digits import DIGITS
from fedfm.data.fashion import FASHION_MNIST
from fedfm.data.folder import FOLDER
from fedfm.data.source import File, Source, data_folder, fetch
from fedfm.data.table import CSV

__all__ = [
    "SOURCES",
    "Augmentation",
    "Dataset",
    "File",
    "Source",
    "Split",
    "load",
]

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (DIGITS, FASHION_MNIST, CIFAR10, CIFAR100, CINIC10, FOLDER, CSV)
}
"""The sources by name."""


def load(
    name: str,
    *,
    dir: Path | None = None,
    path: Path | None = None,
    size: int | None = None,
    label: str | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    augment: bool | Augmentation | None = None,
    download: bool = True,
) -> Dataset:
    """Load the data set `name`, downloading its files if they are missing.

    Args:
        name: One of `SOURCES`: "digits", "cifar10", ..., or "folder" and "csv" for your own data.
        dir: The folder of downloaded files; by default $FEDFM_DATA or the user's cache folder.
        path: With "folder" and "csv": where your data are.
        size: With "folder": scale images to size x size.
        label: With "csv": the column of the classes.
        mean: One number for each channel (or column), or one for all, instead of the source's own;
            in units of the stored values, 0 to 255 for images.
        std: The standard deviations that belong to `mean`.
        augment: Whether training images are cropped, flipped and rotated, and how often; by default
            as the source says.
        download: Whether missing files may be downloaded.

    Returns:
        The data set in memory.

    Raises:
        UserError: If the name or an option is unknown, or a file is missing or damaged.

    Examples:
        >>> import fedfm
        >>> fedfm.data.load("digits")
        Dataset('digits', 1438 training and 359 test samples of shape (1, 8, 8), 10 classes)
    """
    require((mean is None) == (std is None), "give data.mean and data.std together")
    if name not in SOURCES:
        raise unknown("data", name, SOURCES)
    source = SOURCES[name]
    given = {"path": path, "size": size, "label": label}
    options = {option: value for option, value in given.items() if value is not None}
    source.check(options)
    data = source.read(fetch(source, data_folder(dir), download=download), **options)
    if mean is not None and std is not None:
        data = replace(data, mean=mean, std=std)
    return data if augment is None else replace(data, augment=augment)
