"""How torchrun started this process, from the environment; nothing here imports torch at its top.

torchrun, and any launcher that sets the same variables, starts the same command several times.
"""

import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from typing import Never

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
PATIENCE = 2.0
"""Seconds to wait for the launcher's store before a line is printed without it."""
RESUME = "continue from the last checkpoint with --resume (in Python: resume=True)"
_ending = threading.Lock()


def is_launched() -> bool:
    """Return whether this is one of several processes."""
    return all(name in os.environ for name in VARIABLES) and int(os.environ["WORLD_SIZE"]) > 1


def is_first() -> bool:
    """Return whether this process speaks for all: the first of several, or the only one."""
    return not is_launched() or os.environ["RANK"] == "0"


def local_rank() -> int:
    """Return the number of this process among those on its machine."""
    return int(os.environ.get("LOCAL_RANK", "0")) if is_launched() else 0


def end(message: str, code: int) -> Never:
    """Print a line about the end of this run and exit; of several processes, only one prints."""
    if not is_launched():
        print(message, file=sys.stderr)
        sys.exit(code)
    with _ending:  # whoever comes second waits until the line is printed
        if _claim():
            print(message, file=sys.stderr)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)  # no exit handler may wait for a process that is gone


def _claim() -> bool:
    """Return whether no other process has said yet why the run ends; True if nobody knows."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return True
    with suppress(Exception):
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=PATIENCE))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return bool(store.add(f"fedfm/ended/{attempt}", 1) == 1)
    return True


def end_on_termination() -> None:
    """Let SIGTERM, which torchrun sends when another process has ended, end this one with a line.

    A thread waits for the signal, since the main thread may wait for a GPU or for the network.
    """
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)

    def wait() -> None:
        with theirs:  # the signal's number is written there as long as this thread waits
            while signal.SIGTERM not in ours.recv(1):
                pass
        reason = "stopped by SIGTERM, which torchrun sends when another process has ended"
        end(f"fedfm: {reason}: {RESUME}", 128 + signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
