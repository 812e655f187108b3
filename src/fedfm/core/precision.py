"""Products that are exact where those of networks need not be."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def full_precision() -> Iterator[None]:
    """Products in fp32 whatever networks are run in: for averages, statistics and measures."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    try:
        matmul.allow_tf32 = cudnn.allow_tf32 = False
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
