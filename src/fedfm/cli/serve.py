"""`fedfm serve`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedfm.cli.options import Insecure, Keys, LogJson, Overrides, Source
from fedfm.core.errors import require

if TYPE_CHECKING:
    from fedfm.deploy.programs.addresses import Address
    from fedfm.deploy.programs.processes import FlowerError

PORT = 9092


def serve(
    source: Source,
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the run.", show_default="runs/CONFIG-METHOD-SEED-server"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue after the last finished round.")
    ] = False,
    host: Annotated[
        str, typer.Option(help="The address of this machine to listen at.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="The port that clients connect to.")
    ] = PORT,
    keys: Keys = None,
    insecure: Insecure = False,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve Prometheus metrics, a health check and a live page at this address.",
            show_default="not served",
        ),
    ] = None,
    log_json: LogJson = False,
) -> None:
    """Run the server of a federation, on a Flower superlink."""
    from fedfm.deploy.programs.processes import FlowerError, require_flower

    require_flower()
    from fedfm.config import load_config
    from fedfm.deploy.checks import check_deployable, list_warnings
    from fedfm.deploy.keys.folders import load_server_keys
    from fedfm.deploy.operations.serving import make_service
    from fedfm.deploy.programs.addresses import Address, require_free
    from fedfm.deploy.server.serve import Serving
    from fedfm.deploy.server.serve import serve as run_server
    from fedfm.run.prepare import load_data

    config, address = load_config(source, overrides or []), Address(host, port)
    require_security(address, keys, insecure)
    check_deployable(config)
    if config.deployment.evaluate == "server":
        print("reading the data that the server evaluates models on", flush=True)
        load_data(config)
    for warning in list_warnings(config):
        print(f"fedfm: warning: {warning}", file=sys.stderr)
    name = f"{Path(source).stem}-{config.composed.name}-{config.seed}-server"
    serving = Serving(
        config,
        out or Path("runs") / name,
        address,
        load_server_keys(keys) if keys else None,
        resume,
        log_json,
    )
    page = Address.parse(metrics) if metrics else None
    if page:
        require_free(page, "choose another port, or an address of this machine, for --metrics")
    try:
        run_server(serving, [make_service(page)])
    except FlowerError as problem:
        exit_with_reason(problem)
    print(f"finished; files in {serving.out}")


def require_security(address: Address, keys: Path | None, insecure: bool) -> None:
    """Refuse an open connection over a network, unless the user asks for one."""
    require(not (keys and insecure), "give --keys or --insecure, not both")
    require(
        bool(keys) or insecure or address.is_loopback,
        f"{address.host} is reached over a network: without --keys anybody on it could read the "
        "models, change them and join; make keys with `fedfm keys` and give --keys DIR, or "
        "give --insecure if nobody else can reach the network",
    )


def exit_with_reason(problem: FlowerError) -> None:
    """Print what failed, and exit with code 1."""
    print(f"fedfm: {problem}", file=sys.stderr)
    raise typer.Exit(1)
