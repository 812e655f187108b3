"""Metrics and clients in a run: records, the choice of the round, files, fine-tuning."""

import csv
import json
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from fedfm import Partition, Training, data, models, simulate
from fedfm.config import load_config, make_config, parse
from fedfm.core import trees
from fedfm.core.errors import UserError
from fedfm.data.dataset import Dataset
from fedfm.data.split import Split
from fedfm.engine.evaluation import Evaluator, OwnModels
from fedfm.engine.executors import LoopExecutor
from fedfm.engine.networks import copy_model
from fedfm.grid.store import read_summary
from fedfm.methods.base import Model
from fedfm.metrics import METRICS, Accuracy, Auc, Metric
from fedfm.metrics.measures import Measures
from fedfm.plugins import digest_sources
from fedfm.run.client_results import ClientResults
from fedfm.run.console import describe_result, describe_round
from fedfm.run.prepare import build_model
from fedfm.run.records import Best, RoundRecord, Score
from fedfm.run.scores import Selection, check_labels, find_owned
from fedfm.run.simulation import Simulation, device_data
from fedfm.run.tracking import list_metrics as tracked
from tests.metrics.test_metrics import exact_auc, expected

FEW = Training(clients=4, rounds=3, epochs=1, lr=0.05)
ALL = [*METRICS]
NUMBERS = [name for name, kind in METRICS.items() if kind.form == "number"]
PARTITION = {"kind": "niid1", "beta": 0.5}


def run(training=FEW, metrics=None, **options):
    chosen = {"executor": "loop", "partition": PARTITION} | options
    return simulate("mlp", "digits", "fedavg", training=training, metrics=metrics, **chosen)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("metrics") / "run"


@pytest.fixture(scope="module")
def everything(folder):
    """A run with all metrics, and with fine-tuning."""
    return run(replace(FEW, fine_tune=1), ALL, out=folder)


def predict(model):
    """The logits [n, C] and labels [n] of the test set."""
    digits = data.load("digits")
    network = models.build("mlp", shape=digits.shape, classes=10)
    network.load_state_dict(model.params | model.buffers)
    with torch.no_grad():
        return network.eval()(digits.normalise(digits.test.inputs))[1], digits.test.labels


def test_the_test_values_are_scikit_learn_s_and_auc_is_exact(everything):
    logits, labels = predict(everything.best.model)
    assert [*everything.test] == ALL
    assert everything.test["auc"] == pytest.approx(exact_auc(logits, labels), abs=1e-6)
    for name in set(ALL) - {"auc"}:
        measured = np.array(everything.test[name], float)
        np.testing.assert_allclose(measured, expected(name, logits, labels), rtol=1e-4, atol=1e-6)


def test_records_have_the_metrics_that_are_one_number(everything):
    further = [name for name in NUMBERS if name != "accuracy"]
    for record in everything.rounds:
        assert [*record.metrics] == ["val", "test"]
        assert [*record.metrics["val"]] == [*record.metrics["test"]] == further
    last = everything.rounds[everything.best.round - 1]
    assert last.metrics["test"]["auc"] == everything.test["auc"]
    assert last.metrics["val"]["auc"] == everything.validation["auc"]


def test_the_values_on_validation_samples_are_means_over_clients(everything):
    results = everything.clients
    assert results.split == "validation"
    assert results.values["accuracy"] == everything.best.client_accuracies
    for name in NUMBERS:
        values = results.values[name]
        assert everything.validation[name] == pytest.approx(np.mean(values))
        assert results.deviation(name) == pytest.approx(np.std(values), abs=1e-9)
        lower = METRICS[name].better == "lower"
        assert results.worst(name) == (max if lower else min)(values)
        assert results.percentile(name) == pytest.approx(np.percentile(values, 90 if lower else 10))


def test_files_have_the_metrics(everything, folder):
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [RoundRecord(**line) for line in lines] == [*everything.rounds]
    rows = [*csv.DictReader((folder / "rounds.csv").read_text().splitlines())]
    assert float(rows[0]["val_log_loss"]) == everything.rounds[0].metrics["val"]["log_loss"]
    content = json.loads((folder / "summary.json").read_text())
    assert content["metrics"] == everything.best.metrics
    assert np.shape(content["metrics"]["test"]["confusion"]) == (10, 10)
    assert content["clients"]["accuracy"]["worst"] == everything.clients.worst("accuracy")
    assert content["clients"]["values"]["auc"] == [*everything.clients.values["auc"]]
    summary = read_summary(folder)
    assert summary.metrics["test_auc"] == everything.test["auc"]
    assert summary.metrics["p10_accuracy"] == everything.clients.percentile("accuracy")
    assert summary.metrics["fine_tuned_mean_accuracy"] == content["fine_tuned"]["accuracy"]["mean"]


def test_people_and_tracking_services_see_the_metrics(everything):
    assert "auc 0." in describe_round(everything.rounds[0])
    text = describe_result(everything)
    assert "macro_f1" in text
    assert "worst" in text
    assert "fine-tuned" in text
    numbers = tracked(everything.rounds[0])
    assert numbers["test_log_loss"] == everything.rounds[0].metrics["test"]["log_loss"]
    assert all(isinstance(value, float) for value in numbers.values())


def test_by_default_rounds_have_no_new_key_and_evaluation_no_new_pass(tmp_path, monkeypatch):
    passes = []
    measure = LoopExecutor.measure

    def counted(self, model, samples, statistic, data=None):
        passes.append(statistic)
        return measure(self, model, samples, statistic, data)

    monkeypatch.setattr(LoopExecutor, "measure", counted)
    result = run(out=tmp_path / "run")
    assert len(passes) == 2 * len(result.rounds)
    line = json.loads((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()[0])
    assert "metrics" not in line
    assert {*line} == {*RoundRecord.__dataclass_fields__} - {"metrics"}
    content = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "metrics" not in content
    assert content["clients"]["accuracy"]["clients"] == 4


def test_further_metrics_need_no_further_pass_and_change_no_result(monkeypatch):
    plain = run()
    passes = []
    measure = LoopExecutor.measure

    def counted(*args):
        passes.append(1)
        return measure(*args)

    monkeypatch.setattr(LoopExecutor, "measure", counted)
    result = run(metrics=ALL)
    assert len(passes) == 2 * len(result.rounds)
    assert [r.val_accuracy for r in result.rounds] == [r.val_accuracy for r in plain.rounds]
    assert [r.test_accuracy for r in result.rounds] == [r.test_accuracy for r in plain.rounds]


def test_the_pass_of_an_exact_value_may_run_out_of_memory(monkeypatch):
    """What the failed pass has seen does not count."""
    digits = data.load("digits")
    made = simulation(FEW, metrics=["auc"])
    model = made.start.model
    wanted = made.evaluate(model).test["auc"]
    fetched = []
    fetch = type(made.evaluate.test).fetch

    def fail_once(self, indices, draws=None):
        fetched.append(indices.numel())
        if len(fetched) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB. GPU 0 has")
        return fetch(self, indices, draws)

    monkeypatch.setattr(made.evaluate.executor, "samples_at_once", 100)
    monkeypatch.setattr(type(made.evaluate.test), "fetch", fail_once)
    assert float(made.evaluate(model).test["auc"]) == pytest.approx(float(wanted))
    assert sum(fetched) > len(digits.test)


# --- Which round is reported ---------------------------------------------------------------------


def simulation(training, **settings):
    config = make_config("fedavg", model="mlp", data="digits", training=training,
                         partition=PARTITION, executor="loop", **settings)  # fmt: skip
    digits = data.load("digits")
    return Simulation(build_model(config, digits), digits, config)


@pytest.mark.parametrize("name", ["macro_f1", "log_loss", "auc"])
def test_select_by_chooses_the_best_round(name):
    result = run(replace(FEW, select_by=name, rounds=5, lr=0.3))
    values = [record.metrics["val"][name] for record in result.rounds]
    best = min(values) if name == "log_loss" else max(values)
    assert result.best.round == values.index(best) + 1
    assert result.test[name] == result.rounds[result.best.round - 1].metrics["test"][name]


def scored(accuracy, auc):
    return Score(accuracy, accuracy, metrics={"val": {"auc": auc}, "test": {"auc": auc}})


def kept(score):
    model = copy_model(torch.nn.Linear(1, 1))
    return Best(1, score.validation, score.test, model, metrics=score.metrics)


@pytest.mark.parametrize(
    ("selection", "new", "old", "better"),
    [
        (Selection(), scored(0.5, 0.1), scored(0.4, 0.9), True),
        (Selection(), scored(0.4, 0.9), scored(0.4, 0.1), False),
        (Selection("auc"), scored(0.1, 0.6), scored(0.9, 0.5), True),
        (Selection("auc"), scored(0.1, 0.5), scored(0.9, 0.5), False),
        (Selection("auc", lower=True), scored(0.1, 0.4), scored(0.9, 0.5), True),
        (Selection("auc"), scored(0.1, None), scored(0.9, 0.5), False),
        (Selection("auc"), scored(0.1, 0.2), scored(0.9, None), True),
        (Selection("auc"), scored(0.1, None), scored(0.9, None), False),
        (Selection(last=True), scored(0.1, 0.1), scored(0.9, 0.9), True),
    ],
)
def test_which_of_two_rounds_is_better(selection, new, old, better):
    assert selection.prefers(new, kept(old)) is better
    assert selection.prefers(new, None)


def test_the_last_round_or_the_mean_of_the_last_rounds_is_reported():
    last = run(replace(FEW, report="last", lr=0.3), metrics=["log_loss", "confusion"])
    assert last.best.round == 3
    assert last.test_accuracy == last.rounds[-1].test_accuracy
    mean = run(
        replace(FEW, report="last", last_rounds=2, lr=0.3), metrics=["log_loss", "confusion"]
    )
    rounds = last.rounds[-2:]
    assert mean.test_accuracy == pytest.approx(np.mean([r.test_accuracy for r in rounds]))
    assert mean.best.val_accuracy == pytest.approx(np.mean([r.val_accuracy for r in rounds]))
    losses = [r.metrics["test"]["log_loss"] for r in rounds]
    assert mean.test["log_loss"] == pytest.approx(np.mean(losses))
    assert mean.test["confusion"] == last.test["confusion"]


def test_without_validation_clients_train_on_everything(tmp_path):
    training = replace(FEW, validation=0)
    made = simulation(training)
    assert sum(map(len, made.federation.samples)) == len(data.load("digits").train)
    result = run(training, metrics=["macro_f1"], out=tmp_path / "run")
    assert result.best.round == 3
    assert [record.val_accuracy for record in result.rounds] == [None] * 3
    assert result.validation == {"accuracy": None}
    assert [*result.rounds[0].metrics] == ["test"]
    assert result.clients is None
    assert "val" not in describe_round(result.rounds[0])
    assert "validation" not in describe_result(result)
    assert "val_accuracy" not in tracked(result.rounds[0])
    assert read_summary(tmp_path / "run").val_accuracy is None
    assert run(training, out=None).best.round == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"validation": 0, "select_by": "auc"}, "select_by"),
        ({"validation": 0, "report": "best"}, "report"),
        ({"report": "first"}, "report"),
        ({"report": "last", "select_by": "auc"}, "select_by"),
        ({"last_rounds": 2}, "report"),
        ({"report": "last", "last_rounds": 2, "evaluate_every": 2}, "evaluate_every"),
        ({"report": "last", "last_rounds": 4}, "last_rounds"),
        ({"report": "last", "last_rounds": 0}, "last_rounds"),
        ({"validation": 1.0}, "validation"),
        ({"fine_tune": -1}, "fine_tune"),
    ],
)
def test_wrong_reports_are_refused_in_a_line(change, words):
    with pytest.raises(UserError, match=rf"^[^\n]*{words}[^\n]*$"):
        replace(FEW, **change)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["metrics=['f1']"], "macro_f1|class_f1"),
        (["select_by=aucc"], "'auc'"),
        (["select_by=confusion"], "not one number"),
        (["select_by=class_f1"], "macro_f1|accuracy"),
        (["metrics=['auc', 'auc']"], "auc twice"),
        (["metrics=3"], "metrics"),
    ],
)
def test_wrong_metrics_are_refused_in_a_line(settings, words):
    with pytest.raises(UserError, match=rf"^[^\n]*({words})[^\n]*$"):
        load_config("digits", settings)


def test_one_metric_needs_no_list():
    config = load_config("digits", ["metrics=auc"])
    assert config.metrics == ("auc",)
    assert [metric.name for metric in config.measures.metrics] == ["accuracy", "auc"]
    assert parse(config.as_toml()).measures == config.measures


# --- Clients that lack what a metric needs -------------------------------------------------------


def labels_of(*classes):
    return [torch.tensor(each) for each in classes]


def test_a_client_of_one_class_has_no_auc_and_is_left_out(caplog):
    measures = Measures((Accuracy(), Auc()))
    test = torch.tensor([0, 1])
    check_labels(measures, None, test, labels_of([0, 1], [1, 1]))
    assert len(caplog.messages) == 1
    check_labels(measures, "auc", test, labels_of([0, 1], [1, 1]))
    for wrong in (
        (measures, "auc", test, labels_of([0, 0], [1, 1])),
        (measures, None, torch.tensor([1, 1]), labels_of([0, 1])),
    ):
        with pytest.raises(UserError, match=r"^metric auc needs [^\n]*$"):
            check_labels(*wrong)
    check_labels(measures, None, test, labels_of([0, 0], [1, 1]))


def test_clients_without_a_value_are_left_out_of_the_statistics():
    results = ClientResults.from_values("validation", {"auc": (0.5, None, 0.75)})
    assert results.describe()["auc"] == {
        "clients": 2, "mean": 0.625, "deviation": 0.125, "worst": 0.5, "p10": 0.525,
    }  # fmt: skip
    nobody = ClientResults.from_values("validation", {"auc": (None,)}).describe()["auc"]
    assert nobody == {"clients": 0, "mean": None, "deviation": None, "worst": None, "p10": None}


# --- Test samples that belong to clients ---------------------------------------------------------


def natural():
    """Three clients with training and test samples of their own."""
    rng = np.random.default_rng(1)
    labels = torch.from_numpy(rng.integers(0, 3, 240))
    inputs = torch.from_numpy(rng.normal(size=(240, 5))).float() + labels[:, None]
    owners = torch.from_numpy(rng.integers(0, 3, 240))
    train = Split(inputs[:150], labels[:150], owners[:150])
    test = Split(inputs[150:], labels[150:], owners[150:])
    return Dataset("natural", train, test, ("a", "b", "c"), clients=("x", "y", "z"))


def test_per_client_test_results_use_the_samples_that_belong_to_clients():
    world = natural()
    shards = [np.flatnonzero(world.train.clients.numpy() == k) for k in (2, 0, 1)]
    owned = find_owned(world, shards)
    for part, owner in zip(owned, (2, 0, 1), strict=True):
        assert (world.test.clients[part] == owner).all()
    assert sum(map(len, owned)) == len(world.test)
    mixed = [np.arange(0, 75), np.arange(75, 150)]
    assert find_owned(world, mixed) == []
    two = find_owned(world, shards[:2])
    measures = Measures((Accuracy(), Auc()))
    network = models.build("mlp", shape=(5,), classes=3)
    train, test = device_data(network, world)
    evaluator = Evaluator(LoopExecutor(network, train), [], (train, test), measures, two)
    whole = Evaluator(LoopExecutor(network, train), [], (train, test), measures)
    by_client, alike = evaluator(copy_model(network)), whole(copy_model(network))
    assert float(by_client.test["accuracy"]) == float(alike.test["accuracy"])
    assert float(by_client.test["auc"]) == pytest.approx(float(alike.test["auc"]), abs=1e-6)
    with torch.no_grad():
        logits = network.eval()(world.normalise(world.test.inputs))[1]
    right = (logits.argmax(1) == world.test.labels).double()
    assert by_client.clients["accuracy"].tolist() == [float(right[part].mean()) for part in two]
    assert by_client.validation == alike.validation == alike.clients == {}


@pytest.mark.parametrize("own", [False, True])
def test_auc_of_each_client_is_exact_whichever_model_it_has(own):
    world = natural()
    networks = [models.build("mlp", shape=(5,), classes=3) for _ in range(3)]
    networks = networks if own else networks[:1] * 3
    both = device_data(networks[0], world)
    owned, validation = (
        [(split.clients == k).nonzero().flatten() for k in range(3)]
        for split in (world.test, world.train)
    )
    measures = Measures((Accuracy(), Auc()))
    evaluator = Evaluator(LoopExecutor(networks[0], both[0]), validation, both, measures, owned)

    def stacked(some):
        return Model(*map(trees.stack, zip(*(copy_model(networks[k]) for k in some), strict=True)))

    measured = evaluator(copy_model(networks[0]), OwnModels(3, stacked) if own else None)

    def predict_own(split, part, network):
        with torch.no_grad():
            return network.eval()(world.normalise(split.inputs[part]))[1], split.labels[part]

    for values, split, parts in (
        (measured.clients["auc"], world.test, owned),
        (measured.validation["auc"], world.train, validation),
    ):
        pairs = [predict_own(split, *each) for each in zip(parts, networks, strict=True)]
        assert values.tolist() == pytest.approx([exact_auc(*pair) for pair in pairs], abs=1e-6)
    pairs = [predict_own(world.test, *each) for each in zip(owned, networks, strict=True)]
    pooled = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    assert float(measured.test["auc"]) == pytest.approx(exact_auc(*pooled), abs=1e-6)


def test_test_samples_of_a_class_that_training_lacks_are_refused():
    world = natural()
    train = world.train.subset(world.train.labels > 0)
    name = world.classes[0]
    with pytest.raises(UserError, match=f"test samples have class {name}, which no training"):
        simulate("mlp", replace(world, train=train), "fedavg", training=FEW)


def test_clients_are_tested_on_their_own_samples_in_a_run():
    world, partition = natural(), Partition("natural")
    training = Training(rounds=2, epochs=1, validation=0, fine_tune=1)
    result = simulate(
        "mlp", world, "fedavg", partition=partition, training=training, executor="loop"
    )
    results, counts = result.clients, world.test.clients.bincount()
    assert results is not None
    assert result.best.fine_tuned is not None
    assert (results.split, result.best.fine_tuned.split) == ("test", "test")
    right = sum(v * n for v, n in zip(results.values["accuracy"], counts.tolist(), strict=True))
    assert right / len(world.test) == pytest.approx(result.test_accuracy)
    assert "clients, test accuracy" in describe_result(result)


# --- Fine-tuning ---------------------------------------------------------------------------------


def test_fine_tuning_is_local_training_of_the_reported_model(everything):
    """It is what one more round trains at each client, tested on its validation samples."""
    made = simulation(replace(FEW, fine_tune=1))
    fed = made.federation
    tuned = everything.best.fine_tuned
    assert tuned.split == "validation"
    for client in range(4):
        network = models.build("mlp", shape=(1, 8, 8), classes=10)
        network.load_state_dict(everything.best.model.params | everything.best.model.buffers)
        digits = data.load("digits")
        inputs = digits.normalise(digits.train.inputs)
        optimizer = torch.optim.SGD(network.parameters(), 0.05, 0.9, weight_decay=1e-5)
        for batch in fed.plan(3, client).batches:
            optimizer.zero_grad()
            logits = network(inputs[batch])[1]
            torch.nn.functional.cross_entropy(logits, digits.train.labels[batch]).backward()
            optimizer.step()
        samples = made.evaluate.validation[client]
        right = network(inputs[samples])[1].argmax(1) == digits.train.labels[samples]
        assert tuned.values["accuracy"][client] == pytest.approx(float(right.double().mean()))


@pytest.mark.parametrize("executor", ["loop", "stacked", "threads"])
def test_every_executor_fine_tunes_groups_of_a_cohort(executor):
    training = replace(FEW, fine_tune=1, participation=0.5, rounds=1)
    result = run(training, executor=executor)
    alone = run(replace(training, participation=0.5), executor="loop")
    assert len(result.best.fine_tuned.values["accuracy"]) == 4
    assert result.best.fine_tuned.values["accuracy"] == pytest.approx(
        alone.best.fine_tuned.values["accuracy"], abs=0.05
    )


def test_fine_tuning_needs_samples_to_be_tested_on():
    with pytest.raises(UserError, match=r"^fine_tune = 1 [^\n]*$"):
        run(replace(FEW, validation=0, fine_tune=1))


# --- One's own metric ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Doubt(Metric):
    """The mean probability of all classes but the predicted one."""

    name = "doubt"
    better = "lower"

    def statistic(self, batch):
        """Sum."""
        doubts = 1 - torch.softmax(batch.logits, -1).max(-1).values
        return {"doubt": (doubts * batch.mask).sum(-1), "samples": batch.mask.sum(-1)}

    def value(self, total):
        """Divide."""
        return total["doubt"] / total["samples"]


def test_one_s_own_metric_from_python(tmp_path):
    result = run(metrics=[Doubt(), "auc"], out=tmp_path / "run")
    assert [*result.test] == ["accuracy", "doubt", "auc"]
    logits, _ = predict(result.best.model)
    doubt = 1 - torch.softmax(logits, 1).max(1).values.mean()
    assert result.test["doubt"] == pytest.approx(float(doubt), abs=1e-5)
    assert result.clients.worst("doubt") == max(result.clients.values["doubt"])
    config = make_config("fedavg", metrics=[Doubt()])
    assert config.code == digest_sources({"metric.doubt": Doubt()})
    assert config.metrics == ("doubt",)


def test_metrics_from_python_must_be_metrics():
    for wrong in ([Doubt], [3], [object()]):
        with pytest.raises(UserError):
            make_config("fedavg", metrics=wrong)


def test_resuming_gives_the_same_metrics_bit_for_bit(tmp_path):
    training = replace(FEW, rounds=4, select_by="auc", fine_tune=1)

    class Stop(Exception):
        pass

    def stop(record):
        if record.round == 2:
            raise Stop

    with pytest.raises(Stop):
        run(training, ALL, out=tmp_path / "run", watch=stop)
    resumed = run(training, ALL, out=tmp_path / "run", resume=True)
    whole = run(training, ALL, out=tmp_path / "whole")
    assert [r.metrics for r in resumed.rounds] == [r.metrics for r in whole.rounds]
    assert resumed.best.metrics == whole.best.metrics
    assert resumed.best.clients == whole.best.clients
    assert resumed.best.fine_tuned == whole.best.fine_tuned
    assert resumed.best.round == whole.best.round


def test_a_checkpoint_keeps_the_clients_of_the_best_round(tmp_path):
    """The best round may be before the checkpoint that a run is resumed from."""
    training = replace(FEW, rounds=3)
    first = run(training, ["auc"], out=tmp_path / "run")
    again = run(training, ["auc"], out=tmp_path / "run", resume=True)
    assert again.best.clients == first.best.clients
    assert again.best.metrics == first.best.metrics
    assert not math.isnan(again.test["auc"])
