"""Differential privacy of a federation: what leaves a client, and what becomes of the sums."""

import json
import re
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from fedfm.config import load_config
from fedfm.core.errors import UserError
from fedfm.core.trees import flatten
from fedfm.deploy.events import Event, RoundEnded, listen
from fedfm.deploy.packets import Packet, pack, unpack
from fedfm.deploy.secure import numbers
from fedfm.deploy.server.server import TooFewClients
from fedfm.privacy import Privacy
from fedfm.privacy.accounting import compute_epsilon
from fedfm.privacy.privacy_mechanism import PrivacyMechanism, secret_sources
from fedfm.rounds import round as rounds
from fedfm.run.prepare import build_model, load_data
from fedfm.run.records import Score
from fedfm.run.runner import Run, run_together
from tests.deploy.conftest import LIMIT, Fault, Federation, silent

LONG = 1e6
"""A length that no answer has."""


def private(data, *more: str) -> tuple[str, ...]:
    """The overrides of a private federation that nothing is clipped in."""
    lengths = (f"privacy.clip={LONG}", f"privacy.anchor_clip={LONG}")
    silence = ("privacy.noise=0.0", "privacy.anchor_noise=0.0")
    norm = (f"deployment.mean={list(data.mean)}", f"deployment.std={list(data.std)}")
    return (*lengths, *silence, *norm, "deployment.evaluate=server", "deployment.minimum=3", *more)


@pytest.fixture
def data(federation):
    return load_data(federation().config)


def simulated(config):
    data = load_data(config)
    return run_together([Run(build_model(config, data), config)], data)[0]


@pytest.mark.parametrize("method", ["fedavg", "fedfm", "fedfm-lite", "scaffold", "feddyn", "moon"])
def test_a_private_federation_does_what_the_simulation_does(federation, data, method):
    fed = federation(method, *private(data))
    ours, theirs = fed.run().best.model.params, simulated(fed.config).rounds
    assert [record.traffic for record in fed.progress.records] == [r.traffic for r in theirs]
    expected = fed.progress.records[-1].test_accuracy
    assert expected == pytest.approx(theirs[-1].test_accuracy, abs=1e-6)
    assert all(torch.isfinite(leaf).all() for leaf in ours.values())


def test_every_client_counts_alike(federation, data):
    """One client with a weight of its own would show how many samples it has."""
    weights = []

    def listen(message, answer):
        reply = answer()
        packet = unpack(reply.content, LIMIT)
        if packet.facts["kind"] == "train":
            sent = packet.trees["sum"]
            weights.append((float(sent["samples"]), float(sent["weight"])))
        return reply

    federation("fedavg", *private(data)).run(listen)
    assert weights == [(1.0, 1.0)] * 9
    weights.clear()
    federation("fedavg").run(listen)
    assert len(set(weights)) > 1


def test_no_answer_is_longer_than_allowed(federation, data):
    clip = 0.01
    lengths: list[float] = []

    def weigh(message, answer):
        reply = answer()
        packet = unpack(reply.content, LIMIT)
        if packet.facts["kind"] == "train":
            sent = packet.trees["sum"]
            parts = flatten({key: sent[key] for key in ("change", "pieces") if key in sent})
            square = sum(float(leaf.double().square().sum()) for leaf in parts.values())
            lengths.append(square**0.5)
        return reply

    federation("scaffold", *private(data, f"privacy.clip={clip}")).run(weigh)
    assert len(lengths) == 9
    assert max(lengths) <= clip
    assert min(lengths) > 0.9 * clip


def test_an_answer_tells_nothing_beside_the_noised_sums(federation, data):
    told: set[tuple[str, str]] = set()

    def listen(message, answer):
        reply = answer()
        packet = unpack(reply.content, LIMIT)
        told.update((packet.facts["kind"], key) for key in packet.trees.get("sum", {}))
        assert packet.facts["kind"] != "join" or not packet.trees
        return reply

    federation("fedfm", *private(data)).run(listen)
    allowed = {"samples", "weight", "change", "buffers", "pieces", "reports"}
    assert {key for _, key in told} <= allowed
    assert ("train", "change") in told
    assert ("measure", "reports") in told


def test_the_same_answer_is_never_noised_alike(federation, data):
    """Two federations of one seed: nobody who knows the seed can take the noise away."""
    noisy = private(data, "privacy.noise=1.0", "privacy.clip=0.1", "rounds=1")
    first, second = (federation("fedavg", *noisy).run().best.model.params for _ in range(2))
    assert all(not torch.equal(first[name], second[name]) for name in first)


def test_the_noise_of_a_sum_has_the_size_it_should(federation, data):
    clip, noise = 1e-6, 1e6
    config = federation(
        "fedavg",
        *private(
            data,
            "rounds=1",
            f"privacy.clip={clip}",
            f"privacy.noise={noise}",
            "privacy.colluders=0",
        ),
    ).config
    start = build_model(config, load_data(config))
    moved = torch.cat(
        [
            (simulated(config).best.model.params[name] - leaf.detach()).flatten()
            for name, leaf in start.named_parameters()
        ]
    )
    expected = clip * noise / config.training.clients
    spread = float(moved.std()) / expected
    assert spread == pytest.approx(1, abs=5 / (2 * len(moved)) ** 0.5)


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        (["deployment.evaluate=clients"], "evaluate.*'server'"),
        (["deployment.mean=[]", "deployment.std=[]"], r"\bmean\b.*\bstd\b"),
    ],
)
def test_a_federation_that_would_tell_more_is_refused(federation, data, changes, pattern):
    with pytest.raises(UserError, match=pattern):
        federation("fedavg", *private(data), *changes).run()


@pytest.mark.parametrize(
    ("method", "changes", "pattern"),
    [
        ("fednova", (), "fednova"),
        ("fedfm", ("fedfm.anchors=uniform",), "fedfm.*'weighted'"),
    ],
)
def test_a_method_that_would_tell_more_is_refused(federation, data, method, changes, pattern):
    config = federation(method, *private(data), *changes).config
    with pytest.raises(UserError, match=pattern):
        simulated(config)


def test_uniform_anchors_are_refused_under_a_secure_sum():
    with pytest.raises(UserError, match=r"fedfm.*uniform.*'weighted'"):
        load_config("digits", ["fedfm.anchors=uniform", "deployment.secure=true"])


def test_a_mean_of_images_from_0_to_1_is_refused(federation):
    """It would make inputs so large that training ends in infinity."""
    small = ("clients=3", "partition.kind=iid", "deployment.wait=0.1")
    given = (*small, "deployment.mean=[0.3]", "deployment.std=[0.4]")
    digits = Federation(federation().folder, load_config("digits", given))
    with pytest.raises(UserError, match=r"deployment\.std.*\[0\.4\].*\b255\b"):
        digits.run()


def test_the_server_needs_data_like_the_clients(federation, data, monkeypatch):
    other = replace(data, classes=("a", "b", "c", "d"))
    monkeypatch.setattr("fedfm.deploy.server.scores.load_data", lambda config: other)
    with pytest.raises(UserError, match=r"deployment\.evaluate = 'server'.*class a\b"):
        federation("fedavg", *private(data)).run()


def test_the_last_model_counts_where_the_server_evaluates(federation, data, monkeypatch):
    """One split cannot both choose a round and judge the choice."""
    scores = iter([Score(0.9, 0.9), Score(0.8, 0.8), Score(0.7, 0.7)])
    monkeypatch.setattr(
        "fedfm.deploy.server.server.make_scorer", lambda *_: lambda model: next(scores)
    )
    result = federation("fedavg", *private(data)).run()
    assert result.best.round == 3
    assert result.test_accuracy == 0.7


def test_epsilon_stands_with_the_result(federation, data):
    fed = federation("fedfm", *noisy(data))
    said = fed.run().privacy
    assert said is not None
    assert "3 updates and 2 reports" in said
    assert "only sums over clients" in said
    assert "a client's own answers" in said
    summary = json.loads((fed.folder / "server" / "summary.json").read_text())
    assert summary["privacy"] == said
    hidden = federation("fedfm", *noisy(data, "deployment.secure=true")).run().privacy
    assert hidden is not None
    assert "a client's own answers" not in hidden


# --- what a client counts itself ------------------------------------------------------------------


def noisy(data, *more: str) -> tuple[str, ...]:
    """The overrides of a federation with little to say and much noise."""
    small = ("privacy.clip=0.01", "privacy.anchor_clip=0.01")
    return private(data, *small, "privacy.noise=5.0", "privacy.anchor_noise=5.0", *more)


def accounts(fed: Federation) -> list[dict[str, Any]]:
    """Every client's account of its only federation."""
    files = (fed.out(client) / "privacy.json" for client in range(3))
    return [entry for file in files for entry in json.loads(file.read_text()).values()]


@pytest.mark.parametrize(("method", "reports"), [("fedavg", 0), ("fedfm", 2), ("fedfm-lite", 3)])
@pytest.mark.parametrize("secure", ["false", "true"])
def test_a_client_counts_its_answers_and_comes_to_what_the_server_says(
    federation, data, method, reports, secure, caplog
):
    fed = federation(method, *noisy(data, f"deployment.secure={secure}"))
    said = fed.run().privacy
    expected = {"updates": 3, "reports": reports, "privacy": said}
    assert accounts(fed) == [expected] * 3
    assert caplog.text.count(f"privacy that this client has spent: {said}") == 3


@pytest.mark.parametrize("secure", [False, True])
def test_the_server_tells_what_is_spent_after_every_round(federation, data, secure):
    """Its last number is the one that the result states; reports begin in the second round."""
    told = list[RoundEnded]()

    def keep(event: Event) -> None:
        told.extend([event] if isinstance(event, RoundEnded) else [])

    fed = federation("fedfm", *noisy(data, f"deployment.secure={str(secure).lower()}"))
    with listen(keep):
        said = fed.run().privacy
    assert said is not None
    expected = [
        compute_epsilon(fed.config.privacy, *counts).value for counts in ((1, 0), (2, 1), (3, 2))
    ]
    assert [event.epsilon for event in told] == expected
    assert _epsilon(said) == pytest.approx(expected[-1], abs=0.01)
    for event, sums in zip(told, expected, strict=True):
        assert (event.epsilon_server is None) == secure
        assert event.epsilon_server is None or event.epsilon_server > sums


def test_an_answer_that_is_asked_for_again_is_paid_again(federation, data):
    fed = federation("fedfm", *noisy(data))

    def killed(message, answer):
        answer()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fed.run(Fault("train", killed, client=2, at=(1,)))
    said = fed.run(resume=True).privacy
    assert said is not None
    assert "3 updates and 2 reports" in said
    for account in accounts(fed):
        assert account["updates"] == 4
        assert "4 updates and 3 reports" in account["privacy"]
        assert _epsilon(account["privacy"]) > _epsilon(said)


def _epsilon(said: str) -> float:
    return float(said[1 : said.index(",")])


@pytest.mark.parametrize("text", ["", "{", "[3]", "[]", "null"])
def test_a_client_that_cannot_read_its_account_sends_nothing(federation, data, warnings, text):
    fed = federation("fedavg", *noisy(data))
    fed.out(1).mkdir(parents=True)
    (fed.out(1) / "privacy.json").write_text(text)
    with pytest.raises(UserError, match=r"\b2\b.*deployment\.minimum\b.*\b3\b"):
        fed.run()
    assert any("privacy.json" in line for line in warnings())
    assert (fed.out(1) / "privacy.json").read_text() == text


# --- what a client keeps back, whatever it is asked -----------------------------------------------


def asking(kind: str, **other: object) -> Fault:
    """Client 1 gets questions of a kind that say something else than the server did."""

    def changed_question(message, answer):
        message.content = pack(_with(unpack(message.content, LIMIT), other))
        return answer()

    return Fault(kind, changed_question, at=range(9))


def _with(packet: Packet, other: dict[str, object]) -> Packet:
    return Packet({**packet.facts, **other}, packet.trees)


@pytest.mark.parametrize(
    ("question", "secret"),
    [
        (asking("train", evaluate=True), "accuracies"),
        (asking("measure", evaluate=True), "accuracies"),
        (asking("join", tell=["samples"]), "inputs"),
    ],
)
def test_a_curious_server_gets_no_number_without_noise(federation, data, question, secret, caplog):
    with pytest.raises(UserError, match=r"\b2\b.*deployment\.minimum\b.*\b3\b"):
        federation("fedfm", *private(data)).run(question)
    assert re.search(rf"\[privacy\].*\b{secret}\b", caplog.text)


def test_a_sum_of_too_few_is_never_unmasked(federation, data, monkeypatch):
    """One of three is missing: two thirds could unmask the sum, which has too little noise."""
    secure = private(data, "deployment.secure=true")
    decoded = Mock(wraps=numbers.decode)
    monkeypatch.setattr("fedfm.deploy.secure.decode", decoded)
    with pytest.raises(TooFewClients, match=r"'train'.*\b2\b.*\b3\b"):
        federation("fedavg", *secure).run(Fault("train", silent))
    assert decoded.call_count == 0
    federation("fedavg", *secure, "training.rounds=1").run()
    assert decoded.call_count == 1


def test_a_simulation_whose_rounds_are_too_small_for_their_noise_is_refused(data):
    few = ("clients=10", "participation=0.3", "deployment.minimum=4", "privacy.noise=1.0")
    with pytest.raises(UserError, match=r"deployment\.minimum = 4\b.*\b3\b"):
        load_config("digits", few)
    assert load_config("digits", (*few, "deployment.minimum=3")).make_privacy()


def test_a_class_that_nobody_has_is_not_believed_in_however_many_add_noise():
    mechanism = PrivacyMechanism(Privacy(), fewest=2, sources=secret_sources)
    (piece,) = load_config("digits", ["method=fedfm"]).composed.pieces
    draw = torch.Generator().manual_seed(0)
    for clients in (2, 100):
        deviation = mechanism.privacy.report_std(2) * clients**0.5
        counts = deviation * torch.randn(10_000, generator=draw)
        report = {piece.name: dict.fromkeys(piece.counted, counts)}
        for found in mechanism.drop_noisy_counts(report, [piece], clients)[piece.name].values():
            assert float((found > 0).float().mean()) == pytest.approx(0.023, abs=0.005)


@pytest.mark.parametrize(
    ("method", "answer"), [("fedavg", "answer_train"), ("fedfm", "answer_measure")]
)
def test_a_simulation_stops_where_too_few_clients_are_left_for_its_noise(
    data, federation, monkeypatch, method, answer
):
    """As when the training of one of them diverges, or its features do."""
    works = getattr(rounds, answer)

    def without_the_last(*arguments):
        sums = works(*arguments)
        return sums._replace(clients=sums.clients[:-1])

    config = federation(method, *private(data)).config
    assert len(simulated(config).rounds) == 3
    monkeypatch.setattr(rounds, answer, without_the_last)
    with pytest.raises(UserError, match=r"\b2\b.*\[privacy\].*\b3\b"):
        simulated(config)
