"""The optimizer's step of a cohort, in place."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedfm.core.trees import Tree
from fedfm.engine.layout import arrange, memory_view
from fedfm.optim import Adam, Optimizer, Sgd

LARGE = 65536
"""A tensor of at least this size gets its own kernel launch on a GPU."""


class Clock:
    """The learning rate and the number of a cohort's next step."""

    def __init__(
        self, optimizer: Optimizer, factors: Sequence[float], device: torch.device
    ) -> None:
        self.lr, self.factors = optimizer.lr, factors
        self.rate: float | Tensor = optimizer.lr
        self.count: Tensor | None = None
        if optimizer.counts_steps:
            self.count = torch.ones((), dtype=torch.float32, device=device)
        self.moves = optimizer.counts_steps or bool(factors)
        """Whether steps differ, so that each needs `set`."""

    def set(self, step: int) -> None:
        """Set the rate and the number of a step, which is counted from 0 in a round."""
        if self.factors:
            self.set_rate(self.lr * self.factors[step])
        if self.count is not None:
            self.count.fill_(step + 1)

    def set_rate(self, rate: float) -> None:
        """Set the rate."""
        self.rate = rate


class FixedClock(Clock):
    """A clock that captured steps can read: a rate that changes is a tensor at one address."""

    def __init__(self, optimizer: Optimizer, factors: Sequence[float], like: Tensor) -> None:
        super().__init__(optimizer, factors, like.device)
        self.last = self.lr
        if factors:
            self.rate = torch.tensor(self.lr, dtype=like.dtype, device=like.device)

    def set_rate(self, rate: float) -> None:
        """Write the rate, unless it is there already."""
        if rate != self.last:
            assert isinstance(self.rate, Tensor)
            self.rate.fill_(rate)
            self.last = rate


def update(
    params: Tree,
    grads: Tree,
    moments: Tree,
    low_params: Tree,
    optimizer: Optimizer,
    clock: Clock,
    constants: Tree | None = None,
    factor: float = 1.0,
) -> None:
    """Take one step on leaves [S, ...], and update the copies `low_params`.

    `moments` has a tree like the parameters for each name in `optimizer.moments`. The gradients are
    multiplied by `factor`, then `constants` are added. All tensors must have the layout of
    engine/layout.py, which fused kernels require.
    """
    added, together = constants or {}, list[str]()
    for name, param in params.items():
        large = param.is_cuda and param.dtype == torch.float32 and param.numel() >= LARGE
        if large or name in low_params:
            _update_alone(name, params, grads, moments, low_params, optimizer, clock, added, factor)
        else:
            together.append(name)
    if together:
        _update_together(together, params, grads, moments, optimizer, clock, added, factor)


def _update_alone(
    name: str,
    params: Tree,
    grads: Tree,
    moments: Tree,
    low_params: Tree,
    optimizer: Optimizer,
    clock: Clock,
    added: Tree,
    factor: float,
) -> None:
    from fedfm.engine.kernels.update import adam_step, sgd_step

    low, constant = (
        memory_view(tree[name]) if name in tree else None for tree in (low_params, added)
    )
    param, grad = memory_view(params[name]), memory_view(arrange(grads[name]))
    means = {key: memory_view(moments[key][name]) for key in optimizer.moments}
    if isinstance(optimizer, Adam):
        assert clock.count is not None
        assert factor == 1, "only SGD's step takes corrections (folds_corrections)"
        adam_step(
            param, grad, **means, low=low, adam=optimizer,
            count=clock.count, constant=constant, rate=clock.rate,
        )  # fmt: skip
    else:
        assert isinstance(optimizer, Sgd)
        sgd_step(
            param, grad, **means, low=low, sgd=optimizer,
            constant=constant, rate=clock.rate, factor=factor,
        )  # fmt: skip


def _correct(names: list[str], grads: Tree, added: Tree, factor: float) -> list[Tensor]:
    """Return the gradients times a factor plus the constants that some have, by a kernel each."""
    views = {name: memory_view(arrange(grads[name])) for name in names}
    if factor != 1:
        views = dict(zip(names, torch._foreach_mul([*views.values()], factor), strict=True))
    if some := [name for name in names if name in added]:
        sums = torch._foreach_add([views[n] for n in some], [memory_view(added[n]) for n in some])
        views |= dict(zip(some, sums, strict=True))
    return [*views.values()]


def _update_together(
    names: list[str],
    params: Tree,
    grads: Tree,
    moments: Tree,
    optimizer: Optimizer,
    clock: Clock,
    added: Tree,
    factor: float,
) -> None:
    optimizer.step(
        [memory_view(params[name]) for name in names],
        _correct(names, grads, added, factor),
        {key: [memory_view(tree[name]) for name in names] for key, tree in moments.items()},
        clock.rate,
        clock.count,
    )
