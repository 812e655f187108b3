"""The augmentation against a slow one written pixel by pixel, and its identities."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from fedfm import UserError, data
from fedfm.config import DataConfig, parse
from fedfm.data.augment import PAPERS, Augmentation, apply, draw
from fedfm.grid.identity import digest
from fedfm.run.prepare import load_data


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


def test_the_default_draws_are_those_of_the_first_version():
    """Written down here as they were: results with augmentation must not change."""
    uniform = np.random.default_rng(5).random((50, 4))
    shift = np.floor(uniform[:, :2] * 9) - 4
    angle = (2 * uniform[:, 3:] - 1) * math.radians(15)
    columns = np.hstack([shift, uniform[:, 2:3] < 0.5, angle]).astype(np.float32)
    assert torch.equal(draw(np.random.default_rng(5), 50), torch.from_numpy(columns))
    assert Augmentation() == PAPERS


@pytest.mark.parametrize(("name", "columns"), [("crop", [0, 1]), ("flip", [2]), ("rotation", [3])])
def test_each_change_can_be_switched_off_alone(name, columns):
    all_, without = (
        draw(np.random.default_rng(6), 200, each)
        for each in (Augmentation(), Augmentation(**{name: 0}))
    )
    others = [column for column in range(4) if column not in columns]
    assert not without[:, columns].any()
    assert torch.equal(without[:, others], all_[:, others])


def test_each_change_has_its_probability_and_keeps_its_range():
    often = Augmentation(crop=0.3, flip=0.1, rotation=0.2, padding=2, degrees=10)
    draws = draw(np.random.default_rng(7), 50_000, often)
    dx, dy, flip, angle = draws.T.double()
    assert abs(float(((dx != 0) | (dy != 0)).double().mean()) - 0.3 * 24 / 25) < 0.01
    assert abs(float(flip.mean()) - 0.1) < 0.01
    assert abs(float((angle != 0).double().mean()) - 0.2) < 0.01
    moved = draws[(dx != 0) | (dy != 0)]
    for column in (0, 1):
        values, counts = np.unique(moved[:, column].numpy(), return_counts=True)
        assert values.tolist() == [-2, -1, 0, 1, 2]
        assert counts.min() > len(moved) / 5 * 0.75  # (0, 0) is not among them
    turned = angle[angle != 0].rad2deg()
    assert 9.8 < float(turned.max()) <= 10
    assert abs(float(turned.mean())) < 0.3


@pytest.mark.parametrize(
    "wrong",
    [{"crop": 1.5}, {"flip": -0.1}, {"rotation": "often"}, {"padding": -1}, {"padding": 0.5},
     {"degrees": 200}, {"degrees": -1}],
)  # fmt: skip
def test_values_outside_their_range_are_refused(wrong):
    with pytest.raises(UserError):
        Augmentation(**wrong)


@pytest.mark.parametrize(
    "wrong", [{"crop": True}, {"crop": 2}, {"krop": 1}, {"degrees": "many"}, "perhaps", 3]
)
def test_a_config_refuses_them_with_the_key(wrong):
    with pytest.raises(UserError, match=r"augment|crop"):
        parse({"data": {"augment": wrong}})


def test_a_config_takes_a_table_of_changes():
    config = parse({"data": {"name": "cifar10", "augment": {"crop": 0.5, "rotation": 0}}})
    assert config.data.augment == Augmentation(crop=0.5, rotation=0.0)
    assert parse(config.as_toml()) == config
    assert isinstance(parse({"data": {"augment": True}}).data.augment, bool)


def test_the_papers_changes_are_the_same_experiment_as_true():
    table = {"crop": 1.0, "flip": 0.5, "rotation": 1.0, "padding": 4, "degrees": 15.0}
    configs = [parse({"data": {"augment": each}}) for each in (True, table, {})]
    assert len({digest(config.as_toml()) for config in configs}) == 1
    other = parse({"data": {"augment": table | {"degrees": 10}}})
    assert digest(other.as_toml()) != digest(configs[0].as_toml())


def test_a_data_set_knows_its_changes():
    digits = data.load("digits")
    some = Augmentation(rotation=0)
    assert digits.augmentation is None
    assert data.load("digits", augment=True).augmentation == Augmentation()
    loaded = load_data(parse({"data": {"augment": {"rotation": 0}}}))
    assert loaded.augmentation == some
    assert DataConfig.of(loaded).augment == some


def test_only_images_can_be_augmented():
    rows = data.Split(torch.randn(20, 4), torch.arange(20) % 2)
    with pytest.raises(UserError, match="augment"):
        data.Dataset("rows", rows, rows, classes=("a", "b"), augment=True)
