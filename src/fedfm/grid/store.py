"""Results: summaries of runs as lines of JSON, which are only ever appended.

A line holds the whole config, the results and the run's folder, so that every number in a table
leads back to its run.
"""

import json
import logging
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from fedfm.config.renamed import use_new_names
from fedfm.core.checkpoint import Damaged
from fedfm.core.errors import require
from fedfm.core.locks import lock
from fedfm.grid.identity import digest
from fedfm.run.folder import is_finished
from fedfm.run.records import name_metrics

logger = logging.getLogger(__name__)
FORMAT = 1
POINTS_FILE = "points.npz"
"""Holds a sample of a run's test features (feature_points.py)."""
DRAWN_FILE = "drawn.json"
"""Says what was drawn without runs, beside the pictures."""
KEPT = (
    "seed",
    "method",
    "best_round",
    "val_accuracy",
    "test_accuracy",
    "rounds",
    "totals",
    "versions",
    "device",
)
"""What a summary takes from summary.json as it is."""
OVER_ROUNDS = ("last_test_accuracy", "best_test_accuracy")
"""The test accuracies of the last round, and of the round that has the best one."""
OVER_CLIENTS = ("mean", "deviation", "worst", "p10")
"""The statistics over clients."""
Rounds = list[dict[str, Any]]
"""A run: the fields of `fedfm.run.records.RoundRecord` for each round."""


@dataclass(frozen=True)
class Summary:
    """The result of a finished run."""

    config: dict[str, Any]
    """Everything resolved, as config.toml has it."""
    seed: int
    method: str
    best_round: int
    val_accuracy: float | None
    test_accuracy: float
    rounds: int
    totals: dict[str, float]
    """Floats, bytes and handshakes, up and down, and seconds."""
    folder: str
    """The run's folder, relative to that of the results."""
    recipe: str = ""
    cell: dict[str, str] = field(default_factory=dict)
    """The labels along the recipe's axes, e.g. {"method": "FedFM", "data": "CIFAR-10"}."""
    quick: bool = False
    """Whether the run is of reduced size and only shows that the recipe works."""
    measures: dict[str, float] = field(default_factory=dict)
    """Further numbers of the best model, e.g. nmi and silhouette."""
    versions: dict[str, str] = field(default_factory=dict)
    device: str = ""
    finished: str = ""
    """When, in UTC."""
    clock: float = 0.0
    """Its share of the job's seconds by the clock, with set-up, checkpoints and measures, which
    `totals` leaves out. 0: unknown, as for a resumed run."""
    together: int = 0
    """How many runs that job trained together; 0: unknown."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Numbers of metrics (test_auc), clients (worst_accuracy) and rounds (last_test_accuracy)."""
    format: int = FORMAT

    @cached_property
    def digest(self) -> str:
        """Return the digest of the config."""
        return digest(self.config)

    @property
    def title(self) -> str:
        """Return the recipe, the labels and the seed, for people."""
        return f"{self.recipe} {' / '.join(self.cell.values())}, seed {self.seed}"

    @property
    def key(self) -> tuple[str, int]:
        """Return what identifies a run: the config's digest and the seed."""
        return self.digest, self.seed

    @property
    def place(self) -> tuple[Any, ...]:
        """Return which cell of which table it fills."""
        return self.recipe, self.quick, tuple(sorted(self.cell.items())), self.seed


class Store:
    """The results in a folder: results.jsonl, and the run folders under runs/."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "results.jsonl"

    def append(self, summaries: Iterable[Summary]) -> None:
        """Add lines, whole or not at all, also while other processes add theirs."""
        text = "".join(json.dumps(asdict(summary)) + "\n" for summary in summaries)
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file, lock(file, wait=True):
            _end_line(file)
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())

    def summaries(self) -> list[Summary]:
        """Return all results; warn of lines that cannot be read."""
        known, summaries = {each.name for each in fields(Summary)}, []
        lines = self.path.read_bytes().splitlines() if self.path.exists() else []
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
                if record["format"] != FORMAT:
                    raise ValueError(f"format {record['format']}, this version reads {FORMAT}")
                record["config"] = use_new_names(record["config"], note=False)
                summaries.append(Summary(**{key: record[key] for key in record if key in known}))
            except (ValueError, LookupError, TypeError) as problem:
                logger.warning("%s, line %d is left out: %s", self.path, number, problem)
        return summaries

    def merge(self, other: "Store") -> int:
        """Add what another folder has and this one lacks; return how many results that were."""
        there = {(summary.key, summary.place) for summary in self.summaries()}
        new = [s for s in other.summaries() if (s.key, s.place) not in there]
        self.append(new)
        return len(new)


def _end_line(file: IO[bytes]) -> None:
    """End a line that a crash cut off, so that the next line stays readable."""
    if file.seek(0, os.SEEK_END):
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")


def read_summary(folder: Path, results: Path | None = None) -> Summary:
    """Read the result of a finished run from its folder."""
    require(is_finished(folder), f"{folder} holds no finished run; go on with --resume")
    path = folder / "summary.json"
    try:
        content = json.loads(path.read_text())
        when = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        return Summary(
            config=tomllib.loads((folder / "config.toml").read_text()),
            folder=str(folder.relative_to(results) if results else folder),
            measures=_read_measures(folder),
            metrics=list_metrics(content),
            finished=when.isoformat(timespec="seconds"),
            **{key: content[key] for key in KEPT},
        )
    except (ValueError, LookupError, TypeError, OSError) as problem:
        raise Damaged(folder, problem) from problem


def _read_measures(folder: Path) -> dict[str, float]:
    """Read NMI and silhouette, where they have been measured."""
    path = folder / "features.json"
    measures: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
    return measures


def list_metrics(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of metrics, clients and rounds that summary.json has, by name.

    The mean over fine-tuned clients is named "fine_tuned_mean_accuracy", the worst client's result
    "worst_accuracy", and so on.
    """
    numbers = name_metrics(summary.get("metrics", {}))
    numbers |= {name: summary.get(name) for name in OVER_ROUNDS}
    for kind, prefix in (("clients", ""), ("fine_tuned", "fine_tuned_")):
        for metric, row in summary.get(kind, {}).items():
            if isinstance(row, dict) and metric != "values":
                numbers |= {f"{prefix}{key}_{metric}": row.get(key) for key in OVER_CLIENTS}
    return {name: value for name, value in numbers.items() if value is not None}


def read_rounds(folder: Path) -> Rounds:
    """Read the rounds of a run; a last line that a crash cut off is ignored."""
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    try:
        rounds: Rounds = json.loads(f"[{','.join(lines)}]")
    except ValueError:
        rounds = json.loads(f"[{','.join(lines[:-1])}]")
    return rounds


def read_rounds_of_runs(folder: Path, summaries: Iterable[Summary]) -> list[tuple[Summary, Rounds]]:
    """Read the rounds of results in `folder`; warn of runs that cannot be read."""
    readable, lost = [], []
    for summary in summaries:
        try:
            readable.append((summary, read_rounds(folder / summary.folder)))
        except (OSError, ValueError):
            lost.append(summary.folder)
    if lost:
        logger.warning(
            "%d runs are left out, since their rounds cannot be read, e.g. %s in %s",
            len(lost),
            lost[0],
            folder,
        )
    return readable
