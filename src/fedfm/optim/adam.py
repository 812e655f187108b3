"""Adam and AdamW.

D. P. Kingma, J. Ba. Adam: A Method for Stochastic Optimization. ICLR 2015 (Algorithm 1).
I. Loshchilov, F. Hutter. Decoupled Weight Decay Regularization. ICLR 2019 (Algorithm 2).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedfm.optim.base import Leaves, Optimizer


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam: p -= eta m^ / (sqrt(v^) + eps), with bias-corrected means of gradient and square.

    Examples:
        >>> Adam(lr=0.001).betas
        (0.9, 0.999)
    """

    moments = ("mean", "square")
    counts_steps = True
    fused: ClassVar[Callable[..., Any]] = staticmethod(torch._fused_adam_)
    """torch.optim's kernel."""
    decoupled: ClassVar[bool] = False
    """Whether weight decay is apart from the gradient."""

    betas: tuple[float, float] = (0.9, 0.999)
    """beta_1 and beta_2: how slowly the means of the gradient and of its square move."""
    eps: float = 1e-8
    """What is added to the denominator."""
    weight_decay: float = 0.0
    """The weight decay, added to the gradient."""

    def step(
        self,
        params: Leaves,
        grads: Leaves,
        moments: Mapping[str, Leaves],
        rate: float | Tensor,
        count: Tensor | None,
    ) -> None:
        """Take a step in place."""
        assert count is not None
        self.fused(
            params,
            grads,
            moments["mean"],
            moments["square"],
            [],
            [count] * len(params),
            lr=rate,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=self.weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: p -= eta decay p, apart from the gradient.

    Examples:
        >>> AdamW(lr=0.001, weight_decay=0.01).weight_decay
        0.01
    """

    fused = staticmethod(torch._fused_adamw_)
    decoupled = True
