"""The worker process of a client: it stays, and what kills it or fails in it costs one answer."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedfm.core.errors import UserError
from fedfm.deploy.client.join_request import JoinRequest
from fedfm.deploy.client.worker_process import WorkerDied, WorkerProcess
from fedfm.deploy.packets import PROTOCOL_VERSION
from fedfm.deploy.payload import Payload
from tests.deploy.conftest import write_site

KILL = "os.kill(os.getpid(), signal.SIGKILL)"
LOADER = """
import os, random, signal
from pathlib import Path
from typing import Any
import numpy, torch
from fedfm.data import Dataset, Split

here = Path(__file__).parent
def load():
    with (here / "loads.txt").open("a") as file:
        numbers = [random.random(), float(numpy.random.rand()), float(torch.rand(()))]
        print(os.getpid(), torch.initial_seed(), *numbers, file=file)
    deed = (here / "deed.txt").read_text()
    (here / "deed.txt").write_text("")
    exec(deed)
    inputs, labels = torch.arange(80.0).view(20, 4), torch.arange(20) % 2
    parts = [Split(inputs[part], labels[part]) for part in (slice(14), slice(14, None))]
    return Dataset("own", *parts, ("a", "b"))
"""
CONFIG = json.dumps({"model": {"name": "mlp"}, "method": {"fedavg": {}}})
HELLO = Payload(
    json.dumps({"kind": "hello", "token": "t", "messages": PROTOCOL_VERSION, "config": CONFIG})
)


@pytest.fixture
def place(tmp_path) -> Path:
    """A site whose function does what a file tells it to, once."""
    (tmp_path / "loader_of_worker.py").write_text(LOADER)
    (tmp_path / "deed.txt").write_text("")
    data = {"source": '"python"', "entry": '"loader_of_worker:load"'}
    write_site(tmp_path, "c", data)
    return tmp_path


@pytest.fixture
def worker(place) -> Iterator[WorkerProcess]:
    found = WorkerProcess()
    found.open(place / "site.toml", place / "log")
    yield found
    found.close()


def loads(place: Path) -> list[list[str]]:
    """What the function noted each time that it was called."""
    return [line.split() for line in (place / "loads.txt").read_text().splitlines()]


def facts(answer: Payload) -> dict[str, Any]:
    return json.loads(answer.facts)


def test_a_worker_stays_and_is_replaced_when_it_dies(worker, place):
    """One test for what needs a process: each takes seconds to start."""
    for _ in range(3):
        assert facts(worker.answer(HELLO))["introduction"]["classes"] == ["a", "b"]
    assert len(loads(place)) == 1
    assert worker.process.pid != os.getpid()

    # an exception in the user's code is answered, and the worker stays
    first = worker.process.pid
    site = (place / "site.toml").read_text()
    (place / "site.toml").write_text(site.replace('"loader_of_worker:load"', '"nowhere:load"'))
    assert "could not answer" in facts(worker.answer(HELLO))["error"]
    assert "nowhere" in (place / "log").read_text()
    (place / "site.toml").write_text(site)
    assert worker.process.pid == first

    # a worker that was killed is replaced; one that dies of a question is replaced at once
    os.kill(first, signal.SIGKILL)
    worker.process.join()
    for deed, reason in (("os._exit(7)", "exit code 7"), (KILL, "signal SIGKILL")):
        (place / "deed.txt").write_text(deed)
        with pytest.raises(WorkerDied, match=reason):
            worker.answer(HELLO)
    assert "introduction" in facts(worker.answer(HELLO))

    # no two share random state, that of PyTorch included
    seen = loads(place)
    assert len({row[0] for row in seen}) == len(seen) == 4
    for column in range(1, 5):
        assert len({row[column] for row in seen}) == len(seen)


def test_a_mistake_of_the_user_is_told_and_ends_nothing(tmp_path):
    worker = WorkerProcess()
    try:
        with pytest.raises(UserError, match="--name and --data"):
            worker.prepare(JoinRequest("digits"))
        (tmp_path / "t.csv").write_text("age,label\n" + "40,ill\n50,well\n" * 20)
        out = tmp_path / "out"
        request = JoinRequest("digits", ("model.name=mlp",), "a", str(tmp_path / "t.csv"), out=out)
        prepared = worker.prepare(request)
        assert prepared.site == out / "site.toml"
        assert not out.exists()
        out.mkdir()
        worker.open(prepared.site, tmp_path / "log")
        assert prepared.site.exists()
    finally:
        worker.close()
    assert worker.process.exitcode is not None
