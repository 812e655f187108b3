import gc
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # programs that tests start share the cores
os.environ["FEDFM_CACHE"] = "off"  # tests neither read nor write what was measured

import pytest

MEMORY, ENOUGH = Path("/dev/shm"), 2**31
"""Linux's folder in memory, and the bytes that it must have left."""

gc.disable()  # until everything is imported, which leaves next to no garbage


def pytest_configure():
    """Let tests write their many small files to memory, if there is room and programs may run."""
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
        found = os.statvfs(MEMORY)
        if found.f_bavail * found.f_frsize > ENOUGH and not found.f_flag & os.ST_NOEXEC:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_collection_finish():
    """Keep what was imported out of all garbage collections: it stays until the end."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    gc.unfreeze()


@pytest.fixture(autouse=True)
def one_thread():
    import torch  # not in the process that only distributes tests

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def own_plugins():
    """Let no test leave a plugin behind for the programs that later tests start."""
    before = os.environ.get("FEDFM_METHODS")
    yield
    os.environ.pop("FEDFM_METHODS", None)
    if before is not None:
        os.environ["FEDFM_METHODS"] = before
