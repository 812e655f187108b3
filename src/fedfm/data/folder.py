"""The user's own images, in class folders."""

import io
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfm.core.errors import UserError, require
from fedfm.core.rng import generator
from fedfm.data.archives import Decoded, cache_key, load_or_make, walk
from fedfm.data.dataset import Dataset, Split
from fedfm.data.source import Source

logger = logging.getLogger(__name__)

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz")
IMAGES = (".png", ".jpg", ".jpeg", ".bmp")
_GREY = ("1", "L", "LA")
_DEEP = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")


def read_folder(folder: Path, *, path: Path, size: int | None = None) -> Dataset:
    """Read the images at `path`, scaled to `size` x `size` if given."""
    require(size is None or size > 0, f"size must be at least 1, not {size}")
    images = read_images(path, folder, size=size)
    _warn_of_empty(Path(path).expanduser(), images.classes)
    mean, std = channel_statistics(images.train.inputs)
    return Dataset("folder", images.train, images.test, images.classes, mean, std)


def _warn_of_empty(path: Path, classes: Sequence[str]) -> None:
    """Warn of folders that look like classes but hold no images."""
    base = path / "train" if (path / "train").is_dir() else path
    folders = {child.name for child in base.iterdir() if child.is_dir()} if base.is_dir() else set()
    empty = sorted(name for name in folders - {*classes} if not _hidden(name))
    if empty and folders & {*classes}:
        logger.warning("%s: no images in %s, which are ignored", base, ", ".join(empty))


def read_images(path: Path, cache: Path, size: int | None = None, mode: str = "") -> Decoded:
    """Read the images in the class folders of the folder or tar at `path`; decode them once.

    The layout is train/CLASS/* and test/CLASS/* (other splits are ignored), or CLASS/*: then a
    fixed fifth of every class is for testing. `mode` is Pillow's; "" detects it.
    """
    path = Path(path).expanduser()
    require(path.exists(), f"{path} does not exist")
    readable = path.is_dir() or path.name.endswith(ARCHIVES)
    require(readable, f"{path} is neither a folder nor an archive ({', '.join(ARCHIVES)})")
    key = cache_key(path, "images, version 2", size, mode)
    return load_or_make(cache / f"{key}.safetensors", lambda: _decode_all(path, size, mode))


def _decode_all(path: Path, size: int | None, mode: str) -> Decoded:
    plan = assign_classes(path, (name for name, _ in walk(path)))
    names = sorted(plan)
    images = {n: decode_image(read(), path / n, size, mode) for n, read in walk(path) if n in plan}
    classes, labels = encode_labels([plan[name][1] for name in names])
    inputs = _stack({path / name: images[name] for name in names})
    parts = [plan[name][0] for name in names]
    every = Split(inputs, labels)
    if "train" not in parts:
        every = every.sort_by_content()  # so that the test split does not depend on file names
        return Decoded(*split_off_test(every.inputs, every.labels), classes)
    train = torch.tensor([part == "train" for part in parts])
    return Decoded(every.subset(train), every.subset(~train), classes)


def assign_classes(path: Path, names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return for every image "train" or "test" ("" when undivided), and its class."""
    parts = {name: PurePosixPath(name).parts for name in names}
    parts = _below_root({n: p for n, p in parts.items() if not any(map(_hidden, p))})
    divided = any(p[0] == "train" and len(p) > 1 for p in parts.values())
    plan: dict[str, tuple[str, str]] = {}
    for name, p in parts.items():
        part, *rest = p if divided else ("", *p)
        image = name.lower().endswith(IMAGES)
        if part in ("", "train", "test") and len(rest) > 1:
            require(image, f"{path / name} is not an image ({', '.join(IMAGES)}): remove it")
            plan[name] = (part, rest[0])
        elif part in ("", "train", "test"):
            require(not image, _describe_misplaced(path, name, p))
    _check_classes(path, plan)
    return plan


def _describe_misplaced(path: Path, name: str, below_root: tuple[str, ...]) -> str:
    """Return an error message for an image outside class folders, or in the only one."""
    folder = PurePosixPath(name).parent.name
    if len(below_root) == len(PurePosixPath(name).parts):
        return f"{path / name} is in no class folder: move it into one"
    return (
        f"{path} has images of one class only, '{folder}': add another class or, if other clients "
        f"have the other classes, split it into train/{folder}/ and test/{folder}/"
    )


def _hidden(part: str) -> bool:
    return part.startswith(".") or part == "__MACOSX"


def _below_root(parts: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Remove the folders that hold everything else, as archives often have one."""
    folders = {p[0] for p in parts.values() if len(p) > 1}
    if len(folders) != 1 or "train" in folders:
        return parts
    return _below_root({name: p[1:] for name, p in parts.items() if len(p) > 1})


def _check_classes(path: Path, plan: dict[str, tuple[str, str]]) -> None:
    require(
        len(plan) > 0, f"{path} needs at least two class folders with images ({', '.join(IMAGES)})"
    )
    train = {label for part, label in plan.values() if part != "test"}
    test = {label for part, label in plan.values() if part != "train"}
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


def encode_labels(names: list[str]) -> tuple[tuple[str, ...], Tensor]:
    """Return the sorted classes in `names` (as integers if all are) and the labels [N]."""
    classes = sorted(set(names))
    with suppress(ValueError):
        classes.sort(key=int)
    index = {name: label for label, name in enumerate(classes)}
    return tuple(classes), torch.tensor([index[name] for name in names])


def split_off_test(inputs: Tensor, labels: Tensor, share: float = 0.2) -> tuple[Split, Split]:
    """Split off a test split with `share` of every class; the same on every call."""
    test = torch.zeros(len(labels), dtype=torch.bool)
    for label in sorted(set(labels.tolist())):
        where = (labels == label).nonzero().flatten().numpy()
        count = max(round(share * len(where)), min(1, len(where) - 1))
        test[generator(0, "test split", label).permutation(where)[:count]] = True
    every = Split(inputs, labels)
    return every.subset(~test), every.subset(test)


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and the standard deviation of each channel of uint8 images [N, C, H, W]."""
    values = torch.arange(256, dtype=torch.float64)
    counts = [images[:, c].flatten().bincount(minlength=256) for c in range(images.shape[1])]
    shares = torch.stack(counts).double() / counts[0].sum()
    mean = shares @ values
    std = ((values - mean[:, None]) ** 2 * shares).sum(1).sqrt()
    return tuple(mean.tolist()), tuple(torch.where(std > 0, std, 1.0).tolist())


FOLDER = Source("folder", "your images: a folder or tar of class folders (needs path)", read_folder)
