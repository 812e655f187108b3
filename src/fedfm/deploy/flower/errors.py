"""The failures of calls to a superlink."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx
from flwr.supercore.error import ApiErrorCode
from flwr.supercore.error import FlowerError as FlowerFailure
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError

from fedfm.deploy.flower.receiving_limit import Oversized

TLS_FAULTS = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER")


class FleetError(Exception):
    """A call to the superlink failed."""


class Unreachable(FleetError):
    """No superlink answers, or not now."""


class Untrusted(FleetError):
    """There is no secure connection."""


class NotAdmitted(FleetError):
    """The superlink does not know the node's key, or the key is in use."""


class Unauthenticated(FleetError):
    """The superlink does not accept the signed request; `ahead` is the local clock's error."""

    def __init__(self, message: str, ahead: float) -> None:
        super().__init__(message)
        self.ahead = ahead


@contextmanager
def translate() -> Iterator[None]:
    """Turn the failures of calls into a `FleetError`."""
    try:
        yield
    except httpx.HTTPStatusError as problem:
        raise _explain(problem.response) from problem
    except httpx.TransportError as problem:
        untrusted = any(fault in str(problem) for fault in TLS_FAULTS)
        raise (Untrusted if untrusted else Unreachable)(str(problem)) from problem
    except (ObjectPullError, ObjectPushError, Oversized) as problem:
        raise FleetError(str(problem)) from problem


def _explain(answer: httpx.Response) -> FleetError:
    """Return the error that an HTTP answer stands for."""
    failure = FlowerFailure.from_json(answer.text)
    text = f"[code: {failure.code}] {failure.message}" if failure else f"HTTP {answer.status_code}"
    if failure and failure.code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED:
        return NotAdmitted(text)
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        return Unauthenticated(text, _measure_clock(answer))
    if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
        return Unreachable(text)
    return FleetError(text)


def _measure_clock(answer: httpx.Response) -> float:
    """Return by how many seconds this machine's clock is ahead of the server's."""
    with suppress(KeyError, ValueError, TypeError):
        there = parsedate_to_datetime(answer.headers.get_list("date")[-1])
        return (datetime.now(UTC) - there).total_seconds()
    return 0.0
