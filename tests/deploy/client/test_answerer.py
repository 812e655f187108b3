"""What a client keeps between questions: its data are read once, and its memory does not grow."""

import gc
import json
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from flwr.app import Message

from fedfm.config import Config, load_config
from fedfm.deploy.client.answerer import NO_MEMORY, Answerer
from fedfm.deploy.client.cache import Cache, stamp_files
from fedfm.deploy.client.client import Client
from fedfm.deploy.client.site import Site, load_site
from fedfm.deploy.packets import PROTOCOL_VERSION, Packet, encode
from fedfm.deploy.payload import Payload, read_payload
from fedfm.deploy.server.introductions import agree
from tests.cli.tools import SERVER
from tests.deploy.conftest import NODES, facts_of, write_site

ROUNDS, WARM_UP = 100, 20
LEAK = 20e6
"""Bytes: a fifth of what 100 models of 1 MB would take, and above the noise of an allocator."""


def memory() -> int:
    """The bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def train(federation) -> tuple[Path, Payload]:
    """A site file, and a question to train a model of 1 MB."""
    asked: list[Payload] = []

    def listen(message: Message, answer) -> Message:
        if facts_of(message)["kind"] == "train" and message.metadata.dst_node_id == NODES[0]:
            asked.append(read_payload(message.content))
        return answer()

    fed = federation("fedavg", "model.hidden=[500, 500]", "training.rounds=1")
    fed.run(listen)
    return fed.folder / "c0" / "site.toml", asked[0]


def test_memory_does_not_grow(train):
    """In a process of its own, as a worker is: what other tests left behind has no say."""
    _, question = train
    assert len(question.trees["model"]) > 1e6
    with ProcessPoolExecutor(1, SERVER) as pool:
        assert pool.submit(measure_growth, *train).result() < LEAK


def measure_growth(site: Path, question: Payload) -> int:
    """By how many bytes a process grows over the rounds."""
    answerer = Answerer(site)
    for round in range(ROUNDS + WARM_UP):
        if round == WARM_UP:
            gc.collect()
            before = memory()
        answer = answerer.answer(question)
    assert "sum" in answer.trees
    gc.collect()
    return memory() - before


def test_a_warm_answer_is_a_cold_one(train):
    site, question = train
    warm = Answerer(site)
    warm.answer(question)
    assert warm.answer(question) == Answerer(site).answer(question)


# --- the cache ------------------------------------------------------------------------------------


@pytest.fixture
def loads(monkeypatch) -> list[str]:
    """The names of clients whose data were loaded."""
    seen: list[str] = []
    whole = Site.load_data

    def load(site: Site, config: Config):
        seen.append(site.name)
        return whole(site, config)

    monkeypatch.setattr(Site, "load_data", load)
    return seen


@pytest.fixture
def site(tmp_path) -> Site:
    (tmp_path / "t.csv").write_text("age,label\n" + "40,ill\n50,well\n" * 20)
    write_site(tmp_path, "c", {"source": '"csv"', "path": '"t.csv"'})
    return load_site(tmp_path / "site.toml")


def test_data_are_loaded_again_only_if_they_changed(site, loads, tmp_path):
    cache, config = Cache(), load_config("digits", ["model.name=mlp"])
    first = cache.load_data(site, config)
    assert cache.load_data(site, config) is first
    assert cache.load_data(site, config.model_copy(update={"device": "cpu"})) is first
    (tmp_path / "t.csv").write_text("age,label\n" + "40,ill\n50,well\n" * 30)
    assert len(cache.load_data(site, config).train) > len(first.train)
    cache.load_data(site, config.with_seed(7))
    assert len(loads) == 3


def test_files_of_a_folder_are_watched(tmp_path):
    (tmp_path / "scans" / "ill").mkdir(parents=True)
    (tmp_path / "scans" / "ill" / "1.png").write_text("1")
    write_site(tmp_path, "c", {"source": '"folder"', "path": '"scans"'})
    site, config = load_site(tmp_path / "site.toml"), Config()
    first = stamp_files(site, config)
    assert stamp_files(site, config) == first
    (tmp_path / "scans" / "ill" / "2.png").write_text("2")
    assert stamp_files(site, config) != first


def test_a_runtime_is_kept_for_one_federation(site):
    cache, config = Cache(), load_config("digits", ["model.name=mlp"])
    data = cache.load_data(site, config)
    agreement, _ = agree({0: site.introduce(data)})
    agreement = agreement.replace(mean=[1.0], std=[2.0])
    first = cache.get_runtime(site, config, agreement, 0)
    assert cache.get_runtime(site, config, agreement, 0) is first
    assert first.network is cache.get_runtime(site, config, agreement, 0).network
    assert cache.get_runtime(site, config, agreement, 1) is not first
    other = agreement.replace(mean=[3.0])
    assert cache.get_runtime(site, config, other, 1).data.mean == (3.0,)
    cache.clear()
    assert cache.get_runtime(site, config, other, 1).data.mean == (3.0,)


def test_memory_that_ran_out_is_freed(site, tmp_path, monkeypatch):
    answerer = Answerer(tmp_path / "site.toml")
    facts = {"kind": "hello", "messages": PROTOCOL_VERSION, "config": "{}"}
    facts["config"] = json.dumps({"model": {"name": "mlp"}})
    question = encode(Packet(facts))
    assert "introduction" in json.loads(answerer.answer(question).facts)
    cleared: list[int] = []
    monkeypatch.setattr(answerer.cache, "clear", lambda: cleared.append(1))

    def fail(*given: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Client, "answer", fail)
    assert json.loads(answerer.answer(question).facts)["error"] == NO_MEMORY
    assert cleared == [1]
