"""The audit log: a file that only grows, whose entries are chained by their hashes.

Every line is one entry in canonical JSON. It has a number, a time, the facts of an event, the hash
of the entry before it, and its own hash: the SHA-256 of the entry without that hash.
"""

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from fedfm.core.errors import UserError, name_file, require
from fedfm.deploy.events import Event, Finished, LogRepaired, Started

AUDIT = "audit.jsonl"
"""The log's name in a run's folder."""
START = "0" * 64
"""The hash before the first entry."""
CHAIN = ("number", "time", "event", "previous", "hash")
"""The fields of an entry beside the facts of its event."""
Entry = dict[str, Any]


class BrokenLog(UserError):
    """The log was changed after it was written; `number` is the first wrong entry."""

    def __init__(self, path: Path, number: int, reason: str) -> None:
        super().__init__(f"{path}: entry {number} {reason}")
        self.number = number


class AuditLog(NamedTuple):
    """The entries of a log whose chain holds."""

    entries: list[Entry]
    unfinished: int
    """The bytes of a last line that was not written to its end."""

    @property
    def hash(self) -> str:
        """The hash of the last entry, which stands for the whole log."""
        return str(self.entries[-1]["hash"]) if self.entries else START

    def find(self, hash: str) -> int | None:
        """Return the number of the entry with this hash, or with a hash that begins so."""
        long_enough = len(hash) >= 12
        fitting = (each for each in self.entries if str(each["hash"]).startswith(hash.lower()))
        entry = next(fitting, None) if long_enough else None
        return int(entry["number"]) if entry else None


def read_audit(path: Path) -> AuditLog:
    """Read a log and check its chain; raise `BrokenLog` at the first entry that does not fit."""
    require(path.is_file(), f"{path} is not there: `fedfm serve` writes it into the run's folder")
    *lines, rest = path.read_bytes().split(b"\n")
    return AuditLog([*_read_chain(path, lines)], len(rest))


def _read_chain(path: Path, lines: list[bytes]) -> Iterator[Entry]:
    previous = START
    for number, line in enumerate(lines, start=1):
        entry = _read_entry(path, number, line)
        if entry["number"] != number:
            raise BrokenLog(path, number, f"is missing: entry {entry['number']} is in its place")
        if entry["previous"] != previous:
            raise BrokenLog(path, number, "does not follow the entry before it")
        previous = entry["hash"]
        yield entry


def _read_entry(path: Path, number: int, line: bytes) -> Entry:
    try:
        entry = json.loads(line)
        complete = isinstance(entry, dict) and entry.keys() >= {*CHAIN}
    except ValueError:
        complete = False
    if not complete:
        raise BrokenLog(path, number, "is not an entry of an audit log")
    if line != _to_json(entry) or entry["hash"] != _hash(entry):
        raise BrokenLog(path, number, "was changed: its hash does not fit")
    return dict(entry)


def _to_json(values: Mapping[str, Any]) -> bytes:
    return json.dumps(
        values, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True
    ).encode()


def _hash(entry: Entry) -> str:
    return hashlib.sha256(_to_json({k: v for k, v in entry.items() if k != "hash"})).hexdigest()


class AuditWriter:
    """Appends events to a log; every entry is on the disk before the next step is taken."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[Entry] = []
        """The entries that the log had when it was opened."""
        self.count, self.hash = 0, START
        if path.exists():
            self._continue()

    def _continue(self) -> None:
        """Continue the chain of an earlier start."""
        try:
            log = read_audit(self.path)
        except BrokenLog as problem:
            raise UserError(
                f"{problem}. Keep the file as evidence under another name; a new log then begins"
            ) from problem
        self.entries, self.count, self.hash = log.entries, len(log.entries), log.hash
        if log.unfinished:
            os.truncate(self.path, self.path.stat().st_size - log.unfinished)
            self.append(LogRepaired(log.unfinished))

    def append(self, event: Event) -> Entry:
        """Write an event and return its entry."""
        entry = event.facts() | {
            "number": self.count + 1,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "event": event.kind,
            "previous": self.hash,
        }
        entry["hash"] = _hash(entry)
        self._write(_to_json(entry) + b"\n")
        self.count, self.hash = self.count + 1, entry["hash"]
        return entry

    def _write(self, line: bytes) -> None:
        """Append a line; if the disk is full, leave no part of it."""
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            size = os.fstat(handle).st_size
            with name_file(self.path):
                if os.write(handle, line) < len(line):
                    os.ftruncate(handle, size)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(handle)
        finally:
            os.close(handle)


def compare_files(run: Path, log: AuditLog) -> list[str]:
    """Return how the run's config and model differ from those that the log names."""
    named = [("config.toml", Started.kind, "config"), ("model.safetensors", Finished.kind, "model")]
    problems = []
    for name, kind, fact in named:
        digests = [entry[fact] for entry in log.entries if entry["event"] == kind]
        file = run / name
        if digests and file.is_file() and _digest_file(file) != digests[-1]:
            problems.append(f"{file} is not the file that the log names ({digests[-1]})")
    return problems


def _digest_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
