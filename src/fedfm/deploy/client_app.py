"""The Flower ClientApp: hands Flower's messages to the client, and its answers back."""

import logging
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from fedfm.config.deployment import MEGABYTE
from fedfm.core.errors import UserError, require
from fedfm.deploy.client.client import QUESTIONS, Client, explained
from fedfm.deploy.client.memory import limited
from fedfm.deploy.client.site import Site, load_site
from fedfm.deploy.errors import Lost, Refusal
from fedfm.deploy.masking import Hiding
from fedfm.deploy.packets import Packet
from fedfm.deploy.wire import packed, unpacked
from fedfm.plugins import load_plugins

logger = logging.getLogger(__name__)
STAMP = ("token", "kind", "number")
"""Facts of a question that its answer repeats."""
DRAWER = "fedfm-session"
app = ClientApp()


class ContextDrawer:
    """A session in Flower's context, which lives as long as the node does, in its memory."""

    def __init__(self, context: Context) -> None:
        self.state = context.state

    def take(self) -> bytes | None:
        """The session, if there is one."""
        found = self.state.config_records.get(DRAWER)
        return None if found is None else bytes(found["session"])  # type: ignore[arg-type]  # ours

    def put(self, session: bytes) -> None:
        """Replace it."""
        self.state[DRAWER] = ConfigRecord({"session": session})


def reply(message: Message, context: Context) -> Message:
    """The client's answer to a message; where it has none, a reason that gives nothing away."""
    stamp = {}
    try:
        site = context.node_config.get("site")
        require(site is not None, "this node has no 'site' in its --node-config; see fedfm join")
        load_plugins()
        client = Client(load_site(Path(str(site))), Hiding(ContextDrawer(context)))
        with limited(client.site.memory_limit):
            question = _question(message, client.site)
            stamp = {key: question.facts.get(key) for key in STAMP}
            facts, trees = client.answer(str(question.facts.get("kind")), question)
            return Message(packed(Packet({**facts, **stamp}, trees)), reply_to=message)
    except Exception as problem:  # whatever it is, its text must not leave this machine unseen
        logger.log(
            logging.WARNING if isinstance(problem, UserError) else logging.ERROR,
            "question not answered: %s",
            problem,
            exc_info=not isinstance(problem, UserError),
        )
        facts = {"error": explained(problem), "lost": isinstance(problem, Lost), **stamp}
        return Message(packed(Packet(facts)), reply_to=message)


def _question(message: Message, site: Site) -> Packet:
    try:
        return unpacked(message.content, site.message_limit * MEGABYTE)
    except UserError as reason:  # the server may know what is wrong with its own message
        raise Refusal(str(reason)) from reason


app.train()(reply)
app.evaluate()(reply)
for kind in QUESTIONS:
    app.query(kind)(reply)
