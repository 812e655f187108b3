"""The settings of a partition."""

from dataclasses import dataclass
from math import isfinite
from typing import Literal, get_args

from fedfm.core.errors import require, require_numbers, unknown_name_error

Kind = Literal[
    "iid",
    "niid1",
    "niid2",
    "niid3",
    "dirichlet",
    "shards",
    "majority",
    "quantity",
    "feature",
    "natural",
    "own",
]
Transform = Literal["rotation", "noise", "brightness"]


@dataclass(frozen=True)
class Partition:
    """How a data set is divided; each field applies only to the kinds that its note names.

    Examples:
        >>> import fedfm
        >>> from fedfm.data.partition import tabulate
        >>> digits = fedfm.data.load("digits")
        >>> table = tabulate(digits, 10, Partition("niid3", missing=8), seed=0)
        >>> (table > 0).sum(axis=1)  # each client holds two of the ten classes
        array([2, 2, 2, 2, 2, 2, 2, 2, 2, 2])
    """

    kind: Kind = "niid1"
    """Which samples a client gets.

    Drawn: an even share (iid), Dirichlet shares of each class (niid1), dominant classes (niid2),
    missing classes (niid3), a Dirichlet mixture of classes in equal sizes (dirichlet), a few
    classes (shards), few samples mostly of one class (majority), unequal sizes (quantity), an even
    share with changed inputs (feature).
    Given: the clients that the data name (natural), or yours, from a file or from Python (own).
    """
    beta: float = 0.5
    """niid1, dirichlet, quantity: the parameter of the Dirichlet draws; smaller is more uneven."""
    min_samples: int = 10
    """niid1, quantity: the shares are redrawn until every client holds this many samples."""
    dominance: float = 23 / 3
    """niid2: how many samples of a dominant class a client holds for one of another class."""
    missing: int = 1
    """niid3: client k lacks this many classes; it holds k, k+1, ... k+C-missing-1 (mod C).

    All samples are used if clients of equal size allow it. Otherwise every client gets the same
    number of samples of each class it holds, the largest number that every class can give, and the
    rest stays unused. (A class without samples does not count.)
    """
    refill: bool = False
    """dirichlet: whether a class that is used up is dealt again, so that clients share samples.

    Otherwise the last clients get what is left.
    """
    shards: int = 2
    """shards: how many pieces of the samples, sorted by class, a client gets."""
    size: int = 5000
    """majority: how many samples a client holds; the rest of the data is not used."""
    share: float = 0.5
    """majority: how many of these are of the client's own class, k mod C; the others are even."""
    transform: Transform = "rotation"
    """feature: what differs between the clients: rotation (of images), noise or brightness."""
    severity: float = 1.0
    """feature: how much the last client's inputs are changed; the first client's are not.

    At 1 they are rotated by 45 degrees, or get noise of standard deviation 1, or are brighter by
    1; the last two are in units of normalised inputs.
    """
    file: str = ""
    """own: a .npy or .json file of index lists, or of the client of each training sample."""
    digest: str = ""
    """own: the digest of the data with their clients: recorded, never set."""

    def __post_init__(self) -> None:
        """Refuse settings that fit no data set."""
        require_numbers(self)
        if self.kind not in get_args(Kind):
            raise unknown_name_error("partition kind", self.kind, get_args(Kind))
        if self.transform not in get_args(Transform):
            raise unknown_name_error("transform", self.transform, get_args(Transform))
        require(
            isfinite(self.beta) and self.beta > 0, f"beta must be above 0 (it is {self.beta:g})"
        )
        require(self.min_samples >= 1, f"min_samples must be at least 1 (it is {self.min_samples})")
        require(
            1 <= self.dominance <= 1e6,
            f"dominance must be from 1 to 1,000,000 (it is {self.dominance:g})",
        )
        require(self.missing >= 0, f"missing must be at least 0 (it is {self.missing})")
        require(self.shards >= 1, f"shards must be at least 1 (it is {self.shards})")
        require(self.size >= 1, f"size must be at least 1 (it is {self.size})")
        require(0 <= self.share <= 1, f"share must be from 0 to 1 (it is {self.share:g})")
        require(
            isfinite(self.severity) and self.severity >= 0,
            f"severity must be at least 0 (it is {self.severity:g})",
        )

    @property
    def given(self) -> bool:
        """Whether the data say whose samples they are, so that nothing is drawn."""
        return self.kind in ("natural", "own")

    @property
    def changes_inputs(self) -> bool:
        """Whether clients see changed inputs, which depend on the seed."""
        return self.kind == "feature"
