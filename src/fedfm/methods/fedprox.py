"""FedProx: a pull towards the global model.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith. Federated Optimization in
Heterogeneous Networks. MLSys 2020 (Eq. 2).
"""

from dataclasses import dataclass

from fedfm.core.errors import require
from fedfm.core.trees import Tree, tree_map
from fedfm.methods.base import Model, Piece


@dataclass(frozen=True)
class FedProx(Piece):
    """A pull towards the global model x that the client received last: gradient + mu (w - x).

    Where models travel rarely (FedFM-Lite), x stays the same until the next one arrives, while the
    client goes on from its own model.

    Examples:
        >>> from fedfm import FedFM, compose
        >>> compose([FedProx(mu=0.1), FedFM()]).pull
        0.1
    """

    name = "fedprox"
    step_cost = 1.1

    mu: float = 0.01
    """The pull; the paper tries {0.001, 0.01, 0.1, 1}."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        require(self.mu >= 0, f"fedprox: mu must be >= 0, not {self.mu}")

    @property
    def pull(self) -> float:
        """Mu."""
        return self.mu

    def prepare(self, client: Tree, received: Model, down: Tree) -> Tree:
        """Return the received model x."""
        return {"reference": received.params}

    def correct(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        """Add mu (w - x)."""
        return tree_map(lambda g, w, x: g + self.mu * (w - x), grads, params, held["reference"])
