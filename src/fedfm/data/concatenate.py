"""One data set for each client, joined into one whose samples know their client."""

from collections.abc import Mapping, Sequence
from typing import TypeGuard

import torch

from fedfm.core.errors import list_some, require
from fedfm.core.inputs import InputTree, map_inputs, name_leaves
from fedfm.data.dataset import Dataset
from fedfm.data.preprocessing import fit_normalisation
from fedfm.data.split import Split

Clients = Mapping[str, Dataset | Split] | Sequence[Dataset | Split]
"""One data set for each client, by name or in order."""


def are_clients(data: object) -> TypeGuard[Clients]:
    """Return whether `data` are one data set for each client."""
    if isinstance(data, Mapping):
        data = [*data.values()]
    return (
        isinstance(data, Sequence)
        and len(data) > 0
        and all(isinstance(each, Dataset | Split) for each in data)
    )


def join(clients: Clients, *, name: str = "joined") -> Dataset:
    """Join one data set for each client into one, for `Partition("natural")`.

    Test samples stay with their client. If the data sets differ in `mean` and `std`, those of all
    training samples together are used.

    Args:
        clients: A data set for each client, by name or in order; a `Split` for a client without
            test samples. Their classes must have the same names, in any order.
        name: The name in reports.

    Returns:
        All samples, in the order of the clients.

    Raises:
        UserError: If classes or the shapes of inputs differ.

    Examples:
        >>> import torch
        >>> some = Split(torch.randn(9, 4), torch.arange(9) % 2)
        >>> north = Dataset("north", some, some, ("healthy", "ill"))
        >>> join({"north": north, "south": some}).clients
        ('north', 'south')
    """
    named = clients if isinstance(clients, Mapping) else dict(enumerate(clients))
    parts = {str(client): part for client, part in named.items()}
    whole = {client: part for client, part in parts.items() if isinstance(part, Dataset)}
    require(len(parts) > 1, f"{len(parts)} data sets to join: a federation needs at least two")
    require(
        len(whole) > 0,
        "at least one client needs a Dataset: it has test samples and names the classes",
    )
    classes = _agree_on_classes(whole)
    train = [_relabel(part, classes, "train") for part in parts.values()]
    tests = {c: _relabel(part, classes, "test") for c, part in whole.items()}
    numbers = {client: number for number, client in enumerate(parts)}
    return Dataset(
        name,
        _concatenate(dict(zip(parts, train, strict=True)), numbers),
        _concatenate(tests, numbers),
        classes,
        *_normalisation([*whole.values()], train),
        clients=tuple(parts),
        vocabulary=_agree_on_vocabulary(whole),
        augment=next((part.augment for part in whole.values() if part.augment), False),
        keep_order=True,
    )


def _agree_on_classes(whole: Mapping[str, Dataset]) -> tuple[str, ...]:
    """Return the classes of the first client; refuse clients that have others."""
    first, classes = next((client, part.classes) for client, part in whole.items())
    for client, part in whole.items():
        differing = sorted({*part.classes} ^ {*classes})
        require(
            not differing,
            f"the classes of {client} and {first} differ ({list_some(differing)}): give all "
            "clients the same names, also for classes that a client has no samples of",
        )
    return classes


def _agree_on_vocabulary(whole: Mapping[str, Dataset]) -> tuple[str, ...]:
    """Return the vocabulary of all clients; refuse clients that have others."""
    first, *others = whole
    vocabulary = whole[first].vocabulary
    differing = [client for client in others if whole[client].vocabulary != vocabulary]
    require(
        not differing,
        f"the vocabularies of {first} and {list_some(differing)} differ: give all clients one",
    )
    return vocabulary


def _relabel(part: Dataset | Split, classes: tuple[str, ...], which: str) -> Split:
    """Return a client's split with the indices of `classes` as labels."""
    if isinstance(part, Split):
        return part
    split: Split = getattr(part, which)
    index = torch.tensor([classes.index(name) for name in part.classes])
    return Split(split.inputs, index[split.labels])


def _concatenate(splits: Mapping[str, Split], numbers: Mapping[str, int]) -> Split:
    """Put the samples of clients one after another."""
    first, like = next((client, split.inputs) for client, split in splits.items())
    for client, split in splits.items():
        require(
            _kind(split.inputs) == _kind(like),
            f"inputs of {client} are {_kind(split.inputs)}, those of {first} {_kind(like)}: give "
            "all clients the same shape and type",
        )
    owners = [torch.full((len(split),), numbers[client]) for client, split in splits.items()]
    inputs, labels = ([getattr(s, n) for s in splits.values()] for n in ("inputs", "labels"))
    joined = map_inputs(lambda *leaves: torch.cat(leaves), *inputs)
    return Split(joined, torch.cat(labels), torch.cat(owners))


def _kind(inputs: InputTree) -> str:
    leaves = {path.removeprefix("inputs"): leaf for path, leaf in name_leaves(inputs).items()}
    kinds = {
        name: f"{leaf.dtype} of shape {tuple(leaf.shape[1:])}" for name, leaf in leaves.items()
    }
    return ", ".join(f"{name} {kind}".strip() for name, kind in kinds.items())


def _normalisation(
    whole: Sequence[Dataset], train: Sequence[Split]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and std that all data sets have, or else those of all training samples."""
    scales = {(part.mean, part.std) for part in whole}
    if len(scales) == 1:
        return scales.pop()
    return fit_normalisation(torch.cat([split.inputs for split in train]))
