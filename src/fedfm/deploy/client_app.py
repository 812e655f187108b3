"""The Flower ClientApp: passes Flower's messages to the client and returns its answers."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedfm.config.deployment import MEGABYTE
from fedfm.core.errors import UserError, require
from fedfm.deploy.client.client import QUESTIONS, Client
from fedfm.deploy.client.site import Site, load_site
from fedfm.deploy.errors import Refusal, SecureError, StateLost
from fedfm.deploy.masking import MASKING, Masker
from fedfm.deploy.packets import Packet, pack, unpack
from fedfm.plugins import load_plugins

logger = logging.getLogger(__name__)
STAMP = ("token", "kind", "number")
"""Facts of a question that its answer repeats."""
app = ClientApp()


def reply(message: Message, context: Context) -> Message:
    """Return the client's answer to a message, or a reason that reveals nothing about its data."""
    stamp = {}
    try:
        site = context.node_config.get("site")
        require(site is not None, "this node has no 'site' in its --node-config; see fedfm join")
        load_plugins()
        client = Client(load_site(Path(str(site))), Masker(context.state))
        with limit_memory(client.site.memory_limit):
            question = _read_question(message, client.site)
            stamp = {key: question.facts.get(key) for key in STAMP}
            facts, trees = client.answer(str(question.facts.get("kind")), question)
            return Message(pack(Packet({**facts, **stamp}, trees)), reply_to=message)
    except Exception as problem:  # no text of an error may leave this machine unchecked
        logger.log(
            logging.WARNING if isinstance(problem, UserError) else logging.ERROR,
            "question not answered: %s",
            problem,
            exc_info=not isinstance(problem, UserError),
        )
        lost = isinstance(problem, StateLost)
        facts = {"error": explain_to_server(problem), "lost": lost, **stamp}
        return Message(pack(Packet(facts)), reply_to=message)


def explain_to_server(problem: Exception) -> str:
    """Return what the server may know about a problem."""
    if isinstance(problem, Refusal | SecureError):
        return str(problem)
    no_memory = isinstance(problem, MemoryError | torch.OutOfMemoryError)
    if no_memory or "allocate memory" in str(problem):  # a RuntimeError of PyTorch on a CPU
        return "it does not have enough memory"
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


def _read_question(message: Message, site: Site) -> Packet:
    try:
        return unpack(message.content, site.message_limit * MEGABYTE)
    except UserError as reason:  # the server may know what is wrong with its own message
        raise Refusal(str(reason)) from reason


app.train()(reply)
app.evaluate()(reply)
for kind in (QUESTIONS | MASKING).keys() - {"train", "evaluate"}:
    app.query(kind)(reply)
