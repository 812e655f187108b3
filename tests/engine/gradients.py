"""How far a stacked network's outputs and gradients are from those in float64."""

import pytest
import torch
from torch import Tensor, nn

from fedfm.core.trees import Tree, stack
from fedfm.engine.networks import BoundNetwork, copy_model
from fedfm.engine.stacked_networks import MappedNetwork, StackedNetwork
from fedfm.engine.stacking import mapping, tokens
from fedfm.methods.base import Model

CLIENTS, BATCH = 3, 4


def run_kernels(patch: pytest.MonkeyPatch, everywhere: bool) -> None:
    """Run the kernels of transformers on every device, or on none."""
    for module in (mapping, tokens):
        patch.setattr(module, "runs_kernels", lambda _: everywhere)


def gradients(net: BoundNetwork, model: Model, inputs: Tensor) -> dict[str, Tensor]:
    """Return the outputs, and the gradients of a loss of all clients by name; [S, ...]."""
    leaves = net.bind(net.prepare(model))
    features, logits = net(inputs)
    loss = features.square().mean() + logits.square().mean()
    grads = net.gradient_tree(torch.autograd.grad(loss, leaves))
    return {"features": features.detach(), "logits": logits.detach(), **grads}


def distances(module: nn.Module, net: StackedNetwork, inputs: Tensor) -> dict[str, float]:
    """Return the distance of every output and gradient from that in float64, relative to its size.

    The network is that of a module in float32 on the inputs' device; clients differ in weights.
    """
    models = list[Model]()
    for seed in range(CLIENTS):
        torch.manual_seed(seed)
        for parameter in module.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
        models.append(copy_model(module))
    model = Model(stack([m.params for m in models]), stack([m.buffers for m in models]))
    found = gradients(net, model, inputs)
    with pytest.MonkeyPatch.context() as patch:
        run_kernels(patch, everywhere=False)
        exact = MappedNetwork(module.double().cpu())
        expected = gradients(exact, model.map(_to_double), inputs.double().cpu())
    return {
        name: float((value.double().cpu() - expected[name]).norm() / expected[name].norm())
        for name, value in found.items()
    }


def _to_double(tree: Tree) -> Tree:
    return {name: leaf.double().cpu() for name, leaf in tree.items()}
