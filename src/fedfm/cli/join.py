"""`fedfm join`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedfm.cli.options import Insecure, Keys, Overrides, Source, Telemetry
from fedfm.cli.serve import exit_with_logs, require_security
from fedfm.core.errors import require

if TYPE_CHECKING:
    from fedfm.config import Config
    from fedfm.deploy.client.site import Site


def join(
    source: Source,
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="The address of the server.")],
    name: Annotated[
        str | None, typer.Option(help="The name of this client in the federation.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="A CSV file, a folder or archive of images in one folder per class, "
            "package.module:function, or share:K/N for part K of N of the config's data."
        ),
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="The column of a CSV file that holds the classes.")
    ] = None,
    size: Annotated[int | None, typer.Option(min=1, help="Scale images to SIZE x SIZE.")] = None,
    site: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A site file instead of --name, --data, --label, --size and --out."
        ),
    ] = None,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of this client.", show_default="runs/NAME")
    ] = None,
    keys: Keys = None,
    insecure: Insecure = False,
    telemetry: Telemetry = False,
) -> None:
    """Join a federation with the data of this machine, until it ends."""
    from fedfm.config import load_config
    from fedfm.deploy.checks import check_accountable
    from fedfm.deploy.client.site import load_site, parse_site
    from fedfm.deploy.programs.addresses import Address
    from fedfm.deploy.programs.join import Files, Joining, data_section, site_files
    from fedfm.deploy.programs.join import join as run_client
    from fedfm.deploy.programs.keys import load_client_keys
    from fedfm.deploy.programs.processes import FlowerError, find_flower

    find_flower()
    config, address = load_config(source, overrides or []), Address.parse(superlink)
    check_accountable(config)
    require_security(address, keys, insecure)
    files: Files = {}
    if site is None:
        require(bool(name and data), "give this client's name and data: --name and --data")
        section = data_section(str(data), label, size)
        files = site_files(out or Path("runs") / str(name), str(name), config.as_toml(), section)
        site, table = [*files.items()][-1]
        client = parse_site(table, site.parent)
    else:
        given = any([name, data, label, size, out])
        require(not given, "leave out --name, --data, --label, --size and --out: --site has them")
        client = load_site(site)
        _require_same(config, client.config, site)
    _check_data(client, config)
    secrets = load_client_keys(keys, client.name) if keys else None
    joining = Joining(site.resolve(), client.out, address, secrets, telemetry, files)
    try:
        run_client(joining)
    except FlowerError as problem:
        exit_with_logs(problem, joining.flower)


def _require_same(config: Config, expected: str | None, site: Path) -> None:
    """Refuse a config that differs from the one that the site file names."""
    from fedfm.config import load_config
    from fedfm.deploy.checks import describe_differences

    require(
        expected is not None,
        f'add `config = "..."` to {site}: a server that runs another config is then refused',
    )
    differences = describe_differences(load_config(str(expected)), config, (site.name, "here"))
    require(not differences, f"{site} expects another config, {expected}: {differences}")


def _check_data(site: Site, config: Config) -> None:
    """Refuse unsuitable data before anybody waits for them."""
    from fedfm.deploy.checks import check_batches, check_enough
    from fedfm.run.prepare import build_model

    print("reading the data", flush=True)
    data = site.load_data(config)
    build_model(config, data, pretrained=False)
    check_enough(data, config)
    check_batches(data, config)
