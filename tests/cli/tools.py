"""Settings for small runs, and the command line in processes of their own."""

import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import NamedTuple

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["fedfm.cli.app", "fedfm.grid.progress", "fedfm.report.tables.build", "sklearn.datasets"]
)
"""Starts processes that have imported what is slow to import."""


class Answer(NamedTuple):
    """How a command ended and what it wrote to standard output and standard error."""

    code: int
    out: str
    err: str


Command = Callable[..., Answer]
"""The fixture `command`: `fedfm ARGUMENTS` in this process."""


def sets(*changes: str) -> list[str]:
    """The changes as arguments of the command line."""
    return [word for change in changes for word in ("--set", change)]


TINY = sets(
    "executor=stacked",
    "partition.kind=iid",
    "lr=0.01",
    "epochs=1",
    "batch_size=32",
    "clients=4",
    "model.name=mlp",
    "model.hidden=[8]",
)
"""Rounds that take a hundredth of a second."""


def start(*arguments: str, said: Path, largest_file: int | None = None) -> ForkServerProcess:
    """`fedfm ARGUMENTS` in a process of its own, on one thread; what it says goes to a file.

    With `largest_file` no file can grow beyond so many bytes, as on a disk that is full.
    """
    said.unlink(missing_ok=True)
    process = SERVER.Process(target=run_command, args=(arguments, said, largest_file))
    process.start()
    return process


def run_command(arguments: tuple[str, ...], said: Path, largest_file: int | None = None) -> None:
    """Be `fedfm ARGUMENTS`, and write what it says to the end of a file."""
    import torch

    from fedfm.cli import main

    signal.signal(signal.SIGINT, signal.default_int_handler)  # in a script's background it is not
    torch.set_num_threads(1)
    with said.open("ab") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))
    sys.argv = ["fedfm", *arguments]
    main()
