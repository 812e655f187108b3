"""The task of a run's server, at the Runtime interface of a superlink."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from flwr.common.constant import SubStatus
from flwr.common.serde import run_from_proto
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.serverapp import Grid
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.supercore.interceptors import (
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import RetryInvoker, exponential
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid, http_grid

from fedfm.deploy.flower.errors import translate

FIRST_WAIT = 0.05
"""Seconds until something that the superlink does not have yet is asked for again."""
SERVER_TASK = "flwr-serverapp"
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


@contextmanager
def open_server_grid(
    address: str, ca: Path | None, secret: bytes, run: int, watch: Callable[[], None]
) -> Iterator[Grid]:
    """Take the task of a run's server; yield the grid to its nodes, and report how the block ends.

    The app that the run names is not used. `watch` is called while the superlink does not answer,
    and may raise.
    """
    root, retry = ca.read_bytes() if ca else None, _make_retry(watch)
    token = _acquire_task(address, root, secret, run, retry)
    grid, context = _open_grid(address, root, token, retry)
    status = SubStatus.FAILED
    try:
        with translate(), _send_heartbeats(grid._runtime_client):
            yield grid
        status = SubStatus.COMPLETED
    finally:
        retry.max_tries = 1
        with suppress(httpx.HTTPError):
            output = PushTaskOutputRequest(context=context, sub_status=status)
            grid._runtime_client.PushTaskOutput(output)
        grid.close()


def _make_retry(watch: Callable[[], None]) -> RetryInvoker:
    """Return what repeats calls while the superlink does not answer."""

    def wait(seconds: float) -> None:
        watch()
        time.sleep(seconds)

    waits = partial(exponential, max_delay=2)
    return RetryInvoker(waits, httpx.TransportError, None, None, wait_function=wait)


def _acquire_task(
    address: str, root: bytes | None, secret: bytes, run: int, retry: RetryInvoker
) -> str:
    """Return the token of the task of a run's server."""
    credentials = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={ACQUIRE})
    request = AcquireTaskRequest(supported_task_types=[SERVER_TASK])
    with (
        RuntimeHttpClient.from_server_address(
            address,
            root is None,
            root,
            [RuntimeVersionHttpInterceptor(component_name="fedfm"), credentials],
            retry_invoker=retry,
        ) as client,
        translate(),
    ):
        while (answer := client.AcquireTask(request)).task.run_id != run or not answer.token:
            retry.wait_function(FIRST_WAIT)
    return str(answer.token)


def _open_grid(
    address: str, root: bytes | None, token: str, retry: RetryInvoker
) -> tuple[HttpGrid, Any]:
    """Return the grid of a task that was taken, and the task's context."""
    soon = partial(pull_objects, initial_backoff=FIRST_WAIT)
    http_grid.pull_objects = soon  # type: ignore[attr-defined]  # Flower would wait for a second
    grid = http_grid.HttpGrid(address, root is None, root, token=token)
    grid._retry_invoker = retry
    task = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
    TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
    TaskIdentity.node_id = task.context.node_id
    grid.set_run(run_from_proto(task.run))
    return grid, task.context


@contextmanager
def _send_heartbeats(client: RuntimeHttpClient) -> Iterator[None]:
    """Tell the superlink that the server's task is at work, inside the block."""

    def beat() -> bool:
        try:
            return bool(client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success)
        except Exception:  # the main thread meets the same problem, and says so
            return False

    heartbeat = HeartbeatSender(beat)
    heartbeat.start()
    try:
        yield
    finally:
        heartbeat.stop()
