"""The simplex head: its geometry, its logits, in every executor, and FedETF as a composition."""

import pytest
import torch

from fedfm import FedFM, UserError, models
from fedfm.engine.stacked_networks import MappedNetwork, stack_network
from fedfm.methods import BalancedSoftmax, Piece
from fedfm.models.simplex import Simplex, make_head
from fedfm.rounds.round import run_round
from fedfm.verify import fixtures
from fedfm.verify.checks import same_model
from fedfm.verify.fixtures import start


def test_class_directions_are_the_vertices_of_a_simplex():
    cosines = Simplex().double().cosines(torch.eye(5, dtype=torch.float64))
    directions = cosines.T  # M, since the inputs are unit vectors along the axes
    gram = directions.T @ directions
    expected = torch.full((5, 5), -1 / 4, dtype=torch.float64).fill_diagonal_(1.0)
    torch.testing.assert_close(gram, expected)


def test_logits_are_the_scaled_products_with_these_directions():
    head = make_head("simplex", 7, 4).double()
    values = dict(head.named_parameters())
    with torch.no_grad():
        values["simplex.scale"].fill_(3.0)
    features = torch.randn(6, 7, dtype=torch.float64)
    projected = features @ values["projection.weight"].T + values["projection.bias"]
    unit = projected / projected.norm(dim=1, keepdim=True)
    matrix = (4 / 3) ** 0.5 * (torch.eye(4, dtype=torch.float64) - 0.25)
    torch.testing.assert_close(head(features), 3 * unit @ matrix)


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("mlp", (6,), {}),
        ("cnn", (1, 8, 8), {}),
        ("resnet18", (1, 8, 8), {"width": 4, "norm": "group", "groups": 2}),
        ("transformer", (5,), {"vocabulary": 9, "width": 8}),
    ],
)
def test_every_network_can_have_it(name, shape, options):
    model = models.build(name, shape=shape, classes=3, head="simplex", **options)
    dtype = torch.int64 if name == "transformer" else torch.float32
    features, logits = model(torch.ones(2, *shape, dtype=dtype))
    assert logits.shape == (2, 3)
    assert logits.norm(dim=1).max() <= (3 / 2) ** 0.5 + 1e-6
    head = model.get_submodule(str(model.head_name))
    assert models.count_parameters(head) == 3 * len(features[0]) + 3 + 1


def test_an_unknown_head_is_refused():
    with pytest.raises(UserError, match=r"head.*'simplexx'.*simplex"):
        models.build("mlp", shape=(4,), classes=3, head="simplexx")


def test_it_is_stacked_by_a_layer_of_its_own():
    network = fixtures.make_network("mlp", head="simplex")
    stacked = stack_network(network, torch.randn(2, 3, 1, 8, 8))
    assert not isinstance(stacked, MappedNetwork)


@pytest.mark.parametrize(
    "pieces",
    [
        (BalancedSoftmax(),),
        (BalancedSoftmax(), FedFM(strength=1.0, start_round=0, calibration=1.0)),
    ],
    ids=["fedetf", "fedetf+fedfm"],
)
def test_fedetf_is_the_same_in_every_executor(pieces: tuple[Piece, ...]):
    module = fixtures.make_network("mlp", hidden=[9], head="simplex", dtype=torch.float64)
    ends = []
    for executor in ("loop", "stacked"):
        data = fixtures.make_images(dtype=torch.float64)
        fed = fixtures.make_federation(module, data, *pieces, executor=executor)
        state = start(fed)
        for _ in range(2):
            state, log = run_round(state, fed)
            assert not log.failed
        ends.append(state.model)
    same_model(ends[0], ends[1], 1e-9)
    assert ends[0].params["head.simplex.scale"] != 1
