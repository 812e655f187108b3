"""New samples for a trained model: a table of the same columns, or images, with or without classes.

Nothing is fitted to them, and none is held out.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedfm.core.errors import require
from fedfm.data.columns import ColumnEncoding, encode_columns
from fedfm.data.folder import IMAGES, decode_image
from fedfm.data.table_files import Cells, read_parquet_files, read_text_files
from fedfm.data.text import encode_words, split_words


class NewSamples(NamedTuple):
    """Raw inputs, and what they are called."""

    names: list[str]
    """The row of each sample in its table, or the path of its image."""
    inputs: Tensor
    """[N, ...], raw."""
    classes: list[str] | None
    """The class of each sample, where the column or the folders of classes are there."""


def read_new_images(path: Path, shape: Sequence[int]) -> NewSamples:
    """Read images for a model that takes inputs of this shape, to which they are scaled.

    Args:
        path: An image, or a folder of images, flat or in class folders.
        shape: The shape of one input.

    Returns:
        The samples.
    """
    path = path.expanduser()
    require(path.exists(), f"{path} does not exist")
    require(
        path.is_dir() or path.suffix.lower() in IMAGES,
        f"{path} is neither an image nor a folder of images ({', '.join(IMAGES)})",
    )
    return _read_images(path, shape)


def read_new_rows(
    path: Path, columns: Sequence[ColumnEncoding], label: str | None = None, header: bool = True
) -> NewSamples:
    """Read rows for a model that was trained on a table: its columns are found by name.

    Args:
        path: A CSV, TSV or Parquet file. Columns that the model does not know are ignored.
        columns: How the training data's columns became numbers.
        label: The column of the classes, if there is one; by default "label", or the last one of a
            table without a header.
        header: Whether a CSV or TSV file has a header.

    Returns:
        The samples.
    """
    path = path.expanduser()
    require(path.is_file(), f"{path} is not a table: give one file")
    parquet = path.suffix.lower() == ".parquet"
    table = read_parquet_files(path) if parquet else read_text_files(path, header)
    last = table.header[-1] if not header and len(table.header) > len(columns) else "label"
    label = label or last
    classes = table.column(table.header.index(label)) if label in table.header else None
    numbers = encode_columns(table, columns).astype(np.float32)
    return NewSamples(_name_rows(table), torch.from_numpy(numbers), classes)


def read_new_texts(
    path: Path, vocabulary: Sequence[str], length: int, text: str | None, label: str | None
) -> NewSamples:
    """Read texts for a model that takes token ids: a table with a column of texts.

    Args:
        path: A CSV or TSV file with a header.
        vocabulary: The words by token id.
        length: The number of words that the model takes.
        text: The column of the texts; by default "text".
        label: The column of the classes, if there is one; by default "label".

    Returns:
        The samples, as token ids [N, length].
    """
    table = read_text_files(path.expanduser(), header=True)
    texts = table.column(table.find(text or "text", "text"))
    label = label or "label"
    classes = table.column(table.header.index(label)) if label in table.header else None
    ids = encode_words([split_words(each) for each in texts], vocabulary, length)
    return NewSamples(_name_rows(table), ids, classes)


def _name_rows(table: Cells) -> list[str]:
    return [str(line) for _, line in table.places]


def _read_images(path: Path, shape: Sequence[int]) -> NewSamples:
    size = shape[-1]
    require(
        len(shape) == 3 and shape[0] in (1, 3) and shape[1] == size,
        f"{path} has images, but the model takes inputs of shape {' x '.join(map(str, shape))}",
    )
    root, files = (path, _list_images(path)) if path.is_dir() else (path.parent, [path])
    require(len(files) > 0, f"{path} has no images ({', '.join(IMAGES)})")
    mode = "L" if shape[0] == 1 else "RGB"
    images = [decode_image(file.read_bytes(), file, size, mode) for file in files]
    inputs = torch.from_numpy(np.stack(images))
    inputs = inputs.unsqueeze(1) if mode == "L" else inputs.permute(0, 3, 1, 2).contiguous()
    names = [file.relative_to(root).as_posix() for file in files]
    flat = any(file.parent == root for file in files)
    return NewSamples(names, inputs, None if flat else [file.parent.name for file in files])


def _list_images(folder: Path) -> list[Path]:
    """Return the images below a folder, sorted; hidden files and folders are left out."""
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in IMAGES
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )


def encode_classes(path: Path, names: Sequence[str], classes: Sequence[str]) -> Tensor:
    """Return the labels [N] of samples of these classes; refuse classes that a model lacks."""
    strange = sorted({*names} - {*classes})
    require(
        not strange,
        f"{path} has the class {', '.join(strange[:3])}, but the model knows {', '.join(classes)}",
    )
    index = {name: label for label, name in enumerate(classes)}
    return torch.tensor([index[name] for name in names])
