"""A superlink whose interfaces ask for credentials.

    python -m fedfm.deploy.flower.superlink HOST:PORT TOKEN SECRET [ca.pem server.pem server.key]

TOKEN and SECRET are files.
"""

import hmac
import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn
from flwr.common.constant import (
    ACCESS_TOKEN_KEY,
    ISOLATION_MODE_PROCESS,
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    TRANSPORT_TYPE_GRPC_RERE,
)
from flwr.supercore.auth.typing import AccountInfo
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
from flwr.superlink.auth_plugin import ControlAuthnPlugin, NoOpControlAuthnPlugin
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
from flwr.superlink.config_loader import SuperLinkLifespanConfig
from flwr.superlink.main import create_app

from fedfm.deploy.keys.renewal import Renewed, follow, make_context


def make_server(
    host: str, port: int, token: str, secret: bytes, tls: Sequence[str] = ()
) -> uvicorn.Server:
    """Return a server of a superlink; see `make_superlink`.

    New connections use the newest certificate.
    """
    certificate, key = (tls[1], tls[2]) if tls else (None, None)
    config = uvicorn.Config(
        make_superlink(host, port, token, secret, tls),
        host=host,
        port=port,
        log_config=None,  # warnings appear by themselves; the process's handlers stay
        ssl_certfile=certificate,
        ssl_keyfile=key,
        access_log=False,  # a stranger's requests must not fill the disk; see _is_no_refusal
        ws="none",
        timeout_graceful_shutdown=2,
    )
    logging.getLogger("flwr").addFilter(_is_no_refusal)
    config.load()
    if config.ssl:
        follow(config.ssl, Renewed(tls, make_context))
    return uvicorn.Server(config)


def _is_no_refusal(record: logging.LogRecord) -> bool:
    """Return whether a record tells more than that a request was refused."""
    return "][ApiError:" not in str(record.msg)


def make_superlink(host: str, port: int, token: str, secret: bytes, tls: Sequence[str] = ()) -> Any:
    """Return a superlink as a web application; it keeps nothing on disk and starts no process.

    Its Control interface asks for the `token`, and whoever takes a task must know the `secret`.
    With `tls` (the files of authority, certificate and key) it admits registered nodes only.
    """
    files = dict(zip(("ssl_ca_certfile", "ssl_certfile", "ssl_keyfile"), tls, strict=False))
    settings: dict[str, Any] = dict.fromkeys(SuperLinkLifespanConfig.__dataclass_fields__)
    settings |= {
        **files,
        "host": host,
        "port": port,
        "insecure": not tls,
        "certificates": tuple(Path(file).read_bytes() for file in tls) or None,
        "enable_supernode_auth": bool(tls),
        "authn_plugin": _make_plugin(token),
        "superexec_auth_secret": secret,
        "isolation": ISOLATION_MODE_PROCESS,
        "database": FLWR_IN_MEMORY_DB_NAME,
        "fleet_api_type": TRANSPORT_TYPE_GRPC_RERE,
        "control_address": "",
        "enable_event_log": False,
        "simulation": False,
        "runtime_dependency_install": False,
    }
    return create_app(SuperLinkLifespanConfig(**settings), SuperLinkLifespan)


def _make_plugin(token: str) -> ControlAuthnPlugin:
    """Return what lets the holder of a token use the Control interface."""

    class TokenPlugin(NoOpControlAuthnPlugin):
        def validate_tokens_in_metadata(
            self, metadata: Sequence[tuple[str, str | bytes]]
        ) -> tuple[bool, AccountInfo | None]:
            given = str(dict(metadata).get(ACCESS_TOKEN_KEY, ""))
            valid = hmac.compare_digest(given.encode(), token.encode())
            return valid, AccountInfo(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME) if valid else None

        def refresh_tokens(self, metadata: Any) -> tuple[None, None]:
            return None, None

    return TokenPlugin()


def main(address: str, token: str, secret: str, *tls: str) -> None:
    """Run a superlink whose credentials are in files, until a signal ends the process."""
    host, _, port = address.rpartition(":")
    credentials = Path(token).read_text(), Path(secret).read_bytes()
    server = make_server(host.strip("[]"), int(port), *credentials, tls)
    with suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        sys.exit(3)


if __name__ == "__main__":
    main(*sys.argv[1:])
