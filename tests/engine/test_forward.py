"""Statistics over unequal clients equal those computed one client at a time."""

import pytest
import torch

from fedfm.core import trees
from fedfm.engine import forward as sweeping
from fedfm.engine.evaluation import Evaluator
from fedfm.engine.executors import LoopExecutor
from fedfm.engine.networks import BoundNetwork, copy_model
from fedfm.engine.stacked_networks import StackedNetwork
from fedfm.methods import FedFM
from fedfm.methods.base import Model
from fedfm.verify import fixtures


@pytest.fixture
def world():
    module = fixtures.make_network(norm="batch", dtype=torch.float64)
    data = fixtures.make_images(dtype=torch.float64)
    return module, data, fixtures.make_device_data(data, module)


def pooled_means(module, data, samples):
    with torch.no_grad():
        features, _ = module.eval()(data.train.inputs[samples])
    labels = data.train.labels[samples]
    return {c: features[labels == c].mean(0) for c in labels.unique().tolist()}


@pytest.mark.parametrize("budget", [1, 3, 7, 2048])
def test_anchors_equal_the_pooled_class_means_whatever_the_rectangles(world, budget, monkeypatch):
    module, data, on_device = world
    monkeypatch.setattr(sweeping, "NUMBERS", {"cpu": 64 * budget})
    monkeypatch.setattr(sweeping, "CLIENTS", 2)
    piece, samples = FedFM(), fixtures.split_samples((23, 1, 10, 20))
    model = copy_model(module).map(trees.share)
    found = sweeping.sum_statistic(BoundNetwork(module), model, samples, piece.statistic, on_device)
    for k, own in enumerate(samples):
        for c, mean in pooled_means(module, data, own).items():
            torch.testing.assert_close(found["sum"][k, c] / found["count"][k, c], mean)
    assert found["count"].sum() == 54
    task = fixtures.make_federation(module, data, piece).task
    anchors = piece.absorb(piece.server_state(task), trees.sum_clients(found), 4)["anchors"]
    for c, mean in pooled_means(module, data, torch.arange(54)).items():
        torch.testing.assert_close(anchors[c], mean)


@pytest.mark.parametrize(("low", "tolerance"), [(None, 1e-7), (torch.bfloat16, 0.02)])
def test_a_model_for_each_client_is_used_for_that_client(world, low, tolerance):
    module, _, on_device = world
    samples, piece = fixtures.split_samples((5, 23, 10, 16)), FedFM()
    models = []
    for seed in range(4):
        models.append(
            copy_model(fixtures.make_network(seed=seed, norm="batch", dtype=torch.float64))
        )
    together = Model(
        trees.stack([m.params for m in models]), trees.stack([m.buffers for m in models])
    )
    found = sweeping.sum_statistic(
        StackedNetwork(module, low), together, samples, piece.statistic, on_device
    )
    for k, model in enumerate(models):
        alone = sweeping.sum_statistic(
            BoundNetwork(module), model.map(trees.share), [samples[k]], piece.statistic, on_device
        )
        apart = (found["sum"][k] - alone["sum"][0]).norm() / alone["sum"][0].norm()
        assert apart < tolerance


def test_evaluation_averages_local_accuracies_and_counts_the_whole_test_set(world):
    module, data, on_device = world
    validation = fixtures.split_samples((23, 1, 10, 20))
    with torch.no_grad():
        right = (module.eval()(data.train.inputs)[1].argmax(1) == data.train.labels).double()
    evaluator = Evaluator(LoopExecutor(module, on_device), validation, (on_device, on_device))
    clients, test, owned = evaluator(copy_model(module))
    expected = [float(right[own].mean()) for own in validation]
    assert clients["accuracy"].tolist() == pytest.approx(expected)
    assert float(test["accuracy"]) == pytest.approx(float(right.mean()))
    assert owned == {}
