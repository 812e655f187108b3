"""The folder of a run: its config, a line per round, checkpoints, the summary, the best model."""

import json
import os
import platform
import shutil
import subprocess
import tomllib
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy
import torch

from fedfm import __version__
from fedfm.config import resolve
from fedfm.config.renamed import RENAMED_EXECUTORS, use_new_names
from fedfm.core.checkpoint import Damaged, load_checkpoint, save_checkpoint, to_bytes
from fedfm.core.errors import UserError, name_file, require
from fedfm.core.files import partial_path, write_atomically
from fedfm.core.locks import lock
from fedfm.core.tables import to_csv
from fedfm.core.trees import Tree, leaves, to_device
from fedfm.engine.choice import CHOICES, ExecutorChoice
from fedfm.methods.base import Model
from fedfm.rounds.state import State, from_tree, to_facts, to_tree
from fedfm.run.client_results import ClientResults
from fedfm.run.records import Best, Progress, Result, RoundRecord

CHECKPOINT = "checkpoint"
MACHINE = "machine.json"
"""The file that records the executor, the device and the digest of the data."""


@dataclass(frozen=True)
class RunFolder:
    """Where a run keeps its files; made by `RunFolder.open`."""

    path: Path

    @staticmethod
    def open(
        path: Path, config: dict[str, Any], resume: bool, beside: Collection[str] = ()
    ) -> "RunFolder":
        """Make the folder of a run of `config`, or with `resume` open that of the same run.

        A new folder may hold nothing but what `beside` names.
        """
        if not RunFolder.check(path, config, resume, beside):
            import tomli_w

            path.mkdir(parents=True, exist_ok=True)
            write_atomically(path / "config.toml", tomli_w.dumps(config).encode())
        return RunFolder(path)

    @staticmethod
    def check(
        path: Path, config: dict[str, Any], resume: bool, beside: Collection[str] = ()
    ) -> bool:
        """Return whether the folder holds the run already; refuse what `open` would refuse."""
        recorded = path / "config.toml"
        if not recorded.exists():
            require(not path.exists() or path.is_dir(), f"{path} is a file; choose another folder")
            names = {entry.name for entry in path.iterdir()} if path.exists() else set()
            require(
                names <= {partial_path(recorded).name, *beside},
                f"{path} is not empty and holds no run; choose another folder",
            )
            return False
        require(resume, f"{path} already holds a run: resume it, or choose another folder")
        differing = list(list_differences(read_config(path), {"code": {}} | config))
        require(
            not differing,
            f"{path} holds a run of another config: give its settings, or choose another folder. "
            "It differs in " + "; ".join(differing),
        )
        require(
            not is_finished(path) or (path / CHECKPOINT).exists(),
            f"{path} holds the results of a run without its checkpoint, so it cannot be resumed: "
            "choose another folder to run it again",
        )
        return True

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep the folder for this process: two that write to it would spoil it."""
        with ExitStack() as stack:
            file = stack.enter_context((self.path / "config.toml").open("r+b"))
            try:
                stack.enter_context(lock(file, wait=False))
            except BlockingIOError as problem:
                message = f"{self.path} is being run by another process: wait for it, or stop it"
                raise UserError(message) from problem
            yield

    def choice(self) -> ExecutorChoice | None:
        """Return the executor that the run began with; a resumed run uses it for equal results."""
        path = self.path / MACHINE
        if not path.exists():
            return None
        try:
            facts = json.loads(path.read_text())
            name = RENAMED_EXECUTORS.get(facts["executor"], facts["executor"])
            choice = ExecutorChoice(name, facts["why"])
        except (ValueError, LookupError, TypeError) as problem:
            raise Damaged(path, problem) from problem
        if choice.name not in CHOICES:
            raise Damaged(path, f"there is no executor {choice.name!r}")
        return choice

    def check_simulated(self) -> None:
        """Refuse to continue a deployment as a simulation."""
        simulated = not (self.path / CHECKPOINT).exists() or (self.path / MACHINE).exists()
        require(simulated, f"{self.path} holds a deployment: resume it with `fedfm serve`")

    def record_machine(self, choice: ExecutorChoice, device: torch.device, data: str) -> None:
        """Record the executor, the device and the digest of the data."""
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
        facts = {"executor": choice.name, "why": choice.why, "device": device.type, "name": name}
        text = json.dumps(facts | {"data": data}) + "\n"
        write_atomically(self.path / MACHINE, text.encode())

    def check_data(self, data: str) -> None:
        """Refuse other data than the run began with, if that is recorded."""
        recorded = json.loads((self.path / MACHINE).read_text()).get("data", data)
        require(
            recorded == data,
            f"{self.path} was begun with other data: restore them, or start in another folder",
        )

    def save(self, progress: Progress, saved: int, checkpoint: bool = True) -> None:
        """Add the lines of the rounds after the first `saved`, then replace the checkpoint."""
        path = self.path / "rounds.jsonl"
        with name_file(path), path.open("a") as file:
            new = progress.records[saved:]
            file.writelines(json.dumps(record.as_dict()) + "\n" for record in new)
            file.flush()
            os.fsync(file.fileno())
        if checkpoint:
            save_checkpoint(self.path / CHECKPOINT, *to_parts(progress))

    def load(self, start: State) -> Progress | None:
        """Return the progress at the last checkpoint of a run that began with `start`.

        Drop later lines of rounds.jsonl.
        """
        loaded = load_checkpoint(self.path / CHECKPOINT)
        if loaded is None:
            (self.path / "rounds.jsonl").unlink(missing_ok=True)
            return None
        parts, facts = loaded
        device = next(leaves(start.model.params)).device
        parts = {name: to_device(tree, device) for name, tree in parts.items()}
        records = self._first_records(facts["round"] - ("pending" in facts))
        progress = from_parts(parts, facts, records, start)
        progress.state.clients.tidy()
        return progress

    def _first_records(self, rounds: int) -> tuple[RoundRecord, ...]:
        path = self.path / "rounds.jsonl"
        try:
            kept = path.read_text().splitlines()[:rounds]
            records = tuple(RoundRecord(**json.loads(line)) for line in kept)
        except (ValueError, TypeError, FileNotFoundError) as problem:
            raise Damaged(path, problem) from problem
        if [record.round for record in records] != list(range(1, rounds + 1)):
            raise Damaged(path, f"{len(records)} of {rounds} rounds are there")
        write_atomically(path, "".join(line + "\n" for line in kept).encode())
        return records

    def finish(self, result: Result) -> None:
        """Write the best model, the rounds as a table, and the summary."""
        model = {**result.best.model.params, **result.best.model.buffers}
        write_atomically(self.path / "model.safetensors", to_bytes(model))
        table = to_csv([record.numbers for record in result.rounds])
        write_atomically(self.path / "rounds.csv", table.encode())
        text = json.dumps(summarise(result), indent=2) + "\n"
        write_atomically(self.path / "summary.json", text.encode())


def to_parts(progress: Progress) -> tuple[dict[str, tuple[int, Tree]], dict[str, Any]]:
    """Return everything but the records: trees, each with its round, and plain facts."""
    parts = {"state": (progress.state.round, to_tree(progress.state))}
    facts = to_facts(progress.state)
    if progress.best is not None:
        parts["best"] = (progress.best.round, progress.best.model._asdict())
        facts["best"] = asdict(progress.best) | {"model": None}
    if progress.pending is not None:
        facts["pending"] = progress.pending.as_dict()
    return parts, facts


def from_parts(
    parts: dict[str, Tree],
    facts: dict[str, Any],
    records: tuple[RoundRecord, ...],
    start: State,
) -> Progress:
    """Invert `to_parts`, for a run that began with `start`."""
    pending = RoundRecord(**facts["pending"]) if "pending" in facts else None
    best = _best(facts["best"], parts["best"]) if "best" in facts else None
    return Progress(from_tree(parts["state"], facts, start), best, records, pending)


def discard_run(path: Path) -> None:
    """Delete the folder of a run, finished or not, unless a process is at work on it."""
    if path.exists() and (path / "config.toml").exists():
        with RunFolder(path).lock():
            shutil.rmtree(path)


def check_writable(path: Path) -> None:
    """Refuse a folder that nothing can be written to, and leave no trace."""
    nearest = next(each for each in (path, *path.absolute().parents) if each.exists())
    try:
        with TemporaryDirectory(dir=nearest):
            pass
    except OSError as problem:
        reason = problem.strerror or problem
        raise UserError(f"cannot write to {path} ({reason}); choose another folder") from problem


def read_config(folder: Path) -> dict[str, Any]:
    """Return the config that a run's folder records, with the defaults of keys that it lacks."""
    path = folder / "config.toml"
    try:
        return resolve(use_new_names(tomllib.loads(path.read_text()), note=False))
    except ValueError as problem:
        raise Damaged(path, problem) from problem


def is_finished(folder: Path) -> bool:
    """Return whether a folder holds a finished run."""
    return (folder / "summary.json").exists()


def _best(facts: dict[str, Any], tree: Tree) -> Best:
    model = Model(tree["params"], tree.get("buffers", {}))
    several = {name: tuple(facts.get(name, ())) for name in ("client_accuracies", "judges")}
    known = facts.get("clients")
    results = {"clients": ClientResults.parse(known)} if known else {}
    return Best(**facts | {"model": model} | several | results)


def summarise(result: Result) -> dict[str, Any]:
    """Return the content of summary.json."""
    return {
        "method": result.method,
        "seed": result.seed,
        "best_round": result.best.round,
        "val_accuracy": result.best.val_accuracy,
        "test_accuracy": result.best.test_accuracy,
        "last_test_accuracy": result.rounds[-1].test_accuracy,
        "best_test_accuracy": max(record.test_accuracy for record in result.rounds),
        "client_accuracies": list(result.best.client_accuracies),
        **_describe_metrics(result.best),
        "rounds": len(result.rounds),
        "failed": sum(record.failed for record in result.rounds),
        "totals": result.totals.as_dict()
        | {"seconds": sum(record.seconds for record in result.rounds)},
        "versions": {
            "fedfm": __version__,
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "python": platform.python_version(),
            **_commit(),
        },
        **({"privacy": result.privacy} if result.privacy else {}),
        "device": next(iter(result.best.model.params.values())).device.type,
    }


def _describe_metrics(best: Best) -> dict[str, Any]:
    """Return further metrics, and what the clients get, where they are known."""
    results = {"clients": best.clients, "fine_tuned": best.fine_tuned}
    known = {name: each.describe() for name, each in results.items() if each}
    return ({"metrics": best.metrics} if best.metrics else {}) | known


def _commit() -> dict[str, str]:
    """Return the commit of the source, where it is known: from git, or from FEDFM_COMMIT."""
    checkout = Path(__file__).parents[2]
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude=*"]
    commit = os.environ.get("FEDFM_COMMIT", "")
    if not commit and (checkout / ".git").exists():
        with suppress(OSError):
            commit = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return {"commit": commit} if commit else {}


def list_differences(
    old: dict[str, Any],
    new: dict[str, Any],
    prefix: str = "",
    sides: tuple[str, str] = ("there", "here"),
) -> Iterator[str]:
    """Yield the keys in which two configs differ, with both values; `sides` names the configs."""
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from list_differences(before, after, f"{prefix}{key}.", sides)
        elif before != after:
            yield f"{prefix}{key} ({sides[0]} {before!r}, {sides[1]} {after!r})"
