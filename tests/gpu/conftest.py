"""Tests that need an NVIDIA GPU: `make test-gpu`. Elsewhere there is nothing here to collect."""

import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]
