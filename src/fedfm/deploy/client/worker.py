"""The worker of a client: one process that answers all of the client's questions.

The node of `fedfm join` starts it and replaces it if it dies. Everything slow happens once: the
imports, reading the data, building the network, starting CUDA.
"""

from pathlib import Path

import tomli_w

from fedfm.config.deployment import MEGABYTE
from fedfm.core.files import write_atomically
from fedfm.deploy.client.answerer import Answerer, limit_memory
from fedfm.deploy.client.join_preparation import Files, check_data, read_request
from fedfm.deploy.client.join_request import JoinRequest, Prepared
from fedfm.deploy.client.storage import Storage
from fedfm.deploy.payload import Payload
from fedfm.deploy.programs.logs import add_handler
from fedfm.plugins import load_plugins


class Worker:
    """What a node can ask its worker to do; arguments and results are plain values."""

    def __init__(self) -> None:
        self.files: Files = {}
        self.answerer: Answerer | None = None

    def prepare(self, request: JoinRequest) -> Prepared:
        """Check the config and the data of a client; write nothing yet."""
        load_plugins()
        config, client, site, self.files = read_request(request)
        print("reading the data", flush=True)
        with limit_memory(client.memory_limit):
            check_data(client, config)
        result, limit = Storage(client.out).result, client.message_limit * MEGABYTE
        return Prepared(client.name, site, client.out, result, limit)

    def open(self, site: Path, log: Path) -> None:
        """Write the files of the client, if there are any, and get ready for questions."""
        add_handler(log)
        for path, table in self.files.items():
            write_atomically(path, tomli_w.dumps(table).encode())
        self.files = {}
        self.answerer = Answerer(site)

    def answer(self, question: Payload) -> Payload:
        """Answer a question."""
        assert self.answerer is not None
        return self.answerer.answer(question)
