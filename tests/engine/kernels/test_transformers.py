"""Whole transformers in bf16 without a GPU: kernels are interpreted, the rest is torch's."""

import pytest
import torch
from torch import Tensor, nn

from fedfm.core.trees import stack
from fedfm.engine.networks import BoundNetwork, copy_model
from fedfm.engine.stacked_networks import MappedNetwork, StackedNetwork, stack_network
from fedfm.engine.stacking import mapping, tokens
from fedfm.methods.base import Model
from tests.engine.networks import Headed, VisionTransformer

CLIENTS, BATCH, NEAR = 3, 4, 0.04


@pytest.fixture(autouse=True)
def kernels_everywhere(monkeypatch):
    for module in (mapping, tokens):
        monkeypatch.setattr(module, "runs_kernels", lambda x: True)


def gradients(net: BoundNetwork, model: Model, inputs: Tensor) -> list[Tensor]:
    """Return the outputs, and the gradients of a loss of all clients; [S, ...]."""
    leaves = net.bind(net.prepare(model))
    features, logits = net(inputs)
    grads = torch.autograd.grad(features.square().mean() + logits.sin().sum(), leaves)
    return [features.detach(), logits.detach(), *grads]


def off(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm())


def compare(module: nn.Module, net: StackedNetwork, inputs: Tensor) -> None:
    """Compare with float64, client by client in its own network."""
    models = []
    for seed in range(CLIENTS):
        torch.manual_seed(seed)
        for parameter in module.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
        models.append(copy_model(module))
    model = Model(stack([m.params for m in models]), stack([m.buffers for m in models]))
    exact = MappedNetwork(module.double())
    with pytest.MonkeyPatch.context() as patch:
        for each in (mapping, tokens):
            patch.setattr(each, "runs_kernels", lambda x: False)
        expected = gradients(exact, model.map(_double), inputs.double())
    found = gradients(net, model, inputs)
    names = ["features", "logits", *model.params]
    far = {n: off(f, e) for n, f, e in zip(names, found, expected, strict=True) if off(f, e) > NEAR}
    assert not far
    assert any(off(f, e) > 1e-5 for f, e in zip(found, expected, strict=True)), "nothing was low"


def _double(tree):
    return {name: leaf.double() for name, leaf in tree.items()}


def test_a_mapped_transformer_in_bf16():
    module, inputs = VisionTransformer(), torch.randn(CLIENTS, BATCH, 3, 8, 8)
    net = stack_network(module, inputs[:2], torch.bfloat16)
    assert isinstance(net, MappedNetwork)
    compare(module, net, inputs)


def test_layers_of_concatenated_clients_in_bf16():
    body = nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.LayerNorm(24), nn.Linear(24, 8, False))
    module, inputs = Headed(body, 48), torch.randn(CLIENTS, BATCH, 6, 8)
    net = stack_network(module, inputs[:2], torch.bfloat16)
    assert type(net) is StackedNetwork
    compare(module, net, inputs)
