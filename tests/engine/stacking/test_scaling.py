"""Which products of mapped tensors a kernel computes, and what it does to gradients."""

import pytest
import torch
from torch import Tensor

from fedfm.engine.stacking.scaling import FusedScaling, find_axis

CLIENTS, BATCH, CHANNELS = 2, 3, 4


@pytest.fixture(autouse=True)
def tensors_say_that_they_are_on_a_gpu(monkeypatch):
    monkeypatch.setattr(Tensor, "is_cuda", True)


def axis_of(x: Tensor, scale: Tensor, mapped: tuple[int | None, int | None] = (0, 0)) -> int | None:
    found = []

    def forward(own_x: Tensor, own_scale: Tensor) -> Tensor:
        found.append(find_axis(own_x, own_scale))
        return own_x * own_scale

    torch.func.vmap(forward, mapped)(x, scale)
    return found[0]


MAPS = torch.zeros(CLIENTS, BATCH, 5, 6, CHANNELS).movedim(-1, 2)
TOKENS = torch.zeros(CLIENTS, BATCH, 5, CHANNELS)


@pytest.mark.parametrize("shape", [(CHANNELS, 1, 1), (1, CHANNELS, 1, 1)])
def test_a_number_for_each_channel_of_a_map(shape):
    assert axis_of(MAPS, torch.zeros(CLIENTS, *shape)) == -3


@pytest.mark.parametrize("shape", [(CHANNELS,), (1, 1, CHANNELS)])
def test_a_number_for_each_feature_of_a_token(shape):
    assert axis_of(TOKENS, torch.zeros(CLIENTS, *shape)) == -1


@pytest.mark.parametrize(
    ("x", "scale", "mapped"),
    [
        (MAPS.contiguous(), torch.zeros(CLIENTS, CHANNELS, 1, 1), (0, 0)),
        (MAPS, torch.zeros(CHANNELS, 1, 1), (0, None)),
        (MAPS, torch.zeros(CLIENTS, BATCH, 1, 1, 1), (0, 0)),
        (MAPS, torch.zeros(CLIENTS, BATCH, CHANNELS, 1, 1), (0, 0)),
        (MAPS, torch.zeros(CLIENTS, 1), (0, 0)),
        (MAPS.double(), torch.zeros(CLIENTS, CHANNELS, 1, 1), (0, 0)),
        (torch.zeros(CLIENTS, CHANNELS), torch.zeros(CLIENTS, CHANNELS), (0, 0)),
    ],
    ids=[
        "channels are not last", "one for all clients", "per sample", "per sample and channel",
        "a single number", "double precision", "same shape",
    ],
)  # fmt: skip
def test_other_products_are_left_to_torch(x, scale, mapped):
    assert axis_of(x, scale, mapped) is None


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("product", [torch.mul, lambda x, y: x * y, lambda x, y: x.mul(y)])
def test_a_product_leaves_the_map(product, swapped, monkeypatch):
    left = []

    def leave(run, tensors: list[Tensor]) -> list[Tensor]:
        left.append(run)
        return [tensors[0]]

    def forward(x: Tensor, scale: Tensor) -> Tensor:
        with FusedScaling(leave):
            return product(scale, x) if swapped else product(x, scale)

    torch.func.vmap(forward)(TOKENS, torch.zeros(CLIENTS, CHANNELS))
    assert len(left) == 1
