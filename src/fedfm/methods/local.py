"""A baseline without a federation: every client by itself."""

from dataclasses import dataclass
from typing import ClassVar

from fedfm.methods.base import Piece, Task


@dataclass(frozen=True)
class Local(Piece):
    """Every client trains a model of its own on its own samples; nothing is sent.

    Examples:
        >>> from fedfm import compose
        >>> compose(Local()).keeps_models
        True
    """

    name = "local"
    claims: ClassVar[frozenset[str]] = frozenset({"baseline"})

    def personal(self, task: Task) -> frozenset[str]:
        """Return the names of all parameters and buffers."""
        return frozenset([*task.model.params, *task.model.buffers])
