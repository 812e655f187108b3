"""The second pass of a step: gradients at the parameters plus an offset."""

from typing import NamedTuple

import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.trees import Tree
from fedfm.engine.layout import copy_arranged
from fedfm.engine.networks import BoundNetwork
from fedfm.methods.base import Model

NAME = "second pass"
"""The name of the companion network; names of pieces have no spaces."""


class SecondModel(NamedTuple):
    """Memory for a cohort's parameters plus an offset, and for buffers of the second pass.

    So the parameters stay where they are, and running statistics are those of the first pass.
    """

    params: Tree
    low_params: Tree
    buffers: Tree
    """Buffers that a forward pass may change."""
    frozen: Tree
    """Frozen parameters, in the memory of the first pass."""

    @staticmethod
    def allocate(net: BoundNetwork, model: Model) -> "SecondModel":
        """Return memory for the models [S, ...] of a cohort."""
        names = {name for name, p in net.original.named_parameters() if not p.requires_grad}
        frozen, changing = model.split(names)
        params, buffers = (trees.tree_map(copy_arranged, tree) for tree in changing)
        return SecondModel(params, net.to_low_precision(params), buffers, frozen.buffers)

    def rows(self, which: slice) -> "SecondModel":
        """Return the memory of some of the clients."""
        return SecondModel(*(trees.rows(tree, which) for tree in self))


class SecondPass:
    """A companion network that is bound to such memory."""

    def __init__(self, net: BoundNetwork, model: SecondModel) -> None:
        self.net, self.model = net.companion(NAME, shared=False), model
        params, buffers = model.params | model.low_params, model.buffers | model.frozen
        self.leaves: list[Tensor] = self.net.bind(Model(params, buffers))
        self.net.module.train()

    def move(self, params: Tree, buffers: Tree, offset: Tree) -> None:
        """Write params + offset [s, ...], and the buffers, into the memory."""
        for name, leaf in self.model.params.items():
            if name in offset:
                torch.add(params[name], offset[name], out=leaf)
            else:
                leaf.copy_(params[name])
        for name, low in self.model.low_params.items():
            low.copy_(self.model.params[name])
        for name, leaf in self.model.buffers.items():
            leaf.copy_(buffers[name])
