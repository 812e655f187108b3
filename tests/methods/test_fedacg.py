"""FedACG: where clients start, what is sent and saved, and what it does not combine with."""

from dataclasses import replace

import pytest
import torch

from fedfm import FedFM, FedFMLite, UserError, compose
from fedfm.core.trees import tree_map
from fedfm.methods import FedACG, FedAdam, FedAvg, FedAvgM, FedDyn, FedPer, Piece
from fedfm.rounds.costs import measure_cost
from fedfm.rounds.round import open_round, run_round
from fedfm.verify.checks import same, same_model
from fedfm.verify.fixtures import CLASSES, SmallFederation, play_rounds, start

NORM = "tiny cnn with batch norm"
EQUAL = SmallFederation(NORM, sizes=(8, 8, 8, 8))


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_without_momentum_and_pull_it_is_fedavg(executor):
    small = replace(EQUAL, executor=executor)
    ours = small.play((FedACG(momentum=0.0, strength=0.0),), 3)
    same_model(ours.model, small.play((FedAvg(),), 3).model, 1e-12)


def test_it_differs_from_fedavgm_by_where_clients_start():
    """The first round is FedAvgM's; in the second one gradients are taken ahead of x."""
    ours, theirs = ((FedACG(momentum=0.7, strength=0.0),), (FedAvgM(beta=0.7),))
    same_model(EQUAL.play(ours, 1).model, EQUAL.play(theirs, 1).model, 1e-12)
    second, plain = (EQUAL.play(pieces, 2).model for pieces in (ours, theirs))
    assert any(not torch.equal(leaf, plain.params[name]) for name, leaf in second.params.items())


def test_clients_receive_start_from_and_are_pulled_to_w():
    fed = EQUAL.make_federation((FedACG(momentum=0.7, strength=0.2),))
    state = play_rounds(start(fed), fed, 2)
    opened = open_round(state, fed)
    momentum = state.server["fedacg"]["momentum"]
    ahead = tree_map(lambda x, m: x + 0.7 * m, state.model.params, momentum)
    assert any(bool(leaf.any()) for leaf in momentum.values())
    same(opened.request.model.params, ahead)
    for tree in (opened.job.start.params, opened.job.objective.held["fedacg"]["reference"]):
        same(tree_map(lambda leaf: leaf[0], tree), ahead)


def test_three_rounds_by_hand():
    """One client, one step of plain SGD: y = w - lr gradient(w), whatever the pull is."""
    small = SmallFederation(sizes=(6,), epochs=1, batch_size=6, momentum=0.0, weight_decay=0.0)
    fed = small.make_federation((FedACG(momentum=0.5, strength=0.3),))
    plain = small.make_federation((FedAvg(),))
    state = start(fed)
    x, m = state.model.params, tree_map(torch.zeros_like, state.model.params)
    for _ in range(3):
        state = play_rounds(state, fed, 1)
        w = tree_map(lambda a, b: a + 0.5 * b, x, m)
        at_w = start(plain, state.round - 1)
        at_w = replace(at_w, model=at_w.model._replace(params=w))
        y = play_rounds(at_w, plain, 1).model.params
        m = tree_map(lambda b, c, d: 0.5 * b + c - d, m, y, w)
        x = tree_map(torch.add, x, m)
        same(state.model.params, x, 1e-12)


def test_no_more_is_sent_than_by_fedavg():
    (ours, plain) = (
        measure_cost(compose(piece), EQUAL.module, CLASSES, 8) for piece in (FedACG(), FedAvg())
    )
    wanted = replace(plain, method="fedacg", memory=2 * plain.memory)  # the model and w
    assert ours == wanted


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_feature_matching_and_models_at_clients(executor):
    small = SmallFederation(NORM, executor=executor)
    for other in (FedFM(strength=1.0, start_round=0), FedPer()):
        fed = small.make_federation((FedACG(), other))
        state, log = run_round(play_rounds(start(fed), fed, 1), fed)
        assert not log.failed
        assert all(leaf.isfinite().all() for leaf in state.model.params.values())


class Restless(Piece):
    """Lets clients start elsewhere."""

    name = "restless"

    def start(self, server, params):
        return tree_map(lambda x: 2 * x, params)


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (FedAdam(), "server optimizer"),
        (FedDyn(), "client drift correction"),
        (Restless(), "set where clients start"),
        (FedFMLite(models_every=2), "every 2 rounds"),
    ],
)
def test_contradictions_are_refused(other, what):
    with pytest.raises(UserError, match=what):
        compose([FedACG(), other])


def test_a_start_of_another_form_is_refused():
    class Short(Restless):
        def start(self, server, params):
            return {}

    fed = SmallFederation().make_federation((Short(),))
    with pytest.raises(UserError, match=r"Short\.start"):
        run_round(start(fed), fed)


@pytest.mark.parametrize(("key", "value"), [("momentum", 1.0), ("strength", -0.1)])
def test_settings_outside_their_range_are_refused(key, value):
    with pytest.raises(UserError, match=f"fedacg: {key}"):
        FedACG(**{key: value})
