"""Retry with less at once when the memory of a GPU or of the machine does not suffice."""

import logging
import re
from collections.abc import Callable
from typing import TypeVar

import torch

from fedfm.core.errors import require

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
ONE_CLIENT = (
    "training one client needs more memory than there is ({}): use a smaller batch_size or model "
    "(or, on a GPU, precision=bf16)"
)
ONE_SAMPLE = "evaluating one sample needs more memory than there is ({}): use a smaller model"


def retry(work: Callable[[], Result], shrink: Callable[[str], None]) -> Result:
    """Return what `work` returns; when memory runs out, call `shrink(reason)` and retry.

    `shrink` runs after the error is gone, because its traceback holds the memory that was taken.
    """
    while True:
        try:
            return work()
        except RuntimeError as problem:
            reason = _describe_shortage(problem)
            if reason is None:
                raise
        shrink(reason)


def halve(count: int, what: str, reason: str, refusal: str = ONE_CLIENT) -> int:
    """Return half of `count`, with a warning about `what`; refuse with `refusal` if it is one."""
    require(count > 1, refusal.format(reason))
    half = (count + 1) // 2
    message = f"{what} needs more memory than there is (%s): %d at a time from now on"
    logger.warning(message, count, reason, half)
    return half


def _describe_shortage(problem: RuntimeError) -> str | None:
    """Return what could not be allocated, on a GPU or on the CPU; None for any other error."""
    if isinstance(problem, torch.OutOfMemoryError):
        return str(problem).split(" GPU ")[0]
    shortage = re.search(r"DefaultCPUAllocator: (.*? bytes)", str(problem))
    return shortage[1] if shortage else None
