"""Random crop, flip and rotation of images, drawn on the host and applied by one gather.

A draw is (dx, dy, flip, angle). The crop of the zero-padded image is moved by (dx, dy) pixels,
then mirrored left to right if flip is 1, then turned counter-clockwise by angle (radians) about
its centre, taking the nearest pixel. Pixels from outside the image are 0.
"""

import math

import numpy as np
import torch
from torch import Tensor

PADDING = 4
MAX_ANGLE = math.radians(15)


def draw(rng: np.random.Generator, n: int) -> Tensor:
    """Return draws [n, 4] (float32) for n images; row i does not depend on n."""
    uniform = rng.random((n, 4))
    shift = np.floor(uniform[:, :2] * (2 * PADDING + 1)) - PADDING
    flip = uniform[:, 2:3] < 0.5
    angle = (2 * uniform[:, 3:] - 1) * MAX_ANGLE
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
