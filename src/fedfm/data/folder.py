"""The user's own images, in class folders."""

import io
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfm.core.errors import UserError, require
from fedfm.data.archives import Decoded, cache_key, load_or_make, walk
from fedfm.data.dataset import Dataset
from fedfm.data.preprocessing import (
    channel_statistics,
    encode_clients,
    encode_labels,
    split_off_test,
)
from fedfm.data.source import Source
from fedfm.data.split import Split

logger = logging.getLogger(__name__)

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz")
IMAGES = (".png", ".jpg", ".jpeg", ".bmp")
_GREY = ("1", "L", "LA")
_DEEP = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")


def read_folder(
    folder: Path, *, path: Path, size: int | None = None, client: str | None = None
) -> Dataset:
    """Read the images at `path`, scaled to `size` x `size` if given.

    With client = "folder" the class folders are in a folder for each client.
    """
    require(size is None or size > 0, f"size must be at least 1, not {size}")
    require(
        client in (None, "folder"),
        f"data 'folder' has no columns: write data.client = 'folder', not '{client}', if there is "
        "a folder for each client",
    )
    images = read_images(path, folder, size=size, by_client=client is not None)
    if client is None:
        _warn_of_empty(Path(path).expanduser(), images.classes)
    scale = channel_statistics(images.train.inputs)
    return Dataset(
        "folder", images.train, images.test, images.classes, *scale, clients=images.clients
    )


def _warn_of_empty(path: Path, classes: Sequence[str]) -> None:
    """Warn of folders that look like classes but hold no images."""
    base = path / "train" if (path / "train").is_dir() else path
    folders = {child.name for child in base.iterdir() if child.is_dir()} if base.is_dir() else set()
    empty = sorted(name for name in folders - {*classes} if not _is_hidden(name))
    if empty and folders & {*classes}:
        logger.warning("%s: no images in %s, which are ignored", base, ", ".join(empty))


def read_images(
    path: Path, cache: Path, size: int | None = None, mode: str = "", by_client: bool = False
) -> Decoded:
    """Read the images in the class folders of the folder or tar at `path`; decode them once.

    The layout is train/CLASS/* and test/CLASS/* (other splits are ignored), or CLASS/*: then a
    fixed fifth of every class is for testing. `by_client`: each client has such a folder. `mode`
    is Pillow's; "" detects it.
    """
    path = Path(path).expanduser()
    require(path.exists(), f"{path} does not exist")
    readable = path.is_dir() or path.name.endswith(ARCHIVES)
    require(readable, f"{path} is neither a folder nor an archive ({', '.join(ARCHIVES)})")
    key = cache_key(path, "images, version 2", size, mode, *(["by client"] if by_client else []))
    file = cache / f"{key}.safetensors"
    return load_or_make(file, lambda: _decode_all(path, size, mode, by_client))


def _decode_all(path: Path, size: int | None, mode: str, by_client: bool) -> Decoded:
    plan = assign_classes(path, (name for name, _ in walk(path)), by_client)
    names = sorted(plan)
    images = {n: decode_image(read(), path / n, size, mode) for n, read in walk(path) if n in plan}
    classes, labels = encode_labels([plan[name].label for name in names])
    clients, owners = _find_clients(path, [plan[name].client for name in names])
    inputs = _stack({path / name: images[name] for name in names})
    parts = [plan[name].part for name in names]
    every = Split(inputs, labels, owners)
    if "train" not in parts:
        every = every.sort_by_content()  # so that the test split does not depend on file names
        split = split_off_test(every.inputs, every.labels, every.clients)
        return Decoded(*split, classes, clients)
    train = torch.tensor([part == "train" for part in parts])
    return Decoded(every.subset(train), every.subset(~train), classes, clients)


def _find_clients(path: Path, names: list[str]) -> tuple[tuple[str, ...], Tensor | None]:
    """Return the clients' names and the client [N] of each image, if images have clients."""
    return encode_clients(str(path), names) if any(names) else ((), None)


class Place(NamedTuple):
    """Where an image belongs."""

    part: str
    """"train" or "test"; "" when undivided."""
    label: str
    """Its class."""
    client: str = ""
    """Its client, if there is a folder for each."""


def assign_classes(path: Path, names: Iterable[str], by_client: bool = False) -> dict[str, Place]:
    """Return where every image belongs."""
    parts = {name: PurePosixPath(name).parts for name in names}
    parts = _below_root({n: p for n, p in parts.items() if not any(map(_is_hidden, p))})
    if by_client:
        plan = _assign_clients(path, parts)
    else:
        divided = any(p[0] == "train" and len(p) > 1 for p in parts.values())
        plan = {name: _place(path, name, p, divided) for name, p in parts.items()}
    images = {name: place for name, place in plan.items() if place is not None}
    _check_classes(path, images)
    return images


def _assign_clients(path: Path, parts: dict[str, tuple[str, ...]]) -> dict[str, Place | None]:
    """Return where every image belongs if the first folder is the client's."""
    below = {p[0] for p in parts.values() if len(p) > 1}
    divided = any(len(p) > 2 and p[1] == "train" for p in parts.values())
    require(
        "train" not in below,
        f"{path} has train/ at its top: data.client = 'folder' needs a folder for each of at least "
        "two clients, with train/ in it",
    )
    return {name: _place(path, name, p[1:], divided, p[0]) for name, p in parts.items()}


def _place(
    path: Path, name: str, below: tuple[str, ...], divided: bool, client: str = ""
) -> Place | None:
    """Return where a file belongs, given its folders; None for one that is no image."""
    part, *rest = below if divided and below else ("", *below)
    image = name.lower().endswith(IMAGES)
    if part not in ("", "train", "test"):
        stray = client and image and len(rest) < 2
        require(not stray, f"{path / name} is in no class folder of train/ or test/: move it")
        return None
    if len(rest) > 1:
        require(image, f"{path / name} is not an image ({', '.join(IMAGES)}): remove it")
        return Place(part, rest[0], client)
    require(not image, _describe_misplaced(path, name, (*([client] if client else []), *below)))
    return None


def _describe_misplaced(path: Path, name: str, below_root: tuple[str, ...]) -> str:
    """Return an error message for an image outside class folders, or in the only one."""
    folder = PurePosixPath(name).parent.name
    if len(below_root) == len(PurePosixPath(name).parts):
        return f"{path / name} is in no class folder: move it into one"
    return (
        f"{path} has images of one class only, '{folder}': add another class or, if other clients "
        f"have the other classes, split it into train/{folder}/ and test/{folder}/"
    )


def _is_hidden(part: str) -> bool:
    return part.startswith(".") or part == "__MACOSX"


def _below_root(parts: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Remove the folders that hold everything else, as archives often have one."""
    folders = {p[0] for p in parts.values() if len(p) > 1}
    if len(folders) != 1 or "train" in folders:
        return parts
    return _below_root({name: p[1:] for name, p in parts.items() if len(p) > 1})


def _check_classes(path: Path, plan: dict[str, Place]) -> None:
    require(
        len(plan) > 0, f"{path} needs at least two class folders with images ({', '.join(IMAGES)})"
    )
    train = {place.label for place in plan.values() if place.part != "test"}
    test = {place.label for place in plan.values() if place.part != "train"}
    require(len(test) > 0, f"{path} has train/ but no images in test/: add them")
    require(test <= train, f"{path}: no training images of {', '.join(sorted(test - train))}")


def decode_image(data: bytes, name: Path, size: int | None, mode: str) -> NDArray[np.uint8]:
    """Decode an image to [H, W], or to [H, W, 3] if it has colours."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data), formats=("PNG", "JPEG", "BMP")) as image:
            depth = image.mode
            flat = image.convert(mode or ("L" if depth in _GREY else "RGB"))
    except UnidentifiedImageError as error:
        raise UserError(f"{name} is not a PNG, JPEG or BMP file: remove it") from error
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise UserError(f"{name} cannot be read as an image ({error}): remove it") from error
    require(depth not in _DEEP, f"{name} has more than 8 bits per channel: convert it to 8")
    return np.asarray(flat.resize((size, size), Image.Resampling.BILINEAR) if size else flat)


def _stack(images: dict[Path, NDArray[np.uint8]]) -> Tensor:
    """Stack images into one tensor [N, C, H, W]; C is 1 if all are grey, else 3."""
    first, reference = next(iter(images.items()))
    for name, image in images.items():
        require(
            image.shape[:2] == reference.shape[:2],
            f"images differ in size (height, width): {first} has {reference.shape[:2]}, "
            f"{name} has {image.shape[:2]}: give 'size' to scale them all",
        )
    channels = 3 if any(image.ndim == 3 for image in images.values()) else 1
    stacked = np.empty((len(images), channels, *reference.shape[:2]), np.uint8)
    for row, image in zip(stacked, images.values(), strict=True):
        row[:] = image if image.ndim == 2 else image.transpose(2, 0, 1)
    return torch.from_numpy(stacked)


FOLDER = Source("folder", "your images: a folder or tar of class folders (needs path)", read_folder)
