"""Validation samples that the server keeps before the clients get theirs."""

from typing import Any

import numpy as np
import pytest
import torch

from fedfm import Partition, Training, UserError, data, simulate, simulate_seeds
from fedfm.config import load_config, parse
from fedfm.data.holdout import split_for_server
from fedfm.data.partition import deal, tabulate
from fedfm.deploy.checks import check_deployable
from fedfm.engine.networks import copy_model
from fedfm.grid.budget import estimate_cost
from fedfm.grid.identity import digest
from fedfm.grid.store import read_summary
from fedfm.report.tables.statistics import get_table_metric
from fedfm.run.prepare import build_model
from fedfm.run.simulation import Simulation

DIGITS = data.load("digits")
LABELS = DIGITS.train.labels.numpy()
SKEW: Any = {"kind": "dirichlet", "beta": 0.1, "refill": True}
KEPT = 138
FEW: dict[str, Any] = {
    **{"clients": 10, "rounds": 5, "epochs": 1, "batch_size": 13, "participation": 0.3},
    **{"lr": 0.1, "validation": 0, "server_validation": KEPT, "evaluate_every": 2},
}


@pytest.mark.parametrize("count", [0, 1, 9, 138, 1437])
def test_every_class_gives_its_share_and_nobody_else_gets_these(count):
    clients, server = split_for_server(LABELS, count, 3)
    assert len(server) == count
    assert np.array_equal(np.sort(np.concatenate([clients, server])), np.arange(len(LABELS)))
    assert np.array_equal(server, split_for_server(LABELS, count, 3)[1])
    exact = np.bincount(LABELS) * count / len(LABELS)
    assert abs(np.bincount(LABELS[server], minlength=10) - exact).max() < 1


def test_the_seed_draws_them():
    one, other = (split_for_server(LABELS, KEPT, seed)[1] for seed in (0, 1))
    assert not np.array_equal(one, other)


def test_a_server_that_wants_everything_is_refused():
    with pytest.raises(UserError, match=r"server_validation = 1438 .* 1438 training samples"):
        split_for_server(LABELS, 1438, 0)


@pytest.mark.parametrize("kind", ["iid", "niid1", "dirichlet", "feature"])
def test_no_client_gets_a_sample_of_the_server(kind):
    _, server = split_for_server(LABELS, KEPT, 4)
    shards = deal(DIGITS, 10, Partition(kind, refill=kind == "dirichlet"), 4, KEPT)
    dealt = np.concatenate(shards)
    assert not np.isin(dealt, server).any()
    assert len(dealt) == len(LABELS) - KEPT
    assert tabulate(DIGITS, 10, Partition(kind), 4, KEPT).sum() == len(LABELS) - KEPT


def test_clients_of_equal_size_share_what_is_left():
    sizes = {len(shard) for shard in deal(DIGITS, 13, Partition(**SKEW), 0, KEPT)}
    assert sizes == {(1438 - 138) // 13}


def test_the_servers_model_is_measured_on_the_servers_samples():
    config = load_config("digits", ["method=fedavg", "partition.kind=iid", "model.name=mlp"])
    config = config.model_copy(update={"training": Training(**FEW), "executor": "loop"})
    model = build_model(config, DIGITS)
    simulation = Simulation(model, DIGITS, config)
    _, server = split_for_server(LABELS, KEPT, 0)
    assert [part.tolist() for part in simulation.evaluate.validation] == [server.tolist()]
    evaluated = simulation.evaluate(copy_model(model))
    with torch.no_grad():
        _, logits = model(DIGITS.normalise(DIGITS.train.inputs[server]))
    right = (logits.argmax(1) == DIGITS.train.labels[server]).double().mean()
    assert float(evaluated.validation["accuracy"]) == pytest.approx(float(right))


def test_it_chooses_the_round_and_clients_have_no_values_of_their_own(tmp_path):
    result = simulate(
        *("mlp", "digits", "fedavg"),
        partition=SKEW,
        training=FEW,
        metrics=["macro_f1"],
        executor="stacked",
        out=tmp_path / "run",
    )
    values = [record.val_accuracy or 0.0 for record in result.rounds]
    assert result.best.val_accuracy == max(values) > min(values)
    assert result.best.round == 1 + values.index(max(values))
    assert values[2] == values[1], "round 3 is not evaluated"
    assert [round(value * KEPT, 6) for value in values] == [round(v * KEPT) for v in values]
    assert {*result.validation} == {"accuracy", "macro_f1"}
    assert (result.clients, result.best.client_accuracies) == (None, ())
    known = read_summary(tmp_path / "run")
    tested = [100 * record.test_accuracy for record in result.rounds]
    assert get_table_metric("best_test_accuracy").of(known) == pytest.approx(max(tested))
    assert get_table_metric("last_test_accuracy").of(known) == pytest.approx(tested[-1])
    assert get_table_metric("test_accuracy").of(known) == tested[result.best.round - 1]


def test_seeds_that_are_trained_together_keep_samples_of_their_own():
    """They share one copy of the data."""
    how: dict[str, Any] = {"partition": SKEW, "training": FEW, "executor": "stacked"}
    together = simulate_seeds("mlp", "digits", "fedavg", seeds=(0, 1), **how)
    alone = simulate("mlp", "digits", "fedavg", seed=1, **how)
    assert [r.val_accuracy for r in together[1].rounds] == [r.val_accuracy for r in alone.rounds]
    assert together[0].rounds != together[1].rounds


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["validation=0.2"], "set validation = 0"),
        (["server_validation=-1"], "server_validation"),
        (["server_validation=true"], "server_validation"),
        (["partition.kind=natural"], "say whose the samples are"),
        (["method=ditto"], "ditto: clients have models of their own"),
    ],
)
def test_where_it_makes_no_sense_it_is_refused_in_a_line(settings, words):
    with pytest.raises(UserError, match=rf"^[^\n]*{words}[^\n]*$"):
        load_config("digits", ["validation=0", "server_validation=50", *settings])


def test_it_can_choose_by_a_metric_and_a_report_can_name_it():
    both = ["validation=0", "server_validation=50"]
    config = load_config("digits", [*both, "select_by=log_loss"])
    assert not config.training.reports_last
    assert load_config("digits", [*both, "report=best"]).training.report == "best"


def test_a_deployment_refuses_it():
    config = load_config("digits", ["validation=0", "server_validation=50"])
    with pytest.raises(UserError, match="server_validation is for simulations"):
        check_deployable(config)


def test_it_is_a_part_of_a_runs_identity_and_of_its_cost():
    plain = load_config("digits", ["validation=0"])
    other = load_config("digits", ["validation=0", "server_validation=143"])
    assert digest(plain.as_toml()) != digest(other.as_toml())
    older = plain.as_toml()
    del older["training"]["server_validation"]
    assert digest(older) == digest(plain.as_toml())
    assert parse(older) == plain
    share = (1438 - 143) / 1438
    assert estimate_cost(other) == pytest.approx(share * estimate_cost(plain), rel=1e-3)
