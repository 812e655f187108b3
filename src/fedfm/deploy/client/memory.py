"""How much memory a client's work may take."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedfm.config.deployment import MEGABYTE


@contextmanager
def limited(megabytes: int) -> Iterator[None]:
    """Within, the process gets no more memory than that for its data, PyTorch's own included.

    Who wants more gets an error that can be answered, where the system would kill the process.
    0: no limit.
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


def is_out_of_memory(problem: Exception) -> bool:
    """Whether Python or PyTorch wanted more memory than it got, of the machine's or of a GPU's."""
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(problem, kinds) or "allocate memory" in str(problem)
