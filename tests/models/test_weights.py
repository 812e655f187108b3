"""Pretrained weights under several libraries' names, and frozen layers."""

import logging

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedfm import UserError, models
from fedfm.models.weights import digest_file, freeze_layers, load_weights

SMALL = {"width": 8}
HUGGING_FACE = {"conv": "convolution", "bn": "normalization"}


def build(name="resnet18", classes=10, shape=(3, 32, 32), **options) -> nn.Module:
    return models.build(
        name, shape=shape, classes=classes, **{"stem": "imagenet", **SMALL, **options}
    )


def to_hugging_face(name: str) -> str:
    """The name that Hugging Face's ResNetForImageClassification has for one of torchvision's."""
    parts = name.split(".")
    if parts[0] in ("conv1", "bn1"):
        return f"resnet.embedder.embedder.{HUGGING_FACE[parts[0][:-1]]}.{parts[1]}"
    if parts[0] == "fc":
        return f"classifier.1.{parts[1]}"
    stage, block, layer, *rest = parts
    start = f"resnet.encoder.stages.{int(stage[-1]) - 1}.layers.{block}"
    if layer == "downsample":
        return f"{start}.shortcut.{['convolution', 'normalization'][int(rest[0])]}.{rest[1]}"
    return f"{start}.layer.{int(layer[-1]) - 1}.{HUGGING_FACE[layer[:-1]]}.{rest[0]}"


@pytest.fixture
def save(tmp_path):
    def write(weights, rename=lambda name: name):
        path = tmp_path / "weights.safetensors"
        save_file({rename(name): leaf.clone() for name, leaf in weights.items()}, path)
        return path

    return write


def assert_equal(model, weights, without=()):
    for name, leaf in model.state_dict().items():
        if name not in without:
            assert torch.equal(leaf, weights[name]), name


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
@pytest.mark.parametrize(
    "rename",
    [
        lambda name: name,
        to_hugging_face,
        lambda name: to_hugging_face(name).removeprefix("resnet."),
    ],
    ids=["torchvision", "hugging face", "hugging face without a prefix"],
)
def test_weights_of_other_libraries(save, name, rename):
    weights = build(name).state_dict()
    model = build(name)
    load_weights(model, save(weights, rename))
    assert_equal(model, weights)


def test_hugging_face_names_are_the_published_ones():
    names = {to_hugging_face(name) for name in build("resnet50").state_dict()}
    assert {
        "resnet.embedder.embedder.convolution.weight",
        "resnet.embedder.embedder.normalization.running_var",
        "resnet.encoder.stages.0.layers.0.shortcut.convolution.weight",
        "resnet.encoder.stages.3.layers.2.layer.2.normalization.num_batches_tracked",
        "classifier.1.bias",
    } <= names


def test_a_head_for_other_classes_keeps_its_initial_values(save, caplog):
    caplog.set_level(logging.INFO, "fedfm")
    weights = build(classes=1000).state_dict()
    model = build(classes=10)
    before = model.get_parameter("fc.weight").clone()
    load_weights(model, save(weights))
    assert torch.equal(model.get_parameter("fc.weight"), before)
    assert_equal(model, weights, without=("fc.weight", "fc.bias"))
    assert [record.name for record in caplog.records] == ["fedfm.models.weights"]


def test_a_file_may_lack_the_head_and_the_counters_of_batch_norm(save):
    weights = build().state_dict()
    body = {n: w for n, w in weights.items() if not n.endswith("tracked") and "fc" not in n}
    model = build()
    load_weights(model, save(body))
    assert_equal(model, weights, without=("fc.weight", "fc.bias"))


def test_half_precision_becomes_the_models_own(save):
    weights = build().state_dict()
    model = build()
    half = {n: w.half() if w.is_floating_point() else w for n, w in weights.items()}
    load_weights(model, save(half))
    first = model.get_parameter("conv1.weight")
    assert first.dtype == torch.float32
    assert torch.equal(first, half["conv1.weight"].float())


def test_a_wrapped_network_has_its_own_names(save):
    mine, other = (
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, classes)) for classes in (3, 5)
    )
    model = models.WithFeatures(mine, head="2")
    load_weights(model, save(other.state_dict()))
    assert torch.equal(mine.get_parameter("0.weight"), other.get_parameter("0.weight"))
    freeze_layers(model, ["0"])
    assert [p.requires_grad for p in mine.parameters()] == [False, False, True, True]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"stem": "cifar"}, r"conv1\.weight.*stem = 'imagenet'"),
        ({"shape": (1, 32, 32)}, r"conv1\.weight.*3 channels"),
        ({"width": 16}, r"conv1\.weight"),
        (
            {"norm": "group", "groups": 2},
            r"'bn1\.num_batches_tracked'.* and \d+ more",
        ),
        ({"name": "resnet50"}, r"lacks 'layer1\.0\.conv3\.weight'"),
    ],
)
def test_weights_of_another_network_are_refused(save, options, named):
    path = save(build().state_dict())
    model = build(**options)
    before = [leaf.clone() for leaf in model.state_dict().values()]
    with pytest.raises(UserError, match=named) as problem:
        load_weights(model, path)
    assert "\n" not in str(problem.value)
    assert all(map(torch.equal, before, model.state_dict().values()))


def test_files_that_are_not_weights_are_refused(save, tmp_path):
    weights = build().state_dict()
    weights["conv1.weight"][0, 0, 0, 0] = torch.nan
    with pytest.raises(UserError, match=r"conv1\.weight.*NaN"):
        load_weights(build(), save(weights))
    pickled = tmp_path / "weights.pt"
    torch.save(weights, pickled)
    with pytest.raises(UserError, match=r"weights\.pt.*save_file"):
        load_weights(build(), pickled)
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"damaged\.safetensors"):
        load_weights(build(), damaged)
    with pytest.raises(UserError, match=r"absent\.safetensors"):
        digest_file(tmp_path / "absent.safetensors")


def test_a_digest_is_of_the_content(save, tmp_path):
    path = save({"weight": torch.ones(3)})
    first, copied = digest_file(path), tmp_path / "copied.safetensors"
    copied.write_bytes(path.read_bytes())
    assert digest_file(copied) == first
    save({"weight": torch.zeros(4)})
    assert digest_file(path) != first


@pytest.mark.parametrize(
    ("layers", "trained"),
    [
        (["conv1", "bn1", "layer[123]"], {"layer4", "fc"}),
        (["layer1.0.conv1.weight"], {"conv1", "bn1", "layer1", "layer2", "layer3", "layer4", "fc"}),
        (["[!f]*"], {"fc"}),
    ],
)
def test_layers_are_frozen_by_name(layers, trained):
    model = build()
    freeze_layers(model, layers)
    parameters = model.named_parameters()
    assert {name.split(".")[0] for name, p in parameters if p.requires_grad} == trained


def test_an_unknown_layer_is_refused():
    with pytest.raises(UserError, match=r"'layer9'.*'layer\d'"):
        freeze_layers(build(), ["layer9"])
