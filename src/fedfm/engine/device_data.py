"""Batches as the network wants them, gathered from raw data that stays as it was read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import fedfm.data.augment as augment
from fedfm.data.batches import BatchPlan
from fedfm.data.dataset import Dataset, Split

ROOM = 0.5
"""The share of a GPU's free memory that data may take; more than that stays on the host."""


@dataclass(frozen=True)
class DeviceData:
    """Raw inputs [N, ...], labels [N] and the affine map raw * scale + shift, per channel."""

    inputs: Tensor
    labels: Tensor
    scale: Tensor
    shift: Tensor

    @staticmethod
    def from_split(
        split: Split, data: Dataset, device: torch.device, dtype: torch.dtype
    ) -> "DeviceData":
        """A split of `data`, normalised to `dtype` on the device when it is fetched."""
        std = torch.tensor(data.std, dtype=torch.float64)
        mean = torch.tensor(data.mean, dtype=torch.float64)
        trailing = (1,) * (len(data.shape) - 1)
        scale, shift = (v.to(device, dtype).reshape(-1, *trailing) for v in (1 / std, -mean / std))
        place = device if _has_room(device, split.inputs.nbytes) else torch.device("cpu")
        return DeviceData(split.inputs.to(place), split.labels.to(place), scale, shift)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.inputs.shape[1:])

    @property
    def device(self) -> torch.device:
        """Where batches are wanted."""
        return self.scale.device

    @property
    def resident(self) -> bool:
        """Whether the data lie there already."""
        return self.inputs.device == self.device

    def fetch(self, indices: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Inputs [S, B, ...] and labels [S, B] at indices [S, B]; draws [S, B, 4] augment them."""
        indices = indices.to(self.inputs.device)
        raw, labels = self.inputs[indices].to(self.device), self.labels[indices].to(self.device)
        if draws is not None:
            raw = augment.apply(raw, draws)
        return raw.to(self.scale.dtype) * self.scale + self.shift, labels


def _has_room(device: torch.device, size: int) -> bool:
    """Free is also what torch holds in store and nobody uses."""
    if device.type != "cuda":
        return True
    stored = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return size < ROOM * (torch.cuda.mem_get_info(device)[0] + stored)


class StagedData:
    """The samples of one cohort at fixed addresses on the device, of data that stay on the host."""

    def __init__(self, source: DeviceData) -> None:
        self.source = source
        self.data = self._of_size(0)

    def _of_size(self, samples: int) -> DeviceData:
        source, device = self.source, self.source.device
        inputs = source.inputs.new_empty(samples, *source.shape, device=device)
        return replace(
            source, inputs=inputs, labels=source.labels.new_empty(samples, device=device)
        )

    def fill(self, plans: Sequence[BatchPlan]) -> list[BatchPlan]:
        """Bring the plans' samples there; returns the plans with the samples' places there.

        Where they do not fit, `data` is another one afterwards.
        """
        wanted = torch.unique(torch.cat([plan.indices for plan in plans]))
        if len(wanted) > len(self.data.labels):
            self.data = self._of_size(len(wanted) + len(wanted) // 4)
        self.data.inputs[: len(wanted)].copy_(self.source.inputs[wanted])
        self.data.labels[: len(wanted)].copy_(self.source.labels[wanted])
        return [replace(plan, indices=torch.searchsorted(wanted, plan.indices)) for plan in plans]
