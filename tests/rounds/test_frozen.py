"""Frozen layers: they never change, are sent once to each client, and never come back."""

import pytest
import torch

from fedfm import FedFM, FedFMLite, Partition, Training, UserError, compose, models, simulate
from fedfm.core.client_states import InMemory
from fedfm.engine.networks import copy_model, describe_task
from fedfm.methods import PIECES, FedProto
from fedfm.models.weights import freeze_layers
from fedfm.rounds.costs import measure_cost
from fedfm.rounds.sampling import draw_cohort
from fedfm.rounds.state import State, from_tree, to_facts, to_tree
from fedfm.verify.fixtures import CLASSES, make_images, make_network

SHAPE = (1, 8, 8)
METHODS = {name: piece() for name, piece in PIECES.items() if not piece.pools_data} | {
    "fedproto": FedProto(start_round=1),
    "fedfm": FedFM(start_round=1),
    "fedfm-lite": FedFMLite(start_round=1),
    "fedfm-lite, a=2": FedFMLite(models_every=2, start_round=1),
}


def build(freeze=("body.1", "body.2")):
    network = make_network("mlp", hidden=[6, 7], norm="batch")
    freeze_layers(network, freeze)
    return network


def run(method, freeze=("body.1", "body.2"), **options):
    training = Training(
        clients=4, rounds=6, epochs=1, batch_size=4, lr=1e-3, **{"participation": 0.5, **options}
    )
    return simulate(
        build(freeze), make_images(), method, partition=Partition("iid"), training=training,
        executor="loop",
    )  # fmt: skip


def count_frozen_bytes(network) -> int:
    return sum(4 * p.numel() for p in network.parameters() if not p.requires_grad)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_frozen_layers_keep_their_weights_and_the_rest_is_trained(method):
    before = copy_model(build())
    best = run(method).best.model
    assert {"body.1.weight", "body.1.bias", "body.2.weight", "body.2.bias"} <= best.buffers.keys()
    for name, leaf in best.buffers.items():
        if "running" not in name and "num_batches" not in name:
            assert torch.equal(leaf, before.buffers[name]), name
    if method.name != "local":
        assert any(not torch.equal(leaf, before.params[name]) for name, leaf in best.params.items())
    if method.name not in ("local", "fedbn"):
        moving = "body.2.running_mean"
        assert not torch.equal(best.buffers[moving], before.buffers[moving])


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_later_rounds_cost_what_is_trained_alone(method):
    network, composed, clients = build(), compose(method), 4
    features = models.feature_dim(network, torch.zeros(1, *SHAPE))
    cost = measure_cost(composed, network, CLASSES, features)
    first, cycle = composed.steady_round + composed.share_every, composed.share_every
    rounds = run(method, participation=1.0).rounds[first : first + cycle]
    assert sum(record.bytes_up for record in rounds) / cycle / clients == cost.bytes_up
    assert sum(record.bytes_down for record in rounds) / cycle / clients == cost.bytes_down
    whole = measure_cost(composed, build(()), CLASSES, features)
    saved = 0 if method.name == "local" else count_frozen_bytes(network) / cycle
    if method.name in ("fedavg", "fedper", "fedfm", "fedfm-lite"):
        assert cost.bytes_down == whole.bytes_down - saved


@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_every_client_gets_frozen_layers_when_it_first_takes_part(participation):
    network = build()
    frozen = count_frozen_bytes(network)
    result = run("fedavg", participation=participation)
    cohort = round(4 * participation)
    each = measure_cost(compose(PIECES["fedavg"]()), network, CLASSES, 7).bytes_down
    extra = [record.bytes_down - cohort * each for record in result.rounds]
    assert extra[0] == cohort * frozen
    cohorts = [draw_cohort(range(4), participation, 4, 0, r) for r in range(len(extra))]
    assert sum(extra) == len({client for each in cohorts for client in each}) * frozen
    assert {record.bytes_up for record in result.rounds} == {cohort * each}


def test_a_run_with_frozen_layers_resumes_with_the_same_ledger(tmp_path):
    class Stop(Exception):
        pass

    def stop(record):
        if record.round == 2:
            raise Stop

    def go(out, **options):
        return simulate(
            build(),
            make_images(),
            "fedavg",
            partition=Partition("iid"),
            training=Training(clients=4, rounds=5, epochs=1, batch_size=4, participation=0.5),
            executor="loop",
            out=out,
            **options,
        )

    whole = go(tmp_path / "whole")
    with pytest.raises(Stop):
        go(tmp_path / "stopped", watch=stop)
    resumed = go(tmp_path / "stopped", resume=True)
    assert [r.traffic for r in resumed.rounds] == [r.traffic for r in whole.rounds]


def test_a_checkpoint_holds_who_has_received_the_first_model():
    network = build()
    start = State(0, copy_model(network), {})
    state = State(3, start.model, {}, InMemory(), frozenset({0, 2}))
    assert from_tree(to_tree(state), to_facts(state), start).received == {0, 2}
    facts = {name: value for name, value in to_facts(state).items() if name != "received"}
    assert from_tree(to_tree(state), facts, start).received == frozenset()


def test_batch_norm_statistics_of_frozen_layers_are_not_frozen():
    network = build()
    task = describe_task(network, copy_model(network), CLASSES, 7)
    assert task.frozen == {"body.1.weight", "body.1.bias", "body.2.weight", "body.2.bias"}


def test_a_model_with_nothing_left_to_train_is_refused():
    with pytest.raises(UserError, match="no trainable parameter"):
        run("fedavg", freeze=("*",))
