"""Statistics over unequal clients equal those computed one client at a time."""

import pytest
import torch

from fedfm.core import trees
from fedfm.engine import forward as sweeping
from fedfm.engine.evaluation import Evaluator
from fedfm.engine.executors import LoopExecutor
from fedfm.engine.layout import arrange_strides
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


def test_networks_measure_with_channels_last_on_a_cpu(world):
    """Also the first layer, whose one channel leaves the layout open."""
    module, _, on_device = world
    model = copy_model(module).map(trees.share)
    net, samples = BoundNetwork(module), fixtures.split_samples((5, 3))
    sweeping.sum_statistic(net, model, samples, FedFM().statistic, on_device)
    layers = [layer for layer in net.module.modules() if isinstance(layer, torch.nn.Conv2d)]
    assert layers[0].in_channels == 1
    for layer in layers:
        channels = layer.in_channels
        assert layer.weight.stride()[1] == 1
        maps = layer(torch.randn(2, channels, 8, 8, dtype=torch.float64))
        assert maps.stride()[1] == 1, "torch takes the layout of the weights"


@pytest.mark.parametrize("channels", [1, 3])
def test_weights_in_that_layout_are_not_copied_again(channels):
    weight = torch.randn(2, 4, channels, 3, 3)
    arranged = arrange_strides(weight)
    torch.testing.assert_close(arranged, weight, rtol=0, atol=0)
    assert arrange_strides(arranged).data_ptr() == arranged.data_ptr() != weight.data_ptr()


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
