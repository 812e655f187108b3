"""What to do where a GPU's memory is short: the same again, with less at once."""

from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


def retry(work: Callable[[], Result], less: Callable[[str], None]) -> Result:
    """What `work` gives; whenever memory is short, `less` hears why, and it is tried again.

    The problem is gone by then: it would keep the memory that its work has taken.
    """
    while True:
        try:
            return work()
        except torch.OutOfMemoryError as problem:
            said = str(problem).split(" GPU ")[0]
        less(said)
