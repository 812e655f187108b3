"""`fedfm keys`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedfm.cli.serve import PORT


def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the keys.")],
    server: Annotated[
        list[str],
        typer.Option(help="A host name or address at which clients reach the server. Repeatable."),
    ],
    client: Annotated[list[str], typer.Option(help="The name of a client. Repeatable.")],
    days: Annotated[int, typer.Option(min=1, help="Days that the certificate is valid.")] = 365,
) -> None:
    """Make the keys and certificates of a test federation."""
    from fedfm.deploy.programs.addresses import Address
    from fedfm.deploy.programs.keys import SERVER, make_keys

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
        "These keys are for a test: this machine made all private keys and keeps copies in\n"
        f"{folder}. Delete the folder once every machine has its keys. In production, get the\n"
        "server's certificate from your organisation's authority and let every client make its\n"
        "own key (ssh-keygen -t ecdsa -b 384 -N '' -f NAME.key). A client hands over only\n"
        "NAME.key.pub, which goes into the server's folder as NAME.pub."
    )
