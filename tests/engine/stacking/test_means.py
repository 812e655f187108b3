"""Means of mapped tensors: the values and gradients of torch, without writing gradients out."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfm.engine.stacking import mapping
from fedfm.engine.stacking.mapping import ClientMap
from fedfm.engine.stacking.means import mean

CLIENTS, BATCH, CHANNELS = 2, 3, 4
WAYS = {
    "dimensions": lambda x: x.mean((2, 3)),
    "from the end": lambda x: torch.mean(x, [-1, -2]),
    "kept": lambda x: x.mean(dim=(2, 3), keepdim=True),
    "one": lambda x: x.mean(1),
    "pooled": lambda x: F.adaptive_avg_pool2d(x, 1),
    "pooled to a pair": nn.AdaptiveAvgPool2d((1, 1)),
}
OTHERS = {
    "everything": lambda x: x.mean(),
    "in another type": lambda x: x.mean((2, 3), dtype=torch.float64).float(),
    "pooled to more": lambda x: F.adaptive_avg_pool2d(x, (1, 2)),
}


class Reduced(nn.Module):
    def __init__(self, way) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(CHANNELS, 1, 1))
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        reduced: Tensor = self.way(x * self.scale)
        return reduced


def value_and_gradient(way, monkeypatch, ours: bool) -> tuple[Tensor, Tensor]:
    monkeypatch.setattr(mapping, "runs_kernels", lambda x: ours)
    torch.manual_seed(0)
    x = torch.randn(CLIENTS, BATCH, 5, 6, CHANNELS).movedim(-1, 2).requires_grad_()
    mapped, scale = ClientMap(Reduced(way), [], [], []), torch.randn(CLIENTS, CHANNELS, 1, 1)
    with mapped.slots.hold([scale]):
        y = mapped(x)
    (grad,) = torch.autograd.grad(y.sin().sum(), x)
    return y, grad


def names(node) -> set[str]:
    """Return the names of the operations before a node of autograd's graph."""
    return {node.name()}.union(*(names(before) for before, _ in node.next_functions if before))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_values_and_gradients_are_torchs(way, monkeypatch):
    y, grad = value_and_gradient(way, monkeypatch, ours=True)
    wanted, slope = value_and_gradient(way, monkeypatch, ours=False)
    torch.testing.assert_close(y, wanted, rtol=0, atol=0)
    torch.testing.assert_close(grad, slope, rtol=0, atol=0)
    assert "_MeanBackward" in names(y.grad_fn)


@pytest.mark.parametrize("way", OTHERS.values(), ids=OTHERS)
def test_other_means_are_left_to_torch(way, monkeypatch):
    y, wanted = (value_and_gradient(way, monkeypatch, ours)[0] for ours in (True, False))
    torch.testing.assert_close(y, wanted, rtol=0, atol=0)
    assert "_MeanBackward" not in names(y.grad_fn)


def test_sums_of_gradients_stay_in_the_order_of_memory():
    """A shortcut adds the gradient of the mean to that of the block beside it."""
    pixels, sums = torch.randn(CLIENTS, BATCH, 5, 6, CHANNELS, requires_grad=True), list[Tensor]()
    x = pixels.movedim(-1, 2)
    x.register_hook(sums.append)
    torch.autograd.grad(mean(x, (-2, -1)).sum() + x.sin().sum(), pixels)
    assert sums[0].movedim(2, -1).is_contiguous()
