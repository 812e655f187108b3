"""Server and client of different versions: when they agree, and when they refuse each other."""

import json

import pytest

from fedfm.core.errors import UserError
from fedfm.deploy.events import AnswerLeftOut, Joined, listen
from tests.deploy.conftest import Fault, assert_same, changed, facts_of


def test_a_client_of_another_minor_version_takes_part(federation):
    """As long as the messages are of the same version; the result is the same."""

    def newer(message, answer):
        def rename(packet):
            introduction = packet.facts["introduction"] | {"version": "99.1.0"}
            return packet._replace(facts=packet.facts | {"introduction": introduction})

        return changed(answer(), rename)

    mixed, same = federation("fedavg"), federation("fedavg")
    told = list[object]()
    with listen(told.append):
        mixed.run(Fault("hello", newer))
    same.run()
    assert_same(mixed.state, same.state)
    assert len([event for event in told if isinstance(event, Joined)]) == 3


def test_a_client_refuses_messages_of_another_version(federation, monkeypatch):
    """It says why, and sends nothing about its data."""
    fed = federation("fedavg")
    monkeypatch.setattr("fedfm.deploy.server.enrolment.PROTOCOL_VERSION", 99)
    told, answers = list[object](), list[dict[str, object]]()

    def tamper(message, answer):
        reply = answer()
        answers.append(facts_of(reply))
        return reply

    with listen(told.append), pytest.raises(UserError, match=r"deployment\.minimum"):
        fed.run(tamper)
    reasons = [event.reason for event in told if isinstance(event, AnswerLeftOut)]
    assert reasons
    assert all("version 99" in reason for reason in reasons)
    assert not any("introduction" in each for each in answers)


def test_a_client_refuses_a_config_with_a_key_that_it_does_not_know(federation):
    """As a later version of the server may send it."""
    fed = federation("fedavg")

    def newer(message, answer):
        facts = facts_of(message)
        config = json.loads(str(facts["config"]))
        config["deployment"]["shiny"] = True
        record = message.content.config_records["facts"]
        record["json"] = json.dumps(facts | {"config": json.dumps(config)})
        return answer()

    told = list[object]()
    with listen(told.append):
        fed.run(Fault("hello", newer, client=1))
    left_out = [event for event in told if isinstance(event, AnswerLeftOut)]
    assert [event.node for event in left_out] == [101]
    joined = [event.name for event in told if isinstance(event, Joined)]
    assert joined == ["c0", "c2"]
