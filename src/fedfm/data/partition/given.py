"""Partitions that are given: the data or the user say which client a sample belongs to."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedfm.core.errors import UserError, list_some, require
from fedfm.data.dataset import Dataset
from fedfm.data.partition.count_tables import Ints
from fedfm.data.partition.settings import Partition


def assign(data: Dataset, clients: Any) -> Dataset:
    """Let the training samples belong to clients.

    Samples are counted in the order in which they were given to the data set, though it may have
    sorted them.

    Args:
        data: The data set; test samples then belong to nobody.
        clients: Index lists, one for each client (by name, in a mapping); or the client [N] of
            each training sample, a number or a name. Samples that no list names are left out.

    Returns:
        The data set with its clients.

    Raises:
        UserError: If lists overlap or are empty, or the numbers do not fit the samples.

    Examples:
        >>> import fedfm
        >>> digits = fedfm.data.load("digits")
        >>> two = assign(digits, [range(100), range(100, 300)])
        >>> two.clients, two.train.clients.bincount()
        (('0', '1'), tensor([100, 200]))
    """
    lists = _index_lists(clients)
    names, owners = _join_lists(lists, len(data.train)) if lists else _read_ids(data, clients)
    require(
        len(names) > 1,
        f"the partition has one client, {', '.join(names)}: a federation needs at least two",
    )
    positions = data.train.positions
    owners = owners if positions is None else owners[positions.numpy()]
    held = torch.from_numpy(owners >= 0)
    train = data.train if held.all() else data.train.subset(held)
    train = replace(train, clients=torch.from_numpy(owners)[held], positions=None)
    return replace(data, train=train, test=replace(data.test, clients=None), clients=names)


def read_clients(path: Path) -> Any:
    """Return index lists, or the client of each sample, from a .npy or .json file."""
    require(path.suffix in (".npy", ".json"), f"partition.file is a .npy or .json file, not {path}")
    try:
        if path.suffix == ".npy":
            return np.load(path)
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"cannot read {path}, the file of the partition: {reason}") from error


def _index_lists(clients: Any) -> dict[str, Ints]:
    """Return index lists by the names of their clients; nothing if these are ids of clients."""
    if isinstance(clients, Mapping):
        named = {str(name): each for name, each in clients.items()}
    elif isinstance(clients, Sequence) and not isinstance(clients, str):
        if not len(clients) or isinstance(clients[0], Integral | str) or np.ndim(clients[0]) == 0:
            return {}
        named = {str(number): each for number, each in enumerate(clients)}
    else:
        return {}
    return {name: _to_indices(name, each) for name, each in named.items()}


def _to_indices(name: str, indices: Any) -> Ints:
    array = np.asarray(list(indices) if isinstance(indices, range) else indices)
    require(array.size > 0, f"client {name} has an empty index list: leave it out or fill it")
    require(
        array.ndim == 1 and np.issubdtype(array.dtype, np.integer),
        f"client {name}: an index list is a vector of whole numbers, not {array.dtype} of shape "
        f"{array.shape}",
    )
    return array.astype(np.int64)


def _join_lists(lists: Mapping[str, Ints], samples: int) -> tuple[tuple[str, ...], Ints]:
    """Return the names and the client [N] of each sample, -1 for samples that no list names."""
    for name, indices in lists.items():
        require(
            indices.min() >= 0 and indices.max() < samples,
            f"client {name}: indices run from {indices.min()} to {indices.max()}, but there are "
            f"{samples} training samples (0 to {samples - 1})",
        )
    counts = np.bincount(np.concatenate([*lists.values()]), minlength=samples)
    twice = np.flatnonzero(counts > 1)
    require(
        len(twice) == 0,
        f"{len(twice)} training samples are in the index lists twice ({list_some(twice)}): name "
        "each sample once",
    )
    owners = np.full(samples, -1, np.int64)
    for client, indices in enumerate(lists.values()):
        owners[indices] = client
    return tuple(lists), owners


def _read_ids(data: Dataset, clients: Any) -> tuple[tuple[str, ...], Ints]:
    """Return the names and the client [N] of each sample, given an id for each."""
    ids, samples = np.asarray(clients), len(data.train)
    usable = np.issubdtype(ids.dtype, np.integer) or ids.dtype.kind == "U"
    require(
        usable and ids.shape == (samples,),
        "a partition is a Partition, a table, index lists, or the client of each of the "
        f"{samples} training samples, not {ids.dtype} of shape {ids.shape}",
    )
    names, owners = np.unique(ids, return_inverse=True)
    return tuple(map(str, names.tolist())), owners.astype(np.int64)


def deal_given(data: Dataset, clients: int, partition: Partition) -> list[Ints]:
    """Return each client's training samples, as the data say."""
    require(
        partition.kind != "own" or data.digest == partition.digest,
        "partition kind 'own' needs its index lists and the data they were made for: name their "
        "file with partition.file, or give them from Python again",
    )
    require(
        len(data.clients) > 0 and data.train.clients is not None,
        f"partition kind 'natural' needs the client of each sample, which data '{data.name}' lack: "
        "say with data.client where it is written, or choose another kind",
    )
    names = data.clients
    require(
        clients == len(names),
        f"clients = {clients}, but data '{data.name}' have {len(names)} ({list_some(names)}): "
        "leave clients out",
    )
    owners = torch.as_tensor(data.train.clients).cpu().numpy()
    sizes = np.bincount(owners, minlength=clients)
    without = [names[client] for client in np.flatnonzero(sizes == 0)]
    require(
        not without,
        f"no training samples of client {list_some(without)}: leave it out, or give it some",
    )
    return np.split(np.argsort(owners, kind="stable"), sizes.cumsum()[:-1])
