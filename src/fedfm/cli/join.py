"""`fedfm join`."""

from pathlib import Path
from typing import Annotated

import typer

from fedfm.cli.options import Insecure, Keys, Overrides, Source
from fedfm.cli.serve import exit_with_reason, require_security


def join(
    source: Source,
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="The address of the server.")],
    name: Annotated[
        str | None, typer.Option(help="The name of this client in the federation.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="A CSV or TSV file, a folder or archive of images in one folder per class, "
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
) -> None:
    """Join a federation with the data of this machine, and stay until it ends."""
    from fedfm.deploy.programs.addresses import Address
    from fedfm.deploy.programs.processes import FlowerError, require_flower

    require_flower()
    from fedfm.deploy.client.joining import JoinRequest
    from fedfm.deploy.programs.join import Joining
    from fedfm.deploy.programs.join import join as run_client

    address = Address.parse(superlink)
    require_security(address, keys, insecure)
    request = JoinRequest(source, tuple(overrides or ()), name, data, label, size, site, out)
    try:
        run_client(Joining(request, address, keys))
    except FlowerError as problem:
        exit_with_reason(problem)
