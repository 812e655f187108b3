"""A deployed federation gives what the simulation gives: every method, bit for bit or nearly so."""

import pytest
import torch
from safetensors.torch import load_file

from fedfm import UserError, compose, load
from fedfm.core.trees import tree_map
from fedfm.methods import PIECES
from fedfm.methods.base import Model
from fedfm.rounds.group import personal_models
from fedfm.run.prepare import load_data
from tests.deploy.conftest import CLIENTS, Fault, assert_same, facts_of, silent, tensors_of

COMPOSED = ("fednova", "moon", "scaffold", "fedacg")
KINDS = {name: compose(piece()) for name, piece in PIECES.items()}
PERSONAL = [name for name, method in KINDS.items() if method.keeps_models]
GLOBAL = [n for n, method in KINDS.items() if n not in PERSONAL and not method.pools_data]
FROZEN = ("model.freeze=['body.1']", "model.norm=batch")
PARTIAL = ("training.participation=0.67", "training.rounds=4")
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
"""Of float32 after three rounds: sums of clients are added in another order."""


def assert_close(ours: float | None, theirs: float | None, rel: float):
    """Two losses agree; a round without training has none."""
    assert ours == (None if theirs is None else pytest.approx(theirs, rel=rel))


def assert_equal_runs(federation, accuracies=True, **tolerance):
    """The deployed run has the simulation's model, records and traffic."""
    result, wanted = federation.run(), federation.simulated()
    assert_same(federation.state, wanted.state, **{**TOLERANCE, **tolerance})
    assert len(result.rounds) == len(wanted.records)
    for ours, theirs in zip(result.rounds, wanted.records, strict=True):
        assert ours.traffic == theirs.traffic
        assert ours.failed == theirs.failed == 0
        assert_close(ours.train_loss, theirs.train_loss, 1e-4)
        assert ours.losses == pytest.approx(theirs.losses, rel=1e-4)
        if accuracies:
            assert ours.val_accuracy == pytest.approx(theirs.val_accuracy, abs=1e-9)
            assert ours.test_accuracy == pytest.approx(theirs.test_accuracy, abs=1e-9)
    return result, wanted


@pytest.mark.parametrize("method", GLOBAL)
def test_every_method_gives_the_simulation_s_result(federation, method):
    result, wanted = assert_equal_runs(federation(method))
    assert result.best.round == wanted.best.round


def load_own(run, client, wanted) -> tuple[Model, Model]:
    """A client's own model: as it was delivered, and as the simulation has it."""
    state, tensors = wanted.state, load_file(run.out(client) / "model.safetensors")
    own = personal_models(state.model, [state.clients.get(client)])
    own = own.map(lambda tree: tree_map(lambda leaf: leaf[0], tree))
    parts = [{name: tensors[name] for name in tree} for tree in own]
    assert sum(map(len, parts)) == len(tensors)
    return Model(*parts), own


@pytest.mark.parametrize(
    ("method", "others"),
    [
        *((method, ()) for method in (*PERSONAL, "fedbn,fedfm", "ditto,fedfm")),
        *((method, PARTIAL) for method in ("fedrep", "ditto,fedfm")),
    ],
)
def test_clients_with_models_of_their_own(federation, method, others):
    run = federation(method, "model.norm=batch", *others)
    result, wanted = assert_equal_runs(run, accuracies=False)
    for client in range(CLIENTS):
        for ours, theirs in zip(*load_own(run, client, wanted), strict=True):
            for name, leaf in theirs.items():
                assert torch.allclose(ours[name], leaf, 1e-4, 1e-5), name
    last = wanted.records[-1]
    assert result.rounds[-1].val_accuracy == pytest.approx(last.val_accuracy, abs=1e-9)
    assert result.best.round == run.config.training.rounds


def test_every_client_can_load_its_own_folder(federation):
    run = federation("fedper")
    run.run()
    wanted, data = run.simulated(), load_data(run.config)
    for client in range(CLIENTS):
        classifier, own = load(run.out(client)), load_own(run, client, wanted)[1]
        for name, leaf in classifier.model.state_dict().items():
            assert torch.allclose(leaf, (own.params | own.buffers)[name], 1e-4, 1e-5), name
        assert classifier.classes == data.classes
        assert classifier.data.mean == pytest.approx(data.mean, rel=0.2)
    with pytest.raises(UserError, match="one client"):
        load(run.folder / "server")
    with pytest.raises(UserError, match="machine"):
        load(run.folder / "server", client=0)


@pytest.mark.parametrize("method", ["fedavg", "fedfm", "fedfm-lite", "fedper", "scaffold"])
def test_frozen_layers(federation, method):
    run = federation(method, *FROZEN, *PARTIAL)
    before = run.simulation.start.model.buffers["body.1.weight"].clone()
    assert_equal_runs(run, accuracies=False)
    assert torch.equal(run.state.model.buffers["body.1.weight"], before)
    for client in range(CLIENTS):
        tensors = load_file(run.out(client) / "model.safetensors")
        assert torch.equal(tensors["body.1.weight"], before)


def test_frozen_layers_are_sent_once(federation):
    sent: list[bool] = []

    def noted(message, answer):
        sent.append("model/buffers/body.1.weight" in tensors_of(message))
        answered = answer()
        assert not any("body.1.weight" in name for name in tensors_of(answered))
        return answered

    run = federation("fedavg", *FROZEN, "training.rounds=4")
    run.run(Fault("train", noted, at=range(4)))
    assert sent == [True, False, False, False]
    assert run.state.received == {*range(CLIENTS)}


def test_a_client_that_lost_frozen_layers_gets_them_again(federation):
    sent: list[bool] = []

    def lose(message, answer):
        sent.append("model/buffers/body.1.weight" in tensors_of(message))
        if len(sent) == 2:
            (run.out(1) / "first.safetensors").unlink()
        return answer()

    run = federation("fedavg", *FROZEN, "training.rounds=4")
    result = run.run(Fault("train", lose, at=range(4)))
    assert sent == [True, False, True, False]
    assert [record.failed for record in result.rounds] == [0, 1, 0, 0]


def test_a_resumed_server_knows_who_has_the_frozen_layers(federation):
    run = federation("fedavg", *FROZEN, "training.rounds=4")
    whole = assert_equal_runs(federation("fedavg", *FROZEN, "training.rounds=4"))[0]
    with pytest.raises(UserError, match=r"minimum"):
        run.run(lambda message, answer: stop_in_round(2, message, answer))
    result = run.run(resume=True)
    assert [record.traffic for record in result.rounds] == [r.traffic for r in whole.rounds]


def stop_in_round(round, message, answer):
    return silent(message, answer) if facts_of(message).get("round") == round else answer()


@pytest.mark.parametrize(
    ("method", "overrides", "named"),
    [
        ("centralised", (), "centralised"),
        ("fedper", ("deployment.evaluate=server",), "evaluate = 'clients'"),
    ],
)
def test_methods_that_cannot_be_deployed(federation, method, overrides, named):
    run = federation(method, *overrides)
    with pytest.raises(UserError, match=named):
        run.run()


@pytest.mark.parametrize("other", COMPOSED)
def test_feature_matching_with_another_method(federation, other):
    assert_equal_runs(federation(f"{other},fedfm"))


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedfm", "fedfm-lite"])
def test_batch_norm_and_its_counters(federation, method):
    run = federation(method, "model.norm=batch")
    assert_equal_runs(run)
    assert run.state.model.buffers


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedfm", ["optimizer=adamw", "lr=0.003", "lr_schedule=cosine", "clip_norm=1.0"]),
        ("scaffold", ["nesterov=true", "lr_warmup=2", "clip_norm=0.5", "label_smoothing=0.1"]),
        ("fednova", ["lr_schedule=exponential", "lr_unit=step", "class_weights=balanced"]),
    ],
)
def test_optimizers_schedules_and_losses(federation, method, settings):
    assert_equal_runs(federation(method, *(f"training.{setting}" for setting in settings)))


def test_lite_with_models_every_second_round(federation):
    run = federation("fedfm-lite", "fedfm-lite.models_every=2", "training.rounds=4")
    result, _ = assert_equal_runs(run)
    sent = [record.floats_up for record in result.rounds]
    assert sent[0] < sent[1] > sent[2]


@pytest.mark.parametrize(
    "method",
    ["scaffold", "fedacg", "fedsmoo", "moon", "fedfm", "fedfm-lite,fedprox"],
)
def test_two_of_three_clients_in_a_round(federation, method):
    """Rounds are judged by those who are asked in the next one, the last one by everybody."""
    run = federation(method, *PARTIAL)
    result, wanted = assert_equal_runs(run, accuracies=False)
    ours, theirs = result.rounds[-1], wanted.records[-1]
    assert ours.val_accuracy == pytest.approx(theirs.val_accuracy, abs=1e-9)
    assert ours.test_accuracy == pytest.approx(theirs.test_accuracy, abs=1e-9)


@pytest.mark.parametrize("method", [["fedfm-lite"], ["fedfm-lite,fedprox", "fedprox.mu=1.0"]])
def test_lite_with_rare_models_and_partial_participation(federation, method):
    every = ("fedfm-lite.models_every=2", *PARTIAL)
    assert_equal_runs(federation(*method, *every), accuracies=False)


@pytest.mark.parametrize("method", ["fedavg", "fedfm"])
def test_convolutions_on_digits(federation, method):
    images = ("data={name='digits'}", "model={name='cnn'}", "training.batch_size=64")
    assert_equal_runs(federation(method, *images, "training.rounds=2"))


SECURE = (
    *("fedavg", "fedfm", "fedfm-lite", "scaffold", "fednova", "fedadam", "fedacg,fedfm"),
    *("mofedsam,fedfm", "fedspeed", "fedsmoo", "fedntd", "balancedsoftmax", "ccvr"),
)


@pytest.mark.parametrize("method", SECURE)
def test_a_secure_sum_gives_the_same_to_its_step(federation, method):
    run = federation(method, "deployment.secure=true")
    result, wanted = run.run(), run.simulated()
    assert_same(run.state, wanted.state, rtol=1e-3, atol=1e-4)
    for ours, theirs in zip(result.rounds, wanted.records, strict=True):
        assert_close(ours.train_loss, theirs.train_loss, 1e-3)
        assert ours.losses == pytest.approx(theirs.losses, rel=1e-3, abs=1e-6)
        assert ours.val_accuracy == pytest.approx(theirs.val_accuracy, abs=1e-6)
        assert ours.test_accuracy == pytest.approx(theirs.test_accuracy, abs=1e-6)
        assert ours.failed == 0


def test_a_secure_sum_counts_in_the_same_unit_where_the_normalisation_is_given(federation):
    """Else a client's summand would be as many times as large as it has samples."""
    units: list[float] = []

    def noted(message, answer):
        units.append(facts_of(message)["unit"])
        return answer()

    given = (f"deployment.mean={[0.0] * 6}", f"deployment.std={[1.0] * 6}")
    for norm in ((), given):
        run = federation("fedavg", "deployment.secure=true", "training.rounds=1", *norm)
        assert run.run(Fault("train", noted)).rounds[0].failed == 0
    assert units[0] == units[1] > 10
