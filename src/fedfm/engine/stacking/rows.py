"""What stacked layers share: the rows of S clients, one client after another in the batch."""

import torch
from torch import Tensor


def by_client(x: Tensor, clients: int) -> Tensor:
    """View [S*B, ...] as [S, B, ...]."""
    return torch.unflatten(x, 0, (clients, -1))


def affine(x: Tensor, weight: Tensor | None, bias: Tensor | None, axis: int) -> Tensor:
    """Return x [S*B, ...] times weight plus bias, each [S, ...] along x's axes from `axis` on."""
    for value, combine in ((weight, torch.mul), (bias, torch.add)):
        if value is not None:
            clients = by_client(x, len(value))
            after = [1] * (clients.ndim - axis - value.ndim)
            shaped = value.reshape(len(value), *[1] * axis, *value.shape[1:], *after)
            x = combine(clients, shaped.to(x.dtype)).flatten(0, 1)
    return x


def lower_precision(x: Tensor, weight: Tensor) -> torch.dtype:
    """Return the precision of a product, the lower one of its factors.

    They differ if weights are frozen, which are not cast beforehand, or if the network created
    tensors itself. Under autocast they get its precision.
    """
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return min(x.dtype, weight.dtype, key=lambda dtype: dtype.itemsize)


def to_lower_precision(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Cast both factors to the lower of their precisions."""
    low = lower_precision(x, weight)
    return x.to(low), weight.to(low)


def runs_kernels(x: Tensor) -> bool:
    """Return whether our kernels run where a tensor is."""
    return x.is_cuda
