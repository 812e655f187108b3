"""A baseline without a federation: all data in one place."""

from dataclasses import dataclass
from typing import ClassVar

from fedfm.methods.base import Piece


@dataclass(frozen=True)
class Centralised(Piece):
    """One model is trained on the samples of all clients, as if data could be pooled.

    A round is `epochs` epochs over all training samples. Nothing is counted as sent, and momentum
    starts at zero in every round, as it does at a client.

    Examples:
        >>> from fedfm import compose
        >>> compose(Centralised()).pools_data
        True
    """

    name = "centralised"
    claims: ClassVar[frozenset[str]] = frozenset({"baseline"})
    pools_data = True
