"""A client's side of a deployment: its site file and its supernode."""

import json
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from fedfm.core.checkpoint import write_atomically
from fedfm.core.errors import UserError
from fedfm.data.folder import ARCHIVES
from fedfm.deploy.client.storage import Storage
from fedfm.deploy.programs.addresses import Address, free_address
from fedfm.deploy.programs.keys import ClientKeys
from fedfm.deploy.programs.log import follow_log
from fedfm.deploy.programs.processes import FlowerError, flower_variables, supervise

PATIENCE = 90.0
"""Seconds to retry: for a minute a superlink refuses a node whose old connection was cut."""
CONNECTING = (
    "joining {}: Flower retries until a server answers there; if that takes long, check the "
    "address and the port"
)
CONNECTED = "SuperNode ID:"
NOT_ADMITTED = "[code: 2004]"
WAITING = (
    "not let in yet: the server does not know this client's public key, or still waits for its old "
    f"connection, as it does for a minute; retrying for {PATIENCE:.0f} s"
)
REFUSED = (
    "the server does not let this client in (Flower's reason is above): give the server this "
    "client's public key, and check that no other client uses the same key"
)
FAILED = "the supernode ended before the server had let it in; its last output is above"
NO_TLS = re.compile("CERTIFICATE_VERIFY_FAILED|WRONG_VERSION_NUMBER|SSL_ERROR|SSL routines")
DISTRUSTED = (
    "no secure connection to this server (Flower's reason is above): ca.pem is not the server's, "
    "the certificate is not for the name in --superlink, or the server runs without --keys"
)
NO_SERVER, UNANSWERED = "Connection attempt failed", 3
"""What Flower logs if a server does not answer, and how often in a row means that it is gone."""
OVER = "the federation is over and its server has stopped; the model is in {}"
LOG = "supernode.log"
PAUSE = 5.0
"""Seconds until a supernode that ended is started again."""
_SHARE = re.compile(r"share:(\d+)/(\d+)")
_ENTRY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


Files = dict[Path, dict[str, Any]]
"""The contents of TOML files, by path."""


@dataclass(frozen=True)
class Joining:
    """The settings of this machine as a client of one federation."""

    site: Path
    out: Path
    superlink: Address
    keys: ClientKeys | None = None
    telemetry: bool = False
    files: Files = field(default_factory=dict)
    """Files to write once no other command uses the folder."""

    @property
    def flower(self) -> Path:
        """The folder of Flower's files."""
        return self.out.resolve() / "flower"

    @property
    def result(self) -> Path:
        """The file of the federation's model."""
        return Storage(self.out).result

    def write(self) -> None:
        """Write the files."""
        for path, table in self.files.items():
            write_atomically(path, tomli_w.dumps(table).encode())


def data_section(text: str, label: str | None, size: int | None) -> dict[str, Any]:
    """Return the [data] section of a site file for the value of `fedfm join --data`."""
    options = {key: value for key, value in (("label", label), ("size", size)) if value is not None}
    if share := _SHARE.fullmatch(text):
        return {"source": "share", "share": int(share[1]), "of": int(share[2]), **options}
    path = Path(text).expanduser()
    if path.exists():
        is_images = path.is_dir() or path.name.endswith(ARCHIVES)
        source = "folder" if is_images else "csv"
        return {"source": source, "path": str(path.resolve()), **options}
    if _ENTRY.fullmatch(text):
        return {"source": "python", "entry": text, "path": str(Path.cwd()), **options}
    raise UserError(
        f"--data {text}: there is no such file or folder; give a CSV file, a folder or archive of "
        "images, share:K/N (part K of N of the config's data), or package.module:function"
    )


def site_files(out: Path, name: str, config: dict[str, Any], data: dict[str, Any]) -> Files:
    """Return the files of a client in `out`: the config that it expects, then its site file."""
    folder = out.resolve()
    expected = folder / "expected.toml"
    site = {"name": name, "out": str(folder), "config": str(expected), "data": data}
    return {expected: config, folder / "site.toml": site}


def supernode_command(joining: Joining, runtime: Address) -> list[str]:
    """Return the `flower-supernode` command; `runtime` is the address for its own processes.

    The site file's path stays on this machine: only the ClientApp gets the node config. Without a
    limit of retries the supernode reconnects by itself when the superlink is back.
    """
    return [
        "flower-supernode",
        *("--superlink", str(joining.superlink)),
        *("--host", runtime.host, "--port", str(runtime.port)),
        *("--node-config", f"site={json.dumps(str(joining.site))}"),
        *(_tls(joining.keys) if joining.keys else ["--insecure"]),
    ]


def _tls(keys: ClientKeys) -> list[str]:
    return ["--root-certificates", str(keys.ca), "--auth-supernode-private-key", str(keys.key)]


def join(joining: Joining) -> None:
    """Work as a client until the federation is over; raise `FlowerError` if it is not let in.

    It is over when the client has the final model and the server has stopped. A supernode that
    ends is started again, for `PATIENCE` seconds after the first refusal.
    """
    print(CONNECTING.format(joining.superlink), flush=True)
    detector = EndDetector(joining.result)
    variables = flower_variables(joining.flower, joining.telemetry)
    with supervise(joining.flower, variables) as processes:
        joining.write()
        retry, log = Retry(), processes.folder / LOG
        while True:
            supernode = processes.start(supernode_command(joining, free_address()), LOG)
            text = follow_log(supernode, log, known=retry.known, is_last=detector.sees_end)
            if detector.is_over:
                print(OVER.format(joining.result), flush=True)
                return
            if CONNECTED in text:
                retry = Retry()
                print(f"the supernode ended; starting it again in {PAUSE:.0f} s", flush=True)
            else:
                retry.check(text)
            time.sleep(PAUSE)


@dataclass
class Retry:
    """Lets a client that is not let in retry for a while, and explains the reason once."""

    since: float | None = None
    """When it was first refused."""
    known: set[str] = field(default_factory=set)
    """Lines of Flower's log that were printed."""

    def check(self, text: str) -> None:
        """Raise `FlowerError` if retrying cannot help, or has not helped."""
        if NO_TLS.search(text):
            raise FlowerError(DISTRUSTED)
        now = time.monotonic()
        if NOT_ADMITTED not in text:
            raise FlowerError(FAILED)
        if self.since and now - self.since > PATIENCE:
            raise FlowerError(REFUSED)
        if self.since is None:
            self.since = now
            print(WAITING, flush=True)
        self.known.update(text.splitlines())


class EndDetector:
    """Detects the end of a federation: the client has the result, and the server is gone."""

    def __init__(self, result: Path) -> None:
        self.result, self.before, self.unanswered = result, _version(result), 0

    @property
    def is_over(self) -> bool:
        """Whether the federation has ended for this client."""
        return self.unanswered >= UNANSWERED

    def sees_end(self, line: str) -> bool:
        """Read a line of Flower's log; one failure alone may mean that the server is busy."""
        failed = NO_SERVER in line and _version(self.result) != self.before
        self.unanswered = self.unanswered + 1 if failed else 0
        return self.is_over


def _version(file: Path) -> int | None:
    """Return a value that changes when the file is written."""
    return file.stat().st_mtime_ns if file.exists() else None
