"""A Flower app that asks every client two things and trains nothing, for the real programs.

`python -m tests.deploy.standin serve|join ...` is `fedfm` with this app in FedFM's place.
"""

import json
import os
import sys
import time
import tomllib
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

server = ServerApp()
client = ClientApp()
CLIENTS = 2


@server.main()
def main(grid: Grid, context: Context) -> None:
    config = json.loads(str(context.run_config["config"]))
    print(f"out {os.environ['FEDFM_OUT']} resume {os.environ['FEDFM_RESUME']}", flush=True)
    while len(nodes := list(grid.get_node_ids())) < CLIENTS:
        time.sleep(0.1)
    for round in range(config["training"]["rounds"]):
        start = time.monotonic()
        replies = _ask(grid, nodes)
        heard = sorted(str(reply.content["answer"]["name"]) for reply in replies)
        print(f"round {round}: {', '.join(heard)} in {time.monotonic() - start:.1f} s", flush=True)
    if config["seed"] == 13:
        raise RuntimeError("an unlucky seed")


def _ask(grid: Grid, nodes: list[int]) -> list[Message]:
    """Flower's `send_and_receive` looks for answers every three seconds; this does more often."""
    missing = set(grid.push_messages([_question(node) for node in nodes]))
    replies: list[Message] = []
    while missing:
        found = list(grid.pull_messages(missing))
        replies += found
        missing -= {reply.metadata.reply_to_message_id for reply in found}
        time.sleep(0.1)
    return replies


def _question(node: int) -> Message:
    return Message(
        RecordDict({"question": ConfigRecord({"who": "are you"})}),
        dst_node_id=node,
        message_type="query.name",
    )


@client.query("name")
def name(message: Message, context: Context) -> Message:
    site = tomllib.loads(Path(str(context.node_config["site"])).read_text())
    return Message(RecordDict({"answer": ConfigRecord({"name": site["name"]})}), reply_to=message)


if __name__ == "__main__":
    from fedfm.cli import main as fedfm
    from fedfm.deploy.programs.serve import APP

    APP["serverapp"] = "tests.deploy.standin:server"
    APP["clientapp"] = "tests.deploy.standin:client"
    sys.argv[0] = "fedfm"
    fedfm()
