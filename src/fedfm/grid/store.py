"""Results: run summaries as lines of JSON that are only ever added.

A line says what was run (its config, whole), what came out, and where the run's folder is, so that
every number in a table leads back to its run.
"""

import json
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any

from fedfm.config.keys import use_new_names
from fedfm.core.locks import lock
from fedfm.grid.identity import digest

logger = logging.getLogger(__name__)
FORMAT = 1


@dataclass(frozen=True)
class Summary:
    """One finished run."""

    config: dict[str, Any]
    """Everything resolved, as config.toml has it."""
    seed: int
    method: str
    best_round: int
    val_accuracy: float
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
    """Whether it is a reduced one, which shows that a recipe works and nothing else."""
    measures: dict[str, float] = field(default_factory=dict)
    """Further numbers of the best model, e.g. nmi and silhouette."""
    versions: dict[str, str] = field(default_factory=dict)
    device: str = ""
    finished: str = ""
    """When, in UTC."""
    clock: float = 0.0
    """Its share of the job's seconds by the clock: set-up, checkpoints and measures are in it,
    which `totals` leaves out. 0: unknown, as for a run that was resumed."""
    together: int = 0
    """How many runs that job trained together; 0: unknown."""
    format: int = FORMAT

    @property
    def digest(self) -> str:
        """Of what was run."""
        return digest(self.config)

    @property
    def key(self) -> tuple[str, int]:
        """What must not be run twice: the config and the seed."""
        return self.digest, self.seed

    @property
    def place(self) -> tuple[Any, ...]:
        """Which cell of which table it fills."""
        return self.recipe, self.quick, tuple(sorted(self.cell.items())), self.seed


class Store:
    """The results in a folder: results.jsonl, and the runs' folders under runs/."""

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
        """All results; lines that cannot be read are named and left out."""
        if not self.path.exists():
            return []
        return list(self._read())

    def _read(self) -> Iterator[Summary]:
        known = {each.name for each in fields(Summary)}
        for number, line in enumerate(self.path.read_bytes().splitlines(), 1):
            try:
                found = json.loads(line)
                if found["format"] != FORMAT:
                    raise ValueError(f"format {found['format']}, this version reads {FORMAT}")
                found["config"] = use_new_names(found["config"], note=False)
                yield Summary(**{key: value for key, value in found.items() if key in known})
            except (ValueError, LookupError, TypeError) as problem:
                logger.warning("%s, line %d is left out: %s", self.path, number, problem)

    def merge(self, other: "Store") -> int:
        """Add what another folder has and this one has not; how many that were."""
        there = {(summary.key, summary.place) for summary in self.summaries()}
        new = [s for s in other.summaries() if (s.key, s.place) not in there]
        self.append(new)
        return len(new)


def _end_line(file: IO[bytes]) -> None:
    """Close a line that a crash left open, so that it spoils no other."""
    if file.seek(0, os.SEEK_END):
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")
