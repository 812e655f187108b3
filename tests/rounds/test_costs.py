"""Costs from shapes: equal to a count by hand, and to what a real run sends."""

import pytest
import torch
from torch import nn

from fedfm import FedAvg, FedFM, FedFMLite, Partition, Piece, Training, compose, models, simulate
from fedfm.methods import PIECES, Method
from fedfm.rounds.costs import Cost, measure_cost
from fedfm.verify.fixtures import CLASSES, make_images, make_network

SHAPE = (1, 8, 8)
NETWORKS = {
    "mlp": {"name": "mlp", "hidden": [6]},
    "mlp with batch norm": {"name": "mlp", "hidden": [6, 7], "norm": "batch"},
    "cnn with group norm": {
        "name": "cnn",
        "channels": [4, 8],
        "features": 5,
        "norm": "group",
        "groups": 2,
    },
    "cnn with batch norm": {"name": "cnn", "channels": [4, 8], "features": 5, "norm": "batch"},
}
METHODS: dict[str, Piece] = {
    "fedavg": FedAvg(),
    "fedfm": FedFM(),
    "fedfm with uniform anchors": FedFM(anchors="uniform"),
    "fedfm-lite": FedFMLite(),
    "fedfm-lite, a=2": FedFMLite(models_every=2),
}


def build(options) -> nn.Module:
    return models.build(shape=SHAPE, classes=CLASSES, **options)


def by_hand(piece: Piece, model: nn.Module) -> Cost:
    """The cost of a round once matching is on, from the paper's formulas and the dtypes."""
    weights = sum(p.numel() for p in model.parameters())
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    running = sum(4 * 2 * norm.num_features + 8 for norm in norms)
    head = [m for m in model.modules() if isinstance(m, nn.Linear)][-1]
    anchors = CLASSES * head.in_features
    every = getattr(piece, "models_every", 1)
    sent, size = weights / every, (4 * weights + running) / every
    if not isinstance(piece, FedFM):
        return Cost(piece.name, weights, sent, sent, size, size, 1)
    return Cost(
        piece.name,
        weights + anchors,
        sent + anchors,
        sent + anchors,
        size + 4 * anchors + CLASSES * (8 if piece.anchors == "weighted" else 1),
        size + 4 * anchors + CLASSES,
        1 if isinstance(piece, FedFMLite) else 2,
    )


def measure(method: Method, model: nn.Module) -> Cost:
    return measure_cost(method, model, CLASSES, models.feature_dim(model, torch.zeros(1, *SHAPE)))


@pytest.mark.parametrize("options", NETWORKS.values(), ids=NETWORKS.keys())
@pytest.mark.parametrize("piece", METHODS.values(), ids=METHODS.keys())
def test_costs_equal_a_count_by_hand(piece, options):
    model = build(options)
    assert measure(compose(piece), model) == by_hand(piece, model)


def test_a_resnets_bytes_are_its_parameters_and_its_buffers():
    with torch.device("meta"):
        model = models.build("resnet18", shape=(3, 32, 32), classes=10)
    channels = [m.num_features for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert sum(channels) == 4_800
    assert len(channels) == 20
    size = 4 * 11_181_642 + 4 * 2 * 4_800 + 8 * 20
    assert measure_cost(compose(FedAvg()), model, 10, features=512).bytes_up == size
    matched = measure_cost(compose(FedFM()), model, 10, features=512)
    assert matched.bytes_up == size + 4 * 10 * 512 + 8 * 10
    assert matched.bytes_down == size + 4 * 10 * 512 + 1 * 10


EVERY_METHOD = {name: piece() for name, piece in PIECES.items()} | METHODS


@pytest.mark.parametrize("piece", EVERY_METHOD.values(), ids=EVERY_METHOD.keys())
def test_a_real_run_sends_what_the_costs_say(piece):
    method, clients = compose(piece), 3
    cycle = method.share_every
    first = method.steady_round + (1 if method.keeps_models else 0)  # then everybody has a model
    model = make_network("mlp", hidden=[6], norm="batch")
    result = simulate(
        model,
        make_images(),
        piece,
        executor="loop",
        partition=Partition("iid"),
        training=Training(
            clients=clients,
            rounds=first + 2 * cycle + method.concludes(0, 1),
            epochs=1,
            batch_size=4,
            lr=1e-4,
        ),
    )
    expected = measure(method, model)
    for begin in (first, first + cycle):
        rounds = [record.as_dict() for record in result.rounds[begin : begin + cycle]]
        for name in ("floats_up", "floats_down", "bytes_up", "bytes_down"):
            sent = sum(record[name] for record in rounds) / cycle / clients
            assert sent == getattr(expected, name), name
        assert sum(record["handshakes"] for record in rounds) / cycle == expected.handshakes


def test_before_matching_starts_a_round_costs_what_fedavg_costs():
    model = make_network("mlp", hidden=[6])
    result = simulate(
        model,
        make_images(),
        FedFM(start_round=1),
        partition=Partition("iid"),
        training=Training(clients=4, rounds=2, participation=0.5, epochs=1, batch_size=4),
    )
    plain, matched = (measure(compose(p), model) for p in (FedAvg(), FedFM()))
    assert [record.floats_up for record in result.rounds] == [
        2 * plain.floats_up,
        2 * matched.floats_up,
    ]


def test_counting_leaves_the_model_alone():
    model = build(NETWORKS["mlp with batch norm"])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    measure(compose(FedFM()), model)
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert model.training
