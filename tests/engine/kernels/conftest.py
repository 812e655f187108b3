"""Kernels run in Triton's interpreter, which is chosen before Triton is imported."""

import os
from importlib.util import find_spec

os.environ["TRITON_INTERPRET"] = "1"
collect_ignore_glob = [] if find_spec("triton") else ["test_*.py"]
