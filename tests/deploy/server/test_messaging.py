"""Answers that come while another client's answer is waited for."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.supercore.task_identity import TaskIdentity

from fedfm.config.deployment import Deployment
from fedfm.deploy.packets import Packet, pack
from fedfm.deploy.server import messaging
from fedfm.deploy.server.messaging import Messenger

DIED, SLOW = 1, 2
STAMP = {"token": "t", "kind": "train", "number": 1}


class Clock:
    """A clock that moves only when something takes its time."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class BlockingGrid:
    """Waits for an answer that its sender never finished; then another one lies there."""

    def __init__(self, clock: Clock, wait: float) -> None:
        self.clock, self.wait, self.pulls = clock, wait, 0
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        return [str(message.metadata.dst_node_id) for message in messages]

    def pull_messages(self, ids: list[str]) -> list[Any]:
        self.pulls += 1
        if self.pulls == 1:
            self.clock.sleep(self.wait)
            return [reply(DIED, error=SimpleNamespace(reason="objects are unavailable", code=1))]
        return [reply(SLOW, content=pack(Packet(STAMP)))]


def reply(node: int, content: Any = None, error: Any = None) -> Any:
    """An answer of a node, or the error that stands for it."""
    about = SimpleNamespace(reply_to_message_id=str(node), src_node_id=node)
    return SimpleNamespace(
        metadata=about, content=content, error=error, has_error=lambda: error is not None
    )


@pytest.mark.parametrize("wait", [1.0, 100.0])
def test_a_client_that_died_while_it_sent_costs_nobody_else_its_answer(monkeypatch, wait):
    """Even if the server has waited for it until after the time of all answers."""
    clock = Clock()
    monkeypatch.setattr(messaging, "time", clock)
    grid: Any = BlockingGrid(clock, wait)
    messenger = Messenger(grid, Deployment(timeout=60.0), "t", pause=0.1)
    answers = messenger.ask("train", {DIED: Packet({}), SLOW: Packet({})})
    assert [*answers] == [SLOW]
    assert messenger.silent == set()
