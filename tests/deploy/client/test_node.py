"""The node of `fedfm join`, with a worker in this process: what it answers, and when it ends."""

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedfm.deploy.client import node as module
from fedfm.deploy.client.node import FederationEnded, Node
from fedfm.deploy.client.worker_process import WorkerDied
from fedfm.deploy.flower.control import Control
from fedfm.deploy.flower.errors import (
    FleetError,
    NotAdmitted,
    Unauthenticated,
    Unreachable,
    Untrusted,
)
from fedfm.deploy.flower.fleet import Question
from fedfm.deploy.flower.keys import read_public_key
from fedfm.deploy.flower.task import open_server_grid
from fedfm.deploy.keys.folders import load_client_keys, load_server_keys, make_keys
from fedfm.deploy.payload import Payload, read_payload, write_payload
from fedfm.deploy.programs.processes import FlowerError
from fedfm.deploy.server.signed_grid import ServerGrid
from fedfm.deploy.signatures import Signer, Verifier
from tests.deploy.superlink import SECRET, TOKEN, run_superlink, write_app

QUESTION = Payload('{"kind":"hello"}')


class Echo:
    """A worker that repeats a question, and dies of some."""

    def __init__(self) -> None:
        self.asked: list[Payload] = []

    def answer(self, question: Payload) -> Payload:
        self.asked.append(question)
        if "die" in question.facts:
            raise WorkerDied("signal SIGKILL")
        return question


class Stop(Exception):
    """The end of a test."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(module, "PAUSES", (0.0,))
    monkeypatch.setattr(module, "RETRY", 0.0)


@pytest.fixture
def said(caplog) -> Callable[[], str]:
    caplog.set_level(logging.INFO, "fedfm")
    return lambda: "\n".join(record.getMessage() for record in caplog.records)


@pytest.fixture
def script(monkeypatch, tmp_path) -> Callable[..., Node]:
    """Makes a node whose connections do what they are told: raise, or return questions."""

    def make(signing_on: Sequence[Any], receiving: Sequence[Any] = ()) -> Node:
        steps, questions = iter(signing_on), iter(receiving)

        class Fleet:
            node = 1

            def __init__(self, *arguments: object) -> None:
                if (step := next(steps)) is not None:
                    raise step

            def __enter__(self):
                return self

            def __exit__(self, *problem: object) -> None:
                pass

            def receive(self):
                step = next(questions)
                if isinstance(step, Exception):
                    raise step
                if callable(step):
                    return step()
                return step

            def reply(self, question, answer, seconds):
                replies.append(answer)

        monkeypatch.setattr(module, "Fleet", Fleet)
        replies: list[object] = []
        node = Node("127.0.0.1:1", Echo(), tmp_path / "model")  # type: ignore[arg-type]
        node.__dict__["replies"] = replies
        return node

    return make


# --- being let in ---------------------------------------------------------------------------------


def test_a_node_waits_until_a_server_is_there(script, said):
    node = script([Unreachable("x")] * 9 + [None], [Stop()])
    with pytest.raises(Stop):
        node.run()
    assert said().count("no answer from 127.0.0.1:1") == 1
    assert "as node 1" in said()


def test_a_node_that_is_not_let_in_tries_for_a_while(script, said, monkeypatch):
    node = script([NotAdmitted("[code: 2004]")] * 10_000)
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    with pytest.raises(FlowerError, match="does not let this client in"):
        node.run()
    assert said().count("not let in yet") == 1
    assert said().count("[code: 2004]") == 1


def test_a_node_that_is_let_in_later_has_its_patience_again(script, said):
    node = script([NotAdmitted("x"), None, NotAdmitted("x"), None], [FleetError("gone"), Stop()])
    with pytest.raises(Stop):
        node.run()
    assert said().count("not let in yet") == 2


def test_a_server_that_cannot_be_trusted_ends_it(script):
    with pytest.raises(FlowerError, match=r"CERTIFICATE.*ca\.pem"):
        script([Untrusted("CERTIFICATE_VERIFY_FAILED")]).run()


@pytest.mark.parametrize(("ahead", "words"), [(20.0, "20 s ahead of"), (-400.0, "400 s behind")])
def test_a_clock_that_is_off_is_named(script, ahead, words):
    with pytest.raises(FlowerError, match=f"clock of this machine is {words} .*NTP"):
        script([Unauthenticated("HTTP 401", ahead)]).run()


def test_another_refusal_is_not_a_matter_of_keys(script):
    with pytest.raises(FlowerError, match=r"version 1\.40") as caught:
        script([FleetError("[code: 9] version 1.40")]).run()
    assert "public key" not in str(caught.value)


# --- the end of a federation --------------------------------------------------------------------


def test_it_is_over_with_the_model_and_without_a_server(script, said, tmp_path):
    (tmp_path / "model").write_text("of another federation")

    def deliver() -> None:
        time.sleep(0.01)
        (tmp_path / "model").write_text("the model")

    away = Unreachable("x")
    node = script([None], [away, away, away, away, None, deliver, away, None, away, away, away])
    node.run()
    assert f"the model is in {tmp_path / 'model'}" in said()


def test_without_a_model_it_is_not_over(script):
    with pytest.raises(Stop):
        script([None], [*[Unreachable("x")] * 50, Stop()]).run()


# --- answers --------------------------------------------------------------------------------------


def asked(payload: Payload) -> Question:
    about = SimpleNamespace(run_id=7)
    return Question(SimpleNamespace(content=write_payload(payload), metadata=about))  # type: ignore[arg-type]


def test_a_worker_that_dies_costs_one_answer(script, said):
    node = script([None], [asked(Payload('{"kind":"die"}')), asked(QUESTION), Stop()])
    with pytest.raises(Stop):
        node.run()
    assert node.replies[0] == "its worker died (signal SIGKILL) and was replaced"
    assert read_payload(node.replies[1]) == QUESTION
    assert "the worker died of 'die'" in said()


def test_an_answer_is_kept_while_the_server_is_away(script, monkeypatch):
    node = script([None], [asked(QUESTION), Stop()])
    tried: list[int] = []

    def reply(fleet, question, answer, seconds):
        tried.append(1)
        if len(tried) < 5:
            raise Unreachable("cut")
        node.replies.append(answer)

    monkeypatch.setattr(f"{module.__name__}.Fleet.reply", reply)
    with pytest.raises(Stop):
        node.run()
    assert len(tried) == 5
    assert len(node.replies) == 1


def test_polling_slows_down_while_nothing_happens(script, monkeypatch):
    naps: list[float] = []
    now = [0.0]

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now[0]

        @staticmethod
        def sleep(seconds: float) -> None:
            naps.append(seconds)
            now[0] += seconds

    monkeypatch.setattr(module, "time", Clock)
    with pytest.raises(Stop):
        script([None], [*[None] * 400, asked(QUESTION), None, Stop()]).run()
    assert naps[0] == naps[40] == module.SHORTEST
    assert max(naps) == module.LONGEST
    assert naps[-1] == module.SHORTEST


# --- with a superlink -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("keys") / "keys"
    make_keys(place, ["127.0.0.1"], ["a"], days=1)
    return place


@pytest.fixture(scope="module")
def superlink(keys) -> Iterator[str]:
    server = load_server_keys(keys / "server")
    with run_superlink(server) as address:
        with Control(str(address), server.ca, TOKEN) as control:
            control.register("a", read_public_key(server.clients["a"]))
        yield str(address)


def test_only_signed_questions_reach_the_worker(superlink, keys, tmp_path, monkeypatch, said):
    """A foreign run with all credentials of the server's machine executes nothing at the node."""
    server, client = load_server_keys(keys / "server"), load_client_keys(keys / "a", "a")
    verifier = Verifier(client.ca.read_bytes(), "127.0.0.1")
    echo = Echo()
    node = Node(superlink, echo, tmp_path / "model", client.ca, client.key, verifier)  # type: ignore[arg-type]
    monkeypatch.setattr(node, "_wait_for_admission", _leave)
    thread = threading.Thread(target=node.run)
    thread.start()
    foreign = RecordDict({"anything": ConfigRecord({"code": "import os"})})
    with Control(superlink, server.ca, TOKEN) as control:
        runs = [control.start_run(write_app(tmp_path / name, tmp_path / "mark")) for name in "xy"]
        results = []
        for run in runs:
            with open_server_grid(superlink, server.ca, SECRET, run, lambda: None) as grid:
                signing = ServerGrid(
                    grid, runs[0], lambda: None, lambda: Signer.load(server.certificate, server.key)
                )
                while not (nodes := list(grid.get_node_ids())):
                    assert thread.is_alive()
                    time.sleep(0.01)
                results.append(_ask(grid, nodes[0], write_payload(QUESTION)))
                results.append(_ask(grid, nodes[0], foreign))
                results.append(_ask(signing, nodes[0], write_payload(QUESTION)))
        control.unregister(nodes[0])
        node.refused_since = -module.PATIENCE * 10
        monkeypatch.setattr(
            node, "_wait_for_admission", lambda problem: (_ for _ in ()).throw(FederationEnded)
        )
    thread.join()
    assert [reply.has_content() for reply in results] == [False, False, True, False, False, False]
    assert "has signed" in str(results[0].error.reason)
    assert echo.asked == [QUESTION]
    assert said().count("a message was refused") == 3  # each reason is logged once
    assert not (tmp_path / "mark").exists()


def _leave(problem: Exception) -> None:
    raise FederationEnded


def _ask(grid, node: int, content: RecordDict) -> Message:
    ids = list(grid.push_messages([Message(content, node, "query.hello", ttl=60)]))
    while not (replies := list(grid.pull_messages(ids))):
        time.sleep(0.01)
    return replies[0]


def test_the_node_does_not_load_pytorch():
    code = (
        "import sys, fedfm.cli.app, fedfm.deploy.client.join, fedfm.deploy.client.node\n"
        "print(*{'torch', 'numpy.random', 'sklearn'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "torch" not in done.stdout.split()
    assert "sklearn" not in done.stdout.split()


def test_a_kind_is_read_from_the_facts():
    assert module._find_kind(QUESTION) == "hello"
    for facts in ("", "[]", "{}", "null", json.dumps({"kind": {"a": 1}})):
        assert isinstance(module._find_kind(Payload(facts)), str)
