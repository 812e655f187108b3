"""The optimizer's step of a cohort, in place."""

import torch
from torch import Tensor
from torch.optim.sgd import sgd as fused_sgd

from fedfm.core.sgd import Sgd
from fedfm.core.trees import Tree
from fedfm.engine.layout import arranged, dense

LARGE = 65536
"""Numbers from which on a tensor on a GPU is worth a kernel of its own."""


def update(params: Tree, grads: Tree, momenta: Tree, lowered: Tree, sgd: Sgd) -> None:
    """One step of SGD on leaves [S, ...]; the `lowered` copies of some of them follow.

    m = rho m + gradient + decay p, then p -= eta m. All tensors lie in memory as engine/layout.py
    has it, which fused kernels take for granted.
    """
    rest: list[tuple[Tensor, Tensor, Tensor]] = []
    for name, param in params.items():
        grad, momentum = dense(arranged(grads[name])), dense(momenta[name])
        single = param.is_cuda and param.dtype == torch.float32 and param.numel() >= LARGE
        if single or name in lowered:
            from fedfm.engine.kernels.update import sgd_step

            low = dense(lowered[name]) if name in lowered else None
            sgd_step(dense(param), grad, momentum, low, sgd)
        else:
            rest.append((dense(param), grad, momentum))
    if rest:
        _update_together(rest, sgd)


def _update_together(leaves: list[tuple[Tensor, Tensor, Tensor]], sgd: Sgd) -> None:
    params, grads, momenta = map(list, zip(*leaves, strict=True))
    buffers: list[Tensor | None] = [*momenta]
    fused_sgd(
        params,
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
