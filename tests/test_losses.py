"""The task's loss: torch's cross-entropy client by client, weights, and functions of one's own."""

import copy
import json
import tomllib
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from torch import nn

from fedfm import FedAvg, FedFM, RoundRecord, Training, UserError, simulate
from fedfm.config import load_config, make_config
from fedfm.losses import LOSSES, TaskLoss, cross_entropy, make_class_weights
from fedfm.methods import FedProx, Moon
from fedfm.plugins import CODE_DIGESTS, digest_sources
from fedfm.privacy import Privacy
from fedfm.rounds.round import open_round
from fedfm.run.tracking import list_metrics
from fedfm.verify import fixtures

torch.manual_seed(0)
LOGITS, LABELS = torch.randn(3, 7, 5, dtype=torch.float64), torch.randint(5, (3, 7))
FEW: dict[str, Any] = {"clients": 3, "rounds": 2, "epochs": 1, "lr": 0.05}


def squares(logits, labels):
    """Return the squared distance of the probabilities to the label, of each sample."""
    wanted = nn.functional.one_hot(labels, logits.shape[-1])
    return (logits.softmax(-1) - wanted).square().sum(-1)


class Scaled:
    """A loss that is an object."""

    def __call__(self, logits, labels):
        return 2 * cross_entropy(logits, labels)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighting", ["none", "shared", "each"])
def test_each_client_s_loss_is_that_of_torch(weighting, smoothing):
    rows = {"none": None, "shared": torch.rand(1, 5), "each": torch.rand(3, 5)}[weighting]
    weights = None if rows is None else rows.double() + 0.1
    losses = cross_entropy(LOGITS, LABELS, weights, smoothing)
    for client in range(3):
        own = None if weights is None else weights[client if len(weights) > 1 else 0]
        theirs = nn.CrossEntropyLoss(own, label_smoothing=smoothing)(LOGITS[client], LABELS[client])
        torch.testing.assert_close(losses[client], theirs)


def test_balanced_weights_are_those_of_each_client_alone():
    ours = make_class_weights("balanced", [torch.tensor([0, 0, 0, 2]), torch.tensor([1, 2])], 3)
    assert ours is not None
    assert ours.tolist() == [
        pytest.approx([4 / 9, 0, 4 / 3]),
        pytest.approx([0, 2 / 3, 2 / 3]),
    ]


def test_weights_for_another_number_of_classes_are_refused():
    assert make_class_weights((), [], 3) is None
    with pytest.raises(UserError):
        make_class_weights((1.0, 2.0), [], 3)
    with pytest.raises(UserError):
        simulate("mlp", "digits", FedAvg(), training={"class_weights": [1.0, 2.0]})


@pytest.mark.parametrize("executor", ["loop", "stacked", "threads"])
@pytest.mark.parametrize("wanted", [(1.0, 2.0, 0.5, 3.0, 1.0), "balanced"])
def test_clients_train_with_their_weights(wanted, executor):
    """Every client's steps are those of torch's loss and SGD."""
    module = fixtures.make_network("tiny mlp", dtype=torch.float64)
    data = fixtures.make_images(shape=fixtures.TINY, dtype=torch.float64)
    fed = fixtures.make_federation(module, data, FedAvg(), executor=executor, participation=0.75)
    labels = [data.train.labels[part] for part in fed.samples]
    weights = make_class_weights(wanted, labels, fixtures.CLASSES)
    assert weights is not None
    fed = replace(fed, class_weights=weights, task_loss=TaskLoss(label_smoothing=0.1))
    opened = open_round(fixtures.start(fed), fed)
    result = fed.executor.train(opened.job)
    for row, client in enumerate(fed.cohort(0)):
        local = copy.deepcopy(module)
        optimizer = torch.optim.SGD(local.parameters(), **asdict(fed.training.optimizer))
        own = weights[client if len(weights) > 1 else 0]
        plan = fed.plan(0, client)
        for batch in plan.indices.split(plan.sizes):
            chosen = data.train.subset(batch)
            optimizer.zero_grad()
            loss = nn.CrossEntropyLoss(own, label_smoothing=0.1)(
                local(chosen.inputs)[1], chosen.labels
            )
            loss.backward()
            optimizer.step()
        for name, value in local.named_parameters():
            torch.testing.assert_close(result.model.params[name][row], value.detach())


# --- From a config, and a function of one's own ---------------------------------------------------


def test_settings_of_the_loss_reach_the_clients():
    def last_loss(**settings):
        training = {**FEW, **settings}
        result = simulate("mlp", "digits", FedAvg(), training=training, executor="loop")
        return result.rounds[-1].train_loss

    plain, smooth = last_loss(), last_loss(label_smoothing=0.2)
    assert smooth > plain
    assert (
        len(
            {plain, last_loss(class_weights="balanced"), last_loss(class_weights=[1.0] * 9 + [5.0])}
        )
        == 3
    )


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_a_loss_of_one_s_own_replaces_cross_entropy(executor):
    result = simulate("mlp", "digits", FedAvg(), training=FEW, loss=squares, executor=executor)
    scaled = simulate("mlp", "digits", FedAvg(), training=FEW, loss=Scaled(), executor=executor)
    plain = simulate("mlp", "digits", FedAvg(), training=FEW, executor=executor)
    ours, doubled, usual = (each.rounds[0].losses["task"] for each in (result, scaled, plain))
    assert 0 < ours < 1 < usual < doubled / 1.5


def test_cross_entropy_of_one_s_own_is_cross_entropy(tmp_path):
    def entropy(logits, labels):
        return cross_entropy(logits, labels)

    ours, theirs = (
        simulate("mlp", "digits", FedFM(start_round=1), training=FEW, loss=loss, executor="stacked")
        for loss in (entropy, None)
    )
    assert [each.losses for each in ours.rounds] == [each.losses for each in theirs.rounds]


def test_it_is_recorded_by_name_and_digest(tmp_path):
    simulate("mlp", "digits", FedAvg(), training=FEW, loss=squares, out=tmp_path / "run")
    recorded = tomllib.loads((tmp_path / "run/config.toml").read_text())
    assert recorded["training"]["loss"] == "squares"
    assert recorded["code"] == digest_sources({"loss.squares": squares})
    assert len(recorded["code"]["loss.squares"]) == 12
    again = {"training": FEW, "out": tmp_path / "run", "resume": True}
    assert len(simulate("mlp", "digits", FedAvg(), loss=squares, **again).rounds) == 2
    with pytest.raises(UserError):
        simulate("mlp", "digits", FedAvg(), **again)


def test_objects_and_tables_of_training_take_it_alike():
    for training in (Training(**FEW), FEW, None):
        config = make_config(FedAvg(), training=training, loss=Scaled())
        assert config.training.loss == "Scaled"
        assert isinstance(config.task_loss.function, Scaled)
        assert isinstance(config.with_seed(3).task_loss.function, Scaled)


def test_a_file_of_one_s_own_can_register_it(monkeypatch):
    monkeypatch.setitem(LOSSES, "squares", squares)
    monkeypatch.setitem(CODE_DIGESTS, "loss.squares", "abc")
    config = load_config("digits", ["loss=squares"])
    assert config.task_loss.function is squares
    assert config.code == {"loss.squares": "abc"}


@pytest.mark.parametrize(
    "settings",
    [
        {"training": {"loss": "squares"}},
        {"training": {"label_smoothing": 1.0}},
        {"training": {"class_weights": [1.0, 0.0]}},
        {"training": {"class_weights": "even"}},
        {"training": {"class_weights": ["a"]}},
        {"training": {"class_weights": [1.0] * 10}, "loss": squares},
        {"training": {"label_smoothing": 0.1}, "loss": squares},
        {"loss": "squares"},
    ],
)
def test_mistakes_are_refused_in_a_line(settings):
    with pytest.raises(UserError) as caught:
        make_config(FedAvg(), **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrong", [lambda x, y: x, lambda x, y: 1.0, lambda x, y: x.mean()])
def test_a_loss_must_return_a_number_for_each_sample_or_client(wrong):
    with pytest.raises(UserError):
        TaskLoss(wrong)(LOGITS, LABELS, {})


# --- The terms of a loss, apart -------------------------------------------------------------------


def test_the_task_s_loss_and_each_piece_s_term_are_apart():
    """Before FedFM begins it adds nothing; from then on the total jumps and the task does not."""
    training = Training(clients=3, rounds=4, epochs=1, lr=0.05)
    pieces = [FedProx(mu=0.1), FedFM(start_round=2, strength=20.0)]
    rounds = simulate("mlp", "digits", pieces, training=training, executor="stacked").rounds
    for record in rounds:
        assert sum(record.losses.values()) == pytest.approx(record.train_loss, rel=1e-6)
    assert [[*record.losses] for record in rounds] == [["task"]] * 2 + [["task", "fedfm"]] * 2
    assert sum(rounds[2].losses.values()) > 2 * rounds[1].losses["task"]
    assert rounds[2].losses["task"] < rounds[1].losses["task"]


@pytest.mark.parametrize("executor", ["loop", "threads"])
def test_every_executor_reports_the_same_terms(executor):
    def losses(executor):
        method = [Moon(mu=1.0), FedFM(start_round=0, strength=2.0)]
        training = Training(**FEW)
        result = simulate("mlp", "digits", method, training=training, executor=executor)
        return [record.losses for record in result.rounds]

    for ours, theirs in zip(losses(executor), losses("stacked"), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)
        assert [*ours] == ["task", "moon", "fedfm"]


def test_under_privacy_no_term_is_sent():
    result = simulate(
        "mlp", "digits", FedFM(start_round=0), training=FEW, privacy=Privacy(), executor="loop"
    )
    assert [(record.train_loss, record.losses) for record in result.rounds] == [(None, {})] * 2


def test_files_have_the_terms_and_older_files_are_read(tmp_path):
    method, out = FedFM(start_round=0), tmp_path / "run"
    how = {"training": FEW, "out": out, "executor": "loop"}
    whole = simulate("mlp", "digits", method, **how)
    path = out / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["losses"] for line in lines] == [record.losses for record in whole.rounds]
    assert "losses.task,losses.fedfm" in (out / "rounds.csv").read_text().splitlines()[0]
    for line in lines:
        del line["losses"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (out / "summary.json").unlink()
    again = simulate("mlp", "digits", method, **how, resume=True)
    assert [record.losses for record in again.rounds] == [{}, {}]
    assert [record.train_loss for record in again.rounds] == [r.train_loss for r in whole.rounds]


def test_the_terms_are_tracked():
    record = RoundRecord(1, 0.5, 0.4, 2.3, 0.1, 1, 1, 4, 4, 1, losses={"task": 2.0, "fedfm": 0.3})
    assert list_metrics(record)["losses.task"] == 2.0
    assert list_metrics(record)["losses.fedfm"] == 0.3
