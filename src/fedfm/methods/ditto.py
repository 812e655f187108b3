"""Ditto: beside the global model, every client trains a model of its own.

T. Li, S. Hu, A. Beirami, V. Smith. Ditto: Fair and Robust Federated Learning Through
Personalization. ICML 2021 (Algorithm 1).
"""

from dataclasses import dataclass
from typing import ClassVar

from fedfm.core.errors import require
from fedfm.methods.base import Piece, Stage
from fedfm.methods.fedprox import FedProx


@dataclass(frozen=True)
class Ditto(Piece):
    """A second model v_i per client, pulled towards the global model x: gradient + lambda (v - x).

    The global model is trained as without Ditto, on the same batches. A client's second model
    starts at the first global model that the client receives; the paper starts all of them at the
    initial model, which is the same where all clients take part in the first round.

    Examples:
        >>> from fedfm import FedFM, compose
        >>> compose([Ditto(strength=0.1), FedFM()]).keeps_models
        True
    """

    name = "ditto"
    step_cost = 2.1
    claims: ClassVar[frozenset[str]] = frozenset({"stages"})

    strength: float = 1.0
    """lambda; the paper chooses from {0.1, 1, 2}."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        require(self.strength >= 0, f"ditto: strength must be >= 0, not {self.strength}")

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The global model, then the client's own."""
        return Stage(), Stage(second=FedProx(mu=self.strength))
