"""FedRep: clients train their own heads first, then the common body.

L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai. Exploiting Shared Representations for
Personalized Federated Learning. ICML 2021 (Algorithm 1).
"""

from dataclasses import dataclass
from typing import ClassVar

from fedfm.core.errors import require
from fedfm.methods.base import Stage
from fedfm.methods.fedper import FedPer


@dataclass(frozen=True)
class FedRep(FedPer):
    """In every round, `head_epochs` epochs of the head alone, then the usual epochs of the body.

    Momentum starts at zero in both stages. The part that is not trained takes no step and does not
    decay, but batch-norm statistics of the body move in both stages.

    Examples:
        >>> [stage.trains for stage in FedRep(head_epochs=5).stages]
        ['personal', 'shared']
    """

    name = "fedrep"
    claims: ClassVar[frozenset[str]] = frozenset({"stages"})

    head_epochs: int = 10
    """Epochs of the head in a round; the paper takes 10."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        require(self.head_epochs >= 1, f"fedrep: head_epochs must be >= 1, not {self.head_epochs}")

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The head, then the body."""
        return Stage(self.head_epochs, trains="personal"), Stage(trains="shared")
