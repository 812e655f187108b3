"""The model of a finished run: loaded, used on raw inputs, saved and exported."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fedfm import Partition, Training, UserError, data, load, models, simulate
from fedfm.core.checkpoint import Damaged
from fedfm.data import Dataset, Split
from fedfm.rounds.group import personal_models
from fedfm.run.description import DataDescription
from fedfm.run.load import load_test_split
from fedfm.run.simulation import Simulation
from fedfm.verify.fixtures import make_images

FEW = Training(clients=3, rounds=2, epochs=1)


class Mine(nn.Module):
    """A network of the user's own, with two names for one layer and a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.again = self.first
        self.classify = nn.Linear(6, 3)
        self.register_buffer("factor", torch.tensor(2.0), persistent=False)

    def forward(self, x):
        return self.classify(self.again(self.first(x).relu() * self.factor).relu())


def points() -> Dataset:
    torch.manual_seed(0)
    labels = torch.arange(90) % 3
    inputs = 100 + 5 * torch.randn(90, 6) + 9 * nn.functional.one_hot(labels, 6)
    train, test = (Split(inputs[part], labels[part]) for part in (slice(60), slice(60, None)))
    return Dataset("points", train, test, ("a", "b", "c"), (100.0,), (5.0,))


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("digits") / "run"
    model = {"name": "cnn", "channels": [4], "features": 8, "norm": "batch"}
    result = simulate(model, "digits", "fedavg", training=FEW, executor="loop", out=out)
    return out, result


@pytest.fixture(scope="module")
def own_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("own") / "run"
    torch.manual_seed(1)
    network = models.WithFeatures(Mine(), head="classify")
    result = simulate(network, points(), "fedavg", training=FEW, executor="loop", out=out)
    return out, result, network


def test_a_loaded_model_has_the_runs_accuracy(digits_run):
    out, result = digits_run
    classifier, digits = load(out), data.load("digits")
    assert not classifier.model.training
    assert classifier.classes == digits.classes
    assert classifier.data == DataDescription.of(digits)
    accuracy = classifier.accuracy(digits.test.inputs, digits.test.labels)
    assert accuracy == pytest.approx(result.test_accuracy, abs=1e-9)


def test_probabilities_are_those_of_the_normalised_inputs(digits_run):
    classifier, digits = load(digits_run[0]), data.load("digits")
    inputs = digits.test.inputs[:7]
    with torch.no_grad():
        expected = classifier.model(digits.normalise(inputs))[1].softmax(1)
    probabilities = classifier.predict(inputs)
    torch.testing.assert_close(probabilities, expected)
    names = [digits.classes[k] for k in expected.argmax(1)]
    assert classifier.classify(inputs) == names
    assert classifier.predict(inputs[:0]).shape == (0, 10)


def test_many_samples_go_through_in_batches(digits_run):
    classifier, inputs = load(digits_run[0]), data.load("digits").train.inputs[:1100]
    torch.testing.assert_close(classifier.predict(inputs)[1050:], classifier.predict(inputs[1050:]))


def test_inputs_of_another_shape_are_refused(digits_run):
    with pytest.raises(UserError, match=r"\(1, 9, 9\).*\(1, 8, 8\)"):
        load(digits_run[0]).predict(torch.zeros(2, 1, 9, 9))


def test_a_network_from_python_is_given_again(own_run):
    out, result, network = own_run
    before = [leaf.clone() for leaf in network.state_dict().values()]
    with pytest.raises(UserError, match="model="):
        load(out)
    classifier, own = load(out, model=network), points()
    accuracy = classifier.accuracy(own.test.inputs, own.test.labels)
    assert accuracy == pytest.approx(result.test_accuracy, abs=1e-9)
    assert all(map(torch.equal, before, network.state_dict().values()))
    with pytest.raises(UserError, match=r"does not fit MLP"):
        load(out, model=models.build("mlp", shape=(6,), classes=3))


def test_a_state_dict_has_the_users_own_names(own_run, tmp_path):
    out, result, network = own_run
    classifier, path = load(out, model=network), tmp_path / "mine.safetensors"
    classifier.save(path)
    mine = Mine()
    mine.load_state_dict(load_file(path))
    assert torch.equal(mine.first.weight, result.best.model.params["module.first.weight"])
    assert classifier.state_dict().keys() == mine.state_dict().keys()


@pytest.mark.parametrize("run", ["digits_run", "own_run"])
def test_an_exported_program_gives_the_same_for_any_number_of_samples(run, request, tmp_path):
    out, _, *network = request.getfixturevalue(run)
    classifier = load(out, model=network[0] if network else None)
    inputs = (points() if network else data.load("digits")).test.inputs
    classifier.export(tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    for samples in (1, 2, 13):
        probabilities = program(inputs[:samples])
        assert not probabilities.requires_grad
        torch.testing.assert_close(probabilities, classifier.predict(inputs[:samples]))
    assert all(p.requires_grad for p in classifier.model.parameters())


class Branching(nn.Module):
    """A network that torch.export cannot trace."""

    def __init__(self) -> None:
        super().__init__()
        self.classify = nn.Linear(6, 3)

    def forward(self, x):
        return self.classify(x if float(x.sum()) > 0 else -x)


def test_what_cannot_be_written_leaves_no_file(own_run, tmp_path):
    out, _, network = own_run
    classifier = load(out, model=network)
    for write, name in (
        (classifier.save, "model.pt2"),
        (classifier.export, "model.onnx"),
        (classifier.save, "absent/model.safetensors"),
    ):
        with pytest.raises(UserError, match=name.split("/")[0]):
            write(tmp_path / name)
    branching = models.WithFeatures(Branching(), head="classify")
    with pytest.raises(UserError, match=r"torch\.export.*WithFeatures") as problem:
        type(classifier)(branching, classifier.data).export(tmp_path / "model.pt2")
    assert "\n" not in str(problem.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["memory", "disk"])
@pytest.mark.parametrize("method", ["fedbn", "fedper", "ditto", "local"])
def test_a_clients_own_model(tmp_path, method, place):
    model = {"name": "mlp", "hidden": [6], "norm": "batch"}
    images = make_images()
    out, settings = tmp_path / "run", {"executor": "loop", "client_states": place}
    simulate(model, images, method, training=FEW, out=out, **settings)
    loaded = [load(out, client=client) for client in (0, "1", 2)]
    state = _final_state(model, images, method)
    for client, classifier in enumerate(loaded):
        own = personal_models(state.model, [state.clients.get(client)])
        for name, leaf in classifier.model.state_dict().items():
            wanted = (own.params | own.buffers)[name][0]
            torch.testing.assert_close(leaf, wanted, msg=name)
    heads = [classifier.model.state_dict() for classifier in loaded]
    assert any(not torch.equal(heads[0][name], heads[1][name]) for name in heads[0])


def _final_state(model, images, method):
    """The state after the run, computed without its folder."""
    from fedfm.config import make_config
    from fedfm.run.prepare import build_model
    from fedfm.run.records import Progress

    config = make_config(method, model=model, data=images, training=FEW, executor="loop")
    simulation = Simulation(build_model(config, images), images, config)
    progress = Progress(simulation.start)
    for _ in range(FEW.rounds):
        progress = simulation.advance(progress)
    return progress.state


def test_inputs_that_are_no_tensors_are_refused(digits_run):
    with pytest.raises(UserError, match="Tensor"):
        load(digits_run[0]).predict([[1.0, 2.0]])


def test_clients_are_known_by_name(tmp_path):
    own = points()
    clients = torch.arange(60) % 3
    named = Dataset(
        "points",
        Split(own.train.inputs, own.train.labels, clients),
        own.test,
        own.classes,
        clients=("north", "south", "west"),
    )
    natural = Partition("natural")
    how = {"partition": natural, "training": FEW, "executor": "loop", "out": tmp_path / "run"}
    simulate("mlp", named, "fedper", **how)
    with pytest.raises(UserError, match="one client"):
        load(tmp_path / "run")
    one, other = (load(tmp_path / "run", client=client) for client in ("south", 1))
    assert one.data.clients == named.clients
    assert torch.equal(*(each.model.get_parameter("head.weight") for each in (one, other)))
    for absent in ("east", 3, "-1"):
        with pytest.raises(UserError, match=r"north, south, west"):
            load(tmp_path / "run", client=absent)


def test_a_global_method_has_no_models_of_clients(digits_run):
    with pytest.raises(UserError, match="fedavg"):
        load(digits_run[0], client=0)


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("config.toml", "not the folder of a run"),
        ("model.safetensors", "not finished"),
        ("data.json", "resume"),
    ],
)
def test_a_folder_that_lacks_something_is_refused(tmp_path, missing, named):
    simulate("mlp", "digits", "fedavg", training=FEW, executor="loop", out=tmp_path / "run")
    (tmp_path / "run" / missing).unlink()
    with pytest.raises(UserError, match=named) as problem:
        load(tmp_path / "run")
    assert "\n" not in str(problem.value)
    if missing == "data.json":
        again = {"training": FEW, "executor": "loop", "out": tmp_path / "run", "resume": True}
        simulate("mlp", "digits", "fedavg", **again)
        assert load(tmp_path / "run").classes == data.load("digits").classes


@pytest.mark.parametrize("text", ["no json", "[]", json.dumps({"shapes": []})])
def test_a_damaged_description_is_refused(tmp_path, text):
    (tmp_path / "data.json").write_text(text)
    with pytest.raises(Damaged, match=r"data\.json"):
        DataDescription.load(tmp_path)


def test_test_data_given_in_python_are_not_found_again(digits_run, own_run):
    assert len(load_test_split(digits_run[0])) == 359
    with pytest.raises(UserError, match="Python"):
        load_test_split(own_run[0])
