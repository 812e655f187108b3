"""The optimizer's step of a cohort, in place."""

import torch
from torch import Tensor
from torch.optim.sgd import sgd as fused_sgd

from fedfm.core.sgd import Sgd
from fedfm.core.trees import Tree
from fedfm.engine.layout import arrange, memory_view

LARGE = 65536
"""Numbers from which on a tensor on a GPU is worth a kernel of its own."""


def update(
    params: Tree,
    grads: Tree,
    momenta: Tree,
    lowered: Tree,
    sgd: Sgd,
    constants: Tree | None = None,
) -> None:
    """One step of SGD on leaves [S, ...]; the `lowered` copies of some of them follow.

    m = rho m + gradient + constant + decay p, then p -= eta m. All tensors lie in memory as
    engine/layout.py has it, which fused kernels take for granted.
    """
    added = constants or {}
    rest: list[str] = []
    for name, param in params.items():
        single = param.is_cuda and param.dtype == torch.float32 and param.numel() >= LARGE
        if single or name in lowered:
            _update_alone(name, params, grads, momenta, lowered, sgd, added)
        else:
            rest.append(name)
    if rest:
        _update_together(rest, params, _sums(rest, grads, added), momenta, sgd)


def _update_alone(
    name: str, params: Tree, grads: Tree, momenta: Tree, lowered: Tree, sgd: Sgd, added: Tree
) -> None:
    from fedfm.engine.kernels.update import sgd_step

    low, constant = (memory_view(tree[name]) if name in tree else None for tree in (lowered, added))
    grad = memory_view(arrange(grads[name]))
    sgd_step(memory_view(params[name]), grad, memory_view(momenta[name]), low, sgd, constant)


def _sums(names: list[str], grads: Tree, added: Tree) -> list[Tensor]:
    """The gradients with what is added to some of them, by one kernel."""
    found = {name: memory_view(arrange(grads[name])) for name in names}
    if some := [name for name in names if name in added]:
        sums = torch._foreach_add([found[n] for n in some], [memory_view(added[n]) for n in some])
        found |= dict(zip(some, sums, strict=True))
    return [*found.values()]


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
