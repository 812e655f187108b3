import gc
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # programs that tests start share the cores

import pytest

gc.disable()  # until everything is imported, which leaves next to no garbage


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
