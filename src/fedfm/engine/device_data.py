"""Data on a device: batches are gathered from raw data and normalised when they are fetched."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import fedfm.data.augment as augment
from fedfm.core.inputs import InputTree, holds_ids, input_leaves, is_quantity, map_inputs
from fedfm.data.batches import BatchPlan
from fedfm.data.dataset import Dataset
from fedfm.data.split import Split

ROOM = 0.5
"""The share of a GPU's free memory that data may take; larger data stay on the host."""
NUMBERS_OF_ID = 64
"""How many numbers a token id counts for in `DeviceData.sample_size`: it becomes a vector."""


@dataclass(frozen=True)
class DeviceData:
    """Raw inputs [N, ...], labels [N] and the affine map raw * scale + shift, per channel.

    The map is for floats and uint8; token ids and masks are fetched as they are.
    """

    inputs: InputTree
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
        trailing = (1,) * (split.inputs.ndim - 2) if isinstance(split.inputs, Tensor) else ()
        scale, shift = (v.to(device, dtype).reshape(-1, *trailing) for v in (1 / std, -mean / std))
        size = sum(leaf.nbytes for leaf in input_leaves(split.inputs))
        place = device if _has_room(device, size) else torch.device("cpu")
        inputs = map_inputs(lambda leaf: leaf.to(place), split.inputs)
        return DeviceData(inputs, split.labels.to(place), scale, shift)

    @property
    def sample_size(self) -> int:
        """How many numbers one sample has, for a network's memory."""
        return sum(
            math.prod(leaf.shape[1:]) * (NUMBERS_OF_ID if holds_ids(leaf) else 1)
            for leaf in input_leaves(self.inputs)
        )

    @property
    def device(self) -> torch.device:
        """The device of fetched batches."""
        return self.scale.device

    @property
    def resident(self) -> bool:
        """Whether the data are on that device."""
        return self.labels.device == self.device

    def fetch(self, indices: Tensor, draws: Tensor | None = None) -> tuple[InputTree, Tensor]:
        """Fetch inputs [S, B, ...] and labels [S, B]; draws [S, B, 4] augment the inputs."""
        indices, device = indices.to(self.labels.device), self.device

        def fetch_leaf(leaf: Tensor) -> Tensor:
            raw = leaf[indices].to(device)
            if draws is not None:
                raw = augment.apply(raw, draws)
            return raw.to(self.scale.dtype) * self.scale + self.shift if is_quantity(raw) else raw

        return map_inputs(fetch_leaf, self.inputs), self.labels[indices].to(device)

    def fetch_first(self, *shape: int) -> InputTree:
        """Fetch the inputs [*shape, ...] of the first samples, again from the first if too few."""
        count = torch.Size(shape).numel()
        return self.fetch(torch.arange(count).remainder(len(self.labels)).view(shape))[0]


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

        def allocate(leaf: Tensor) -> Tensor:
            return leaf.new_empty(samples, *leaf.shape[1:], device=device)

        inputs = map_inputs(allocate, source.inputs)
        return replace(source, inputs=inputs, labels=allocate(source.labels))

    def fill(self, plans: Sequence[BatchPlan]) -> list[BatchPlan]:
        """Copy the plans' samples to the device; return the plans with their indices there.

        If they do not fit, `data` is replaced by a larger object.
        """
        needed = torch.unique(torch.cat([plan.indices for plan in plans]))
        if len(needed) > len(self.data.labels):
            self.data = self._allocate(len(needed) + len(needed) // 4)

        def copy(into: Tensor, leaf: Tensor) -> Tensor:
            return into[: len(needed)].copy_(leaf[needed])

        map_inputs(copy, self.data.inputs, self.source.inputs)
        copy(self.data.labels, self.source.labels)
        return [replace(plan, indices=torch.searchsorted(needed, plan.indices)) for plan in plans]
