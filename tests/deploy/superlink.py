"""A superlink in a thread of this process, as `fedfm serve` starts it in a process of its own."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tomli_w

from fedfm.deploy.flower.superlink import make_server
from fedfm.deploy.keys.folders import ServerKeys
from fedfm.deploy.programs.addresses import Address, free_address

TOKEN, SECRET = "token", b"secret"
MARK = """
from pathlib import Path
Path({mark!r}).write_text("foreign code ran")
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
app = ClientApp()
server = ServerApp()
@server.main()
def main(grid, context): pass
"""


@contextmanager
def run_superlink(keys: ServerKeys | None = None) -> Iterator[Address]:
    """Serve a superlink inside the block."""
    address = free_address()
    tls = [*map(str, keys.files)] if keys else []
    server = make_server(address.host, address.port, TOKEN, SECRET, tls)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield address
    server.should_exit = True
    thread.join()


def write_app(folder: Path, mark: Path) -> Path:
    """Write a foreign app, which leaves a mark where it is imported."""
    (folder / "foreign").mkdir(parents=True)
    (folder / "foreign" / "__init__.py").write_text(MARK.format(mark=str(mark)))
    components = {"serverapp": "foreign:server", "clientapp": "foreign:app"}
    app = {"publisher": "somebody", "components": components}
    project = {"name": "foreign", "version": "1.0.0", "description": "an attack"}
    (folder / "pyproject.toml").write_text(
        tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}})
    )
    return folder
