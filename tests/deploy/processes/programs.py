"""Programs that a test starts, with every process that these start, however deep."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from socket import AF_INET, AF_INET6, inet_ntop

PATIENCE = 900.0
"""Seconds until a test gives up: much more than anything takes, even on a busy machine."""
GRACE = 30.0
"""Seconds until what a program has started must have noticed that it is over."""
MARK = "FEDFM_TEST"
"""The environment variable by which the processes of a program are found."""
LISTENING = "0A"
QUIET = b"FLWR_TELEMETRY_ENABLED=0"


class Program:
    """A command in a process of its own; what it says goes to a file."""

    def __init__(self, command: Sequence[object], said: Path, **variables: str) -> None:
        self.said, self.mark = said, f"{MARK}={said}".encode()
        own = {MARK: str(said), "OMP_NUM_THREADS": "1"}
        with said.open("ab") as file:
            self.process = subprocess.Popen(
                [*map(str, command)],
                cwd=said.parent,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **variables, **own},
            )

    @property
    def tree(self) -> list[int]:
        """Its processes that run now."""
        return [number for number, variables in running() if self.mark in variables]

    @property
    def words(self) -> str:
        """What it has said so far."""
        return self.said.read_text(errors="replace")

    def kill(self) -> None:
        """End all of its processes at once, as a power cut does."""
        while found := self.tree:
            for number in found:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            self.process.wait(PATIENCE)

    def wait(self) -> int:
        """Until it ends; its exit code."""
        return self.process.wait(PATIENCE)

    def wait_for_all(self) -> None:
        """Until none of its processes is left; Python's resource tracker is the last one."""
        end = time.monotonic() + GRACE
        while left := self.tree:
            assert time.monotonic() < end, f"{self.said.stem} left processes behind: {left}"
            time.sleep(0.05)

    def wait_for(self, text: str) -> None:
        """Until it says something."""
        self.wait_until(lambda: text in self.words)

    def wait_until(self, true: Callable[[], bool]) -> None:
        """Until something happens, which must be before it ends."""
        end = time.monotonic() + PATIENCE
        while not true():
            assert self.process.poll() is None, f"{self.said.stem} has ended"
            assert time.monotonic() < end, f"{self.said.stem} takes too long"
            time.sleep(0.05)


def stop(programs: Iterable[Program]) -> list[int]:
    """Ask those that still run to stop, as Ctrl-C does; all exit codes."""
    for program in programs:
        program.process.send_signal(signal.SIGINT)
    return [program.wait() for program in programs]


class Observer(threading.Thread):
    """Looks at a test's processes all the while: where they listen, and who may call home."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.mark = f"{MARK}={folder}".encode()
        self.hosts: set[str] = set()
        """Addresses at which a process has listened."""
        self.talkative: set[str] = set()
        """Flower's programs that were seen with their telemetry switched on."""
        self.over = threading.Event()

    def processes(self) -> list[tuple[int, list[bytes]]]:
        """The test's processes, and what is in their environments."""
        return [
            (number, variables)
            for number, variables in running()
            if any(variable.startswith(self.mark) for variable in variables)
        ]

    def run(self) -> None:
        """Look, until it is over."""
        while not self.over.wait(1.0):
            for number, _ in self.processes():
                with suppress(OSError):
                    self._look(Path("/proc") / str(number))

    def _look(self, process: Path) -> None:
        """A process that has its name by now has its own environment, too."""
        words = (process / "cmdline").read_bytes().decode().split("\0")[:2]
        variables = (process / "environ").read_bytes().split(b"\0")
        for word in words:
            name = Path(word).name
            if name.startswith(("flwr", "flower")) and QUIET not in variables:
                self.talkative.add(name)
        self.hosts |= listening(process)

    def wait_for_the_end(self) -> list[tuple[int, list[bytes]]]:
        """The processes that do not end by themselves in a while."""
        end = time.monotonic() + GRACE
        while (found := self.processes()) and time.monotonic() < end:
            time.sleep(0.1)
        return found

    def finish(self) -> None:
        """Stop looking."""
        self.over.set()
        self.join()


def running() -> list[tuple[int, list[bytes]]]:
    """All processes of this machine that are more than a name, with their environments."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found.append((int(entry.name), (entry / "environ").read_bytes().split(b"\0")))
    return found


def listening(process: Path) -> set[str]:
    """The hosts at which a process, a folder in /proc, listens for connections."""
    own = {str(handle.readlink()) for handle in (process / "fd").iterdir()}
    hosts = set()
    for table, family in (("tcp", AF_INET), ("tcp6", AF_INET6)):
        for line in (process / "net" / table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in own:
                hosts.add(inet_ntop(family, _address(fields[1].partition(":")[0])))
    return hosts


def _address(digits: str) -> bytes:
    """The bytes of an address that Linux prints in words of the machine's own order."""
    words = [digits[start : start + 8] for start in range(0, len(digits), 8)]
    return b"".join(int(word, 16).to_bytes(4, "little") for word in words)
