"""Whole transformers in bf16 without a GPU: kernels are interpreted, the rest is torch's."""

import pytest
import torch
from torch import nn

from fedfm.engine.stacked_networks import MappedNetwork, StackedNetwork, stack_network
from tests.engine.gradients import BATCH, CLIENTS, distances, run_kernels
from tests.engine.networks import Headed, VisionTransformer

NEAR = 0.04


@pytest.fixture(autouse=True)
def kernels_everywhere(monkeypatch):
    run_kernels(monkeypatch, everywhere=True)


def test_a_mapped_transformer_in_bf16():
    module, inputs = VisionTransformer(), torch.randn(CLIENTS, BATCH, 3, 8, 8)
    net = stack_network(module, inputs[:2], torch.bfloat16)
    assert isinstance(net, MappedNetwork)
    off = distances(module, net, inputs)
    assert 1e-4 < max(off.values()) < NEAR, off


def test_layers_of_concatenated_clients_in_bf16():
    body = nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.LayerNorm(24), nn.Linear(24, 8, False))
    module, inputs = Headed(body, 48), torch.randn(CLIENTS, BATCH, 6, 8)
    net = stack_network(module, inputs[:2], torch.bfloat16)
    assert type(net) is StackedNetwork
    off = distances(module, net, inputs)
    assert 1e-4 < max(off.values()) < NEAR, off
