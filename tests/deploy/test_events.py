"""Events of a federation: who hears them, and what the server tells in a real run."""

import hashlib

import pytest

from fedfm.deploy import events
from fedfm.deploy.events import AnswerLeftOut, Event, emit, listen, read_event
from tests.deploy.conftest import Fault, changed, silent


@pytest.fixture
def heard():
    """The events of this test."""
    told: list[Event] = []
    with listen(told.append):
        yield told


def kinds(told):
    return [event.kind for event in told]


def test_everybody_hears_an_event_until_they_leave():
    one: list[Event] = []
    other: list[Event] = []
    event = AnswerLeftOut("it is late", node=3, late=True)
    with listen(one.append):
        with listen(other.append):
            emit(event)
        emit(event)
    emit(event)
    assert (one, other) == ([event, event], [event])


def test_an_error_of_a_listener_reaches_the_server():
    """Nothing goes on that the audit log could not write down."""

    def fail(event: Event) -> None:
        raise OSError("disk full")

    with listen(fail), pytest.raises(OSError, match="disk full"):
        emit(AnswerLeftOut("late", node=3))


@pytest.mark.parametrize(
    "event",
    [
        AnswerLeftOut("late", node=3, late=True),
        events.Joined(1, "a", 7, "SHA256:x"),
        events.Scored(2, {"test_accuracy": 0.5, "val_accuracy": None}),
    ],
)
def test_an_event_can_be_read_again(event):
    assert read_event(event.kind, event.facts()) == event


def test_an_event_of_a_later_version_is_passed_over():
    assert read_event("teleported", {"client": 1}) is None


def test_the_kinds_are_distinct_and_readable():
    assert len(events.KINDS) == len(Event.__subclasses__())
    assert {"started", "joined", "left out", "round ended"} <= events.KINDS.keys()


def test_a_run_tells_its_story(federation, heard):
    fed = federation("fedavg")
    result = fed.run()
    told = kinds(heard)
    assert told[0] == "started"
    assert told.count("joined") == 3
    assert told.count("round began") == told.count("round ended") == told.count("scored") == 3
    assert told[-2:] == ["finished", "asked"]
    server = fed.folder / "server"
    start, finish = heard[0], heard[-2]
    assert isinstance(start, events.Started)
    assert isinstance(finish, events.Finished)
    assert start.config == hashlib.sha256((server / "config.toml").read_bytes()).hexdigest()
    model = hashlib.sha256((server / "model.safetensors").read_bytes()).hexdigest()
    assert finish.model == model
    ended = [event for event in heard if isinstance(event, events.RoundEnded)]
    assert ended[result.best.round - 1].model == model
    assert len({event.model for event in ended}) == 3
    assert all(event.clients == [0, 1, 2] for event in ended)
    assert sum(event.bytes_up for event in ended) == result.totals.bytes_up


def test_a_late_client_is_told_as_late_and_a_broken_one_is_not(federation, heard):
    fed = federation("fedavg")

    def empty(message, answer):
        return changed(answer(), lambda packet: packet._replace(trees={}))

    faults = [Fault("train", silent, client=1), Fault("train", empty, client=2, at=(1,))]
    fed.run(lambda message, answer: faults[message.metadata.dst_node_id == 102](message, answer))
    late, broken = (event for event in heard if isinstance(event, AnswerLeftOut))
    assert (late.node, late.late) == (101, True)
    assert (broken.client, broken.question, broken.late) == (2, "train", False)
    ended = [event for event in heard if isinstance(event, events.RoundEnded)]
    assert [event.left_out for event in ended] == [[1], [2], []]
