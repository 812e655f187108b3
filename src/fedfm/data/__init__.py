"""Data sets by name.

To add one, write a module with `read(folder, *, options...) -> Dataset`, describe it by a `Source`
(data/source.py), and add that to `SOURCES` below.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedfm.core.errors import require, unknown_name_error
from fedfm.data.augment import Augmentation
from fedfm.data.cifar import CIFAR10, CIFAR100
from fedfm.data.cinic import CINIC10
from fedfm.data.concatenate import join
from fedfm.data.dataset import Dataset
from fedfm.data.digits import DIGITS
from fedfm.data.fashion import FASHION_MNIST
from fedfm.data.folder import FOLDER
from fedfm.data.hugging_face import from_hugging_face
from fedfm.data.npz import NPZ
from fedfm.data.partition.given import assign
from fedfm.data.source import File, Source, data_folder, fetch
from fedfm.data.split import Split
from fedfm.data.table import CSV, PARQUET
from fedfm.data.text import TEXT

__all__ = [
    "SOURCES",
    "Augmentation",
    "Dataset",
    "File",
    "Source",
    "Split",
    "assign",
    "from_hugging_face",
    "join",
    "load",
]

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        *(DIGITS, FASHION_MNIST, CIFAR10, CIFAR100, CINIC10),
        *(FOLDER, CSV, PARQUET, NPZ, TEXT),
    )
}
"""The sources by name."""


def load(
    name: str,
    *,
    dir: Path | None = None,
    path: Path | None = None,
    size: int | None = None,
    label: str | None = None,
    client: str | None = None,
    drop: Sequence[str] | None = None,
    header: bool | None = None,
    missing: Sequence[str] | None = None,
    fill: str | Mapping[str, float] | None = None,
    categories: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    merge: Mapping[str, Sequence[str]] | None = None,
    test_path: Path | None = None,
    text: str | None = None,
    vocabulary: int | None = None,
    words: Path | None = None,
    length: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    augment: bool | Augmentation | None = None,
    download: bool = True,
) -> Dataset:
    """Load the data set `name`, downloading its files if they are missing.

    Args:
        name: One of `SOURCES`: "digits", "cifar10", ..., or "folder", "csv", "parquet", "npz"
            and "text" for your own data.
        dir: The folder of downloaded files; by default $FEDFM_DATA or the user's cache folder.
        path: With your own data: where they are; a folder of tables has one for each client.
        size: With "folder": scale images to size x size.
        label: With a table: the column of the classes; by default "label", or the last column of a
            table without header.
        client: Whose a sample is: the column of a table, or "folder" for a folder of images with a
            folder for each client.
        drop: With a table: columns to leave out.
        header: With "csv" and "text": whether the first row names the columns; else they are "1",
            "2", ...
        missing: With a table: further cells that stand for a missing value, beside "", "?", "NA",
            "N/A", "NaN" and "null".
        fill: With a table: what to do with missing values: "mean" fills numbers by the training
            mean, and makes one more category; "indicate" also adds a column of 0 and 1 for each
            column of numbers with missing values. A mapping has the number for each column. By
            default they are refused.
        categories: With a table: the columns of categories, each of which becomes a column of 0
            and 1; by default the columns without any number. A mapping has the categories of each
            column, which else are those of the training rows.
        merge: With a table: classes that stand for several labels, such as {"ill": ["1", "2"]}.
        test_path: With "text": the table of the test samples; by default a fifth of every class.
        text: With "text": the column of the texts; by default "text", or the first column of a
            table without header.
        vocabulary: With "text": how many of the most frequent training words get an id.
        words: With "text": a file with the words that get an id, one in each line, instead.
        length: With "text": the number of ids of a text; longer ones are cut, shorter ones padded.
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
        raise unknown_name_error("data", name, SOURCES)
    source = SOURCES[name]
    given = {
        **{"path": path, "size": size, "label": label, "client": client, "drop": drop},
        **{"header": header, "missing": missing, "fill": fill, "categories": categories},
        **{"merge": merge, "test_path": test_path, "text": text, "vocabulary": vocabulary},
        **{"words": words, "length": length},
    }
    options = {option: value for option, value in given.items() if value is not None}
    source.check(options)
    data = source.read(fetch(source, data_folder(dir), download=download), **options)
    if mean is not None and std is not None:
        data = replace(data, mean=mean, std=std)
    return data if augment is None else replace(data, augment=augment)
