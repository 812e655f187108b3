"""What a program writes to its log, shown while it runs."""

import re
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

_COLOURS = re.compile(rb"\x1b\[[0-9;]*m")
_NOISE = re.compile(r"INFO ?:\s*$|INFO:     |INFO :\s+FastAPI lifespan|Using SuperLink: ")
"""Empty lines, and what a web server says about itself."""


def show(
    process: "subprocess.Popen[bytes]",
    log: Path,
    watch: Callable[[], None] = lambda: None,
    known: Collection[str] = (),
    last: Callable[[str], bool] = lambda line: False,
) -> str:
    """Print what the `process` writes to `log` until it ends, without the noise; give it all.

    `watch` is called all the while; it may raise. Lines that are `known` are not shown again, and
    nothing after the `last`.
    """
    said = []
    for line in _lines(process, log, watch):
        said.append(line)
        if line not in known and not _NOISE.match(line):
            print(line, flush=True)
        if last(line):
            break
    return "\n".join(said)


def _lines(
    process: "subprocess.Popen[bytes]", log: Path, watch: Callable[[], None]
) -> Iterator[str]:
    rest = b""
    with log.open("rb") as file:
        while True:
            over = process.poll() is not None
            *lines, rest = (rest + file.read()).split(b"\n")
            yield from map(_plain, [*lines, rest] if over and rest else lines)
            if over:
                return
            watch()
            time.sleep(0.2)


def _plain(line: bytes) -> str:
    return _COLOURS.sub(b"", line).decode(errors="replace")
