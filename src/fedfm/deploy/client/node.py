"""The node of `fedfm join`: it asks the server for questions and hands them to one worker.

It speaks Flower's fleet protocol, opens no port, never fetches the app of a run, and does not
import PyTorch. With keys, only questions that the federation's server has signed reach the worker.
"""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypeVar

from flwr.app import RecordDict

from fedfm.deploy.client.worker_process import WorkerDied, WorkerProcess
from fedfm.deploy.errors import Refusal
from fedfm.deploy.flower.errors import (
    FleetError,
    NotAdmitted,
    Unauthenticated,
    Unreachable,
    Untrusted,
)
from fedfm.deploy.flower.fleet import Fleet, Question
from fedfm.deploy.payload import Payload, read_payload, write_payload
from fedfm.deploy.programs.processes import FlowerError
from fedfm.deploy.signatures import Verifier, read_signature
from fedfm.deploy.validation import to_one_line

logger = logging.getLogger(__name__)
T = TypeVar("T")
SHORTEST, LONGEST, SHARE = 0.2, 3.0, 0.02
"""Seconds between two calls for questions: this share of the time since the last question."""
PAUSES = (1.0, 1.0, 2.0, 5.0)
"""Seconds between two attempts to reach a server; the last one repeats."""
PATIENCE = 90.0
"""Seconds to retry: for a minute a superlink refuses a node whose old connection was cut."""
RETRY = 5.0
"""Seconds between two attempts to be let in."""
UNANSWERED = 3
"""How many attempts in a row without an answer mean that the server is gone."""
AHEAD, BEHIND = 4.0, 300.0
"""Seconds by which a node's clock may differ from the server's; Flower refuses more."""
AWAY = "no answer from {}: retrying until there is one; if that takes long, check address and port"
WAITING = (
    "not let in yet: the server does not know this client's public key, or still waits for its old "
    f"connection, as it does for a minute; retrying for {PATIENCE:.0f} s"
)
REFUSED = (
    "the server does not let this client in (its reason is above): give the server this client's "
    "public key, and check that no other client uses the same key"
)
DISTRUSTED = (
    "no secure connection to this server ({}): ca.pem is not the server's, the certificate is not "
    "for the name in --superlink or has expired, or the server runs without --keys"
)
CLOCK = (
    "the clock of this machine is {:.0f} s {} the server's, which therefore refuses this client: "
    "set both clocks by NTP (timedatectl set-ntp true)"
)
FAILED = "the server refuses this client's request: {}"
OVER = "the federation is over and its server has stopped; the model is in {}"


class FederationEnded(Exception):
    """The client has the federation's model, and the server is gone."""


@dataclass
class Node:
    """A client's node; `run` works until the federation is over."""

    address: str
    worker: WorkerProcess
    result: Path
    """Where the worker saves the federation's model."""
    ca: Path | None = None
    key: Path | None = None
    verifier: Verifier | None = None
    limit: int = 2**30
    """The bytes of the largest message that it fetches."""
    failures: int = 0
    """Attempts to reach the server since its last answer."""
    refused_since: float | None = None
    known: set[str] = field(default_factory=set)
    """What was logged once."""

    def __post_init__(self) -> None:
        """Remember the model of an earlier federation."""
        self.earlier = _version(self.result)

    def run(self) -> None:
        """Answer questions until the federation is over; raise `FlowerError` if that cannot be."""
        try:
            while True:
                self._connect()
        except FederationEnded:
            logger.info(OVER.format(self.result))

    def _connect(self) -> None:
        """Sign on and answer questions, until the superlink does not know this node any more."""
        try:
            fleet = self._persist(lambda: Fleet(self.address, self.ca, self.key, self.limit))
            with fleet:
                self.refused_since = None
                logger.info("connected to %s as node %d", self.address, fleet.node)
                try:
                    self._answer_questions(fleet)
                except FleetError as problem:
                    logger.warning("signing on again: %s", problem)
        except Untrusted as problem:
            raise FlowerError(DISTRUSTED.format(problem)) from problem
        except Unauthenticated as problem:
            if not -BEHIND < problem.ahead < AHEAD:
                self._blame_clock(problem.ahead)
            self._wait_for_admission(problem)
        except NotAdmitted as problem:
            self._wait_for_admission(problem)
        except FleetError as problem:
            raise FlowerError(FAILED.format(problem)) from problem

    def _blame_clock(self, ahead: float) -> NoReturn:
        side = "ahead of" if ahead > 0 else "behind"
        raise FlowerError(CLOCK.format(abs(ahead), side))

    def _wait_for_admission(self, problem: FleetError) -> None:
        now = time.monotonic()
        self._log_once(to_one_line(problem))
        if self.refused_since is None:
            self.refused_since = now
            logger.warning(WAITING)
        if now - self.refused_since > PATIENCE:
            raise FlowerError(REFUSED)
        time.sleep(RETRY)

    def _persist(self, call: Callable[[], T]) -> T:
        """Repeat a call while no server answers."""
        while True:
            try:
                result = call()
            except Unreachable as problem:
                self._note_failure(problem)
                continue
            if self.failures:
                logger.info("the server answers")
                self.failures = 0
            return result

    def _note_failure(self, problem: Unreachable) -> None:
        self.failures += 1
        if self.failures >= UNANSWERED and _version(self.result) != self.earlier:
            raise FederationEnded
        if self.failures == 1:
            logger.warning(AWAY.format(self.address))
            logger.debug("%s", problem)
        time.sleep(PAUSES[min(self.failures, len(PAUSES)) - 1])

    def _answer_questions(self, fleet: Fleet) -> None:
        asked = time.monotonic()
        while True:
            question = self._persist(fleet.receive)
            now = time.monotonic()
            if question is None:
                time.sleep(min(max(SHORTEST, SHARE * (now - asked)), LONGEST))
                continue
            answer = self._answer(question, fleet.node)
            asked = time.monotonic()
            self._send(fleet, question, answer, asked - now)

    def _send(
        self, fleet: Fleet, question: Question, answer: RecordDict | str, seconds: float
    ) -> None:
        try:
            self._persist(lambda: fleet.reply(question, answer, seconds))
        except (NotAdmitted, Unauthenticated):
            raise
        except FleetError as problem:  # the server no longer waits for this answer
            logger.warning("an answer was not taken: %s", problem)

    def _answer(self, question: Question, node: int) -> RecordDict | str:
        """Return the content of the answer, or a reason why there is none."""
        try:
            payload = self._read(question, node)
        except Refusal as reason:
            self._log_once(f"a message was refused: {to_one_line(reason)}")
            return str(reason)
        kind = _find_kind(payload)
        logger.info("question '%s'", kind)
        try:
            return write_payload(self.worker.answer(payload))
        except WorkerDied as problem:
            logger.error("the worker died of '%s' (%s); another one is started", kind, problem)
            return f"its worker died ({problem}) and was replaced"

    def _read(self, question: Question, node: int) -> Payload:
        if question.refusal:
            raise Refusal(question.refusal)
        try:
            payload = read_payload(question.content)
            signature = read_signature(question.content)
        except (LookupError, TypeError, ValueError) as problem:
            raise Refusal("the message is not a packet of FedFM") from problem
        if self.verifier:
            self.verifier.verify(payload, signature, question.run, node)
        return payload

    def _log_once(self, text: str) -> None:
        if text not in self.known:
            self.known.add(text)
            logger.warning(text)


def _find_kind(payload: Payload) -> str:
    try:
        return to_one_line(json.loads(payload.facts)["kind"])
    except (ValueError, LookupError, TypeError):
        return "?"


def _version(file: Path) -> int | None:
    """Return a value that changes when the file is written."""
    return file.stat().st_mtime_ns if file.exists() else None
