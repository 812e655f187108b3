"""Write the files that `flwr` reads: the Flower app of a run, and its superlink's address."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from fedfm.deploy.programs.addresses import Address

CONNECTION = "fedfm"
"""The name of the superlink in Flower's configuration."""


class Components(NamedTuple):
    """The two halves of a Flower app, as module:attribute."""

    server: str
    client: str


FEDFM = Components("fedfm.deploy.server_app:app", "fedfm.deploy.client_app:app")


def write_app(folder: Path, config: dict[str, Any], components: Components) -> None:
    """Write a Flower app of a config and two names; the code is in the installed package."""
    table = {
        "project": {"name": "fedfm-run", "version": "1.0.0", "description": "A run of FedFM"},
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "fedfm",
                    "components": {"serverapp": components.server, "clientapp": components.client},
                    "config": {"config": json.dumps(config)},
                }
            }
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(tomli_w.dumps(table), encoding="utf-8")


def write_connection(home: Path, superlink: Address, ca: Path | None) -> None:
    """Write the superlink's address for `flwr` with folder `home`; without `ca`, without TLS."""
    security = {"root-certificates": str(ca)} if ca else {"insecure": True}
    table = {
        "superlink": {"default": CONNECTION, CONNECTION: {"address": str(superlink), **security}}
    }
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(tomli_w.dumps(table), encoding="utf-8")
