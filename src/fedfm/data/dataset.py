"""A classification data set in memory: raw inputs (uint8 for images), labels, class names."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from fedfm.core.errors import require
from fedfm.data.augment import PAPERS, Augmentation


@dataclass(frozen=True)
class Split:
    """Samples and their labels.

    Examples:
        >>> import torch
        >>> Split(torch.zeros(6, 3, 8, 8, dtype=torch.uint8), torch.arange(6) % 2)
        Split(6 samples of shape (3, 8, 8))
    """

    inputs: Tensor
    """[N, ...]: uint8 images [N, C, H, W], or floats of any shape."""
    labels: Tensor
    """[N] class indices, int64."""
    clients: Tensor | None = None
    """[N] the client that each sample belongs to, int64, where the data say so."""

    def __post_init__(self) -> None:
        """Refuse anything but tensors."""
        for name in ("inputs", "labels", *(["clients"] if self.clients is not None else [])):
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
        return f"Split({len(self)} samples of shape {tuple(self.inputs.shape[1:])})"

    def check(self, where: str, classes: int, clients: int = 0) -> None:
        """Refuse samples that cannot be trained on."""
        require(len(self) > 0, f"{where}: no samples")
        require(
            len(self.inputs) == len(self),
            f"{where}: {len(self.inputs)} inputs but {len(self)} labels",
        )
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
        if self.inputs.is_floating_point():
            self._check_finite(where)

    def _check_finite(self, where: str) -> None:
        bad = (~torch.isfinite(self.inputs)).flatten(1).any(1).nonzero()
        first = int(bad[0]) if len(bad) else 0
        require(
            len(bad) == 0,
            f"{where}: {len(bad)} samples hold NaN or Inf (the first is number {first}): remove or "
            "fill them",
        )

    def subset(self, indices: Tensor) -> "Split":
        """Return some of the samples.

        Args:
            indices: [M], in the order that is wanted.

        Returns:
            The M samples.
        """
        clients = None if self.clients is None else self.clients[indices]
        return Split(self.inputs[indices], self.labels[indices], clients)

    def sort_by_content(self) -> "Split":
        """Return the samples in an order that depends on their values alone, not on their files.

        The order is that of a hash of label and input, so neighbours have nothing in common.
        """
        inputs = self.inputs.cpu().contiguous().numpy().reshape(len(self), -1)
        hashes = [
            hashlib.blake2b(sample.tobytes(), digest_size=16, salt=str(label).encode()).digest()
            for sample, label in zip(inputs, self.labels.tolist(), strict=True)
        ]
        order = sorted(range(len(self)), key=hashes.__getitem__)
        return self.subset(torch.tensor(order))


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


@dataclass(frozen=True)
class Dataset:
    """A training and a test split, the class names and the normalisation.

    Inputs stay as they were read. A network sees (inputs - mean) / std, per channel (or feature),
    in the units of the raw inputs.

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
        require(
            self.train.inputs.shape[1:] == self.test.inputs.shape[1:],
            f"data '{self.name}': training inputs have shape {tuple(self.train.inputs.shape[1:])}, "
            f"test inputs {tuple(self.test.inputs.shape[1:])}",
        )
        require(
            self.augmentation is None or len(self.shape) == 3,
            f"data '{self.name}': only images [C, H, W] can be augmented, not inputs of shape "
            f"{self.shape}: set augment to false",
        )
        self._check_normalisation()
        if not self.keep_order:
            for part in ("train", "test"):
                object.__setattr__(self, part, getattr(self, part).sort_by_content())
            object.__setattr__(self, "keep_order", True)  # a copy need not be sorted again

    def _check_normalisation(self) -> None:
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
        bytes_ = self.train.inputs.dtype == torch.uint8 and int(self.train.inputs.max()) > 1
        require(
            not bytes_ or max(self.std) > 1 or max(self.mean) > 1 or self.mean == (0.0,),
            f"data '{self.name}': mean and std are in units of the stored values, 0 to 255 here, "
            "not 0 to 1: multiply them by 255",
        )

    def _to_python_types(self) -> None:
        """Convert names and numbers to Python's types."""
        for what in ("classes", "clients"):
            names = getattr(self, what)
            is_list = isinstance(names, Iterable) and not isinstance(names, str)
            require(
                is_list and all(isinstance(name, str) for name in names),
                f"data '{self.name}': {what} must be a list of names, not {names!r}",
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
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train.inputs.shape[1:])

    def normalise(self, inputs: Tensor) -> Tensor:
        """Return inputs as a network sees them: (inputs - mean) / std.

        Args:
            inputs: [N, ...], raw.

        Returns:
            [N, ...] in float32.
        """
        trailing = (1,) * (len(self.shape) - 1)
        mean, std = (torch.tensor(v, dtype=torch.float64) for v in (self.mean, self.std))
        centred = inputs - mean.reshape(-1, *trailing).to(inputs.device)
        return (centred / std.reshape(-1, *trailing).to(inputs.device)).float()

    @cached_property
    def digest(self) -> str:
        """A digest of all inputs and labels, and of whom they belong to."""
        parts = [(s.inputs, s.labels, s.clients) for s in (self.train, self.test)]
        return fingerprint(tensor for part in parts for tensor in part if tensor is not None)
