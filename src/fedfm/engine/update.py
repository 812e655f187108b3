"""The optimizer's step of a cohort, in place."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedfm.core.trees import Tree
from fedfm.engine.layout import arrange, memory_view
from fedfm.optim import Adam, AdamW, Optimizer, Sgd

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
    added, together, kernel = constants or {}, list[str](), _KERNELS.get(type(optimizer))
    for name, param in params.items():
        large = param.is_cuda and param.dtype == torch.float32 and param.numel() >= LARGE
        if kernel and (large or name in low_params):
            low, constant = (
                memory_view(tree[name]) if name in tree else None for tree in (low_params, added)
            )
            leaves = {key: memory_view(moments[key][name]) for key in optimizer.moments}
            leaves["param"], leaves["grad"] = memory_view(param), memory_view(arrange(grads[name]))
            kernel(optimizer, clock, factor, low=low, constant=constant, **leaves)
        else:
            together.append(name)
    if together:
        _update_together(together, params, grads, moments, optimizer, clock, added, factor)
        for name in low_params.keys() & {*together}:
            low_params[name].copy_(params[name])


def _step_adam(adam: Optimizer, clock: Clock, factor: float, **leaves: Tensor | None) -> None:
    from fedfm.engine.kernels.update import adam_step

    assert factor == 1, "only SGD's step takes corrections (folds_corrections)"
    adam_step(adam=adam, count=clock.count, rate=clock.rate, **leaves)  # type: ignore[arg-type]


def _step_sgd(sgd: Optimizer, clock: Clock, factor: float, **leaves: Tensor | None) -> None:
    from fedfm.engine.kernels.update import sgd_step

    sgd_step(sgd=sgd, rate=clock.rate, factor=factor, **leaves)  # type: ignore[arg-type]


_KERNELS: dict[type[Optimizer], Callable[..., None]] = {
    Sgd: _step_sgd,
    Adam: _step_adam,
    AdamW: _step_adam,
}
"""Optimizers whose step on a large parameter is one kernel; others take their own `step`."""


def _correct(
    names: list[str], grads: Tree, added: Tree, factor: float, dtype: torch.dtype
) -> list[Tensor]:
    """Return the gradients times a factor plus the constants that some have, by a kernel each."""
    views = {name: memory_view(arrange(grads[name].to(dtype))) for name in names}
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
        _correct(names, grads, added, factor, params[names[0]].dtype),
        {key: [memory_view(tree[name]) for name in names] for key, tree in moments.items()},
        clock.rate,
        clock.count,
    )
