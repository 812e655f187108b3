"""Methods that keep models at clients: what stays, what is sent, what they refuse."""

from dataclasses import dataclass

import pytest
import torch

from fedfm import FedFM, FedFMLite, Training, UserError, compose, simulate
from fedfm.core.trees import Tree
from fedfm.methods import (
    PIECES,
    Batch,
    Centralised,
    Ditto,
    FedBN,
    FedDyn,
    FedPer,
    FedRep,
    Local,
    Piece,
    Scaffold,
)
from fedfm.rounds.round import run_round
from fedfm.verify.fixtures import SmallFederation, play_rounds, start
from tests.methods.test_baselines import METHODS

NORM = "tiny cnn with batch norm"
KEEPERS = [name for name, pieces in METHODS.items() if compose(pieces).keeps_models]


def size(module, names=lambda name: True):
    return sum(p.numel() for name, p in module.named_parameters() if names(name))


def test_there_are_five_that_keep_models():
    assert KEEPERS == ["fedbn", "fedper", "fedrep", "ditto", "local"]


@pytest.mark.parametrize(
    ("piece", "stays"),
    [
        (FedBN(), lambda name: name.startswith("body.1.")),
        (FedPer(), lambda name: name.startswith("head.")),
        (FedRep(head_epochs=1), lambda name: name.startswith("head.")),
        (Ditto(), lambda name: False),
        (Local(), lambda name: True),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_stays_goes_down_once_and_never_up(piece, stays):
    small = SmallFederation(NORM, participation=1.0)
    fed, clients = small.make_federation((piece,)), len(small.sizes)
    state, first = run_round(start(fed), fed)
    _, second = run_round(state, fed)
    whole, own = size(small.module), size(small.module, stays)
    assert first.traffic.floats_down == clients * whole
    assert second.traffic.floats_down == clients * (whole - own)
    assert first.traffic.floats_up == second.traffic.floats_up == clients * (whole - own)


def test_pooled_data_are_one_clients_and_nothing_is_sent():
    small = SmallFederation()
    fed = small.make_federation((Centralised(),))
    _, log = run_round(start(fed), fed)
    assert fed.samples[0].tolist() == list(range(sum(small.sizes)))
    assert log.traffic.bytes_up == log.traffic.bytes_down == log.traffic.handshakes == 0


def test_the_head_neither_steps_nor_decays_while_the_body_trains():
    """After longer training of the body, the head is still the one of its own stage."""
    small = SmallFederation(NORM, participation=1.0)
    fed = small.make_federation((FedRep(head_epochs=1),))
    heads = [play_rounds(start(fed), fed, 1).clients.get(0)["model"]["params"]]
    longer = SmallFederation(NORM, participation=1.0, epochs=4).make_federation(
        (FedRep(head_epochs=1),)
    )
    heads.append(play_rounds(start(longer), longer, 1).clients.get(0)["model"]["params"])
    assert heads[0].keys() == {"head.weight", "head.bias"}
    for name, leaf in heads[0].items():
        assert torch.equal(leaf, heads[1][name])


@pytest.mark.parametrize("other", [Scaffold(), FedDyn()])
@pytest.mark.parametrize("piece", [FedBN(), FedPer(), Local()])
def test_corrections_of_the_whole_model_do_not_combine_with_parts_that_stay(other, piece):
    with pytest.raises(UserError, match=other.name):
        compose([piece, other])


@pytest.mark.parametrize("piece", [FedBN(), FedPer(), FedRep(), Ditto(), Local()])
def test_they_need_models_in_every_round(piece):
    with pytest.raises(UserError, match="every 2 rounds"):
        compose([piece, FedFMLite(models_every=2)])
    assert compose([piece, FedFM()]).keeps_models


def test_stages_are_one_pieces_business():
    with pytest.raises(UserError, match="stages"):
        compose([FedRep(), Ditto()])


@pytest.mark.parametrize(("method", "what"), [("fedbn", "batch norm"), ("fedper", "head")])
def test_a_network_without_what_should_stay_is_refused_before_training(method, what):
    headless = torch.nn.Sequential(torch.nn.Flatten(), TwoOutputs())
    with pytest.raises(UserError, match=what):
        simulate(headless, "digits", method, training=Training(clients=3, rounds=1, epochs=1))


class TwoOutputs(torch.nn.Linear):
    """A head without a name."""

    def __init__(self):
        super().__init__(64, 10)

    def forward(self, x):
        return x, super().forward(x)


@pytest.mark.parametrize(
    ("kind", "settings"), [(FedRep, {"head_epochs": 0}), (Ditto, {"strength": -1.0})]
)
def test_settings_outside_their_range_are_refused(kind, settings):
    with pytest.raises(UserError, match=next(iter(settings))):
        kind(**settings)


@dataclass(frozen=True)
class Prior(Piece):
    """Uses a client's class counts."""

    name = "prior"

    def use_counts(self, counts: torch.Tensor) -> Tree:
        return {"counts": counts}

    def loss(self, batch: Batch, held: Tree) -> torch.Tensor:
        seen = held["counts"].gather(1, batch.labels)
        assert (seen > 0).all()  # whoever has a sample of a class has counted it
        return 0.0 * seen.sum(1)


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_a_piece_sees_its_clients_class_counts(executor):
    small = SmallFederation(executor=executor)
    fed = small.make_federation((Prior(),))
    counts = fed.count_classes([0, 2])
    labels = small.data.train.labels
    assert counts.tolist() == [
        torch.bincount(labels[fed.samples[k]], minlength=5).tolist() for k in (0, 2)
    ]
    run_round(start(fed), fed)


def test_every_registered_method_says_what_it_keeps():
    for name, kind in PIECES.items():
        assert compose(kind()).keeps_models == (name in KEEPERS), name
