"""The audit log: what breaks its chain, and what a killed server leaves."""

import json
from pathlib import Path

import pytest

from fedfm.core.errors import UserError
from fedfm.deploy.events import AnswerLeftOut, Joined, LogRepaired, RoundEnded, Scored
from fedfm.deploy.operations.audit import START, AuditWriter, BrokenLog, read_audit
from tests.cli.tools import Command


@pytest.fixture
def path(tmp_path) -> Path:
    """A log of six entries."""
    write(tmp_path / "audit.jsonl", *(Joined(k, f"c{k}", 100 + k, "SHA256:x") for k in range(6)))
    return tmp_path / "audit.jsonl"


def write(path, *events):
    writer = AuditWriter(path)
    for event in events:
        writer.append(event)
    return writer


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def test_entries_are_chained(path):
    log = read_audit(path)
    assert [entry["number"] for entry in log.entries] == [1, 2, 3, 4, 5, 6]
    assert [entry["previous"] for entry in log.entries] == [
        START,
        *(entry["hash"] for entry in log.entries[:-1]),
    ]
    assert (log.entries[2]["event"], log.entries[2]["name"]) == ("joined", "c2")
    assert log.hash == log.entries[-1]["hash"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_later_start_continues_the_chain(path):
    before = read_audit(path).hash
    writer = AuditWriter(path)
    assert (writer.count, writer.hash) == (6, before)
    assert writer.append(AnswerLeftOut("late", node=3))["previous"] == before
    assert len(read_audit(path).entries) == 7


@pytest.mark.parametrize(
    ("change", "first"),
    [
        (lambda all: [*all[:2], all[2].replace(b'"c2"', b'"c9"'), *all[3:]], 3),
        (lambda all: [*all[:2], all[2].replace(b",", b", ", 1), *all[3:]], 3),
        (lambda all: [*all[:2], b"nonsense\n", *all[3:]], 3),
        (lambda all: [*all[:2], b"[1, 2]\n", *all[3:]], 3),
        (lambda all: [*all[:2], *all[3:]], 3),
        (lambda all: all[1:], 1),
        (lambda all: [all[0], all[2], all[1], *all[3:]], 2),
        (lambda all: [*all, all[-1]], 7),
    ],
    ids=["value", "space", "text", "list", "removed", "first", "swapped", "repeated"],
)
def test_the_first_broken_entry_is_named(path, change, first):
    path.write_bytes(b"".join(change(lines(path))))
    with pytest.raises(BrokenLog) as caught:
        read_audit(path)
    assert caught.value.number == first
    with pytest.raises(UserError, match="evidence"):
        AuditWriter(path)


def test_an_entry_that_is_written_anew_with_its_hash_breaks_the_next_one(path, tmp_path):
    forged = write(tmp_path / "forged.jsonl", *(Joined(k, "evil", 100, None) for k in range(6)))
    mixed = [*lines(path)[:2], lines(forged.path)[2], *lines(path)[3:]]
    path.write_bytes(b"".join(mixed))
    with pytest.raises(BrokenLog) as caught:
        read_audit(path)
    assert caught.value.number == 3


def test_a_removed_tail_is_seen_by_who_has_kept_a_hash(path):
    """Without a hash from before it cannot be seen; the documents say so."""
    kept = read_audit(path).hash
    path.write_bytes(b"".join(lines(path)[:-1]))
    log = read_audit(path)
    assert len(log.entries) == 5
    assert log.find(kept) is None
    assert log.find(log.entries[3]["hash"][:12].upper()) == 4
    assert log.find("") is None


@pytest.mark.parametrize("cut", [1, 30, 150])
def test_a_half_written_line_is_removed_and_that_is_told(path, cut):
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    log = read_audit(path)
    assert len(log.entries) == 5
    assert log.unfinished == len(lines(path)[-1])
    writer = AuditWriter(path)
    assert writer.count == 6
    last = read_audit(path).entries[-1]
    assert (last["event"], last["bytes"]) == (LogRepaired.kind, log.unfinished)


def test_numbers_that_are_not_finite_are_written_as_text(tmp_path):
    ended = RoundEnded(1, "m", [0], [], 1.0, 1, 1, 1, epsilon=float("inf"))
    write(tmp_path / "audit.jsonl", ended, Scored(1, {"loss": float("nan")}))
    first, second = read_audit(tmp_path / "audit.jsonl").entries
    assert (first["epsilon"], second["numbers"]) == ("inf", {"loss": "nan"})


def test_a_full_disk_leaves_whole_entries_and_says_so(path, monkeypatch):
    writer = AuditWriter(path)
    monkeypatch.setattr("os.write", lambda handle, line: 0)
    with pytest.raises(OSError, match="No space") as problem:
        writer.append(AnswerLeftOut("late", node=1))
    assert problem.value.filename == str(path)
    monkeypatch.undo()
    assert len(read_audit(path).entries) == 6


def test_the_command(command: Command, path: Path):
    run = path.parent
    good = command("audit", run)
    assert (good.code, good.err) == (0, "")
    kept = read_audit(path).hash
    assert f"hash {kept}" in good.out
    assert "c3" in command("audit", run, "--show").out
    facts = json.loads(command("audit", run, "--format", "json", "--expect", kept).out)
    assert facts == {"intact": True, "entries": 6, "hash": kept, "unfinished": 0}
    path.write_bytes(b"".join(lines(path)[:-1]))
    assert command("audit", run).code == 0
    answer = command("audit", run, "--expect", kept)
    assert answer.code == 1
    assert kept in answer.err
    path.write_bytes(b"".join(lines(path)[1:]))
    answer = command("audit", run, "--format", "json")
    assert answer.code == 1
    assert json.loads(answer.out)["first_broken_entry"] == 1
    assert command("audit", run / "nowhere").code == 2
