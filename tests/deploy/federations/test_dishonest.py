"""Clients that lie: what cannot be true is left out and named; what is too large is cut down."""

import logging
from itertools import product

import pytest
import torch

from fedfm.core.errors import UserError
from fedfm.core.trees import flatten, unflatten
from fedfm.deploy.checks import check_deployable
from fedfm.deploy.client.runtime import Runtime
from fedfm.deploy.packets import Packet
from fedfm.deploy.updates import TooLarge, limit_update, measure_update
from tests.deploy.conftest import NODES, SECURE, Fault, assert_same, changed
from tests.deploy.federations.test_faults import (
    EXACT,
    QUANTISED,
    assert_one_line,
    missing,
    with_tensors,
)

METRICS = "metrics=['log_loss', 'auc', 'macro_f1', 'confusion', 'calibration_error']"
HUGE = 1e30


def put(**numbers):
    """An answer with other numbers in some leaves; `__` stands for the "/" of a path."""

    def change(leaves):
        for name, number in numbers.items():
            path = name.replace("__", "/")
            leaves[path] = torch.full_like(leaves[path], number)
        return leaves

    return with_tensors(change)


def scaled(factor):
    """An answer whose change of the model is larger."""

    def change(leaves):
        return {n: x * factor if n.startswith("change/") else x for n, x in leaves.items()}

    return with_tensors(change)


# --- scores ---------------------------------------------------------------------------------------

LIES = {
    "a validation accuracy of 1e30": put(scores__validation__accuracy__sum=HUGE),
    "a validation accuracy of 2": put(
        scores__validation__accuracy__sum=2.0, scores__validation__accuracy__squares=4.0
    ),
    "a negative accuracy": put(scores__validation__accuracy__sum=-1.0),
    "values of many clients": put(scores__validation__accuracy__clients=50),
    "a square that does not fit": put(scores__validation__accuracy__squares=0.0),
    "a loss below zero": put(scores__validation__log_loss__sum=-5.0),
    "more right than there are": put(scores__test__accuracy__right=10**6),
    "less than none": put(scores__test__accuracy__right=-1),
    "very many samples": put(
        scores__test__accuracy__right=10**12, scores__test__accuracy__samples=10**12
    ),
    "other samples than other metrics": put(
        scores__test__accuracy__right=1000, scores__test__accuracy__samples=1000
    ),
    "an own value that does not fit": put(
        scores__clients__accuracy__sum=1.0, scores__clients__accuracy__squares=1.0
    ),
    "a negative count in a bin": put(scores__test__auc__positives=-1),
    "a confusion of others": put(scores__test__confusion__counts=7),
    "a loss of 1e30": put(scores__test__log_loss__loss=HUGE),
    "classes of others": put(scores__test__macro_f1__right=10**6),
    "a confidence of 1e30": put(scores__test__calibration_error__confidence=HUGE),
}


@pytest.mark.parametrize("name", LIES)
def test_scores_that_cannot_be_true_are_left_out(federation, warnings, name):
    """Their client misses that round; no round becomes the best by them."""
    run = federation("fedavg", METRICS, "training.rounds=2")
    result = run.run(Fault("train", LIES[name], at=(1,)))
    assert_same(run.state, run.simulated_without(missing("train", 1)), **EXACT)
    assert all(0 <= record.val_accuracy <= 1 for record in result.rounds)
    assert all(0 <= record.test_accuracy <= 1 for record in result.rounds)
    assert_one_line(warnings(), "client 1 is left out of 'train'")


def test_a_client_does_not_choose_the_round(federation, warnings):
    """Its own samples count as those of one client, whatever it says in the last evaluation."""
    lie = put(scores__validation__accuracy__sum=HUGE, scores__validation__accuracy__squares=HUGE)
    run = federation("fedavg")
    result = run.run(Fault("evaluate", lie))
    assert result.rounds[-1].val_accuracy <= 1
    assert_one_line(warnings(), "client 1 is left out of 'evaluate'", "accuracy")


# --- counts and weights ---------------------------------------------------------------------------


COUNTS = [put(samples=number) for number in (1e12, 0.0, -5.0, 20.5)]
WEIGHTS = [put(weight=number) for number in (1e12, 0.0, -1.0)]


@pytest.mark.parametrize(
    ("method", "lie", "reason"),
    [
        *(("fedavg", lie, "max_samples") for lie in COUNTS),
        *product(("fedavg", "fednova", "scaffold"), WEIGHTS, ("weight",)),
    ],
)
def test_samples_and_weights_must_fit(federation, warnings, method, lie, reason):
    run = federation(method, "training.rounds=1")
    run.run(Fault("train", lie))
    assert_same(run.state, run.simulated_without(missing("train", 0)), **EXACT)
    assert_one_line(warnings(), "client 1 is left out of 'train'", reason)


@pytest.mark.parametrize("count", [-1, 10**9])
def test_counts_of_classes_must_fit(federation, warnings, count):
    run = federation("fedfm")
    run.run(Fault("measure", put(reports__fedfm__count=count)))
    assert_same(run.state, run.simulated_without(missing("measure")), **EXACT)
    assert_one_line(warnings(), "client 1 is left out of 'measure'", "count")


@pytest.mark.parametrize("lie", [put(moments__square=0.0), put(moments__count=HUGE)])
def test_moments_must_fit(federation, warnings, lie):
    run = federation("fedavg", "training.rounds=1")
    run.run(Fault("join", lie))
    assert_one_line(warnings(), "client 1 is left out of 'join'", "sums of inputs")


# --- the size of an update ------------------------------------------------------------------------


def change_of(run):
    """How far the global model has moved from where it began."""
    start, end = run.server.start.model.params, run.state.model.params
    return float(torch.stack([(end[n] - start[n]).norm() for n in start]).norm())


def test_a_large_update_is_scaled_down_and_named(federation, warnings):
    limit = 0.05
    run = federation("fedavg", "training.rounds=1", f"deployment.max_norm={limit}")
    run.run(Fault("train", scaled(HUGE)))
    assert change_of(run) <= limit * (1 + 1e-5)
    lines = warnings()
    assert any("client 1: " in line and "norm" in line and "scaled" in line for line in lines)


def test_a_large_update_is_left_out_and_named(federation, warnings):
    given = ("deployment.max_norm=100", "deployment.over_norm=drop")
    run = federation("fedavg", "training.rounds=2", *given)
    run.run(Fault("train", scaled(HUGE)))
    assert_same(run.state, run.simulated_without(missing("train", 0)), **EXACT)
    assert_one_line(warnings(), "client 1 is left out of 'train'", "max_norm")


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fednova", "fedfm"])
def test_a_limit_that_nobody_reaches_changes_nothing(federation, warnings, method):
    run = federation(method, "deployment.max_norm=1000")
    run.run()
    assert_same(run.state, run.simulated().state, **EXACT)
    assert warnings() == []


@pytest.mark.parametrize("over", ["clip", "drop"])
def test_under_secure_sums_a_client_limits_itself(federation, caplog, over):
    """The server cannot; it learns no norm."""
    caplog.set_level(logging.WARNING, "fedfm")
    given = (
        "training.rounds=1",
        SECURE,
        "deployment.max_norm=0.05",
        f"deployment.over_norm={over}",
    )
    run = federation("fedavg", *given)
    if over == "clip":
        run.run()
        assert change_of(run) <= 0.05 * (1 + 1e-4)
    else:
        with pytest.raises(UserError, match="train"):
            run.run()
    own = [r for r in caplog.records if r.name == "fedfm.deploy.client.client"]
    assert len([r for r in own if "norm" in r.getMessage()]) == 3
    servers = [r for r in caplog.records if r.name.startswith("fedfm.deploy.server")]
    assert not [r for r in servers if "has norm" in r.getMessage()]


def test_the_norm_is_that_of_all_that_moves_the_model():
    answer = {
        "weight": torch.tensor(2.0),
        "samples": torch.tensor(4.0),
        "change": {"w": torch.tensor([6.0, 0.0])},
        "buffers": {"mean": torch.tensor([0.0, 16.0])},
        "pieces": {"scaffold": {"change": torch.tensor([12.0, 0.0]), "steps": torch.tensor(99.0)}},
    }
    assert measure_update(answer) == pytest.approx(13.0)  # 3, 4 and 12


def test_scaling_leaves_single_numbers_and_counts_alone(federation):
    deployment = federation("fedavg", "deployment.max_norm=1").config.deployment
    answer = {
        "weight": torch.tensor(1.0),
        "change": {"w": torch.full((4,), HUGE)},
        "pieces": {"fednova": {"work": torch.tensor(7.0)}},
        "loss": torch.tensor(3.0),
    }
    small, what = limit_update(answer, deployment)
    assert measure_update(small) == pytest.approx(1.0)
    assert "1e+30" in what or "2e+30" in what
    assert (float(small["pieces"]["fednova"]["work"]), float(small["loss"])) == (7.0, 3.0)
    drop = federation("fedavg", "deployment.max_norm=1", "deployment.over_norm=drop")
    with pytest.raises(TooLarge, match="max_norm"):
        limit_update(answer, drop.config.deployment)


def test_privacy_clips_already(federation):
    private = ("deployment.max_norm=1", "privacy.clip=1", "deployment.evaluate=server",
               "deployment.mean=[0,0,0,0,0,0]", "deployment.std=[1,1,1,1,1,1]")  # fmt: skip
    with pytest.raises(UserError, match=r"^[^\n]*max_norm[^\n]*$"):
        check_deployable(federation("fedavg", *private).config)


def test_an_own_metric_is_checked_for_its_range(federation, warnings, monkeypatch):
    """Without a line of its own: by `low` and `high`."""
    from fedfm.metrics import METRICS as registered
    from fedfm.metrics import Accuracy

    class Half(Accuracy):
        name = "half"
        low, high = 0.0, 0.5

        def statistic(self, batch):
            return {"half": super().statistic(batch)["right"] / 2, "all": batch.mask.sum(-1)}

        def is_possible(self, total, samples):
            return super(Accuracy, self).is_possible(total, samples)

        def value(self, total):
            return total["half"] / total["all"]

    monkeypatch.setitem(registered, "half", Half)
    run = federation("fedavg", "metrics=half", "training.rounds=2")
    run.run(Fault("train", put(scores__test__half__half=HUGE), at=(1,)))
    assert_one_line(warnings(), "client 1 is left out of 'train'", "half")


def test_a_lie_in_a_forged_answer_names_its_sender(federation, warnings):
    """Two clients lie in one round: each is named once, and too few are left."""
    run = federation("fedavg", "training.rounds=1")

    def tamper(message, answer):
        lies = message.metadata.dst_node_id in NODES[1:]
        reply = answer()

        def alter(packet):
            leaves = flatten(dict(packet.trees.get("sum", {})))
            if "weight" not in leaves:
                return packet
            leaves["weight"] = leaves["weight"] * 1000
            return Packet(packet.facts, {"sum": unflatten(leaves)})

        return changed(reply, alter) if lies else reply

    with pytest.raises(UserError, match=r"\b1\b.*minimum"):
        run.run(tamper)
    assert [line.split()[1] for line in warnings()] == ["1", "2"]


# --- under secure sums ----------------------------------------------------------------------------


def spoil_words(message, answer):
    """A client that sends other words than its masks give."""
    return with_tensors(lambda words: {name: leaf + 1 for name, leaf in words.items()})(
        message, answer
    )


def spoil_shares(message, answer):
    """A client that reveals other shares than it holds."""

    def wrong(packet):
        shares = {k: share[:8] + "00" * 32 for k, share in packet.facts["shares"].items()}
        return Packet({**packet.facts, "shares": shares}, packet.trees)

    return changed(answer(), wrong)


@pytest.mark.parametrize("method", ["fedavg", "fedfm", "scaffold"])
def test_a_spoilt_sum_is_repeated_and_the_run_goes_on(federation, warnings, method):
    """Nobody is left out, because nobody can be named; the result is the simulation's."""
    run = federation(method, SECURE)
    result = run.run(Fault("train", spoil_words, at=(1,)))
    assert_same(run.state, run.simulated().state, **QUANTISED)
    assert [record.failed for record in result.rounds] == [0, 0, 0]
    (line,) = warnings()
    assert line.startswith("'train' is lost (1 in a row)")
    assert "masks do not cancel" in line


@pytest.mark.parametrize("method", ["fedavg", "fedfm"])
def test_a_client_that_spoils_every_sum_is_named_and_the_run_goes_on(federation, warnings, method):
    """Each round has the half without it, until it is the only one that was in every lost sum."""
    run = federation(method, SECURE, "training.rounds=4", clients=6)
    result = run.run(Fault("train", spoil_words, at=range(99)))
    assert [record.failed for record in result.rounds] == [3, 3, 3, 1]
    (line,) = [line for line in warnings() if "from now on" in line]
    assert line.startswith("client 1 is left out from now on: of all clients it alone")
    groups = [{1, 3, 5}, {1, 2, 5}, {0, 1, 3}, {1}]
    absent = lambda round, kind, client: (  # noqa: E731
        client in groups[round] and (kind == "train" or round == 3)
    )
    assert_same(run.state, run.simulated_without(absent), **QUANTISED)


def test_a_round_without_a_sum_is_dropped_and_the_run_goes_on(federation, warnings):
    """Three clients are too few for halves: nobody is named, and no sum is used."""
    run = federation("scaffold", SECURE)
    result = run.run(Fault("train", spoil_words, at=range(1, 5)))
    assert_same(run.state, run.simulated().state, **QUANTISED)
    assert [record.failed for record in result.rounds] == [0, 0, 0]
    dropped = [line for line in warnings() if line.startswith("round ")]
    (line,) = dropped
    assert line.startswith("round 2 is dropped (1 in a row) and begins anew: 'train'")
    assert "masks do not cancel" in line


def test_rounds_that_are_dropped_again_and_again_end_the_run(federation, warnings):
    """With the reason, and the state before; without the client the run goes on."""
    run = federation("fedavg", SECURE)
    with pytest.raises(UserError, match=r"3 rounds in a row are dropped.*do not cancel.*--resume"):
        run.run(Fault("train", spoil_words, at=range(1, 99)))
    assert run.state.round == 1
    run.run(resume=True)
    assert_same(run.state, run.simulated().state, **QUANTISED)


def test_a_client_with_wrong_shares_is_named_and_the_others_go_on(federation, warnings):
    run = federation("fedavg", SECURE, "deployment.threshold=3", clients=4)
    result = run.run(Fault("reveal", spoil_shares, at=range(1, 99)))
    assert_one_line(warnings(), "client 1 is left out from now on")
    assert [record.failed for record in result.rounds] == [0, 1, 1]
    absent = lambda round, kind, client: client == 1 and round > 0  # noqa: E731
    assert_same(run.state, run.simulated_without(absent), **QUANTISED)


def test_a_sum_of_scores_that_cannot_be_true_is_not_used(federation, warnings, monkeypatch):
    """A client says that its accuracy is 100,000%. The server sees it in the sum, once."""
    honest, lies = Runtime.evaluate, [1]

    def evaluate(runtime, model):
        scores = honest(runtime, model)
        if runtime.client == 1 and lies[0]:
            lies[0] -= 1
            scores["validation"]["accuracy"]["sum"] += 1000.0
        return scores

    monkeypatch.setattr(Runtime, "evaluate", evaluate)
    run = federation("fedavg", SECURE)
    result = run.run()
    assert all(0 <= record.val_accuracy <= 1 for record in result.rounds)
    assert_same(run.state, run.simulated().state, **QUANTISED)
    (line,) = warnings()
    assert "accuracy" in line
    assert "cannot be true" in line
