"""What was measured on this machine: a small file of choices, by machine and shapes.

The file is `choices.json` in the folder that the environment variable FEDFM_CACHE names, by default
`fedfm` in the user's cache folder. FEDFM_CACHE=off neither reads nor writes it.
"""

import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedfm import __version__
from fedfm.core.files import write_atomically
from fedfm.core.inputs import input_leaves
from fedfm.data.batches import BatchPlan
from fedfm.engine.device_data import DeviceData
from fedfm.optim import Optimizer

VARIABLE, OFF, FILE = "FEDFM_CACHE", "off", "choices.json"
KEPT = 500
"""The number of choices that the file keeps, the latest ones."""


def cache_folder() -> Path | None:
    """Return the folder for what was measured; None if it is switched off."""
    named = os.environ.get(VARIABLE)
    if named:
        return None if named == OFF else Path(named)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "fedfm"


def describe_job(
    module: nn.Module, data: DeviceData, plans: Sequence[BatchPlan], optimizer: Optimizer
) -> str:
    """Return a key of machine, versions, network, inputs, cohort, batches and optimizer."""
    layers = [(name, type(layer).__name__) for name, layer in module.named_modules()]
    tensors = [(name, [*p.shape], str(p.dtype)) for name, p in module.named_parameters()]
    inputs = [([*leaf.shape[1:]], str(leaf.dtype)) for leaf in input_leaves(data.inputs)]
    sizes = sorted({plan.sizes[0] for plan in plans})
    job = [layers, tensors, inputs, len(plans), sizes, type(optimizer).__name__]
    text = json.dumps([_describe_machine(), __version__, torch.__version__, job])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _describe_machine() -> list[Any]:
    lines = Path("/proc/cpuinfo")
    text = lines.read_text() if lines.exists() else ""
    model = next((line for line in text.splitlines() if line.startswith("model name")), "")
    return [platform.machine(), model, os.cpu_count(), torch.get_num_threads()]


def recall(key: str) -> Mapping[str, Any] | None:
    """Return what was measured for a key; None if nothing was, or if the file is damaged."""
    folder = cache_folder()
    entry = _read(folder).get(key) if folder else None
    return entry if isinstance(entry, dict) else None


def remember(key: str, measured: Mapping[str, Any]) -> None:
    """Keep what was measured, in one step that leaves a whole file; do without if that fails."""
    folder = cache_folder()
    if folder is None:
        return
    kept = _read(folder)
    kept.pop(key, None)
    entries = [*kept.items(), (key, measured)][-KEPT:]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / FILE, (json.dumps(dict(entries), indent=1) + "\n").encode())
    except OSError:
        return  # a read-only home, a full disk: the next run measures again


def _read(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
