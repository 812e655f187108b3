"""The Flower ClientApp, for nodes that Flower's own programs run: it answers Flower's messages.

`fedfm join` does not use it: its node hands the same payloads to a worker that stays.
"""

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedfm.deploy.client.answerer import Answerer, refuse
from fedfm.deploy.client.client import QUESTIONS
from fedfm.deploy.masking import MASKING
from fedfm.deploy.payload import Payload, read_payload, write_payload

NO_SITE = "this node has no 'site' in its --node-config; see fedfm join"
app = ClientApp()


def reply(message: Message, context: Context) -> Message:
    """Return the client's answer to a message."""
    return Message(write_payload(_answer(message, context)), reply_to=message)


def _answer(message: Message, context: Context) -> Payload:
    site = context.node_config.get("site")
    if site is None:
        return refuse(NO_SITE)
    try:
        question = read_payload(message.content)
    except (LookupError, TypeError) as problem:
        return refuse(f"the message is not a packet of FedFM ({problem})")
    return Answerer(Path(str(site)), context.state).answer(question)


app.train()(reply)
app.evaluate()(reply)
for kind in (QUESTIONS | MASKING).keys() - {"train", "evaluate"}:
    app.query(kind)(reply)
