"""Print a program's log while the program runs."""

import re
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

_COLOURS = re.compile(rb"\x1b\[[0-9;]*m")
_NOISE = re.compile(r"INFO ?:\s*$|INFO:     |INFO :\s+FastAPI lifespan|Using SuperLink: ")
"""Empty lines, and a web server's messages about itself."""


def follow_log(
    process: "subprocess.Popen[bytes]",
    log: Path,
    watch: Callable[[], None] = lambda: None,
    known: Collection[str] = (),
    is_last: Callable[[str], bool] = lambda line: False,
) -> str:
    """Print what the `process` writes to `log` until it ends, without noise; return all of it.

    `watch` is called repeatedly and may raise. Lines in `known` are not printed again. Stop after
    a line for which `is_last` returns True.
    """
    lines = []
    for line in _lines(process, log, watch):
        lines.append(line)
        if line not in known and not _NOISE.match(line):
            print(line, flush=True)
        if is_last(line):
            break
    return "\n".join(lines)


def _lines(
    process: "subprocess.Popen[bytes]", log: Path, watch: Callable[[], None]
) -> Iterator[str]:
    rest = b""
    with log.open("rb") as file:
        while True:
            over = process.poll() is not None
            *lines, rest = (rest + file.read()).split(b"\n")
            yield from map(_decode, [*lines, rest] if over and rest else lines)
            if over:
                return
            watch()
            time.sleep(0.2)


def _decode(line: bytes) -> str:
    return _COLOURS.sub(b"", line).decode(errors="replace")
