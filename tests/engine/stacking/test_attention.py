"""Attention leaves a map over clients and computes what it computes for each of them."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfm.engine.stacking import attention
from fedfm.engine.stacking.attention import AttendTogether
from fedfm.engine.stacking.mapping import ClientMap

CLIENTS, SAMPLES, HEADS, TOKENS, WIDTH = 3, 4, 2, 5, 8


class Attending(nn.Module):
    """Calls attention by hand, in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.inputs, self.way = nn.Linear(WIDTH, 3 * WIDTH), way
        self.slope = nn.Parameter(torch.ones(HEADS, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.inputs(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts
        common = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
        distances = torch.arange(TOKENS, dtype=x.dtype)
        attend = F.scaled_dot_product_attention
        match self.way:
            case "causal":
                return attend(query, key, value, None, 0.0, True)
            case "common mask":
                return attend(query, key, value, attn_mask=common)
            case "mask of samples":
                return attend(query, key, value, x.sum(-1)[:, None, None, :] > -1)
            case "trained mask":
                return attend(query, key, value, self.slope * distances, scale=0.5)
            case "one head":
                return attend(query[:, 0], key[:, 0], value[:, 0])
            case "nothing of clients":
                ones = distances.new_ones(1, HEADS, TOKENS, WIDTH // HEADS)
                return attend(ones, ones, ones) + query
            case _:
                return attend(query=query, key=key, value=value)


WAYS = ["plain", "causal", "common mask", "mask of samples", "trained mask", "one head"]


@pytest.mark.parametrize("way", [*WAYS, "nothing of clients"])
def test_attention_outside_the_map_is_attention_inside(monkeypatch, way):
    torch.manual_seed(0)
    module = Attending(way).double()
    inputs = torch.randn(CLIENTS, SAMPLES, TOKENS, WIDTH, dtype=torch.float64)
    weights = [
        torch.randn(CLIENTS, *leaf.shape, dtype=torch.float64, requires_grad=True)
        for leaf in module.parameters()
    ]
    shapes: list[torch.Size] = []

    def note(**arguments: Tensor) -> dict[str, Tensor]:
        shapes.append(arguments["query"].shape)
        return arguments

    fold = attention._fold_samples
    monkeypatch.setattr(attention, "_fold_samples", lambda whole: note(**fold(whole)))
    ends = []
    for leaves in (False, True):
        if leaves:  # as on a GPU
            monkeypatch.setattr(
                ClientMap, "_leave_map", lambda net, _: AttendTogether(net._leave_any)
            )
        mapped = ClientMap(module, [], [], [])
        with mapped.slots.hold(weights):
            y = mapped(inputs)
            ends.append([y, *torch.autograd.grad(y.sin().sum(), weights, allow_unused=True)])
    heads = () if way == "one head" else (HEADS,)
    folded = (CLIENTS * SAMPLES, *heads, TOKENS, WIDTH // HEADS)
    assert shapes == ([] if way == "nothing of clients" else [folded])
    for one, other in zip(*ends, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.allclose(one, other, atol=1e-12)
