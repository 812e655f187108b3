"""`fedfm audit`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from fedfm.cli.options import Format

if TYPE_CHECKING:
    from fedfm.deploy.operations.audit import AuditLog


def audit(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a server's run.")],
    expect: Annotated[
        str | None,
        typer.Option(
            metavar="HASH",
            help="A hash that this command printed earlier, or its first 12 digits: an entry "
            "must have it.",
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print every entry.")] = False,
    format: Format = "text",
) -> None:
    """Check a run's audit log: no entry was changed, removed or moved."""
    from fedfm.deploy.operations.audit import AUDIT, BrokenLog, compare_files, read_audit

    try:
        log = read_audit(run / AUDIT)
    except BrokenLog as problem:
        _fail([str(problem)], format, first_broken_entry=problem.number)
    problems = compare_files(run, log)
    if expect and log.find(expect) is None:
        problems.append(f"{run / AUDIT}: no entry has the hash {expect}; entries are missing")
    if problems:
        _fail(problems, format)
    if format == "json":
        facts = {"entries": len(log.entries), "hash": log.hash, "unfinished": log.unfinished}
        print(json.dumps({"intact": True, **facts}))
    else:
        _describe(run / AUDIT, log, show)


def _describe(path: Path, log: AuditLog, show: bool) -> None:
    for entry in log.entries if show else []:
        rest = {k: v for k, v in entry.items() if k not in ("time", "event", "previous", "hash")}
        print(entry["time"], entry["event"], json.dumps(rest))
    last = f", the last at {log.entries[-1]['time']}" if log.entries else ""
    print(f"{path}: the chain holds. {len(log.entries)} entries{last}")
    if log.unfinished:
        print(f"{log.unfinished} bytes after them are an unfinished line: a server was killed")
    print(f"hash {log.hash}")
    print("Keep the hash elsewhere: --expect HASH then shows that no entry up to it is missing.")


def _fail(problems: list[str], format: str, **facts: Any) -> NoReturn:
    if format == "json":
        print(json.dumps({"intact": False, "problems": problems, **facts}))
    for problem in problems:
        print(f"fedfm: {problem}", file=sys.stderr)
    raise typer.Exit(1)
