"""Stacked layers against separate ones: outputs, gradients and running statistics in float64."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfm.engine.stacking import convolution
from fedfm.engine.stacking.layers import Unstackable, stack_module
from fedfm.engine.stacking.pooling import StackedMaxPool2d

CLIENTS, BATCH = 3, 4


def separate(layer: nn.Module) -> list[nn.Module]:
    """One copy per client, every number of it different."""
    torch.manual_seed(0)
    copies = [copy.deepcopy(layer).double() for _ in range(CLIENTS)]
    for network in copies:
        for name, value in network.state_dict().items():
            if value.is_floating_point():
                value.copy_(
                    torch.rand_like(value) + 0.5 if "var" in name else torch.randn_like(value)
                )
    return copies


def together(copies: list[nn.Module]) -> nn.Module:
    """The copies as one stacked module."""
    made = stack_module(copies[0])
    for name, _ in list(made.named_parameters()):
        path, _, attribute = name.rpartition(".")
        values = torch.stack([network.get_parameter(name).detach() for network in copies])
        setattr(made.get_submodule(path), attribute, nn.Parameter(values))
    for name, buffer in made.named_buffers():
        buffer.data = torch.stack([network.get_buffer(name) for network in copies])
    return made


def assert_stacks(layer: nn.Module, *shape: int, training: bool = True) -> None:
    """The stacked layer does to samples [B, *shape] of three clients what each copy does to its."""
    copies = separate(layer)
    ours = together(copies).train(training)
    x = torch.randn(CLIENTS * BATCH, *shape, dtype=torch.float64, requires_grad=True)
    y = ours(x)
    cotangent = torch.randn_like(y)
    (stacked_grad,) = torch.autograd.grad((y * cotangent).sum(), [x], retain_graph=True)
    torch.autograd.backward((y * cotangent).sum())
    for client, network in enumerate(copies):
        rows = slice(client * BATCH, (client + 1) * BATCH)
        own_x = x[rows].detach().requires_grad_()
        own_y = network.train(training)(own_x)
        torch.testing.assert_close(y[rows], own_y, rtol=1e-10, atol=1e-10)
        torch.autograd.backward((own_y * cotangent[rows]).sum())
        torch.testing.assert_close(stacked_grad[rows], own_x.grad, rtol=1e-10, atol=1e-10)
        for name, parameter in network.named_parameters():
            grad = ours.get_parameter(name).grad
            assert grad is not None
            torch.testing.assert_close(grad[client], parameter.grad, rtol=1e-10, atol=1e-10)
        for name, buffer in network.named_buffers():
            if name.endswith("num_batches_tracked"):
                continue  # the cohort's business, see tests/engine/test_graphs.py
            torch.testing.assert_close(ours.get_buffer(name)[client], buffer)


CONVOLUTIONS = {
    "3x3": nn.Conv2d(3, 5, 3),
    "1x1": nn.Conv2d(3, 5, 1, bias=False),
    "padded": nn.Conv2d(3, 5, 3, padding=1),
    "strided": nn.Conv2d(3, 5, 3, stride=2, padding=1, bias=False),
    "uneven": nn.Conv2d(3, 5, (2, 3), stride=(1, 2), padding=(0, 2)),
    "larger stride than kernel": nn.Conv2d(3, 5, 2, stride=3),
    "whole image": nn.Conv2d(3, 5, (7, 6)),
}
ONE_BY_ONE = {
    "grouped": nn.Conv2d(4, 6, 3, groups=2, padding=1),
    "depthwise": nn.Conv2d(4, 4, 3, groups=4, bias=False),
    "dilated": nn.Conv2d(4, 6, 3, dilation=2, padding=2),
}


@pytest.fixture
def ways(monkeypatch) -> list[str]:
    """How the convolutions were done."""
    taken: list[str] = []

    def noted(way: str, real):
        def call(*how):
            taken.append(way)
            return real(*how)

        return call

    monkeypatch.setattr(
        convolution, "_conv_by_patches", noted("patches", convolution._conv_by_patches)
    )
    monkeypatch.setattr(
        convolution.StackedConv2d,
        "_one_by_one",
        noted("single", convolution.StackedConv2d._one_by_one),
    )
    return taken


@pytest.mark.parametrize("limit", [10**9, 0], ids=["patches", "single"])
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_convolutions(monkeypatch, ways, kind, limit):
    monkeypatch.setattr(convolution, "PATCHES", {"cpu": limit})
    assert_stacks(CONVOLUTIONS[kind], 3, 7, 6)
    assert ways == ["patches" if limit else "single"]


@pytest.mark.parametrize("kind", ONE_BY_ONE)
def test_groups_and_dilation_are_done_client_by_client(ways, kind):
    assert_stacks(ONE_BY_ONE[kind], 4, 7, 6)
    assert ways == ["single"]


def test_groups_of_channels_can_be_further_clients():
    """So a GPU convolves them, by a kernel that knows no groups."""
    torch.manual_seed(0)
    x, weight = torch.randn(6, 8, 5, 4), torch.randn(2, 12, 2, 3, 3)
    each = zip(x.chunk(2), weight, strict=True)
    expected = torch.cat([F.conv2d(part, w, padding=1, groups=4) for part, w in each])
    rows, filters = convolution.split_groups(x, weight, 4)
    each = zip(rows.chunk(8), filters, strict=True)
    by_group = torch.cat([F.conv2d(part, w, padding=1) for part, w in each])
    torch.testing.assert_close(convolution.join_groups(by_group, 2, 4), expected)


def test_patches_are_counted_per_client(monkeypatch, ways):
    layer, patches = nn.Conv2d(3, 5, 3), BATCH * math.prod((3, 7, 6)) * 9
    for limit in (patches, patches - 1):
        monkeypatch.setattr(convolution, "PATCHES", {"cpu": limit})
        assert_stacks(layer, 3, 7, 6)
    assert ways == ["patches", "single"]


def test_weights_that_lie_as_patches_do_give_the_same(monkeypatch):
    """A cohort's weights [S, O, I, h, w] lie in memory as [S, O, h, w, I]."""
    copies = separate(nn.Conv2d(3, 5, 3))
    ours, x = together(copies), torch.randn(CLIENTS * BATCH, 3, 6, 6, dtype=torch.float64)
    expected = ours(x)
    weight = ours.get_parameter("weight").detach()
    lying = weight.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    assert not lying.is_contiguous()
    ours.weight = nn.Parameter(lying)
    torch.testing.assert_close(ours(x), expected)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("before", [(), (5,), (5, 2)])
def test_linear_layers_take_any_number_of_axes(before, bias):
    assert_stacks(nn.Linear(7, 6, bias=bias), *before, 7)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("tracked", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(
    ("kind", "shape"),
    [(nn.BatchNorm1d, (5,)), (nn.BatchNorm1d, (5, 3)), (nn.BatchNorm2d, (5, 3, 2))],
)
def test_batch_norm_looks_at_each_client(kind, shape, affine, tracked, training):
    layer = kind(5, affine=affine, track_running_stats=tracked, momentum=0.3, eps=1e-3)
    if affine or tracked:
        assert_stacks(layer, *shape, training=training)
    else:
        with pytest.raises(Unstackable, match=rf"\({kind.__name__}\).*statistics"):
            stack_module(layer)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.GroupNorm(2, 6), (6, 3, 2)),
        (nn.GroupNorm(3, 6, eps=0.1), (6,)),
        (nn.GroupNorm(2, 6, affine=False), (6, 4)),
        (nn.LayerNorm(6), (6,)),
        (nn.LayerNorm(6, eps=0.1), (5, 6)),
        (nn.LayerNorm((5, 6)), (5, 6)),
        (nn.LayerNorm((5, 6)), (2, 5, 6)),
        (nn.LayerNorm(6, bias=False), (5, 6)),
        (nn.LayerNorm((5, 6), elementwise_affine=False), (5, 6)),
    ],
    ids=str,
)
def test_norms_within_a_sample(layer, shape):
    assert_stacks(layer, *shape)


@pytest.mark.parametrize("padding", [None, 2])
def test_embeddings_of_all_clients_are_read_at_once(padding):
    copies = separate(nn.Embedding(5, 3, padding_idx=padding))
    ours, ids = together(copies), torch.arange(CLIENTS * BATCH * 2).remainder(5).view(-1, 2)
    vectors = ours(ids)
    torch.autograd.backward(vectors.square().sum())
    for client, network in enumerate(copies):
        own_vectors = network(ids[client * BATCH : (client + 1) * BATCH])
        assert torch.equal(vectors[client * BATCH : (client + 1) * BATCH], own_vectors)
        torch.autograd.backward(own_vectors.square().sum())
        grad = ours.get_parameter("weight").grad
        assert grad is not None
        torch.testing.assert_close(grad[client], network.get_parameter("weight").grad)


@pytest.mark.parametrize(
    "layer",
    [
        nn.MaxPool2d(2),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.MaxPool2d((2, 3), stride=(1, 2)),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(2, dilation=2),
    ],
    ids=str,
)
def test_max_pools(layer):
    assert_stacks(layer, 3, 7, 7)


@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1, ceil_mode=True)], ids=str)
def test_pooling_goes_before_relu_with_the_same_bits(pool):
    layers = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(inplace=True), pool, nn.Flatten())
    swapped = stack_module(layers)
    assert isinstance(swapped, nn.Sequential)
    kinds = nn.Conv2d, nn.MaxPool2d, nn.ReLU, nn.Flatten
    assert all(isinstance(layer, kind) for layer, kind in zip(swapped, kinds, strict=True))
    torch.manual_seed(0)
    x = torch.randint(-2, 3, (8, 1, 7, 7)).float()  # many are equal, many zero
    x[0, 0, 0, 0] = torch.nan
    results = []
    for tail in (layers[1:], swapped[1:]):
        leaf = x.clone().requires_grad_()
        y = tail(leaf * 1)
        (grad,) = torch.autograd.grad((y * torch.arange(1.0, y.numel() + 1).view_as(y)).sum(), leaf)
        results.append((y, grad))
    torch.testing.assert_close(*results, rtol=0, atol=0, equal_nan=True)


def test_nothing_works_in_place(monkeypatch):
    """On a GPU layers return views that autograd does not let anybody change."""

    class View(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return torch.nn.functional.max_pool2d(x, 2).movedim(1, -1).contiguous().movedim(-1, 1)

        @staticmethod
        def backward(ctx, grad):
            return grad.repeat_interleave(2, -1).repeat_interleave(2, -2)

    monkeypatch.setattr(StackedMaxPool2d, "forward", lambda self, x: View.apply(x))
    layers = nn.Sequential(
        nn.Conv2d(1, 8, 1), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.ReLU(True)
    )
    made = together([layers.double()])
    torch.autograd.backward(made(torch.ones(2, 1, 4, 4, dtype=torch.float64)).sum())
    assert all(parameter.grad is not None for parameter in made.parameters())


def test_layers_stay_where_swapping_them_would_change_something():
    kinds = nn.ReLU6(), nn.MaxPool2d(2), nn.ReLU(), nn.AvgPool2d(2)
    kept = stack_module(nn.Sequential(*kinds))
    assert isinstance(kept, nn.Sequential)
    assert all(isinstance(layer, type(kind)) for layer, kind in zip(kept, kinds, strict=True))
    indices = stack_module(nn.Sequential(nn.ReLU(), nn.MaxPool2d(2, return_indices=True)))
    assert len(indices(torch.ones(1, 1, 2, 2))) == 2


class Attention(nn.Module):
    """A transformer's block in plain tensor operations: tokens [B, T, d] -> [B, T, d]."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.inputs(self.first(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        weights = (query @ key.mT / math.sqrt(query.shape[-1])).softmax(-1)
        x = x + self.output((weights @ value).transpose(1, 2).flatten(2))
        return x + self.narrow(torch.nn.functional.gelu(self.wide(self.second(x))))


def test_a_transformers_block_stacks():
    assert_stacks(nn.Sequential(Attention(), Attention()), 5, 8)


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (nn.Conv2d(3, 5, 3, padding="same"), "'0'.*padding='same'"),
        (nn.Conv2d(3, 5, 3, padding="valid"), "'0'.*padding='valid'"),
        (nn.Conv2d(3, 5, 3, padding=1, padding_mode="circular"), "padding_mode='circular'"),
        (nn.MultiheadAttention(8, 2), r"\(MultiheadAttention\).*weights"),
        (nn.Embedding(4, 2, max_norm=1.0), "'0'.*max_norm"),
    ],
    ids=str,
)
def test_what_has_no_stacked_form_is_refused_by_name(layer, why):
    with pytest.raises(Unstackable, match=why):
        stack_module(nn.Sequential(layer))


def test_the_network_itself_is_left_as_it_is():
    module = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.MaxPool2d(2))
    stack_module(module)
    assert [type(layer) for layer in module] == [nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d]


@pytest.mark.parametrize(("inputs", "weights"), [("bfloat16", "float32"), ("float32", "bfloat16")])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(5, 4), (5,)),
        (nn.Conv2d(2, 4, 3), (2, 6, 6)),
        (nn.Conv2d(2, 4, 3, groups=2), (2, 6, 6)),
    ],
    ids=["linear", "convolution", "groups"],
)
def test_factors_of_unlike_precision_meet_in_the_lower_one(layer, shape, inputs, weights):
    """Frozen weights stay in float32, and a network may go on in float32 by itself."""
    copies = separate(layer)
    ours = together(copies)
    x = torch.randn(CLIENTS * BATCH, *shape, dtype=torch.float64)
    exact = ours(x)
    product = ours.to(getattr(torch, weights))(x.to(getattr(torch, inputs)))
    assert product.dtype == torch.bfloat16
    assert (product.double() - exact).norm() < 0.02 * exact.norm()
