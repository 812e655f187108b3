"""Runs that start from pretrained weights: known by the content of the file, frozen by name."""

import pytest
import torch
from safetensors.torch import save_file

from fedfm import Training, UserError, load, models, simulate
from fedfm.config import load_config, make_config, parse
from fedfm.grid.identity import digest
from fedfm.models.weights import digest_file
from fedfm.run.prepare import build_model, load_data

MLP = {"name": "mlp", "hidden": [8, 6]}
FEW = Training(clients=3, rounds=1, epochs=1, lr=1e-3)


@pytest.fixture
def weights(tmp_path):
    """Weights for the body of a network, whose head has other classes."""
    torch.manual_seed(3)
    path = tmp_path / "pretrained.safetensors"
    save_file(models.build("mlp", shape=(1, 8, 8), classes=7, hidden=[8, 6]).state_dict(), path)
    return path


def run(path, **options):
    model = MLP | {"weights": str(path), "freeze": ["body.1"]}
    return simulate(model, "digits", "fedavg", training=FEW, executor="loop", **options)


def test_training_starts_from_the_file(weights):
    config = make_config("fedavg", model=MLP | {"weights": str(weights)}, data="digits")
    assert config.model.options == {"hidden": [8, 6], "norm": "none", "head": "linear"}
    network, digits = build_model(config, load_data(config)), load_data(config)
    random = build_model(make_config("fedavg", model=MLP, data="digits"), digits)
    torch.manual_seed(3)
    pretrained = models.build("mlp", shape=(1, 8, 8), classes=7, hidden=[8, 6])
    for name, leaf in network.state_dict().items():
        expected = random if name.startswith("head.") else pretrained
        assert torch.equal(leaf, expected.state_dict()[name]), name


def test_a_run_with_frozen_weights_keeps_them(weights, tmp_path):
    result = run(weights, out=tmp_path / "run")
    torch.manual_seed(3)
    pretrained = models.build("mlp", shape=(1, 8, 8), classes=7, hidden=[8, 6]).state_dict()
    assert torch.equal(result.best.model.buffers["body.1.weight"], pretrained["body.1.weight"])
    assert not torch.equal(result.best.model.params["body.3.weight"], pretrained["body.3.weight"])
    recorded = load_config(str(tmp_path / "run/config.toml")).model
    assert recorded.weights_digest == digest_file(weights)
    assert recorded.freeze == ("body.1",)
    weights.unlink()
    loaded = load(tmp_path / "run").model.get_parameter("body.1.weight")
    assert torch.equal(loaded, pretrained["body.1.weight"])


def test_other_weights_are_another_run(weights, tmp_path):
    run(weights, out=tmp_path / "run")
    recorded = load_config(str(tmp_path / "run/config.toml"))
    tensors = models.build("mlp", shape=(1, 8, 8), classes=7, hidden=[8, 6]).state_dict()
    save_file({name: leaf + 1 for name, leaf in tensors.items()}, weights)
    with pytest.raises(UserError, match=r"weights_digest"):
        run(weights, out=tmp_path / "run", resume=True)
    with pytest.raises(UserError, match=r"has changed since"):
        build_model(recorded, load_data(recorded))


def test_results_are_known_by_the_content_of_the_file(weights, tmp_path):
    copied = tmp_path / "copied.safetensors"
    copied.write_bytes(weights.read_bytes())
    one, other, none = (
        digest(make_config("fedavg", model=MLP | given, data="digits").as_toml())
        for given in ({"weights": str(weights)}, {"weights": str(copied)}, {})
    )
    assert one == other != none
    frozen = make_config("fedavg", model=MLP | {"freeze": ["body.1"]}, data="digits")
    assert digest(frozen.as_toml()) != none


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"weights": "absent.safetensors"}, r"absent\.safetensors"),
        ({"freeze": "body"}, "freeze"),
        ({"weights": 3}, "weights"),
    ],
)
def test_mistakes_are_found_before_anything_runs(given, named):
    with pytest.raises(UserError, match=named):
        parse({"model": MLP | given})


def test_a_mistake_leaves_no_folder(weights, tmp_path):
    model = {"name": "cnn", "weights": str(weights)}
    with pytest.raises(UserError, match=r"pretrained\.safetensors"):
        simulate(model, "digits", "fedavg", training=FEW, out=tmp_path / "run")
    with pytest.raises(UserError, match=r"'body\.7'"):
        simulate(MLP | {"freeze": ["body.7"]}, "digits", "fedavg", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
