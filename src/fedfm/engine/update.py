"""The SGD step of a cohort, in place."""

import torch
from torch import Tensor
from torch.optim.sgd import sgd as fused_sgd

from fedfm.core.sgd import Sgd
from fedfm.core.trees import Tree
from fedfm.engine.layout import arrange, memory_view

LARGE = 65536
"""A tensor of at least this size gets its own kernel launch on a GPU."""


def update(
    params: Tree,
    grads: Tree,
    momenta: Tree,
    low_params: Tree,
    sgd: Sgd,
    constants: Tree | None = None,
) -> None:
    """Take one step of SGD on leaves [S, ...], and update the copies `low_params`.

    m = rho m + gradient + constant + decay p, then p -= eta m. All tensors must have the layout of
    engine/layout.py, which fused kernels require.
    """
    added = constants or {}
    rest: list[str] = []
    for name, param in params.items():
        single = param.is_cuda and param.dtype == torch.float32 and param.numel() >= LARGE
        if single or name in low_params:
            _update_alone(name, params, grads, momenta, low_params, sgd, added)
        else:
            rest.append(name)
    if rest:
        _update_together(rest, params, _add_constants(rest, grads, added), momenta, sgd)


def _update_alone(
    name: str, params: Tree, grads: Tree, momenta: Tree, low_params: Tree, sgd: Sgd, added: Tree
) -> None:
    from fedfm.engine.kernels.update import sgd_step

    low, constant = (
        memory_view(tree[name]) if name in tree else None for tree in (low_params, added)
    )
    grad = memory_view(arrange(grads[name]))
    sgd_step(memory_view(params[name]), grad, memory_view(momenta[name]), low, sgd, constant)


def _add_constants(names: list[str], grads: Tree, added: Tree) -> list[Tensor]:
    """Return the gradients plus the constants that some of them have, by one kernel."""
    views = {name: memory_view(arrange(grads[name])) for name in names}
    if some := [name for name in names if name in added]:
        sums = torch._foreach_add([views[n] for n in some], [memory_view(added[n]) for n in some])
        views |= dict(zip(some, sums, strict=True))
    return [*views.values()]


def _update_together(
    names: list[str], params: Tree, grads: list[Tensor], momenta: Tree, sgd: Sgd
) -> None:
    buffers: list[Tensor | None] = [memory_view(momenta[name]) for name in names]
    fused_sgd(
        [memory_view(params[name]) for name in names],
        grads,
        buffers,
        weight_decay=sgd.weight_decay,
        momentum=sgd.momentum,
        lr=sgd.lr,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        fused=True,
    )
