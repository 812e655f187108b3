"""Data sets by name.

To add one, write a module with `read(folder, *, options...) -> Dataset`, describe it by a `Source`
(data/download.py), and add that to `SOURCES` below.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from fedfm.core.errors import require, unknown
from fedfm.data.cifar import CIFAR10, CIFAR100
from fedfm.data.cinic import CINIC10
from fedfm.data.dataset import Dataset, Split
from fedfm.data.digits import DIGITS
from fedfm.data.download import File, Source, data_folder, fetch
from fedfm.data.fashion import FASHION_MNIST
from fedfm.data.folder import FOLDER
from fedfm.data.table import CSV

__all__ = [
    "SOURCES",
    "Dataset",
    "File",
    "Source",
    "Split",
    "Status",
    "data_folder",
    "fetch",
    "load",
    "status",
]

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (DIGITS, FASHION_MNIST, CIFAR10, CIFAR100, CINIC10, FOLDER, CSV)
}


def load(
    name: str,
    *,
    dir: Path | None = None,
    path: Path | None = None,
    size: int | None = None,
    label: str | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    augment: bool | None = None,
    download: bool = True,
) -> Dataset:
    """Load the data set `name` from `dir`, downloading its files if they are missing.

    `path` is where the user's own data are ('folder' and 'csv'), `size` scales the images of
    'folder', `label` names the column of classes of 'csv'; `dir` is as in `data_folder`. `mean`
    and `std`, one number per channel (or column), replace the source's own normalisation; they are
    in units of the stored values, 0 to 255 for images. `augment` says whether training images are
    cropped, flipped and rotated, where the source's own default does not fit.
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


@dataclass(frozen=True)
class Status:
    """A source, the folder of its files, and the names of the missing ones."""

    source: Source
    folder: Path
    missing: tuple[str, ...]

    @property
    def present(self) -> bool:
        """Whether nothing has to be downloaded."""
        return not self.missing


def status(dir: Path | None = None) -> list[Status]:
    """Return which files each source has in `dir` (as in `data_folder`), without checksums."""
    root = data_folder(dir)
    return [
        Status(source, root / source.name, tuple(file.name for file in source.missing(root)))
        for source in SOURCES.values()
    ]
