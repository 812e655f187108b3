"""A simulation: what is held out, which round is reported, what stops a run."""

import json
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedfm import (
    FedAvg,
    FedFM,
    FedFMLite,
    Partition,
    Piece,
    Training,
    UserError,
    compose,
    models,
    simulate,
    simulate_seeds,
)
from fedfm.config import make_config
from fedfm.core.checkpoint import to_bytes
from fedfm.core.ledger import count_bytes, count_floats
from fedfm.data.dataset import Dataset
from fedfm.data.split import Split
from fedfm.engine.evaluation import Evaluation
from fedfm.methods import PIECES, Scaffold
from fedfm.models import BodyAndHead as Halves
from fedfm.optim import Sgd
from fedfm.privacy import Privacy
from fedfm.privacy.privacy_mechanism import PrivacyMechanism
from fedfm.rounds.federation import Federation, LocalTraining
from fedfm.rounds.round import run_round
from fedfm.rounds.server import Diverged
from fedfm.rounds.single_samples import check_single_samples
from fedfm.run.console import describe_result
from fedfm.run.folder import summarise
from fedfm.run.records import Progress
from fedfm.run.runner import Run, run_together
from fedfm.run.simulation import Simulation, device_data

SHORT = Training(clients=4, rounds=4, epochs=1, batch_size=8, lr=0.05)


def blobs(samples=160, classes=4, seed=0) -> Dataset:
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % classes
    inputs = torch.randn(samples, 6, generator=rng) + 2 * torch.eye(classes, 6)[labels]
    return Dataset("blobs", Split(inputs, labels), Split(inputs, labels), tuple("abcd"[:classes]))


def network(seed=0, norm="none"):
    torch.manual_seed(seed)
    return models.build("mlp", shape=(6,), classes=4, hidden=[8], norm=norm)


def run(method=None, training=SHORT, **options):
    chosen = {"partition": Partition("iid"), "executor": "stacked", **options}
    return simulate(network(), blobs(), method or FedAvg(), training=training, **chosen)


def simulation(training=SHORT, method=None, norm="none") -> Simulation:
    method = compose(method or FedAvg())
    config = make_config(
        method, partition=Partition("iid"), training=training, seed=0, executor="stacked"
    )
    return Simulation(network(norm=norm), blobs(), config)


@pytest.mark.parametrize(
    ("samples", "changes", "helps"),
    [
        (160, {"batch_size": 1}, "larger batch_size"),
        (160, {"batch_size": 31, "keep_last": True}, "keep_last=false.*batch_size"),
        (8, {"validation": 0.5}, "more than one"),
    ],
)
def test_a_batch_of_one_that_batch_norm_cannot_train_on_is_refused_at_once(
    monkeypatch, samples, changes, helps
):
    monkeypatch.setattr("fedfm.run.simulation.choose_executor", None)  # nothing is tried before
    norm = models.build("mlp", shape=(6,), classes=4, norm="batch")
    training, partition = replace(SHORT, **changes), Partition("iid")
    named = "client 0, client 1, client 2, client 3: .*"
    with pytest.raises(UserError, match=named + helps):
        simulate(norm, blobs(samples), FedAvg(), training=training, partition=partition)


def test_a_batch_of_one_is_fine_where_batch_norm_sees_several_values_of_it():
    training = LocalTraining(1, 8, True, Sgd(0.01, 0.9, 0.0))
    example, samples = torch.zeros(2, 1, 8, 8), {"ann": 9, "bob": 10, "eve": 1}
    check = partial(check_single_samples, example=example, samples=samples, training=training)
    check(nn.BatchNorm2d(1))
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(1))
    with pytest.raises(UserError, match=r"^ann, eve: .*batch_size.*more than one"):
        check(pooled)


def test_the_best_round_by_validation_is_reported_and_the_first_of_equals(monkeypatch):
    made = simulation()
    accuracies = [(0.5, 0.1), (0.8, 0.2), (0.8, 0.9), (0.7, 0.8)]
    make = partial(torch.tensor, dtype=torch.float64)
    scores = iter(
        Evaluation({"accuracy": make([val])}, {"accuracy": make(test)}, {})
        for val, test in accuracies
    )
    monkeypatch.setattr(made, "evaluate", lambda model, own_models: next(scores))
    progress = Progress(made.start)
    models_by_round = {}
    for _ in range(4):
        progress = made.advance(progress)
        models_by_round[progress.state.round] = progress.state.model
    assert progress.best is not None
    assert (progress.best.round, progress.best.val_accuracy, progress.best.test_accuracy) == (
        2, 0.8, 0.2,
    )  # fmt: skip
    assert progress.best.model is models_by_round[2]


def followed(made: Simulation, monkeypatch) -> tuple[list[int], Progress]:
    """All rounds: in which of them their model was evaluated, and how it ended."""
    seen, evaluate = [], made.evaluate

    def noted(model, own_models):
        assert own_models is None
        seen.append(model)
        return evaluate(model)

    monkeypatch.setattr(made, "evaluate", noted)
    progress, rounds = Progress(made.start), []
    for _ in range(made.config.training.rounds):
        before = len(seen)
        progress = made.advance(progress)
        assert all(model is progress.state.model for model in seen[before:])
        rounds += [progress.state.round] * (len(seen) - before)
    return rounds, progress


def test_models_are_evaluated_as_often_as_asked_and_at_the_end(monkeypatch):
    made = simulation(replace(SHORT, rounds=5, evaluate_every=2))
    rounds, progress = followed(made, monkeypatch)
    assert rounds == [1, 2, 4, 5]
    assert progress.records[2].val_accuracy == progress.records[1].val_accuracy


def test_a_model_that_is_due_is_evaluated_unless_it_was_before(monkeypatch):
    """Models every two rounds, evaluated every three: after 3 that of 2, after 9 that of 8."""
    lite = FedFMLite(models_every=2, start_round=0)
    made = simulation(replace(SHORT, rounds=12, evaluate_every=3), lite)
    assert followed(made, monkeypatch)[0] == [1, 3, 6, 9, 12]


def test_how_much_a_client_counts_must_not_depend_on_its_data_under_privacy():
    class ByWork(FedAvg):
        """Clients count by their steps."""

        claims = frozenset({"weights"})

        def weights(self, weights, run):
            return weights * run.steps.to(weights)

    method = compose(ByWork())
    config = make_config(
        method,
        partition=Partition("iid"),
        training=SHORT,
        seed=0,
        executor="stacked",
        privacy=Privacy(noise=1.0),
    )
    made = Simulation(network(), blobs(), config)
    with pytest.raises(UserError, match=r"\[privacy\]"):
        made.advance(Progress(made.start))


@pytest.mark.parametrize("executor", ["loop", "stacked"])
@pytest.mark.parametrize("method", [FedFM(start_round=0), FedFMLite(start_round=0)])
def test_a_sample_that_overflows_leaves_out_its_owner_alone(executor, method):
    """Also sample 0, with which the rectangles of other clients are filled up."""
    data = blobs(150)
    data.train.inputs[0] = 3e38
    data = replace(data, std=(0.5,), test=Split(data.test.inputs[1:], data.test.labels[1:]))
    uneven = {"partition": Partition("niid1", min_samples=8), "executor": executor}
    result = simulate(network(), data, method, training=replace(SHORT, rounds=2), **uneven)
    assert [record.failed for record in result.rounds] == [1, 1]


class MovingMean(nn.Module):
    """Keeps a mean by putting another tensor in its place."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 4)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        features = self.body(x).relu()
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * features.mean(0).detach()
        features = features - self.mean
        return features, self.head(features)


def test_buffers_that_a_network_replaces_are_averaged_and_saved():
    torch.manual_seed(0)
    model, data = MovingMean(), blobs()
    result = simulate(model, data, FedAvg(), partition=Partition("iid"), training=SHORT)
    best = result.best.model
    assert best.buffers["mean"].abs().sum() > 0
    model.load_state_dict(best.params | best.buffers)
    right = model.eval()(data.test.inputs)[1].argmax(1) == data.test.labels
    assert right.double().mean() == pytest.approx(result.test_accuracy)


def test_a_seed_that_diverges_does_not_take_the_others_with_it(tmp_path):
    def build(seed):
        model = network(seed)
        if seed == 1:
            nn.utils.vector_to_parameters(
                1e30 * nn.utils.parameters_to_vector(model.parameters()), model.parameters()
            )
        return model

    options: Any = {"partition": Partition("iid"), "training": SHORT, "executor": "stacked"}
    with pytest.raises(UserError, match=r"^seed 1, round 1\b.*clients 0, 1, 2, 3\b"):
        simulate_seeds(build, blobs(), FedAvg(), out=tmp_path, **options)
    for seed in (0, 2):
        alone = simulate(network(seed), blobs(), FedAvg(), seed=seed, **options)
        summary = json.loads((tmp_path / f"seed-{seed}" / "summary.json").read_text())
        assert summary["test_accuracy"] == alone.test_accuracy


def test_a_numpy_seed_is_the_seed(tmp_path):
    given = [run(seed=seed, out=tmp_path / str(type(seed))) for seed in (1, np.int64(1))]
    assert len({result.rounds[-1].train_loss for result in given}) == 1
    with pytest.raises(UserError, match=r"simulate_seeds.*one seed"):
        simulate_seeds(network, blobs(), FedAvg(), seeds=())


@pytest.mark.parametrize("method", [FedFM(start_round=0), FedFMLite(start_round=0)])
def test_the_ledger_of_a_private_round_is_what_the_guard_lets_out(method, monkeypatch):
    sent = []
    for name in ("update", "report"):
        before = getattr(PrivacyMechanism, name)

        def noted(self, *arguments, before=before):
            sent.append(before(self, *arguments))
            return sent[-1]

        monkeypatch.setattr(PrivacyMechanism, name, noted)
    config = make_config(
        method,
        partition=Partition("iid"),
        training=SHORT,
        seed=0,
        executor="stacked",
        privacy=Privacy(noise=1.0),
    )
    made = Simulation(models.build("mlp", shape=(6,), classes=4, hidden=[8], norm="batch"), blobs(),
                      config)  # fmt: skip
    (record,) = made.advance(Progress(made.start)).records
    assert record.bytes_up == sum(count_bytes(tree) for tree in sent)
    assert record.floats_up == sum(count_floats(tree) for tree in sent)


class Idle(nn.Module):
    """Has a layer that nothing depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.spare = network(), nn.Linear(2, 2)

    def forward(self, x):
        return self.net(x)


def of(outputs=4, **options):
    return models.build("mlp", shape=(6,), classes=outputs, hidden=[8], **options)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "fedfn"}, "did you mean 'fedfm'"),
        ({"method": [FedAvg(), "fedfm"]}, "both"),
        ({"data": 3}, "^data:"),
        ({"partition": "niid9"}, r"^partition\.kind:"),
        ({"training": {"round": 3}}, "did you mean 'rounds'"),
        ({"model": nn.Linear}, r"torch\.nn\.Module.*class"),
    ],
)
def test_parts_of_a_run_that_make_no_sense_are_refused(given, message):
    arguments = {"model": network(), "data": blobs(), "method": FedAvg(), "training": SHORT}
    with pytest.raises(UserError, match=message):
        simulate(**(arguments | given))


def test_data_of_one_class_are_refused():
    one = blobs(classes=1)
    with pytest.raises(UserError, match="one class"):
        simulate(of(1), one, FedAvg(), partition=Partition("iid"), training=SHORT)


def test_a_model_where_a_function_of_the_seed_is_wanted_is_refused():
    with pytest.raises(UserError, match=r"simulate_seeds.*function"):
        simulate_seeds(network(), blobs(), FedAvg())


def test_a_method_that_would_never_begin_is_named(caplog):
    run(FedFM(start_round=4), replace(SHORT, rounds=4))
    assert "fedfm begins after round 4, but the run ends after round 4" in caplog.text


def test_inputs_are_normalised_as_training_sees_them():
    data = replace(blobs(), mean=(1.0,) * 6, std=(2.0,) * 6)
    on_device = device_data(network(), data)[1]
    seen, _ = on_device.fetch(torch.arange(5).unsqueeze(0))
    torch.testing.assert_close(data.normalise(data.test.inputs[:5]), seen[0])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Idle, r"spare\.weight, spare\.bias.*requires_grad=False"),
        (lambda: of(3), r"MLP.*\b3\b.*\b4\b"),
        (lambda: of(7), r"MLP.*\b7\b.*\b4\b"),
        (lambda: of().requires_grad_(False), "MLP.*requires_grad=True"),
        (lambda: of().bfloat16(), "MLP.*float32"),
        (
            lambda: Halves(nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 4)),
            "track_running_stats=True",
        ),
    ],
)
def test_networks_that_cannot_be_trained_so_are_refused(model, message):
    with pytest.raises(UserError, match=message):
        simulate(model(), blobs(), FedAvg(), partition=Partition("iid"), training=SHORT)


def test_the_best_rounds_accuracies_of_all_clients_are_kept():
    result = run()
    assert len(result.best.client_accuracies) == SHORT.clients
    mean = sum(result.best.client_accuracies) / SHORT.clients
    assert mean == pytest.approx(result.best.val_accuracy)


def test_a_fifth_of_every_client_is_held_out_and_never_trained_on():
    made = simulation()
    for train, validation in zip(made.federation.samples, made.evaluate.validation, strict=True):
        assert len(validation) == 8
        assert len(train) == 32
        assert not set(train.tolist()) & set(validation.tolist())


def test_training_learns():
    longer = replace(SHORT, rounds=8, epochs=3)
    result = run(FedFM(strength=1.0, start_round=1), longer)
    assert result.rounds[0].test_accuracy < result.test_accuracy
    assert result.test_accuracy > 0.8
    assert result.rounds[-1].train_loss < result.rounds[1].train_loss


def test_a_run_is_determined_by_its_seed():
    first, again, other = run(seed=1), run(seed=1), run(seed=2)
    losses = [[record.train_loss for record in result.rounds] for result in (first, again, other)]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


def test_both_executors_report_the_same_run():
    loop, stacked = (run(executor=name) for name in ("loop", "stacked"))
    for ours, theirs in zip(loop.rounds, stacked.rounds, strict=True):
        assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-4)
        assert ours.traffic == theirs.traffic


def test_only_the_fraction_asked_for_takes_part():
    parameters = models.count_parameters(network())
    result = run(training=Training(clients=4, rounds=2, epochs=1, batch_size=8, participation=0.5))
    assert all(record.floats_up == 2 * parameters for record in result.rounds)


def test_between_exchanges_the_global_model_and_its_accuracy_stay():
    result = run(FedFMLite(strength=1.0, start_round=0, models_every=2))
    accuracy = [record.val_accuracy for record in result.rounds]
    assert accuracy[1] == accuracy[2]
    assert result.best.round % 2 == 0 or result.best.round == 1
    floats = [record.floats_up for record in result.rounds]
    assert floats[0] == floats[2] < floats[1] == floats[3]


def test_the_given_model_is_left_as_it_was():
    module = network()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    simulate(module, blobs(), FedAvg(), partition=Partition("iid"), training=SHORT)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_run_stops_when_every_client_diverged_and_names_round_and_clients():
    with pytest.raises(Diverged, match=r"^round 1\b.*clients 0, 1, 2, 3\b"):
        run(training=Training(clients=4, rounds=3, epochs=2, lr=1e30, batch_size=8))


@pytest.mark.parametrize("piece", [kind for kind in PIECES.values() if not kind.pools_data])
def test_a_client_that_is_not_finite_never_reaches_the_average(piece, monkeypatch, caplog):
    made = simulation(method=piece(), norm="batch")
    progress = Progress(made.start)
    made.device_data[0].inputs[made.federation.samples[2]] = torch.nan
    after = made.advance(progress)
    assert after.records[-1].failed == 1
    assert "left out clients [2]" in caplog.text
    assert all(torch.isfinite(value).all() for value in after.state.model.params.values())
    assert 2 not in after.state.clients

    monkeypatch.setattr(Federation, "cohort", lambda self, round: [0, 1, 3])
    without, _ = run_round(made.start, made.federation)
    for name, value in without.model.params.items():
        torch.testing.assert_close(after.state.model.params[name], value)


def test_rounds_that_end_inside_a_cycle_are_refused():
    with pytest.raises(UserError, match=r"models_every.*\b3\b.*\b4\b"):
        run(FedFMLite(models_every=3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": 0}, r"clients.*\b1\b.*\b0$"),
        ({"rounds": 0}, r"rounds.*\b1\b.*\b0$"),
        ({"participation": 0.0}, r"participation.*\b0\.0$"),
        ({"participation": 1.5}, r"participation.*\b1\.5$"),
        ({"validation": 1.0}, r"validation.*\b1\.0$"),
        ({"lr": 0.0}, r"lr.*\b0\.0$"),
        ({"momentum": 1.0}, r"momentum.*\b1\.0$"),
        ({"weight_decay": -1.0}, r"weight_decay.*\b0\b.*-1\.0$"),
        ({"batch_size": 0}, r"batch_size.*\b1\b.*\b0$"),
    ],
)
def test_settings_out_of_range_are_refused(change, message):
    with pytest.raises(UserError, match=message):
        Training(**change)


def test_more_clients_than_samples_are_refused():
    with pytest.raises(UserError, match="clients"):
        run(training=Training(clients=1000, rounds=1))


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (torch.tensor([[0.0], [torch.nan]]), [0, 1], r"NaN.*\b1\)"),
        (torch.zeros(2, 1), [0, 2], r"labels.*\b0\b.*\b2\b.*\b2 classes"),
        (torch.zeros(3, 1), [0, 1], r"\b3 inputs.*\b2 labels"),
        (torch.zeros(0, 1), [], "no samples"),
    ],
)
def test_data_that_no_training_could_use_are_refused(inputs, labels, message):
    split = Split(inputs, torch.tensor(labels, dtype=torch.int64))
    with pytest.raises(UserError, match=message):
        Dataset("mine", split, split, ("a", "b"))


def test_a_folder_is_not_resumed_with_another_model_or_other_data(tmp_path):
    options = {"partition": Partition("iid"), "training": SHORT, "out": tmp_path / "run"}
    simulate(network(), blobs(), FedAvg(), **options)
    with pytest.raises(UserError, match=r"model\.digest"):
        simulate(network(seed=1), blobs(), FedAvg(), resume=True, **options)
    with pytest.raises(UserError, match=r"data\.digest"):
        simulate(network(), blobs(samples=164), FedAvg(), resume=True, **options)
    with pytest.raises(UserError, match=r"data\.std"):
        simulate(network(), replace(blobs(), std=(2.0,)), FedAvg(), resume=True, **options)


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5])
def test_rare_checkpoints_lose_rounds_and_no_result(tmp_path, stop):
    class Killed(Exception):
        pass

    def kill(record):
        if record.round == stop:
            raise Killed

    whole = Run(network(), rarely(), tmp_path / "whole")
    killed = Run(network(), rarely(), tmp_path / "killed", watch=kill)
    expected = run_together([whole], blobs())[0]
    with pytest.raises(Killed):
        run_together([killed], blobs())
    saved = tmp_path / "killed" / "rounds.jsonl"
    assert len(saved.read_text().splitlines() if saved.exists() else []) == (
        stop if stop == 5 else stop // 2 * 2
    )
    resumed = run_together([replace(killed, watch=None)], blobs(), resume=True)[0]
    assert [r.test_accuracy for r in resumed.rounds] == [r.test_accuracy for r in expected.rounds]
    assert to_bytes(resumed.best.model.params) == to_bytes(expected.best.model.params)


def rarely():
    training = Training(clients=2, rounds=5, epochs=1)
    method = compose(Scaffold())
    return make_config(
        method,
        partition=Partition("iid"),
        training=training,
        seed=0,
        executor="loop",
        client_states="disk",
        checkpoint_every=2,
    )


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (Training, {"rounds": "3"}, "rounds.*whole.*'3'"),
        (Training, {"clients": 2.5}, r"clients.*whole.*2\.5"),
        (Training, {"epochs": True}, "epochs.*whole.*True"),
        (Partition, {"missing": 1.5}, r"missing.*whole.*1\.5"),
        (Partition, {"beta": "x"}, "beta.*'x'"),
        (FedFM, {"strength": "5"}, "strength.*'5'"),
        (Split, {"inputs": [[1.0]], "labels": torch.tensor([0])}, r"inputs.*torch\.Tensor.*list"),
        (partial(replace, blobs()), {"classes": 3}, r"classes.*\b3$"),
        (partial(replace, blobs()), {"test": (1, 2)}, r"Split\(inputs, labels\)"),
    ],
)
def test_settings_and_data_that_are_something_else_are_refused(make, given, message):
    with pytest.raises(UserError, match=message):
        make(**given)


def test_numbers_and_names_of_other_libraries_become_pythons(tmp_path):
    short: dict[str, Any] = {"rounds": np.int64(2), "lr": np.float32(0.5)}
    training = replace(SHORT, **short)
    assert (type(training.rounds), type(training.lr)) == (int, float)
    named: dict[str, Any] = {"classes": np.array(blobs().classes), "mean": torch.tensor([0.5])}
    data = replace(blobs(), **named, std=(1,))
    assert (data.classes, data.mean, data.std) == (blobs().classes, (0.5,), (1.0,))
    options = {"partition": Partition("iid"), "out": tmp_path / "run"}
    assert simulate(network(), data, FedAvg(), training=training, **options).rounds


@pytest.mark.parametrize("seed", [1.5, -1, "0"])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(UserError, match=rf"seed.*{re.escape(repr(seed))}$"):
        simulate(network(), blobs(), FedAvg(), training=SHORT, seed=seed)


def test_a_method_may_be_any_iterable_of_pieces():
    pieces = (piece for piece in [FedAvg()])
    result = simulate(network(), blobs(), pieces, partition=Partition("iid"), training=SHORT)
    assert result.method == "fedavg"


def test_a_server_step_that_is_not_finite_ends_the_run():
    """At once, so that no checkpoint holds such a model."""

    @dataclass(frozen=True)
    class Leap(Piece):
        name = "leap"

        def step(self, server, delta, total, participation):
            return server, {name: leaf / 0 for name, leaf in delta.items()}

    with pytest.raises(Diverged, match=r"^round 1\b.*server"):
        simulate(network(), blobs(), Leap(), partition=Partition("iid"), training=SHORT)


def test_the_result_says_how_many_answers_were_left_out():
    result = simulate(network(), blobs(), FedAvg(), partition=Partition("iid"), training=SHORT)
    assert "left out" not in describe_result(result)
    rounds = tuple(replace(record, failed=2) for record in result.rounds)
    lost = replace(result, rounds=rounds)
    assert f"{2 * len(rounds)} client answers left out" in describe_result(lost)
    assert summarise(lost)["failed"] == 2 * len(rounds)
