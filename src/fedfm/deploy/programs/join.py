"""A client's side of a deployment: its site file, and a supernode that works for it."""

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
from fedfm.deploy.client.storage import Desk
from fedfm.deploy.programs.addresses import Address, free_address
from fedfm.deploy.programs.keys import ClientKeys
from fedfm.deploy.programs.log import show
from fedfm.deploy.programs.processes import FlowerError, crew, variables

PATIENCE = 90.0
"""Seconds to try again: for a minute a superlink does not let in anew who vanished."""
SEEKING = (
    "joining {}: until a server answers there, Flower tries to connect again and again; if that "
    "takes long, check the address and the port"
)
WAS_IN = "SuperNode ID:"
NOT_NOW = "[code: 2004]"
WAITING = (
    "not let in yet: the server does not know this client's public key, or takes its old "
    f"connection for alive, as it does for a minute; trying again for {PATIENCE:.0f} s"
)
REFUSED = (
    "the server does not let this client in (Flower's reason is above): it must know the client's "
    "public key, and nobody else may be there with the same"
)
FAILED = "the supernode ended before the server had let it in; what it said last is above"
NO_TLS = re.compile("CERTIFICATE_VERIFY_FAILED|WRONG_VERSION_NUMBER|SSL_ERROR|SSL routines")
DISTRUSTED = (
    "no secure connection to this server (Flower's reason is above): ca.pem is not the server's, "
    "its certificate is for another name than that in --superlink, or it runs without --keys"
)
NO_SERVER, UNANSWERED = "Connection attempt failed", 3
"""What Flower says of a server that does not answer, and how often in a row until it is gone."""
OVER = "the federation is over and its server gone; the model is in {}"
LOG = "supernode.log"
PAUSE = 5.0
"""Seconds before a supernode that ended starts again."""
_SHARE = re.compile(r"share:(\d+)/(\d+)")
_ENTRY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


Files = dict[Path, dict[str, Any]]
"""Tables that are to be TOML files."""


@dataclass(frozen=True)
class Joining:
    """This machine as a client of one federation."""

    site: Path
    out: Path
    superlink: Address
    keys: ClientKeys | None = None
    telemetry: bool = False
    files: Files = field(default_factory=dict)
    """What is written, as TOML, once nobody else is at work in the folder."""

    @property
    def flower(self) -> Path:
        """Flower's files."""
        return self.out.resolve() / "flower"

    @property
    def result(self) -> Path:
        """Where the client keeps the federation's model."""
        return Desk(self.out).result

    def write(self) -> None:
        """Write the files."""
        for path, table in self.files.items():
            write_atomically(path, tomli_w.dumps(table).encode())


def data_section(text: str, label: str | None, size: int | None) -> dict[str, Any]:
    """The [data] section of a site file for what `fedfm join --data` was given."""
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
        f"--data {text}: there is no such file or folder; it takes a CSV file, a folder or archive "
        "of images, share:K/N (part K of N of the config's own data), or package.module:function"
    )


def site_files(out: Path, name: str, config: dict[str, Any], data: dict[str, Any]) -> Files:
    """What a site file in `out` holds, and before it the config that it expects."""
    folder = out.resolve()
    expected = folder / "expected.toml"
    site = {"name": name, "out": str(folder), "config": str(expected), "data": data}
    return {expected: config, folder / "site.toml": site}


def supernode_command(joining: Joining, runtime: Address) -> list[str]:
    """`flower-supernode`; `runtime` is where it meets its own processes, on this machine.

    The site file's path stays on this machine: the node config is handed to the ClientApp only.
    Without a limit of tries it comes back by itself when the superlink does.
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

    It is over when the client has its result and the server has gone. A supernode that ends by
    itself starts again, for `PATIENCE` seconds after the first refusal.
    """
    print(SEEKING.format(joining.superlink), flush=True)
    farewell = Farewell(joining.result)
    with crew(joining.flower, variables(joining.flower, joining.telemetry)) as workers:
        joining.write()
        patience = Patience()
        while True:
            supernode = workers.start(supernode_command(joining, free_address()), LOG)
            said = show(supernode, workers.folder / LOG, known=patience.known, last=farewell)
            if farewell.over:
                print(OVER.format(joining.result), flush=True)
                return
            if WAS_IN in said:
                patience = Patience()
                print(f"the supernode ended; starting it again in {PAUSE:.0f} s", flush=True)
            else:
                patience.refused(said)
            time.sleep(PAUSE)


@dataclass
class Patience:
    """A client that is not let in tries again for a while, and says why not once."""

    since: float | None = None
    """When it was refused first."""
    known: set[str] = field(default_factory=set)
    """What Flower has said about it."""

    def refused(self, said: str) -> None:
        """Give up where trying again will not help, or has not helped."""
        if NO_TLS.search(said):
            raise FlowerError(DISTRUSTED)
        now = time.monotonic()
        if NOT_NOW not in said:
            raise FlowerError(FAILED)
        if self.since and now - self.since > PATIENCE:
            raise FlowerError(REFUSED)
        if self.since is None:
            self.since = now
            print(WAITING, flush=True)
        self.known.update(said.splitlines())


class Farewell:
    """Notices the end: the result is there, and then nobody answers any more."""

    def __init__(self, result: Path) -> None:
        self.result, self.before, self.unanswered = result, _version(result), 0

    @property
    def over(self) -> bool:
        """Whether the federation has ended for this client."""
        return self.unanswered >= UNANSWERED

    def __call__(self, line: str) -> bool:
        """Hear what Flower says; one failure alone may be a server that is busy."""
        failed = NO_SERVER in line and _version(self.result) != self.before
        self.unanswered = self.unanswered + 1 if failed else 0
        return self.over


def _version(file: Path) -> int | None:
    """Changes when a file is written."""
    return file.stat().st_mtime_ns if file.exists() else None
