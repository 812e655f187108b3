"""What readers of data share: class indices, clients, a test split, statistics of channels."""

from contextlib import suppress

import torch
from torch import Tensor

from fedfm.core.errors import require
from fedfm.core.rng import generator
from fedfm.data.split import Split


def encode_labels(names: list[str]) -> tuple[tuple[str, ...], Tensor]:
    """Return the sorted classes in `names` (as integers if all are) and the labels [N]."""
    classes = sorted(set(names))
    with suppress(ValueError):
        classes.sort(key=int)
    index = {name: label for label, name in enumerate(classes)}
    return tuple(classes), torch.tensor([index[name] for name in names])


def encode_clients(where: str, names: list[str]) -> tuple[tuple[str, ...], Tensor]:
    """Return the sorted clients in `names` and the client [N] of each sample; refuse a single one.

    `where` says where the names are, for an error message.
    """
    clients, owners = encode_labels(names)
    require(
        len(clients) > 1,
        f"{where}: all samples belong to one client, '{clients[0]}': a federation needs at least "
        "two; name another place, or leave data.client out",
    )
    return clients, owners


def split_off_test(
    inputs: Tensor, labels: Tensor, clients: Tensor | None = None
) -> tuple[Split, Split]:
    """Split off a test split with a fifth of every class; the same on every call."""
    test = draw_test(labels, clients)
    every = Split(inputs, labels, clients)
    return every.subset(~test), every.subset(test)


def draw_test(labels: Tensor, clients: Tensor | None = None, share: float = 0.2) -> Tensor:
    """Return which samples [N] are for testing: `share` of every class, of every client if given.

    A class, or a client's class, of one sample has none.
    """
    groups = labels[:, None] if clients is None else torch.stack([labels, clients], 1)
    test = torch.zeros(len(labels), dtype=torch.bool)
    for group in sorted(set(map(tuple, groups.tolist()))):
        where = (groups == torch.tensor(group)).all(1).nonzero().flatten().numpy()
        count = max(round(share * len(where)), min(1, len(where) - 1))
        test[generator(0, "test split", *group).permutation(where)[:count]] = True
    return test


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and the standard deviation of each channel of uint8 images [N, C, H, W]."""
    values = torch.arange(256, dtype=torch.float64)
    counts = [images[:, c].flatten().bincount(minlength=256) for c in range(images.shape[1])]
    shares = torch.stack(counts).double() / counts[0].sum()
    mean = shares @ values
    std = ((values - mean[:, None]) ** 2 * shares).sum(1).sqrt()
    return tuple(mean.tolist()), tuple(torch.where(std > 0, std, 1.0).tolist())


def fit_normalisation(inputs: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and the standard deviation of each channel or column of inputs [N, C, ...].

    A constant channel has standard deviation 1.
    """
    if inputs.dtype == torch.uint8:
        return channel_statistics(inputs)
    others = [dim for dim in range(inputs.ndim) if dim != 1]
    std, mean = torch.std_mean(inputs.double(), others, correction=0)
    return tuple(mean.tolist()), tuple(torch.where(std > 0, std, 1.0).tolist())
