"""Samples with their labels and, where the data say so, their clients."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedfm.core.errors import require
from fedfm.core.inputs import (
    InputTree,
    input_leaves,
    input_shape,
    make_inputs,
    map_inputs,
    name_leaves,
)


@dataclass(frozen=True)
class Split:
    """Samples and their labels.

    Examples:
        >>> import torch
        >>> Split(torch.zeros(6, 3, 8, 8, dtype=torch.uint8), torch.arange(6) % 2)
        Split(6 samples of shape (3, 8, 8))
    """

    inputs: InputTree
    """[N, ...]: uint8 images [N, C, H, W], floats, token ids or masks of any shape.

    A dict of such tensors is passed to the network as keywords, a tuple as positions.
    """
    labels: Tensor
    """[N] class indices, int64."""
    clients: Tensor | None = None
    """[N] the client that each sample belongs to, int64, where the data say so."""
    positions: Tensor | None = None
    """[N] where each sample stood before it was sorted: found out, never set."""

    def __post_init__(self) -> None:
        """Refuse anything but tensors."""
        object.__setattr__(self, "inputs", make_inputs(self.inputs))
        for name in ("labels", *(["clients"] if self.clients is not None else [])):
            value = getattr(self, name)
            require(
                isinstance(value, Tensor),
                f"{name} must be a torch.Tensor, not a {type(value).__name__}: convert it with "
                "torch.as_tensor(...)",
            )

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.labels)

    def __repr__(self) -> str:
        """Describe the samples without their values."""
        return f"Split({len(self)} samples of shape {input_shape(self.inputs)})"

    def check(self, where: str, classes: int, clients: int = 0) -> None:
        """Refuse samples that cannot be trained on."""
        require(len(self) > 0, f"{where}: no samples")
        for name, leaf in name_leaves(self.inputs).items():
            require(len(leaf) == len(self), f"{where}: {len(leaf)} {name} but {len(self)} labels")
        require(
            self.labels.dtype == torch.int64,
            f"{where}: labels must be class indices (torch.int64), not {self.labels.dtype}; FedFM "
            "classifies, it has no regression",
        )
        _check_range(where, "labels", self.labels, classes, "classes")
        if self.clients is not None:
            require(
                len(self.clients) == len(self) and self.clients.dtype == torch.int64,
                f"{where}: clients must have an index (torch.int64) for each of {len(self)} "
                f"samples, not {len(self.clients)} of {self.clients.dtype}",
            )
            _check_range(where, "clients", self.clients, clients, "names of clients")
        for leaf in input_leaves(self.inputs):
            if leaf.is_floating_point():
                self._check_finite(where, leaf)

    def _check_finite(self, where: str, leaf: Tensor) -> None:
        bad = (~torch.isfinite(leaf)).unsqueeze(-1).flatten(1).any(1).nonzero()
        first = int(bad[0]) if len(bad) else 0
        require(
            len(bad) == 0,
            f"{where}: {len(bad)} samples hold NaN or Inf (the first is number {first}): remove or "
            "fill them",
        )

    def subset(self, indices: Tensor) -> "Split":
        """Return some of the samples; their order is then taken for the given one.

        Args:
            indices: [M], in the order that is wanted.

        Returns:
            The M samples.
        """
        clients = None if self.clients is None else self.clients[indices]
        inputs = map_inputs(lambda leaf: leaf[indices], self.inputs)
        return Split(inputs, self.labels[indices], clients)

    def sort_by_content(self) -> "Split":
        """Return the samples in an order that depends on their values alone, not on their files.

        The order is that of a hash of label and input, so neighbours have nothing in common.
        """
        contents = np.hstack([_to_bytes(leaf) for leaf in input_leaves(self.inputs)])
        hashes = [
            hashlib.blake2b(sample.tobytes(), digest_size=16, salt=str(label).encode()).digest()
            for sample, label in zip(contents, self.labels.tolist(), strict=True)
        ]
        order = torch.tensor(sorted(range(len(self)), key=hashes.__getitem__))
        return replace(self.subset(order), positions=order)


def _to_bytes(leaf: Tensor) -> np.ndarray:
    """Return the values [N, ...] as bytes [N, b]."""
    flat = leaf.cpu().contiguous().flatten().view(torch.uint8)
    return flat.numpy().reshape(len(leaf), -1)


def _check_range(where: str, what: str, values: Tensor, count: int, of: str) -> None:
    low, high = int(values.min()), int(values.max())
    require(
        low >= 0 and high < count,
        f"{where}: {what} run from {low} to {high}, but there are {count} {of}",
    )


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """Return a short digest of the tensors' values."""
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        values = tensor.detach().cpu().contiguous().flatten()
        digest.update(values.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
