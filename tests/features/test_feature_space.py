"""Features of runs' best models, and the two measures of a feature space."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits
from torch import nn

from fedfm import FedAvg, Partition, Training, data, models, simulate
from fedfm.config import load_config, make_config
from fedfm.core.checkpoint import Damaged
from fedfm.core.errors import UserError
from fedfm.core.rng import generator
from fedfm.features import feature_space
from fedfm.features.feature_space import (
    LocalSpaces,
    class_means,
    compute_features,
    draw_sample,
    load_best_model,
    load_features,
    load_finished_config,
    measure,
)
from fedfm.grid.feature_points import write_measures
from fedfm.paper.pictures import train_local_models
from fedfm.rounds.clients import count_samples
from fedfm.rounds.round import run_round
from fedfm.run.runner import run_configs
from fedfm.run.simulation import Simulation

DIGITS = data.load("digits")
SETTINGS = [
    "seed=3",
    "method=fedavg",
    "executor=stacked",
    "partition.kind=iid",
    "rounds=2",
    "epochs=1",
    "clients=3",
    "model.norm=batch",
    "model.channels=[4, 8]",
    "model.features=12",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a finished run of a network with batch norm."""
    folder, config = tmp_path_factory.mktemp("runs") / "run", load_config("digits", SETTINGS)
    model = models.build("cnn", shape=DIGITS.shape, classes=10, **config.model.options)
    run_configs([config], outs=[folder], data=DIGITS, networks=[model])
    return folder


@pytest.fixture(scope="module")
def sklearn() -> Any:
    """The package, which takes a second to import: only where these tests run."""
    import sklearn.cluster
    import sklearn.metrics

    return sklearn


def clusters(samples: int = 300, spread: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.integers(5, size=samples)
    centres = rng.normal(size=(5, 16))
    return (centres[labels] + spread * rng.normal(size=(samples, 16))).astype(np.float32), labels


# --- features -------------------------------------------------------------------------------------


def test_features_are_those_of_a_plain_forward_pass_in_evaluation_mode(run):
    model = load_best_model(run, DIGITS)
    body = model.get_submodule("body").eval()
    assert any(isinstance(layer, nn.BatchNorm2d) for layer in body.modules())
    mean, std = torch.tensor(DIGITS.mean), torch.tensor(DIGITS.std)
    with torch.no_grad():
        expected = body((DIGITS.test.inputs.float() - mean) / std)
    features, labels = load_features(run, DIGITS)
    assert features.dtype == np.float32
    assert features.shape == (len(DIGITS.test), 12)
    np.testing.assert_allclose(features, expected.numpy(), rtol=1e-4, atol=1e-5)
    assert labels.tolist() == DIGITS.test.labels.tolist()


def test_the_best_model_has_the_accuracy_that_the_run_reports(run):
    features, labels = load_features(run, DIGITS, device="cpu")
    head = load_best_model(run, DIGITS).get_submodule("head")
    with torch.no_grad():
        found = head(torch.from_numpy(features)).argmax(1).numpy()
    reported = json.loads((run / "summary.json").read_text())["test_accuracy"]
    assert (found == labels).mean() == pytest.approx(reported, abs=1e-9)


def test_a_given_model_is_left_as_it_is_and_batches_do_not_matter(run, monkeypatch):
    model = load_best_model(run, DIGITS).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    whole, labels = compute_features(model, DIGITS, "train")
    monkeypatch.setattr(feature_space, "BATCH", 7)
    parts, _ = compute_features(model, DIGITS, "train")
    assert len(labels) == len(DIGITS.train)
    np.testing.assert_allclose(parts, whole, rtol=1e-4, atol=1e-5)
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_class_means_are_those_of_the_classes_that_are_there():
    features = np.array([[1.0, 2.0], [3.0, 4.0], [7.0, 7.0]])
    assert class_means(features, np.array([4, 4, 1])).tolist() == [[7, 7], [2, 3]]


# --- measures -------------------------------------------------------------------------------------


def test_well_separated_classes_measure_near_one():
    found = measure(*clusters(spread=0.01), seed=0)
    assert found["nmi"] == pytest.approx(1.0)
    assert found["silhouette"] > 0.97


def test_labels_that_have_nothing_to_do_with_the_features_measure_near_nought():
    features, labels = clusters(1000)
    shuffled = np.random.default_rng(1).permutation(labels)
    found = measure(features, shuffled, seed=0)
    assert found["nmi"] < 0.05
    assert abs(found["silhouette"]) < 0.1


def test_the_measures_are_scikit_learns(sklearn):
    features, labels = clusters(spread=1.0)
    start = int(generator(5, "k-means").integers(2**32))
    with threadpool_limits(1):
        means = sklearn.cluster.KMeans(n_clusters=5, n_init=10, random_state=start)
        own = means.fit(features).labels_
        nmi = sklearn.metrics.normalized_mutual_info_score(labels, own)
        silhouette = sklearn.metrics.silhouette_score(features, labels)
    assert measure(features, labels, seed=5) == {"nmi": nmi, "silhouette": silhouette}


def test_the_measures_are_the_same_again():
    features, labels = clusters(500, spread=2.0)
    first = measure(features, labels, seed=1)
    assert measure(features, labels, seed=1) == first
    assert len({measure(features, labels, seed)["nmi"] for seed in range(6)}) > 1


def test_of_many_samples_the_silhouette_takes_some(monkeypatch, sklearn):
    features, labels = clusters(400, spread=1.0)
    monkeypatch.setattr(feature_space, "SILHOUETTE_SAMPLES", 150)
    some = draw_sample(400, 150, seed=2)
    found = measure(features, labels, seed=2)["silhouette"]
    assert found == pytest.approx(
        sklearn.metrics.silhouette_score(features[some], labels[some]), abs=1e-6
    )
    assert found != pytest.approx(sklearn.metrics.silhouette_score(features, labels), abs=1e-6)


def test_a_sample_is_distinct_ascending_and_keyed():
    some = draw_sample(100, 30, seed=0)
    assert len(set(some.tolist())) == 30
    assert (np.diff(some) > 0).all()
    assert draw_sample(100, 30, seed=0).tolist() == some.tolist()
    assert draw_sample(100, 30, seed=1).tolist() != some.tolist()
    assert draw_sample(20, 30, seed=0).tolist() == list(range(20))


def test_features_that_have_collapsed_are_measured_and_told(caplog):
    assert measure(np.ones((50, 4)), np.arange(50) % 5, seed=0) == {"nmi": 0.0, "silhouette": 0.0}
    assert "the features of 5 classes have collapsed to 1 points" in caplog.text


def test_what_cannot_be_measured_is_refused():
    features, labels = clusters(50)
    with pytest.raises(UserError, match=r"\b1\b.*\b50\b"):
        measure(features, np.zeros(50, int), seed=0)
    with pytest.raises(UserError, match=r"\b50\b.*\b50\b"):
        measure(features, np.arange(50), seed=0)
    with pytest.raises(UserError, match="finite"):
        measure(features * np.nan, labels, seed=0)


def test_the_measures_are_kept_in_the_runs_folder(run):
    found = write_measures(run, DIGITS)
    assert json.loads((run / "features.json").read_text()) == found
    assert found == measure(*load_features(run, DIGITS), seed=3)


# --- folders --------------------------------------------------------------------------------------


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(UserError, match=r"config\.toml"):
        load_finished_config(tmp_path)


def test_a_run_of_another_making_is_told_from_a_damaged_one(tmp_path):
    training = Training(clients=2, rounds=1, epochs=1)
    model = models.build("mlp", shape=DIGITS.shape, classes=10, hidden=[4])
    simulate(model, DIGITS, FedAvg(), partition=Partition("iid"), training=training, out=tmp_path)
    with pytest.raises(UserError, match=r"docs/own-data-and-model\.md"):
        load_features(tmp_path, DIGITS)
    (tmp_path / "config.toml").write_text("nonsense = 1\n")
    with pytest.raises(UserError, match=r"config\.toml.*'nonsense'"):
        load_features(tmp_path, DIGITS)


def test_a_model_that_does_not_fit_the_data(run):
    fewer = replace(DIGITS, classes=(*DIGITS.classes, "another"))
    with pytest.raises(UserError, match=r"model\.safetensors.*config\.toml.*head"):
        load_features(run, fewer)


@pytest.mark.parametrize("content", [None, b"short"])
def test_a_model_that_is_gone_or_damaged(run, tmp_path, content):
    for name in ("config.toml", "summary.json"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    if content:
        (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(Damaged, match=r"model\.safetensors"):
        load_features(tmp_path, DIGITS)


# --- clients' own models --------------------------------------------------------------------------


def test_the_average_of_the_local_models_is_the_next_global_model():
    model = models.build("mlp", shape=DIGITS.shape, classes=10, hidden=[6])
    training = Training(clients=2, rounds=2, epochs=1)
    partition = Partition("niid2", dominance=9)
    config = make_config(
        FedAvg(), partition=partition, training=training, seed=0, executor="stacked"
    )
    simulation = Simulation(model, DIGITS, config)
    state = simulation.start
    for _ in range(2):
        state, _ = run_round(state, simulation.federation)
    n = count_samples(simulation.federation.samples)
    locals_ = [dict(own.named_parameters()) for own in train_local_models(model, DIGITS, config)]
    for name, expected in state.model.params.items():
        mean = sum(share * own[name] for share, own in zip(n / n.sum(), locals_, strict=True))
        torch.testing.assert_close(mean, expected, rtol=1e-4, atol=1e-6)
    assert not torch.equal(locals_[0]["head.weight"], locals_[1]["head.weight"])


def test_the_gap_and_the_silhouette_of_clients_that_agree_and_that_do_not(sklearn):
    features, labels = clusters(200)
    agreeing = LocalSpaces("agreeing", np.stack([features, features]), labels)
    assert agreeing.gap == 0
    assert agreeing.silhouette == pytest.approx(
        sklearn.metrics.silhouette_score(features, labels), abs=0.02
    )
    apart = LocalSpaces("apart", np.stack([features, features + 100]), labels)
    assert apart.gap > 10
    assert apart.silhouette < 0.1


def test_the_gap_is_a_ratio_of_distances():
    square = np.array([[[0.0, 0.0], [4.0, 0.0]], [[0.0, 3.0], [4.0, 3.0]]], np.float32)
    assert LocalSpaces("square", square, np.array([0, 1])).gap == pytest.approx(3 / 4)
    assert LocalSpaces("collapsed", 0 * square, np.array([0, 1])).gap == np.inf
