"""What an optimizer is: its settings, and one step on the leaves of a cohort.

An optimizer is one file in this folder, registered in `OPTIMIZERS` (optim/__init__.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedfm.core.errors import UserError

Leaves = list[Tensor]


@dataclass(frozen=True)
class Optimizer(ABC):
    """A local optimizer; its fields are the arguments of its class in torch.optim.

    A step works element by element, so leaves [S, ...] of several clients take it together.
    """

    lr: float
    """eta, the learning rate; a schedule multiplies it."""

    moments: ClassVar[tuple[str, ...]]
    """The names of its running means, each as large as the model, zero at the start of a round."""
    counts_steps: ClassVar[bool] = False
    """Whether a step depends on how many steps of the round came before."""
    folds_corrections: ClassVar[bool] = False
    """Whether gradient + a params + c is the same as a weight decay a and a constant c."""

    @abstractmethod
    def step(
        self,
        params: Leaves,
        grads: Leaves,
        moments: Mapping[str, Leaves],
        rate: float | Tensor,
        count: Tensor | None,
    ) -> None:
        """Take a step in place.

        Args:
            params: The parameters.
            grads: Their gradients, in their dtype and layout.
            moments: The running means by name, for each parameter.
            rate: The learning rate; a tensor [] that a captured step reads.
            count: [], the number of the step in this round, from 1, if `counts_steps`.
        """

    def accumulation(
        self, steps: Tensor, pull: float = 0.0, factors: Sequence[float] = ()
    ) -> Tensor:
        """Return how far K = steps [S] unit gradients move, in units of eta: SGD only."""
        raise UserError(
            f"only steps of SGD show the mean gradient behind them, not those of "
            f"{type(self).__name__}: use optimizer = 'sgd' with this method"
        )
