"""The networks: names, sizes, starts and outputs, each against a second way of getting it."""

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfm import models
from fedfm.core.errors import UserError
from fedfm.models.resnet import ResNet, ResNet18, ResNet50
from fedfm.models.small import MLP, SmallCNN

DEPTHS = {"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3)}
FOLDABLE = {
    *(nn.Conv2d, nn.Linear, nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.ReLU, nn.Identity),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten),
}
EVERY: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("resnet18", (3, 32, 32), {"width": 8}),
    ("resnet18", (1, 28, 28), {"width": 8, "stem": "cifar", "norm": "group", "groups": 4}),
    ("resnet50", (3, 32, 32), {"width": 8, "stem": "cifar"}),
    ("resnet50", (2, 33, 47), {"width": 8, "norm": "group", "groups": 2}),
    ("cnn", (1, 8, 8), {}),
    ("cnn", (3, 28, 20), {"norm": "batch", "features": 5}),
    ("cnn", (1, 3, 3), {"norm": "group", "channels": [8, 8, 16]}),
    ("mlp", (20,), {}),
    ("mlp", (1, 8, 8), {"hidden": [7], "norm": "batch"}),
    ("mlp", (20,), {"hidden": []}),
]


def on_paper(name: str, **options: Any) -> nn.Module:
    """A model without memory: only its names and shapes."""
    with torch.device("meta"):
        return models.build(name, **options)


def conv_and_norm(conv: str, norm: str, *weight: int) -> list[tuple[str, tuple[int, ...]]]:
    """The entries of a torchvision convolution, followed by its batch norm."""
    shape = (weight[0],)
    parts = [("weight", shape), ("bias", shape), ("running_mean", shape), ("running_var", shape)]
    norms = [(f"{norm}.{part}", size) for part, size in parts]
    return [(f"{conv}.weight", weight), *norms, (f"{norm}.num_batches_tracked", ())]


def torchvision_layout(name: str, classes: int) -> list[tuple[str, tuple[int, ...]]]:
    """What torchvision's state dict of this network holds, in its order."""
    wide = 4 if name == "resnet50" else 1
    layout = conv_and_norm("conv1", "bn1", 64, 3, 7, 7)
    inside = 64
    for stage, depth in enumerate(DEPTHS[name]):
        mid = 64 << stage
        for index in range(depth):
            at = f"layer{stage + 1}.{index}"
            kernels = [(mid, inside, 3, 3), (mid, mid, 3, 3)]
            if wide == 4:
                kernels = [(mid, inside, 1, 1), (mid, mid, 3, 3), (4 * mid, mid, 1, 1)]
            for number, kernel in enumerate(kernels, 1):
                layout += conv_and_norm(f"{at}.conv{number}", f"{at}.bn{number}", *kernel)
            if index == 0 and (stage > 0 or wide == 4):
                down = f"{at}.downsample"
                layout += conv_and_norm(f"{down}.0", f"{down}.1", mid * wide, inside, 1, 1)
            inside = mid * wide
    return [*layout, ("fc.weight", (classes, inside)), ("fc.bias", (classes,))]


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_resnet_has_the_state_dict_of_torchvision_in_its_order(name: str) -> None:
    model = on_paper(name, shape=(3, 224, 224), classes=1000, stem="imagenet")
    found = [(key, tuple(value.shape)) for key, value in model.state_dict().items()]
    assert found == torchvision_layout(name, 1000)


def test_a_torchvision_state_dict_loads_strictly() -> None:
    layout = torchvision_layout("resnet18", 10)
    foreign = {key: torch.full(shape, 0.5) for key, shape in layout}
    model = ResNet18((3, 224, 224), 10)
    model.load_state_dict(foreign, strict=True)
    assert all(bool((parameter == 0.5).all()) for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "stem", "classes", "count"),
    [
        ("resnet18", "imagenet", 10, 11_181_642),
        ("resnet18", "cifar", 10, 11_173_962),
        ("resnet18", "imagenet", 1000, 11_689_512),
        ("resnet50", "cifar", 100, 23_705_252),
        ("resnet50", "imagenet", 1000, 25_557_032),
    ],
)
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_resnet_parameter_counts(name: str, stem: str, classes: int, count: int, norm: str) -> None:
    model = on_paper(name, shape=(3, 32, 32), classes=classes, stem=stem, norm=norm)
    assert models.count_parameters(model) == count


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_group_norm_keeps_the_parameter_names_and_has_no_buffers(name: str) -> None:
    batch = on_paper(name, shape=(3, 32, 32), classes=10)
    group = on_paper(name, shape=(3, 32, 32), classes=10, norm="group")
    assert list(group.state_dict()) == [key for key, _ in batch.named_parameters()]
    assert {m.num_groups for m in group.modules() if isinstance(m, nn.GroupNorm)} == {32}


def reference(model: ResNet, stem: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """The network in evaluation mode, written once more as formulas on its state dict."""
    state = model.state_dict()

    def apply(x: Tensor, conv: str, norm: str, stride: int) -> Tensor:
        weight = state[f"{conv}.weight"]
        x = F.conv2d(x, weight, stride=stride, padding=(weight.shape[-1] - 1) // 2)
        mean, variance, scale, bias = (
            state[f"{norm}.{part}"].view(-1, 1, 1)
            for part in ("running_mean", "running_var", "weight", "bias")
        )
        out: Tensor = (x - mean) / (variance + 1e-5).sqrt() * scale + bias
        return out

    large = stem == "imagenet"
    x = apply(x, "conv1", "bn1", 2 if large else 1).relu()
    x = F.max_pool2d(x, 3, 2, 1) if large else x
    strided = "conv2" if isinstance(model, ResNet50) else "conv1"
    for stage, depth in enumerate(model.depths, 1):
        for index in range(depth):
            at, stride = f"layer{stage}.{index}", 2 if stage > 1 and index == 0 else 1
            y, last = x, 3 if isinstance(model, ResNet50) else 2
            for k in range(1, last + 1):
                conv = f"conv{k}"
                y = apply(y, f"{at}.{conv}", f"{at}.bn{k}", stride if conv == strided else 1)
                y = y.relu() if k < last else y
            if f"{at}.downsample.0.weight" in state:
                x = apply(x, f"{at}.downsample.0", f"{at}.downsample.1", stride)
            x = (x + y).relu()
    features = x.mean((2, 3))
    return features, features @ state["fc.weight"].T + state["fc.bias"]


@pytest.mark.parametrize("stem", ["imagenet", "cifar"])
@pytest.mark.parametrize("kind", [ResNet18, ResNet50])
def test_resnet_computes_its_formulas(kind: type[ResNet], stem: str) -> None:
    torch.manual_seed(0)
    model = kind((3, 64, 64), 5, stem=stem, width=4).double().eval()
    for key, value in model.state_dict().items():
        if "running" in key or "bn" in key or "downsample.1" in key:
            value.copy_(torch.rand_like(value.double()) + 0.5)
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    for found, expected in zip(model(x), reference(model, stem, x), strict=True):
        torch.testing.assert_close(found, expected)


def test_resnet_starts_as_torchvision_does() -> None:
    torch.manual_seed(0)
    model = ResNet18((3, 32, 32), 10)
    for name, part in model.named_modules():
        if isinstance(part, nn.Conv2d):
            fan_out = part.out_channels * part.kernel_size[0] ** 2
            assert part.weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.05), name
            assert part.weight.mean().item() == pytest.approx(0, abs=0.1 * math.sqrt(2 / fan_out))
        if isinstance(part, nn.BatchNorm2d):
            assert bool((part.weight == 1).all())
            assert bool((part.bias == 0).all())
    bound = 1 / math.sqrt(512)
    assert 0.99 * bound < model.get_parameter("fc.weight").abs().max().item() <= bound
    assert 0 < model.get_parameter("fc.bias").abs().max().item() <= bound


@pytest.mark.parametrize(("name", "shape", "options"), EVERY)
def test_features_are_all_that_comes_before_the_last_linear_layer(
    name: str, shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    model = models.build(name, shape=shape, classes=6, **options)
    features, logits = model(torch.randn(3, *shape))
    assert features.shape == (3, models.feature_dim(model, torch.zeros(1, *shape)))
    assert logits.shape == (3, 6)
    head = list(model.modules())[-1]
    assert head is model.get_submodule(str(model.head_name))
    torch.testing.assert_close(head(features), logits)
    assert models.feature_dim(model) == models.feature_dim(model, torch.zeros(1, *shape))


@pytest.mark.parametrize(("name", "shape", "options"), EVERY)
def test_every_weight_learns(name: str, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = models.build(name, shape=shape, classes=6, **options)
    _, logits = model(torch.randn(4, *shape))
    torch.autograd.backward(F.cross_entropy(logits, torch.tensor([0, 1, 2, 5])))
    still = [key for key, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert still == []


@pytest.mark.parametrize(("name", "shape", "options"), EVERY)
def test_models_hold_only_layers_that_fold(
    name: str, shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    model = models.build(name, shape=shape, classes=6, **options)
    assert {type(part) for part in model.modules() if not list(part.children())} <= FOLDABLE


@pytest.mark.parametrize(("name", "shape", "options"), EVERY)
def test_a_copy_is_independent_and_the_same(
    name: str, shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    model = models.build(name, shape=shape, classes=6, **options).eval()
    x = torch.randn(2, *shape)
    copied, (_, before) = copy.deepcopy(model), model(x)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(copied(x)[1], before)
    assert not torch.equal(model(x)[1], before)


@pytest.mark.parametrize(
    ("size", "pools", "flat"), [(2, 0, 32 * 4), (3, 0, 32 * 9), (4, 1, 32 * 4), (28, 2, 32 * 49)]
)
def test_cnn_pools_while_the_map_is_large(size: int, pools: int, flat: int) -> None:
    model = SmallCNN((1, size, size), 10)
    assert sum(isinstance(part, nn.MaxPool2d) for part in model.modules()) == pools
    hidden = next(part for part in model.modules() if isinstance(part, nn.Linear))
    assert (hidden.in_features, hidden.out_features) == (flat, 64)


def kinds(model: models.BodyAndHead) -> str:
    """The layers of a body, in order."""
    return " ".join(type(part).__name__ for part in model.body.children())


def test_cnn_has_the_layers_asked_for() -> None:
    plain = SmallCNN((3, 4, 4), 10)
    assert kinds(plain) == "Conv2d ReLU MaxPool2d Conv2d ReLU Flatten Linear ReLU"
    assert "body.0.bias" in plain.state_dict()
    group = SmallCNN((3, 4, 4), 10, channels=(4,), norm="group", groups=2)
    assert kinds(group) == "Conv2d GroupNorm ReLU MaxPool2d Flatten Linear ReLU"
    assert "body.0.bias" not in group.state_dict()
    assert [m.num_groups for m in group.modules() if isinstance(m, nn.GroupNorm)] == [2]
    batch = SmallCNN((3, 4, 4), 10, channels=(4,), norm="batch")
    assert kinds(batch) == "Conv2d BatchNorm2d ReLU MaxPool2d Flatten Linear ReLU"


def test_mlp_has_the_layers_asked_for() -> None:
    model = MLP((5, 2), 3, hidden=(8, 4), norm="batch")
    assert kinds(model) == "Flatten Linear BatchNorm1d ReLU Linear BatchNorm1d ReLU"
    assert kinds(MLP((5, 2), 3, hidden=(8, 4))) == "Flatten Linear ReLU Linear ReLU"
    linears = [part for part in model.modules() if isinstance(part, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linears] == [(10, 8), (8, 4), (4, 3)]


def test_mlp_without_hidden_layers_is_softmax_regression() -> None:
    model, x = MLP((2, 3), 4, hidden=()), torch.randn(5, 2, 3)
    features, logits = model(x)
    assert torch.equal(features, x.flatten(1))
    weight, bias = model.head.parameters()
    torch.testing.assert_close(logits, x.flatten(1) @ weight.T + bias)


@pytest.mark.parametrize(
    ("name", "shape", "options", "pattern"),
    [
        ("resnet81", (3, 8, 8), {}, r"model 'resnet81': did you mean 'resnet18'\?"),
        ("cnn", (3, 8, 8), {"feature": 3}, r"'feature': did you mean 'features'\?"),
        ("cnn", (3, 8, 8), {"stem": "cifar"}, "'cnn'.*'stem'.*channels, features, norm, groups"),
        ("mlp", (3, 8, 8), {"groups": 4}, "'mlp'.*'groups'.*hidden, norm"),
        ("resnet18", (3, 8, 8), {"hidden": 4}, "'hidden'.*stem, norm, groups, width"),
        ("resnet18", (3, 8, 8), {"stem": "cifer"}, r"stem 'cifer': did you mean 'cifar'\?"),
        ("resnet18", (3, 8, 8), {"norm": "none"}, "norm 'none'"),
        ("mlp", (3, 8, 8), {"norm": "group"}, "norm 'group'"),
        ("cnn", (3, 8, 8), {"norm": 5}, "norm '5'"),
        ("resnet18", (20,), {}, r"\(20,\).*'mlp'"),
        ("cnn", (8, 8), {}, r"\(8, 8\).*'mlp'"),
        ("cnn", (1, 0, 8), {}, r"shape.*\(1, 0, 8\)"),
        ("cnn", (1, 8, 8), {"features": "64"}, "features.*'64'"),
        ("cnn", (1, 8, 8), {"features": True}, "features.*True"),
        ("cnn", (1, 8, 8), {"channels": 16}, r"channels.*\b16\b.*list"),
        ("mlp", (8,), {"hidden": [4, 0]}, r"hidden.*\[4, 0\]"),
        ("resnet18", (3, 8, 8), {"width": 8, "norm": "group"}, r"'group'.*\b8\b.*\b32\b"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_reason(
    name: str, shape: tuple[int, ...], options: dict[str, Any], pattern: str
) -> None:
    with pytest.raises(UserError, match=pattern):
        models.build(name, shape=shape, classes=10, **options)


@pytest.mark.parametrize(
    ("name", "shape"), [("resnet50", (3, 8, 8)), ("cnn", (1, 8, 8)), ("mlp", (4,))]
)
def test_no_classes_are_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"classes.*\b0\b"):
        models.build(name, shape=shape, classes=0)


def test_a_user_model_joins_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(shape: tuple[int, ...], classes: int, *, depth: int = 1) -> nn.Module:
        return MLP(shape, classes, hidden=(5,) * depth)

    monkeypatch.setitem(models.MODELS, "mine", mine)
    assert models.option_names("mine") == ["depth"]
    assert models.feature_dim(models.build("mine", shape=(3,), classes=2, depth=2)) == 5


def test_parameter_count_takes_frozen_weights_but_no_buffers() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).requires_grad_(False)
    assert models.count_parameters(model) == 12 + 4 + 4 + 4


def test_feature_dim_leaves_the_model_alone() -> None:
    model = models.build("cnn", shape=(1, 8, 8), classes=3, norm="batch").train()
    before = copy.deepcopy(model.state_dict())
    assert models.feature_dim(model, torch.zeros(1, 1, 8, 8)) == 64
    assert all(part.training for part in model.modules())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_feature_dim_refuses_what_it_cannot_know() -> None:
    bare = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(UserError, match=r"Sequential.*feature_dim"):
        models.feature_dim(bare)
    with pytest.raises(UserError, match="WithFeatures"):
        models.feature_dim(bare, torch.zeros(1, 4))
    with pytest.raises(UserError, match=r"MLP.*\(5,\)"):
        models.feature_dim(MLP((4,), 2), torch.zeros(1, 5))
