"""A classification data set in memory: raw inputs (core/inputs.py), labels, class names."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedfm.core.errors import require
from fedfm.core.inputs import (
    InputTree,
    describe_inputs,
    holds_ids,
    input_leaves,
    input_shape,
    is_quantity,
    map_inputs,
)
from fedfm.data.augment import PAPERS, Augmentation
from fedfm.data.split import Split, fingerprint


@dataclass(frozen=True)
class Dataset:
    """A training and a test split, the class names and the normalisation.

    Inputs stay as they were read. A network sees (inputs - mean) / std, per channel (or feature),
    in the units of the raw inputs. Token ids and masks reach it unchanged, and so do the floats of
    inputs that are a dict or a tuple: normalise these yourself.

    Examples:
        >>> import torch
        >>> train = Split(torch.randn(90, 4), torch.arange(90) % 3)
        >>> test = Split(torch.randn(30, 4), torch.arange(30) % 3)
        >>> Dataset("mine", train, test, classes=("a", "b", "c"))
        Dataset('mine', 90 training and 30 test samples of shape (4,), 3 classes)
    """

    name: str
    """The name in reports."""
    train: Split
    """The training samples, which are divided among the clients."""
    test: Split
    """The test samples, which no client trains on."""
    classes: tuple[str, ...]
    """The names of the C classes."""
    mean: tuple[float, ...] = (0.0,)
    """One number for each channel (or feature), or one for all."""
    std: tuple[float, ...] = (1.0,)
    """The standard deviations that belong to `mean`."""
    clients: tuple[str, ...] = field(default=(), kw_only=True)
    """The names of the clients that samples belong to; empty if the data do not say."""
    vocabulary: tuple[str, ...] = field(default=(), kw_only=True)
    """The words of inputs that are token ids [N, T], by id; empty if the data do not say."""
    columns: tuple[Any, ...] = field(default=(), kw_only=True)
    """How the columns of a table became numbers (data/columns.py); empty for other data."""
    augment: bool | Augmentation = field(default=False, kw_only=True)
    """Whether training images are cropped, flipped and rotated, and how often."""
    keep_order: bool = field(default=False, kw_only=True)
    """Whether samples stay in the given order.

    By default they are sorted by content: the same samples, from whatever files, give the same
    partition and the same results.
    """

    def __post_init__(self) -> None:
        """Refuse data that cannot be trained on."""
        self._to_python_types()
        for part, split in (("training", self.train), ("test", self.test)):
            where = f"data '{self.name}', {part} split"
            require(isinstance(split, Split), f"{where}: give a Split(inputs, labels)")
            split.check(where, len(self.classes), len(self.clients))
        require(
            self.train.clients is not None or not self.clients,
            f"data '{self.name}': there are names of clients, but no client for each training "
            "sample: give Split(inputs, labels, clients)",
        )
        training, test = describe_inputs(self.train.inputs), describe_inputs(self.test.inputs)
        require(
            training == test,
            f"data '{self.name}': training inputs have {training}, test inputs {test}: give both "
            "one form (cut, pad or convert them)",
        )
        self._check_vocabulary()
        self._check_normalisation()
        require(
            self.augmentation is None or len(self.shape) == 3,
            f"data '{self.name}': only images [C, H, W] can be augmented, not inputs of shape "
            f"{self.shape}: set augment to false",
        )
        if not self.keep_order:
            for part in ("train", "test"):
                object.__setattr__(self, part, getattr(self, part).sort_by_content())
            object.__setattr__(self, "keep_order", True)  # a copy need not be sorted again

    def _check_vocabulary(self) -> None:
        """Refuse ids outside the vocabulary."""
        for split in (self.train, self.test) if self.vocabulary else ():
            ids, words = split.inputs, len(self.vocabulary)
            require(
                isinstance(ids, Tensor) and holds_ids(ids),
                f"data '{self.name}': with a vocabulary, inputs are one tensor of token ids "
                f"(torch.int64), not {describe_inputs(ids)}",
            )
            low, high = int(ids.min()), int(ids.max())
            require(
                low >= 0 and high < words,
                f"data '{self.name}': token ids run from {low} to {high}, but the vocabulary has "
                f"{words} words, 0 to {words - 1}: give unknown words the id of one of them",
            )

    def _check_normalisation(self) -> None:
        inputs = self.train.inputs
        if not (isinstance(inputs, Tensor) and is_quantity(inputs)):
            require(
                (self.mean, self.std, self.augmentation) == ((0.0,), (1.0,), None),
                f"data '{self.name}': mean, std and augment are for inputs that are one tensor of "
                "images or numbers: leave them out, and normalise floats yourself",
            )
            return
        channels, given = (*self.shape, 1)[0], (len(self.mean), len(self.std))
        require(
            set(given) <= {1, channels},
            f"data '{self.name}': mean and std have {given[0]} and {given[1]} numbers, but "
            f"inputs have {channels} channels (or columns): give one for each, or one for all",
        )
        require(
            min(self.std) > 0,
            f"data '{self.name}': std must be above 0: use 1 for a constant channel",
        )
        bytes_ = inputs.dtype == torch.uint8 and int(inputs.max()) > 1
        require(
            not bytes_ or max(self.std) > 1 or max(self.mean) > 1 or self.mean == (0.0,),
            f"data '{self.name}': mean and std are in units of the stored values, 0 to 255 here, "
            "not 0 to 1: multiply them by 255",
        )

    def _to_python_types(self) -> None:
        """Convert names and numbers to Python's types."""
        for what in ("classes", "clients", "vocabulary"):
            names = getattr(self, what)
            is_list = isinstance(names, Iterable) and not isinstance(names, str)
            require(
                is_list and all(isinstance(name, str) for name in names),
                f"data '{self.name}': {what} must be a list of names, not {names!r:.100}",
            )
            object.__setattr__(self, what, tuple(map(str, names)))
        for name in ("mean", "std"):
            object.__setattr__(self, name, tuple(map(float, getattr(self, name))))

    def __repr__(self) -> str:
        """Describe the data without their values."""
        return (
            f"Dataset({self.name!r}, {len(self.train)} training and {len(self.test)} test samples "
            f"of shape {self.shape}, {len(self.classes)} classes)"
        )

    @property
    def augmentation(self) -> Augmentation | None:
        """The random changes of training images; None: they stay as they are."""
        return (
            (PAPERS if self.augment else None) if isinstance(self.augment, bool) else self.augment
        )

    @property
    def shape(self) -> Any:
        """The shape of one input; a dict or tuple of shapes if it is one."""
        return input_shape(self.train.inputs)

    @cached_property
    def example(self) -> InputTree:
        """Some samples as a network sees them, to try it on: leaves [M, ...].

        They are the first of each split, and those with the smallest and the largest ids.
        """
        parts = [split.subset(_pick_extremes(split)).inputs for split in (self.train, self.test)]
        return self.normalise(map_inputs(lambda *leaves: torch.cat(leaves), *parts))

    def normalise(self, inputs: InputTree) -> Any:
        """Return inputs as a network sees them: (inputs - mean) / std.

        Args:
            inputs: [N, ...], raw.

        Returns:
            [N, ...] in float32; token ids and masks as they are.
        """
        return map_inputs(lambda leaf: self._normalise(leaf) if is_quantity(leaf) else leaf, inputs)

    def _normalise(self, inputs: Tensor) -> Tensor:
        one_tensor = isinstance(self.train.inputs, Tensor)
        trailing = (1,) * (len(self.shape) - 1) if one_tensor else ()
        mean, std = (torch.tensor(v, dtype=torch.float64) for v in (self.mean, self.std))
        centred = inputs - mean.reshape(-1, *trailing).to(inputs.device)
        return (centred / std.reshape(-1, *trailing).to(inputs.device)).float()

    @cached_property
    def digest(self) -> str:
        """A digest of all inputs and labels, and of whom they belong to."""
        parts = [(*input_leaves(s.inputs), s.labels, s.clients) for s in (self.train, self.test)]
        return fingerprint(tensor for part in parts for tensor in part if tensor is not None)


def _pick_extremes(split: Split) -> Tensor:
    """Return the first sample and those with the smallest and the largest ids, as indices."""
    rows = {0}
    for leaf in input_leaves(split.inputs):
        if holds_ids(leaf) and leaf.numel():
            rows |= {int(place) // leaf[0].numel() for place in (leaf.argmin(), leaf.argmax())}
    return torch.tensor(sorted(rows))
