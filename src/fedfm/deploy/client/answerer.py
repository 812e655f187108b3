"""From the bytes of a question to the bytes of an answer, whatever goes wrong in between."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import torch
from flwr.app import RecordDict

from fedfm.config.deployment import MEGABYTE
from fedfm.core.errors import UserError, is_disk_full
from fedfm.deploy.client.cache import Cache
from fedfm.deploy.client.client import Client
from fedfm.deploy.client.site import Site, load_site
from fedfm.deploy.errors import Refusal, SecureError, StateLost
from fedfm.deploy.masking import Masker
from fedfm.deploy.packets import Packet, decode, encode
from fedfm.deploy.payload import Payload
from fedfm.plugins import load_plugins

logger = logging.getLogger(__name__)
STAMP = ("token", "kind", "number")
"""Facts of a question that its answer repeats."""
NO_MEMORY = "it does not have enough memory"
DISK_FULL = "its disk is full"
MAKE_ROOM = "the disk is full (%s): make room; this client then takes part again by itself"


class Answerer:
    """Answers questions to the client of one site file.

    Between questions it keeps the client's data, network and executor, and in `state` the secrets
    of secure sums.
    """

    def __init__(self, site: Path, state: RecordDict | None = None) -> None:
        self.path, self.cache = site, Cache()
        self.masker = Masker(RecordDict() if state is None else state)

    def answer(self, question: Payload) -> Payload:
        """Return the client's answer, or a reason that reveals nothing about its data."""
        stamp: dict[str, object] = {}
        try:
            load_plugins()
            site = load_site(self.path)
            with limit_memory(site.memory_limit):
                packet = _read_question(question, site)
                stamp = {key: packet.facts.get(key) for key in STAMP}
                client = Client(site, self.masker, self.cache)
                facts, trees = client.answer(str(packet.facts.get("kind")), packet)
                return encode(Packet({**facts, **stamp}, trees))
        except Exception as problem:  # no text of an error may leave this machine unchecked
            reason = explain_to_server(problem)
            if reason == NO_MEMORY:
                self.cache.clear()
            _log(problem)
            return refuse(reason, isinstance(problem, StateLost), stamp)


def refuse(
    reason: str, lost: bool = False, stamp: Mapping[str, object] = MappingProxyType({})
) -> Payload:
    """Return an answer that is only a reason."""
    return encode(Packet({"error": reason, "lost": lost, **stamp}))


def _log(problem: Exception) -> None:
    if is_disk_full(problem):
        logger.error(MAKE_ROOM, getattr(problem, "filename", None))
        return
    expected = isinstance(problem, UserError)
    level = logging.WARNING if expected else logging.ERROR
    logger.log(level, "question not answered: %s", problem, exc_info=not expected)


def explain_to_server(problem: Exception) -> str:
    """Return what the server may know about a problem."""
    if isinstance(problem, Refusal | SecureError):
        return str(problem)
    if is_disk_full(problem):
        return DISK_FULL
    no_memory = isinstance(problem, MemoryError | torch.OutOfMemoryError)
    if no_memory or "allocate memory" in str(problem):  # a RuntimeError of PyTorch on a CPU
        return NO_MEMORY
    return "it could not answer; its own log says why"


@contextmanager
def limit_memory(megabytes: int) -> Iterator[None]:
    """Limit the memory for the process's data inside the block, PyTorch's included; 0: no limit.

    A larger request raises an error that can be answered; without a limit the system would kill
    the process.
    """
    if not megabytes:
        yield
        return
    import resource

    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [each for each in (before, hard) if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([*limits, megabytes * MEGABYTE]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))


def _read_question(question: Payload, site: Site) -> Packet:
    try:
        return decode(question, site.message_limit * MEGABYTE)
    except UserError as reason:  # the server may know what is wrong with its own message
        raise Refusal(str(reason)) from reason
