"""Batches as the network wants them, gathered from raw data that stays as it was read."""

from dataclasses import dataclass

import torch
from torch import Tensor

import fedfm.data.augment as augment
from fedfm.data.dataset import Dataset, Split


@dataclass(frozen=True)
class Feed:
    """Raw inputs [N, ...], labels [N] and the affine map raw * scale + shift, per channel."""

    inputs: Tensor
    labels: Tensor
    scale: Tensor
    shift: Tensor

    @staticmethod
    def of(split: Split, data: Dataset, device: torch.device, dtype: torch.dtype) -> "Feed":
        """A split of `data`, on a device, normalised to `dtype` when it is fetched."""
        std = torch.tensor(data.std, dtype=torch.float64)
        mean = torch.tensor(data.mean, dtype=torch.float64)
        trailing = (1,) * (len(data.shape) - 1)
        scale, shift = (v.to(device, dtype).reshape(-1, *trailing) for v in (1 / std, -mean / std))
        return Feed(split.inputs.to(device), split.labels.to(device), scale, shift)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.inputs.shape[1:])

    def fetch(self, indices: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Inputs [S, B, ...] and labels [S, B] at indices [S, B]; draws [S, B, 4] augment them."""
        raw = self.inputs[indices]
        if draws is not None:
            raw = augment.apply(raw, draws)
        return raw.to(self.scale.dtype) * self.scale + self.shift, self.labels[indices]
