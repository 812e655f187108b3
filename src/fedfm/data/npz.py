"""The user's own arrays: an npz file in MedMNIST's layout."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfm.core.errors import UserError, require
from fedfm.data.dataset import Dataset
from fedfm.data.preprocessing import (
    encode_clients,
    encode_labels,
    fit_normalisation,
    split_off_test,
)
from fedfm.data.source import Source
from fedfm.data.split import Split

Arrays = Mapping[str, NDArray[Any]]


def read_npz(folder: Path, *, path: Path) -> Dataset:
    """Read train_images, train_labels, test_images and so on; val_... join the training samples.

    Images are [N, H, W] or [N, H, W, C], and tables [N, F]. Labels are [N] or [N, 1]. Optional:
    train_clients, val_clients and test_clients [N], and the names of the classes, `classes`.
    """
    path = Path(path).expanduser()
    arrays = _load(path)
    parts = [part for part in ("train", "val", "test") if f"{part}_images" in arrays]
    for part in {"train", *parts}:
        for what in ("images", "labels"):
            require(f"{part}_{what}" in arrays, f"{path} lacks the array '{part}_{what}'")
    inputs = {part: _to_inputs(path, f"{part}_images", arrays) for part in parts}
    names = {part: _read_labels(path, part, arrays) for part in parts}
    for part in parts:
        counts = f"{len(inputs[part])} images and {len(names[part])} labels"
        require(len(inputs[part]) == len(names[part]), f"{path}: {counts} in '{part}_...'")
    shapes = {tuple(inputs[part].shape[1:]) for part in parts}
    require(len(shapes) == 1, f"{path}: images differ in shape: {', '.join(map(str, shapes))}")
    classes, labels = encode_labels([name for part in parts for name in names[part]])
    clients, owners = _read_clients(path, {part: len(names[part]) for part in parts}, arrays)
    every = Split(torch.cat([inputs[part] for part in parts]), labels, owners)
    tests = len(names.get("test", ()))
    if tests:
        order = torch.arange(len(every))
        train, test = every.subset(order[:-tests]), every.subset(order[-tests:])
    else:
        train, test = split_off_test(every.inputs, every.labels, every.clients)
    scale = fit_normalisation(train.inputs)
    return Dataset("npz", train, test, _name(path, classes, arrays), *scale, clients=clients)


def _load(path: Path) -> Arrays:
    try:
        with zipfile.ZipFile(path), np.load(path) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"cannot read {path} as an npz file of numbers and texts: {reason}; write it with "
            "np.savez, without Python objects"
        ) from error


def _to_inputs(path: Path, name: str, arrays: Arrays) -> Tensor:
    """Return images [N, C, H, W] with channels first, or rows [N, F]."""
    images = arrays[name]
    require(
        images.ndim in (2, 3, 4) and images.dtype.kind in "uif",
        f"{path}: '{name}' is {images.dtype} of shape {images.shape}, not images [N, H, W] or "
        "[N, H, W, C] nor rows [N, F]",
    )
    require(
        images.ndim != 4 or images.shape[-1] <= 4,
        f"{path}: '{name}' has shape {images.shape}: channels must come last, [N, H, W, C]",
    )
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4:
        images = images.transpose(0, 3, 1, 2)
    kind = np.uint8 if images.dtype == np.uint8 else np.float32
    return torch.from_numpy(np.ascontiguousarray(images, kind))


def _read_labels(path: Path, part: str, arrays: Arrays) -> list[str]:
    labels = arrays[f"{part}_labels"]
    require(
        labels.ndim == 1 or (labels.ndim == 2 and labels.shape[1] == 1),
        f"{path}: '{part}_labels' has shape {labels.shape}: FedFM needs one label for each sample, "
        "[N] or [N, 1]; it has no multi-label classification",
    )
    require(
        labels.dtype.kind in "uiU",
        f"{path}: '{part}_labels' is {labels.dtype}: labels are whole numbers or texts",
    )
    return [str(label) for label in labels.reshape(-1).tolist()]


def _read_clients(
    path: Path, sizes: Mapping[str, int], arrays: Arrays
) -> tuple[tuple[str, ...], Tensor | None]:
    """Return the clients' names and the client [N] of each sample, if the arrays are there."""
    named = [part for part in sizes if f"{part}_clients" in arrays]
    if not named:
        return (), None
    for part, size in sizes.items():
        shape = arrays[f"{part}_clients"].shape if part in named else None
        require(
            shape in ((size,), (size, 1)),
            f"{path}: '{part}_clients' must have a client for each of {size} samples, as "
            f"'{named[0]}_clients' has",
        )
    ids = [arrays[f"{part}_clients"].reshape(-1).tolist() for part in sizes]
    return encode_clients(str(path), [str(each) for part in ids for each in part])


def _name(path: Path, classes: tuple[str, ...], arrays: Arrays) -> tuple[str, ...]:
    """Return the names of the classes, by the array `classes` if labels are its indices."""
    if "classes" not in arrays:
        return classes
    names = [str(name) for name in arrays["classes"].tolist()]
    require(
        all(label.isdecimal() and int(label) < len(names) for label in classes),
        f"{path}: 'classes' has {len(names)} names, but the labels are {', '.join(classes)}",
    )
    return tuple(names[int(label)] for label in classes)


NPZ = Source("npz", "your arrays: an npz file in MedMNIST's layout (needs path)", read_npz)
