"""`fedfm keys`, `fedfm serve` and `fedfm join`: a federation across machines, on Flower."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedfm.cli.options import Overrides
from fedfm.cli.run import SOURCE_HELP
from fedfm.config import Config, load_config
from fedfm.core.errors import require
from fedfm.deploy.checks import (
    check_accountable,
    check_batches,
    check_deployable,
    check_enough,
    unlike,
    warnings,
)
from fedfm.deploy.client.site import Site, load_site, own_data, parse_site
from fedfm.deploy.programs.addresses import LOOPBACK, Address
from fedfm.deploy.programs.app_folder import FEDFM
from fedfm.deploy.programs.join import Files, Joining, data_section, site_files
from fedfm.deploy.programs.join import join as run_client
from fedfm.deploy.programs.keys import SERVER, client_keys, make_keys, server_keys
from fedfm.deploy.programs.processes import FlowerError, require_flower
from fedfm.deploy.programs.serve import Serving
from fedfm.deploy.programs.serve import serve as run_server
from fedfm.run.prepare import build_model, load_data

PORT = 9092
Source = Annotated[str, typer.Argument(metavar="CONFIG", help=SOURCE_HELP)]
Keys = Annotated[
    Path | None,
    typer.Option(help="This machine's folder of keys (`fedfm keys`): TLS and authentication."),
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Go without TLS and authentication beyond this machine."),
]
Telemetry = Annotated[
    bool, typer.Option("--telemetry", help="Let Flower report usage to its makers.")
]


def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    server: Annotated[
        list[str],
        typer.Option(help="A name or address that clients reach the server by. Repeatable."),
    ],
    client: Annotated[list[str], typer.Option(help="A client's name. Repeatable.")],
    days: Annotated[int, typer.Option(min=1, help="How long the certificate is valid.")] = 365,
) -> None:
    """Make the keys and certificates of a test federation."""
    make_keys(folder, server, client, days)
    print(f"For the server, {server[0]}:")
    print(f"  scp -r {shlex.quote(str(folder / SERVER))} {server[0]}:keys")
    print(f"  fedfm serve CONFIG --host {server[0]} --port {PORT} --keys keys")
    for name in client:
        print(f"For the client {name}:")
        print(f"  scp -r {shlex.quote(str(folder / name))} MACHINE_OF_{name}:keys")
        print(
            f"  fedfm join CONFIG --superlink {Address(server[0], PORT)} --name {name} "
            "--data DATA --keys keys"
        )
    print(
        "This is for trying a federation: all private keys were made on this machine, and copies\n"
        f"are in {folder}; delete it when they are where they belong. In production the server's\n"
        "certificate comes from your organisation's authority, and every client makes its own key\n"
        f"(ssh-keygen -t ecdsa -b 384 -N '' -f NAME.key) and hands over only NAME.key.pub, which\n"
        "goes to the server's folder as NAME.pub."
    )


def serve(
    source: Source,
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The run's folder.  [default: runs/CONFIG-METHOD-SEED-server]"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last finished round.")
    ] = False,
    host: Annotated[str, typer.Option(help="The address of this machine to listen at.")] = LOOPBACK,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where clients come.")] = PORT,
    keys: Keys = None,
    insecure: Insecure = False,
    telemetry: Telemetry = False,
) -> None:
    """Be the server of a federation: a Flower superlink and one run on it."""
    require_flower()
    config, address = load_config(source, overrides or []), Address(host, port)
    _require_security(address, keys, insecure)
    check_deployable(config)
    if config.deployment.evaluate == "server":
        print("reading the data that the server measures models on", flush=True)
        load_data(config)
    for warning in warnings(config):
        print(f"fedfm: warning: {warning}", file=sys.stderr)
    name = f"{Path(source).stem}-{config.composed.name}-{config.seed}-server"
    serving = Serving(
        config.as_toml(),
        out or Path("runs") / name,
        address,
        server_keys(keys) if keys else None,
        resume,
        telemetry,
        FEDFM,
    )
    try:
        run_server(serving)
    except FlowerError as problem:
        _fail(problem, serving.flower)
    print(f"finished; files in {serving.out}")


def join(
    source: Source,
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the server is.")],
    name: Annotated[str | None, typer.Option(help="This client's name in the federation.")] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="A CSV file, a folder or archive of images in class folders, "
            "package.module:function, or share:K/N for part K of N of the config's own data."
        ),
    ] = None,
    label: Annotated[str | None, typer.Option(help="A CSV file's column of classes.")] = None,
    size: Annotated[int | None, typer.Option(min=1, help="Scale images to N x N.")] = None,
    site: Annotated[
        Path | None,
        typer.Option(help="A site file instead of --name, --data, --label, --size, --out."),
    ] = None,
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(help="This client's folder, unless --site.  [default: runs/NAME]"),
    ] = None,
    keys: Keys = None,
    insecure: Insecure = False,
    telemetry: Telemetry = False,
) -> None:
    """Take part in a federation with this machine's own data, until it is over."""
    require_flower()
    config, address = load_config(source, overrides or []), Address.parse(superlink)
    check_accountable(config)
    _require_security(address, keys, insecure)
    files: Files = {}
    if site is None:
        require(bool(name and data), "say who you are and what data you have: --name and --data")
        section = data_section(str(data), label, size)
        files = site_files(out or Path("runs") / str(name), str(name), config.as_toml(), section)
        site, table = [*files.items()][-1]
        found = parse_site(table, site.parent)
    else:
        given = any([name, data, label, size, out])
        require(not given, "--site holds the name, the data and the folder")
        found = load_site(site)
        _require_same(config, found.config, site)
    _check_data(found, config)
    secrets = client_keys(keys, found.name) if keys else None
    joining = Joining(site.resolve(), found.out, address, secrets, telemetry, files)
    try:
        run_client(joining)
    except FlowerError as problem:
        _fail(problem, joining.flower)


def _require_security(address: Address, keys: Path | None, insecure: bool) -> None:
    require(not (keys and insecure), "--keys and --insecure exclude each other")
    require(
        bool(keys) or insecure or address.is_loopback,
        f"{address.host} is reached over a network: without --keys anybody on it could read the "
        "models, change them, and take part; make keys with `fedfm keys` and give --keys DIR, or "
        "say --insecure where nobody else can reach it",
    )


def _require_same(config: Config, expected: str | None, site: Path) -> None:
    require(
        expected is not None,
        f'add `config = "..."` to {site}: then a server that runs something else is refused',
    )
    different = unlike(load_config(str(expected)), config, (site.name, "here"))
    require(not different, f"{site} expects another config, {expected}: {different}")


def _check_data(site: Site, config: Config) -> None:
    """Refuse data that cannot take part before anybody waits for them."""
    print("reading the data", flush=True)
    data = own_data(site, config)
    build_model(config, data)
    check_enough(data, config)
    check_batches(data, config)


def _fail(problem: FlowerError, folder: Path) -> None:
    print(f"fedfm: {problem}\nFlower's logs are in {folder}", file=sys.stderr)
    raise typer.Exit(1)
