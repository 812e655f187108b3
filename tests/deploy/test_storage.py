"""What a client keeps on its disk: the right round's, or it says that it has lost it."""

import json

import pytest
import torch

from fedfm.core.client_states import OnDisk
from fedfm.deploy.client.storage import Desk
from fedfm.deploy.errors import Lost, Refusal
from fedfm.methods.base import Model

MODEL = Model({"w": torch.arange(4.0)}, {"mean": torch.ones(2)})


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path / "out")


def files(desk):
    return sorted(file.name for file in desk.folder.rglob("*") if file.is_file())


# --- the federation -------------------------------------------------------------------------------


def test_an_enrolment_is_of_one_federation(desk):
    desk.enrol({"token": "a", "client": 3})
    assert desk.enrolment("a") == {"token": "a", "client": 3}
    with pytest.raises(Lost, match="has not joined"):
        desk.enrolment("b")


@pytest.mark.parametrize("text", [None, "", "{", "\x00", "[]", "3", '"a"', "null", "{}"])
def test_a_lost_or_damaged_enrolment(desk, text):
    desk.enrol({"token": "a"})
    if text is None:
        (desk.folder / "federation.json").unlink()
    else:
        (desk.folder / "federation.json").write_text(text)
    with pytest.raises(Lost):
        desk.enrolment("a")


def test_bytes_that_are_no_text(desk):
    desk.enrol({"token": "a"})
    (desk.folder / "federation.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Lost):
        desk.enrolment("a")


# --- the model ------------------------------------------------------------------------------------


def test_the_model_comes_back_by_its_version(desk):
    desk.keep_model(MODEL._asdict(), 4)
    found = desk.model(4, MODEL)
    assert torch.equal(found.params["w"], MODEL.params["w"])
    assert torch.equal(found.buffers["mean"], MODEL.buffers["mean"])
    with pytest.raises(Lost, match="lacks the model after round 5"):
        desk.model(5, MODEL)


def test_one_model_is_kept(desk):
    for version in (0, 1, 2):
        desk.keep_model(MODEL._asdict(), version)
    assert files(desk) == ["global-000002.safetensors"]


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (torch.ones(5), r"'params/w' has shape \(5,\)"),
        (torch.ones(4, dtype=torch.float64), "'params/w' has type torch.float64"),
    ],
)
def test_a_model_of_another_network_is_refused(desk, weights, said):
    desk.keep_model({"params": {"w": weights}, "buffers": {"mean": torch.ones(2)}}, 0)
    with pytest.raises(Refusal, match=said) as told:
        desk.model(0, MODEL)
    assert not isinstance(told.value, Lost)


def test_a_model_without_buffers(desk):
    bare = Model({"w": torch.ones(2)}, {})
    desk.keep_model(bare._asdict(), 0)
    assert desk.model(0, bare).buffers == {}


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-3], lambda data: b"", lambda data: b"x" * 99]
)
def test_a_damaged_model_is_lost(desk, damage):
    desk.keep_model(MODEL._asdict(), 0)
    (file,) = desk.folder.glob("global-*")
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(Lost, match="lacks the model"):
        desk.model(0, MODEL)


# --- its own state --------------------------------------------------------------------------------


def kept(desk, *rounds):
    for round in rounds:
        OnDisk(desk.folder / "state").update({7: {"control": torch.tensor(round)}}, round)


def test_the_state_of_the_round_that_the_server_knows(desk):
    """A later one belongs to an answer that was lost; an earlier one to the past."""
    kept(desk, 1, 2, 3)
    assert int(desk.states(7, 2).get(7)["control"]) == 2
    assert files(desk) == ["client-000007-000002.safetensors"]


def test_a_round_that_was_lost_does_not_count(desk):
    """Asked again, it starts from what it had, and replaces what it made of it."""
    kept(desk, 1)
    states = desk.states(7, 1)
    states.update({7: {"control": torch.tensor(99)}}, 2)
    again = desk.states(7, 1)
    assert int(again.get(7)["control"]) == 1
    assert int(again.update({7: {"control": torch.tensor(5)}}, 2).get(7)["control"]) == 5


def test_a_client_that_keeps_nothing(desk):
    kept(desk, 1)
    assert desk.states(7, None).get(7) == {}
    assert files(desk) == []


@pytest.mark.parametrize("damage", [None, lambda data: data[:-3], lambda data: b""])
def test_a_lost_or_damaged_state(desk, damage):
    kept(desk, 2)
    (file,) = desk.folder.rglob("client-*")
    file.unlink() if damage is None else file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(Lost, match="has lost what it kept after round 2"):
        desk.states(7, 2)


def test_a_state_of_another_round_is_none(desk):
    kept(desk, 2)
    with pytest.raises(Lost, match="after round 1"):
        desk.states(7, 1)


# --- all files ------------------------------------------------------------------------------------


def test_a_crash_while_writing_leaves_the_old_file(desk, monkeypatch):
    desk.enrol({"token": "a"})

    def crash(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", crash)
    with pytest.raises(KeyboardInterrupt):
        desk.enrol({"token": "b"})
    assert json.loads((desk.folder / "federation.json").read_text()) == {"token": "a"}
    assert files(desk) == ["federation.json"]
