"""`fedfm join`: a worker that checks the data and answers, and a node that speaks to the server."""

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from fedfm.deploy.client.join_request import JoinRequest, Prepared
from fedfm.deploy.client.node import Node
from fedfm.deploy.client.worker_process import WorkerDied, WorkerProcess
from fedfm.deploy.keys.folders import load_client_keys
from fedfm.deploy.programs.addresses import Address
from fedfm.deploy.programs.logs import show_log
from fedfm.deploy.programs.processes import (
    FlowerError,
    explain_full_disk,
    lock_folder,
    make_private_files,
)
from fedfm.deploy.signatures import Verifier

logger = logging.getLogger(__name__)
LOG = "client.log"
FULL = "make room, then join again; what this client has saved is intact"
DIED = "the worker died while it checked the data ({}); is there enough memory?"


@dataclass(frozen=True)
class Joining:
    """This machine as a client of one federation."""

    request: JoinRequest
    superlink: Address
    keys: Path | None = None
    """The folder of keys."""


def join(joining: Joining) -> None:
    """Work as a client until the federation is over; raise `FlowerError` if it is not let in.

    It is over when the client has the final model and the server has stopped.
    """
    with ExitStack() as stack:
        stack.enter_context(explain_full_disk(FULL))
        stack.enter_context(make_private_files())
        worker = WorkerProcess()
        stack.callback(worker.close)
        prepared = prepare(worker, joining.request)
        keys = load_client_keys(joining.keys, prepared.name) if joining.keys else None
        folder = prepared.out.resolve() / "flower"
        stack.enter_context(lock_folder(folder))
        log = folder / LOG
        log.unlink(missing_ok=True)
        stack.enter_context(show_log(log))
        worker.open(prepared.site, log)
        node = Node(str(joining.superlink), worker, prepared.result, limit=prepared.message_limit)
        if keys:
            node.ca, node.key = keys.ca, keys.key
            node.verifier = Verifier(keys.ca.read_bytes(), joining.superlink.host)
        logger.info("joining %s as '%s'", joining.superlink, prepared.name)
        node.run()


def prepare(worker: WorkerProcess, request: JoinRequest) -> Prepared:
    """Let the worker check the config and the data; raise `FlowerError` if it dies of them."""
    try:
        return worker.prepare(request)
    except WorkerDied as problem:
        raise FlowerError(DIED.format(problem)) from problem
