"""Data on a device: batches are gathered from raw data and normalised when they are fetched."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import fedfm.data.augment as augment
from fedfm.data.batches import BatchPlan
from fedfm.data.dataset import Dataset, Split

ROOM = 0.5
"""The share of a GPU's free memory that data may take; larger data stay on the host."""


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
        """Put a split of `data` on the device if there is room; fetched batches have `dtype`."""
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
        """The device of fetched batches."""
        return self.scale.device

    @property
    def resident(self) -> bool:
        """Whether the data are on that device."""
        return self.inputs.device == self.device

    def fetch(self, indices: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Fetch inputs [S, B, ...] and labels [S, B]; draws [S, B, 4] augment the inputs."""
        indices = indices.to(self.inputs.device)
        raw, labels = self.inputs[indices].to(self.device), self.labels[indices].to(self.device)
        if draws is not None:
            raw = augment.apply(raw, draws)
        return raw.to(self.scale.dtype) * self.scale + self.shift, labels


def _has_room(device: torch.device, size: int) -> bool:
    """Return whether data fit; memory that torch has reserved but not used counts as free."""
    if device.type != "cuda":
        return True
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return size < ROOM * (torch.cuda.mem_get_info(device)[0] + unused)


class StagedData:
    """The samples of one cohort at fixed addresses on the device; the data stay on the host."""

    def __init__(self, source: DeviceData) -> None:
        self.source = source
        self.data = self._allocate(0)

    def _allocate(self, samples: int) -> DeviceData:
        source, device = self.source, self.source.device
        inputs = source.inputs.new_empty(samples, *source.shape, device=device)
        return replace(
            source, inputs=inputs, labels=source.labels.new_empty(samples, device=device)
        )

    def fill(self, plans: Sequence[BatchPlan]) -> list[BatchPlan]:
        """Copy the plans' samples to the device; return the plans with their indices there.

        If they do not fit, `data` is replaced by a larger object.
        """
        needed = torch.unique(torch.cat([plan.indices for plan in plans]))
        if len(needed) > len(self.data.labels):
            self.data = self._allocate(len(needed) + len(needed) // 4)
        self.data.inputs[: len(needed)].copy_(self.source.inputs[needed])
        self.data.labels[: len(needed)].copy_(self.source.labels[needed])
        return [replace(plan, indices=torch.searchsorted(needed, plan.indices)) for plan in plans]
