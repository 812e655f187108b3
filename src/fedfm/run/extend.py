"""Extend a finished run: a new run with more rounds that begins with the old one's rounds."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import tomli_w

from fedfm.config import Config
from fedfm.core.checkpoint import Damaged, load_checkpoint
from fedfm.core.errors import require
from fedfm.core.files import partial_path, write_atomically
from fedfm.core.trees import leaves
from fedfm.data.split import fingerprint
from fedfm.run.folder import (
    CHECKPOINT,
    MACHINE,
    RunFolder,
    is_finished,
    list_differences,
    read_config,
)

ANCESTRY = "ancestry.json"
"""The file that names the runs which an extended run began with, the oldest first."""
COPIED = (CHECKPOINT, "clients", MACHINE, "rounds.jsonl")
"""What an extended run takes over as it is; the results are written anew at its end."""


def check_extension(parent: Path, config: Config) -> None:
    """Refuse a parent that a run of `config` would not have been after its first rounds."""
    require(parent.is_dir(), f"there is no folder {parent}")
    require((parent / "config.toml").exists(), f"{parent} holds no run")
    require(is_finished(parent), f"{parent} holds a run that is not finished: resume it first")
    require(
        (parent / MACHINE).exists(),
        f"{parent} holds a deployment or results without their machine.json: only a simulation can "
        "be extended",
    )
    require(
        (parent / CHECKPOINT).exists(),
        f"{parent} holds the results of a run without its checkpoint, so it cannot be extended: "
        "run it again with more rounds",
    )
    method = config.composed
    require(
        not method.concludes(0, 1),
        f"{method.name} edits the model in the last round, so a finished run cannot be extended: "
        "run it again with more rounds",
    )
    before = read_config(parent)
    done, rounds = before["training"]["rounds"], config.training.rounds
    require(rounds > done, f"{parent} has {done} rounds already: ask for more, not for {rounds}")
    shorter = config.as_toml() | {"training": config.as_toml()["training"] | {"rounds": done}}
    differing = list(list_differences(before, {"code": {}} | shorter))
    require(
        not differing,
        f"{parent} holds a run of another config; only its rounds can change. It differs in "
        + "; ".join(differing),
    )
    _check_total(config, done)


def _check_total(config: Config, done: int) -> None:
    """Refuse settings by which the first `done` rounds depend on how many there are in all."""
    every = config.training.evaluate_every
    advice = f"run it anew with {config.training.rounds} rounds"
    require(
        done % every == 0,
        f"round {done} was evaluated as the last one, which a longer run with evaluate_every = "
        f"{every} would not do: {advice}",
    )
    training = config.training
    require(
        not training.schedule.depends_on_total,
        f"lr_schedule = '{training.lr_schedule}' depends on the number of rounds, so the first "
        f"{done} had other rates than those of a longer run: {advice}",
    )


def copy_run(parent: Path, out: Path, config: Config) -> RunFolder:
    """Make the folder of a run that goes on from a finished one: whole, or not at all."""
    new = partial_path(out)
    try:
        shutil.rmtree(new, ignore_errors=True)  # a crash may have left it
        for file in _files_to_copy(parent):
            copy = new / file.relative_to(parent)
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(copy, file.read_bytes())
        text = json.dumps(_list_ancestors(parent, new, out), indent=2) + "\n"
        write_atomically(new / ANCESTRY, text.encode())
        write_atomically(new / "config.toml", tomli_w.dumps(config.as_toml()).encode())
        new.replace(out)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    return RunFolder(out)


def _files_to_copy(parent: Path) -> list[Path]:
    files = (file for name in COPIED for file in (parent / name, *(parent / name).rglob("*")))
    return [file for file in files if file.is_file()]


def _list_ancestors(parent: Path, copied: Path, out: Path) -> list[dict[str, Any]]:
    """Return the ancestors of the parent, and the parent."""
    recorded = parent / ANCESTRY
    try:
        older = json.loads(recorded.read_text()) if recorded.exists() else []
    except ValueError as problem:
        raise Damaged(recorded, problem) from problem
    loaded = load_checkpoint(copied / CHECKPOINT)
    if loaded is None:
        raise Damaged(parent / CHECKPOINT, "there is no manifest")
    parts, facts = loaded
    return [
        *(each | {"folder": _relative(parent / each["folder"], out)} for each in older),
        {
            "folder": _relative(parent, out),
            "rounds": facts["round"],
            "config": hashlib.sha256((parent / "config.toml").read_bytes()).hexdigest()[:12],
            "model": fingerprint(leaves(parts["state"]["model"])),
        },
    ]


def _relative(folder: Path, out: Path) -> str:
    """Return the path of an ancestor from the new folder, so that both can be moved together."""
    return os.path.relpath(folder.resolve(), out.resolve())
