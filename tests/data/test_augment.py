"""The augmentation against a slow one written pixel by pixel, and its identities."""

import math

import numpy as np
import torch
from torch import Tensor

from fedfm.data.augment import apply, draw


def slow(image: Tensor, draw: Tensor) -> Tensor:
    """Pad, crop, flip and turn one image [C, H, W], each a step of its own."""
    channels, height, width = image.shape
    dx, dy, flip, angle = draw.tolist()
    padded = torch.zeros(channels, height + 8, width + 8, dtype=image.dtype)
    padded[:, 4:-4, 4:-4] = image
    top, left = 4 + int(dy), 4 + int(dx)
    cropped = padded[:, top : top + height, left : left + width]
    flipped = cropped.flip(-1) if flip else cropped
    turned = torch.zeros_like(image)
    for row in range(height):
        for column in range(width):
            u, v = column - (width - 1) / 2, row - (height - 1) / 2
            x = round(math.cos(angle) * u - math.sin(angle) * v + (width - 1) / 2)
            y = round(math.sin(angle) * u + math.cos(angle) * v + (height - 1) / 2)
            if 0 <= x < width and 0 <= y < height:
                turned[:, row, column] = flipped[:, y, x]
    return turned


def images(*shape: int) -> Tensor:
    return torch.randint(1, 256, shape, dtype=torch.uint8, generator=torch.Generator())


def same(dx: float = 0, dy: float = 0, flip: float = 0, angle: float = 0) -> Tensor:
    return torch.tensor([dx, dy, flip, angle])


def test_it_is_crop_then_flip_then_rotation_pixel_by_pixel():
    batch, draws = images(12, 3, 32, 32), draw(np.random.default_rng(1), 12)
    assert 0 < draws[:, 2].sum() < 12
    expected = torch.stack([slow(i, d) for i, d in zip(batch, draws, strict=True)])
    assert torch.equal(apply(batch, draws), expected)


def test_images_need_not_be_square_and_leading_dimensions_are_free():
    batch, draws = images(2, 3, 1, 20, 14), draw(np.random.default_rng(2), 6).reshape(2, 3, 4)
    changed = apply(batch, draws)
    assert changed.shape == batch.shape
    assert changed.dtype == torch.uint8
    for i in range(2):
        for j in range(3):
            assert torch.equal(changed[i, j], slow(batch[i, j], draws[i, j]))


def test_a_zero_draw_changes_nothing():
    image = images(3, 32, 32)
    assert torch.equal(apply(image, same()), image)


def test_a_shift_moves_the_window_and_fills_with_zeros():
    image = images(3, 32, 32)
    moved = apply(image, same(dx=3, dy=-2))
    assert torch.equal(moved[:, 2:, :-3], image[:, :-2, 3:])
    assert not moved[:, :2].any()
    assert not moved[:, :, -3:].any()


def test_a_flip_mirrors_left_and_right():
    image = images(3, 32, 32)
    assert torch.equal(apply(image, same(flip=1)), image.flip(-1))


def test_angles_are_counter_clockwise_radians():
    image = images(3, 32, 32)
    assert torch.equal(apply(image, same(angle=math.pi / 2)), image.rot90(1, (-2, -1)))


def test_each_image_follows_its_own_draw():
    image = images(1, 8, 8)
    both = apply(image.expand(2, 1, 8, 8), torch.stack([same(), same(flip=1)]))
    assert torch.equal(both, torch.stack([image, image.flip(-1)]))


def test_draws_cover_their_ranges_evenly():
    draws = draw(np.random.default_rng(3), 20_000)
    assert draws.shape == (20_000, 4)
    assert draws.dtype == torch.float32
    for column in (0, 1):
        values, counts = np.unique(draws[:, column].numpy(), return_counts=True)
        assert values.tolist() == list(range(-4, 5))
        assert counts.min() > 20_000 / 9 * 0.9
    assert set(draws[:, 2].tolist()) == {0.0, 1.0}
    assert abs(float(draws[:, 2].mean()) - 0.5) < 0.02
    angle = draws[:, 3].rad2deg()
    assert 14.9 < float(angle.max()) <= 15
    assert -15 <= float(angle.min()) < -14.9
    assert abs(float(angle.abs().mean()) - 7.5) < 0.2


def test_a_draw_does_not_depend_on_how_many_follow():
    assert torch.equal(draw(np.random.default_rng(4), 3), draw(np.random.default_rng(4), 9)[:3])


def test_the_host_never_reads_a_value():
    """Tensors on `meta` have none: any read of one would raise."""
    batch = torch.empty(5, 3, 32, 32, dtype=torch.uint8, device="meta")
    changed = apply(batch, torch.empty(5, 4, device="meta"))
    assert changed.is_meta
    assert changed.shape == batch.shape
