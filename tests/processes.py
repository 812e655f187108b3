"""Several processes on this machine that run one function, started as torchrun would do."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tests.cli.tools import SERVER

ENDED = "ended with an error"
"""What `run_together` returns for a process that returned nothing."""


def make_store() -> TCPStore:
    """The store of the processes, which outlives them, as that of torchrun does."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def describe_process(rank: int, size: int, store: TCPStore) -> dict[str, str]:
    """The environment that torchrun would give to a process."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": store.port}
    agent = {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    return {name: str(value) for name, value in place.items()} | agent


def run_together(size: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call a function in so many processes; returns what it returned in each, in their order."""
    store = make_store()
    with TemporaryDirectory() as folder:
        files = [Path(folder) / str(rank) for rank in range(size)]
        started = [
            SERVER.Process(
                target=_work, args=(describe_process(rank, size, store), file, work, arguments)
            )
            for rank, file in enumerate(files)
        ]
        for process in started:
            process.start()
        for process in started:
            process.join(300)
            assert process.exitcode is not None
        return [pickle.loads(f.read_bytes()) if f.exists() else ENDED for f in files]


def _work(
    environment: dict[str, str], file: Path, work: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    os.environ.update(environment | {"FEDFM_CACHE": "off"})
    torch.set_num_threads(1)
    file.write_bytes(pickle.dumps(work(*arguments)))
