"""The step of an optimizer that the engine has never seen."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfm.engine.update import Clock, update
from fedfm.optim import Optimizer


@dataclass(frozen=True)
class SignSgd(Optimizer):
    """p -= eta sign(m), with a running mean m of the gradient."""

    moments = ("mean",)

    def step(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        moments: Mapping[str, list[Tensor]],
        rate: float | Tensor,
        count: Tensor | None,
    ) -> None:
        for param, grad, mean in zip(params, grads, moments["mean"], strict=True):
            mean.lerp_(grad, 0.5)
            param.sub_(rate * mean.sign())


def test_an_own_optimizer_also_updates_copies_of_low_precision() -> None:
    optimizer = SignSgd(0.25)
    params = {"weight": torch.tensor([[1.0, -1.0, 0.5]]), "bias": torch.tensor([[2.0]])}
    low = {"weight": params["weight"].to(torch.bfloat16)}
    grads = {"weight": torch.tensor([[3.0, -2.0, 0.0]], dtype=torch.bfloat16)}
    grads["bias"] = torch.tensor([[-1.0]])
    moments = {"mean": {name: torch.zeros_like(param) for name, param in params.items()}}
    clock = Clock(optimizer, (), torch.device("cpu"))
    update(params, grads, moments, low, optimizer, clock)
    assert params["weight"].tolist() == [[0.75, -0.75, 0.5]]
    assert params["bias"].tolist() == [[2.25]]
    assert low["weight"].tolist() == params["weight"].tolist()
    assert moments["mean"]["weight"].tolist() == [[1.5, -1.0, 0.0]]
