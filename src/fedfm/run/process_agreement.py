"""A run that several processes share: what they must agree on, and what only the first one knows.

The first process reads and writes the folder of the run; the others learn from it what they need.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn

from fedfm import __version__
from fedfm.config import Config
from fedfm.config.training import Training
from fedfm.core.client_states import ClientStates, OnDisk
from fedfm.core.errors import plural, require
from fedfm.data.dataset import Dataset
from fedfm.data.split import fingerprint
from fedfm.engine.processes import ALONE, Processes
from fedfm.rounds.state import State
from fedfm.run.folder import from_parts, list_differences, to_parts
from fedfm.run.records import Progress, RoundRecord


def check_cohort(processes: Processes, config: Config) -> None:
    """Refuse more processes than a round has clients."""
    training = config.training
    require(
        processes.size == 1 or not config.composed.pools_data,
        f"{config.composed.name} trains one client on all samples, which {processes.size} "
        "processes cannot share: run it without torchrun",
    )
    require(
        processes.size <= training.cohort,
        f"{processes.size} processes, but a round has {_describe_cohort(training)}: start at most "
        f"{training.cohort} (torchrun --nproc-per-node), or let more clients take part",
    )


def _describe_cohort(training: Training) -> str:
    clients = plural(training.cohort, "client")
    about = "about " if training.sampling == "coin" else ""
    return f"{about}{clients} (participation = {training.participation:g} of {training.clients})"


def check_configs(processes: Processes, configs: Sequence[Config]) -> None:
    """Refuse processes of other versions or with other settings."""
    versions = {"fedfm": __version__, "torch": torch.__version__, "numpy": numpy.__version__}
    settings = {f"seed {config.seed}": config.as_toml() for config in configs}
    _compare(processes, {"version": versions, "config": settings})


def check_inputs(processes: Processes, data: Dataset, networks: Sequence[nn.Module]) -> None:
    """Refuse processes with other data, weights or devices; then connect the devices."""
    if processes is ALONE:
        return
    device = next(networks[0].parameters()).device
    weights = [leaf for network in networks for leaf in network.state_dict().values()]
    digests = {"data.digest": data.digest, "model.digest": fingerprint(weights)}
    _compare(processes, {"input": digests, "device": {"device": device.type}})
    processes.settle(device)


HINTS = {
    "model": "call torch.manual_seed before you build a network",
    "data": "draw random data from a seed",
}
"""What else may help if these differ."""


def _compare(processes: Processes, mine: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a process whose facts differ from those of the first, and name them."""
    first, *others = processes.gather(mine)
    for rank, other in enumerate(others, 1):
        for what in first:
            listed = list_differences(
                first[what], other[what], sides=("process 0", f"process {rank}")
            )
            differing = "; ".join(listed)
            hints = [hint for name, hint in HINTS.items() if f"{name}.digest" in differing]
            advice = ", and ".join(["Start all with the same command and files", *hints])
            require(
                not differing,
                f"process {rank} has another {what} than process 0: {differing}. {advice}",
            )


def share_progress(processes: Processes, progress: Progress, start: State) -> Progress:
    """Return the first process's progress, in all of them."""
    if processes is ALONE:
        return progress
    parts, facts = to_parts(progress)
    everything = [facts, [record.as_dict() for record in progress.records]]
    facts, lines = processes.gather(everything if processes.first else None)[0]
    tree = {name: tree for name, (_, tree) in parts.items()} if processes.first else {}
    known = processes.spread(tree)[0]
    records = tuple(RoundRecord(**line) for line in lines)
    return progress if processes.first else from_parts(known, facts, records, start)


def check_states_folder(processes: Processes, states: ClientStates) -> None:
    """Refuse a folder of clients' states that not every process sees."""
    if processes is ALONE or not isinstance(states, OnDisk):
        return
    if processes.first:
        states.folder.mkdir(parents=True, exist_ok=True)
    processes.wait()
    seen = processes.gather(states.folder.is_dir())
    require(
        all(seen),
        f"process {seen.index(False) if False in seen else 0} does not see {states.folder}, where "
        "what clients keep between rounds is written: give a folder on a file system that all "
        'machines share (--out), or set client_states = "memory"',
    )


def share_path(processes: Processes, path: Path) -> Path:
    """Return the first process's path, to be seen from all."""
    if processes is ALONE:
        return path
    return Path(processes.gather(str(path.absolute()))[0])
