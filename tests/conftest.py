import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # programs that tests start share the cores

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
