"""What a client keeps on its disk: the right round's, or it says that it has lost it."""

import json

import pytest
import torch

from fedfm.core.client_states import OnDisk
from fedfm.deploy.client.storage import Storage
from fedfm.deploy.errors import Refusal, StateLost
from fedfm.methods.base import Model

MODEL = Model({"w": torch.arange(4.0)}, {"mean": torch.ones(2)})


@pytest.fixture
def storage(tmp_path):
    return Storage(tmp_path / "out")


def files(storage):
    return sorted(file.name for file in storage.folder.rglob("*") if file.is_file())


# --- the federation -------------------------------------------------------------------------------


def test_an_enrolment_is_of_one_federation(storage):
    storage.save_enrolment({"token": "a", "client": 3})
    assert storage.load_enrolment("a") == {"token": "a", "client": 3}
    with pytest.raises(StateLost, match="joined"):
        storage.load_enrolment("b")


@pytest.mark.parametrize("text", [None, "", "{", "\x00", "[]", "3", '"a"', "null", "{}"])
def test_a_lost_or_damaged_enrolment(storage, text):
    storage.save_enrolment({"token": "a"})
    if text is None:
        (storage.folder / "federation.json").unlink()
    else:
        (storage.folder / "federation.json").write_text(text)
    with pytest.raises(StateLost):
        storage.load_enrolment("a")


def test_bytes_that_are_no_text(storage):
    storage.save_enrolment({"token": "a"})
    (storage.folder / "federation.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StateLost):
        storage.load_enrolment("a")


# --- the model ------------------------------------------------------------------------------------


def test_the_model_comes_back_by_its_version(storage):
    storage.save_model(MODEL._asdict(), 4)
    found = storage.load_model(4, MODEL)
    assert torch.equal(found.params["w"], MODEL.params["w"])
    assert torch.equal(found.buffers["mean"], MODEL.buffers["mean"])
    with pytest.raises(StateLost, match=r"model\b.*\b5\b"):
        storage.load_model(5, MODEL)


def test_one_model_is_kept(storage):
    for version in (0, 1, 2):
        storage.save_model(MODEL._asdict(), version)
    assert files(storage) == ["global-000002.safetensors"]


@pytest.mark.parametrize(
    ("weights", "pattern"),
    [
        (torch.ones(5), r"'params/w'.*\(5,\)"),
        (torch.ones(4, dtype=torch.float64), "'params/w'.*float64"),
    ],
)
def test_a_model_of_another_network_is_refused(storage, weights, pattern):
    storage.save_model({"params": {"w": weights}, "buffers": {"mean": torch.ones(2)}}, 0)
    with pytest.raises(Refusal, match=pattern) as told:
        storage.load_model(0, MODEL)
    assert not isinstance(told.value, StateLost)


def test_a_model_without_buffers(storage):
    bare = Model({"w": torch.ones(2)}, {})
    storage.save_model(bare._asdict(), 0)
    assert storage.load_model(0, bare).buffers == {}


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-3], lambda data: b"", lambda data: b"x" * 99]
)
def test_a_damaged_model_is_lost(storage, damage):
    storage.save_model(MODEL._asdict(), 0)
    (file,) = storage.folder.glob("global-*")
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(StateLost, match=r"model\b.*\b0\b"):
        storage.load_model(0, MODEL)


FIRST = {"params": {"w": torch.zeros(2)}, "buffers": {"frozen": torch.ones(2)}}
LATER = {"params": {"w": torch.ones(2)}}


def test_a_later_model_is_completed_by_what_is_sent_once(storage):
    storage.save_enrolment({"token": "a"})
    assert storage.complete_model(FIRST, {"frozen"}) is FIRST
    storage.save_enrolment({"token": "a", "client": 3})
    completed = storage.complete_model(LATER, {"frozen"})
    assert torch.equal(completed["params"]["w"], torch.ones(2))
    assert torch.equal(completed["buffers"]["frozen"], torch.ones(2))


def test_nothing_is_kept_of_a_model_that_is_sent_whole_every_time(storage):
    storage.save_enrolment({"token": "a"})
    assert storage.complete_model(LATER, frozenset()) is LATER
    assert files(storage) == ["federation.json"]


def test_what_another_federation_sent_once_is_forgotten(storage):
    storage.save_enrolment({"token": "a"})
    storage.complete_model(FIRST, {"frozen"})
    storage.save_enrolment({"token": "b"})
    with pytest.raises(StateLost):
        storage.complete_model(LATER, {"frozen"})


# --- its own state --------------------------------------------------------------------------------


def kept(storage, *rounds):
    for round in rounds:
        OnDisk(storage.folder / "state").update({7: {"control": torch.tensor(round)}}, round)


def test_the_state_of_the_round_that_the_server_knows(storage):
    """A later one belongs to an answer that was lost; an earlier one to the past."""
    kept(storage, 1, 2, 3)
    assert int(storage.load_states(7, 2).get(7)["control"]) == 2
    assert files(storage) == ["client-000007-000002.safetensors"]


def test_a_round_that_was_lost_does_not_count(storage):
    """Asked again, it starts from what it had, and replaces what it made of it."""
    kept(storage, 1)
    states = storage.load_states(7, 1)
    states.update({7: {"control": torch.tensor(99)}}, 2)
    again = storage.load_states(7, 1)
    assert int(again.get(7)["control"]) == 1
    assert int(again.update({7: {"control": torch.tensor(5)}}, 2).get(7)["control"]) == 5


def test_a_client_that_keeps_nothing(storage):
    kept(storage, 1)
    assert storage.load_states(7, None).get(7) == {}
    assert files(storage) == []


@pytest.mark.parametrize("damage", [None, lambda data: data[:-3], lambda data: b""])
def test_a_lost_or_damaged_state(storage, damage):
    kept(storage, 2)
    (file,) = storage.folder.rglob("client-*")
    file.unlink() if damage is None else file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(StateLost, match=r"state\b.*\b2\b"):
        storage.load_states(7, 2)


def test_a_state_of_another_round_is_none(storage):
    kept(storage, 2)
    with pytest.raises(StateLost, match=r"state\b.*\b1\b"):
        storage.load_states(7, 1)


# --- all files ------------------------------------------------------------------------------------


def test_a_crash_while_writing_leaves_the_old_file(storage, monkeypatch):
    storage.save_enrolment({"token": "a"})

    def crash(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", crash)
    with pytest.raises(KeyboardInterrupt):
        storage.save_enrolment({"token": "b"})
    assert json.loads((storage.folder / "federation.json").read_text()) == {"token": "a"}
    assert files(storage) == ["federation.json"]
