"""`fedfm keys`: make, add, revoke and renew keys."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedfm.cli.serve import PORT

Hosts = Annotated[
    list[str],
    typer.Option(
        "--server", help="A host name or address at which clients reach the server. Repeatable."
    ),
]
Days = Annotated[int, typer.Option(min=1, help="Days that the server's certificate is valid.")]
Folder = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="Folder of `fedfm keys make`, or the server's folder."),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the client.")]


class KeysGroup(TyperGroup):
    """The commands of keys; without one, `fedfm keys DIR ...` means `fedfm keys make DIR ...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add the command `make` where no command is given."""
        named = bool(args) and args[0] in (*self.commands, *ctx.help_option_names)
        return super().parse_args(ctx, args if named or not args else ["make", *args])


keys = typer.Typer(
    cls=KeysGroup,
    no_args_is_help=True,
    help="Make keys and certificates, add and revoke clients, renew the server's certificate.",
)


@keys.command()
def make(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the keys.")],
    server: Hosts,
    client: Annotated[list[str], typer.Option(help="The name of a client. Repeatable.")],
    days: Days = 365,
) -> None:
    """Make all keys of a new federation. `fedfm keys DIR` does the same."""
    from fedfm.deploy.programs.keys import KEPT, SERVER, make_keys

    make_keys(folder, server, client, days)
    print(f"For the server, {server[0]}:")
    print(f"  scp -r {shlex.quote(str(folder / SERVER))} {server[0]}:keys")
    print(f"  fedfm serve CONFIG --host {server[0]} --port {PORT} --keys keys")
    for name in client:
        _explain_client(folder / name, name, server[0])
    print(
        f"Move {folder / KEPT} to a medium that is not connected to any machine: whoever has it\n"
        "can pretend to be the server, and `fedfm keys renew` needs it. This machine made all\n"
        "private keys: delete the clients' folders once every machine has its own. In production,\n"
        "let every client make its own key (ssh-keygen -t ecdsa -b 384 -N '' -f NAME.key). A\n"
        "client hands over only NAME.key.pub, for `fedfm keys add DIR NAME --public NAME.key.pub`."
    )


@keys.command()
def add(
    folder: Folder,
    name: Name,
    public: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The public key that the client made.")
    ] = None,
) -> None:
    """Let one more client join; a running server accepts it at once."""
    from fedfm.deploy.programs.fingerprints import fingerprint
    from fedfm.deploy.programs.keys import add_client, find_server

    new = add_client(folder, name, public)
    key = (find_server(folder) / f"{name}.pub").read_bytes()
    print(f"The client {name} may join with the key {fingerprint(key)}.")
    if public is None:
        _explain_client(new, name, "SERVER")
    print(
        f"If the server has a copy of {find_server(folder)} on another machine, copy {name}.pub\n"
        "there. It needs no restart."
    )


@keys.command()
def revoke(folder: Folder, name: Name) -> None:
    """Revoke a client's key for good; a running server shuts the client out at once."""
    from fedfm.deploy.programs.keys import REVOKED, find_server, revoke_client

    print(f"The key {revoke_client(folder, name)} of {name} is not accepted any more.")
    print(
        f"If the server has a copy of {find_server(folder)} on another machine, run this command\n"
        f"there. The key is in the file '{REVOKED}', and cannot be added again."
    )


@keys.command()
def renew(
    folder: Folder,
    server: Annotated[
        list[str] | None,
        typer.Option(
            help="A host name or address of the server. Repeatable.", show_default="as before"
        ),
    ] = None,
    days: Days = 365,
    authority: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Folder of the authority's key.", show_default="DIR/authority"
        ),
    ] = None,
) -> None:
    """Make a new certificate for the server; a running server switches to it."""
    from fedfm.deploy.programs.keys import renew_server

    new = renew_server(folder, server or [], days, authority)
    print(f"{new / 'server.pem'} is valid for {days} days, or as long as its authority.")
    print(
        f"If the server has a copy of {new} on another machine, copy server.pem and server.key\n"
        "there. A running server switches to them; it needs no restart."
    )


def _explain_client(folder: Path, name: str, server: str) -> None:
    from fedfm.deploy.programs.addresses import Address

    print(f"For the client {name}:")
    print(f"  scp -r {shlex.quote(str(folder))} MACHINE_OF_{name}:keys")
    print(
        f"  fedfm join CONFIG --superlink {Address(server, PORT)} --name {name} "
        "--data DATA --keys keys"
    )
