"""Random crop, flip and rotation of images, drawn on the host and applied by one gather.

A draw is (dx, dy, flip, angle). The crop of the zero-padded image is moved by (dx, dy) pixels,
then mirrored left to right if flip is 1, then turned counter-clockwise by angle (radians) about
its centre, taking the nearest pixel. Pixels from outside the image are 0.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedfm.core.errors import require, require_numbers


@dataclass(frozen=True)
class Augmentation:
    """Which random changes a training image undergoes, each with a probability of its own.

    The defaults are the paper's, which `augment = true` means. A probability of 0 switches a change
    off.

    Examples:
        >>> Augmentation(crop=0.5, rotation=0)
        Augmentation(crop=0.5, flip=0.5, rotation=0, padding=4, degrees=15.0)
    """

    crop: float = 1.0
    """The probability of a random crop of the zero-padded image."""
    flip: float = 0.5
    """The probability that the image is mirrored left to right."""
    rotation: float = 1.0
    """The probability of a rotation."""
    padding: int = 4
    """Zero pixels at each side before the crop: how far an image is shifted at most."""
    degrees: float = 15.0
    """The largest angle of a rotation, to either side."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        require_numbers(self)
        for name in ("crop", "flip", "rotation"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"{name} is a probability from 0 to 1, not {value}")
        require(self.padding >= 0, f"padding must be >= 0, not {self.padding}")
        require(0 <= self.degrees <= 180, f"degrees must be in [0, 180], not {self.degrees}")


PAPERS = Augmentation()
"""The paper's augmentation."""


def draw(rng: np.random.Generator, n: int, augmentation: Augmentation = PAPERS) -> Tensor:
    """Return draws [n, 4] (float32) for n images; row i does not depend on n."""
    u = rng.random((n, 4))
    crop, turn = u[:, :1] < augmentation.crop, u[:, 3:] < augmentation.rotation
    # Below a probability p, u / p is uniform again: one number decides and is the value
    u[:, 0] /= augmentation.crop or 1
    u[:, 3] /= augmentation.rotation or 1
    padding, largest = augmentation.padding, math.radians(augmentation.degrees)
    shift = np.where(crop, np.floor(u[:, :2] * (2 * padding + 1)) - padding, 0)
    flip = u[:, 2:3] < augmentation.flip
    angle = np.where(turn, (2 * u[:, 3:] - 1) * largest, 0)
    return torch.from_numpy(np.hstack([shift, flip, angle]).astype(np.float32))


def apply(images: Tensor, draws: Tensor) -> Tensor:
    """Augment images [..., C, H, W] by their draws [..., 4]; keep shape and dtype.

    The host reads nothing back, so a CUDA graph can capture this.
    """
    height, width = images.shape[-2:]
    index, inside = _sources(draws, height, width)
    flat = images.flatten(-2)
    picked = flat.gather(-1, index.unsqueeze(-2).expand(flat.shape))
    return (picked * inside.unsqueeze(-2)).reshape(images.shape)


def _sources(draws: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return for each output pixel [..., H * W] its input pixel, and whether there is one."""
    dx, dy, flip, angle = draws.unsqueeze(-1).unbind(-2)
    x, y = _rotate(angle, height, width)
    inside = _within(x, width) & _within(y, height)
    x = torch.where(flip > 0.5, width - 1 - x, x) + dx
    y = y + dy
    inside &= _within(x, width) & _within(y, height)
    index = y.clamp(0, height - 1) * width + x.clamp(0, width - 1)
    return index.long(), inside


def _rotate(angle: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return where each pixel of a turned image comes from: whole x and y [..., H * W]."""
    pixel = torch.arange(height * width, device=angle.device)
    right, down = (width - 1) / 2, (height - 1) / 2
    u, v = pixel % width - right, pixel // width - down
    cos, sin = angle.cos(), angle.sin()
    return (cos * u - sin * v + right).round(), (sin * u + cos * v + down).round()


def _within(position: Tensor, size: int) -> Tensor:
    return (position >= 0) & (position < size)
