"""`tls make`: certificates to develop with."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output import Json, note, write, write_json

app = typer.Typer(help="Certificates to develop with.", no_args_is_help=True, rich_markup_mode=None)

Folder = Annotated[Path, typer.Argument(help="Where the files go; none that is there is overwritten.")]
Hosts = Annotated[
    list[str] | None, typer.Option("--host", help="A name or address of the server; may be given several times.")
]
Clients = Annotated[
    list[str] | None, typer.Option("--client", help="A client's certificate too, with this common name; several times.")
]
Days = Annotated[int, typer.Option("--days", min=1, max=3650, help="How long they are good.")]

LOCAL = ("localhost", "127.0.0.1", "::1")


@app.callback()
def _family() -> None:
    """Certificates to develop with."""


@app.command()
def make(folder: Folder, host: Hosts = None, client: Clients = None, days: Days = 365, json: Json = False) -> None:
    """Make a CA of your own, and a server's certificate and key signed by it; the CA's key is not kept.

    For development and tests: in production your own CA or a public one signs.

    Example: penstock tls make certificates --host localhost --host 127.0.0.1 --client shop
    """
    from penstock.errors import InvalidArgument
    from penstock.server.tls.making import Authority, write_new

    for name in client or []:
        if not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or name in ("ca", "server"):
            raise InvalidArgument(f"{name!r} cannot be the name of a client's files: letters, digits and -_. are good")
    authority = Authority(days=days)
    made: dict[str, tuple[bytes, bytes]] = {"server": authority.server(host or LOCAL, days)}
    made |= {name: authority.client(name, days) for name in client or []}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(f"{folder} cannot be made: {error.strerror}") from error
    there = [name for name in ("ca", *made) for end in ("pem", "key") if (folder / f"{name}.{end}").exists()]
    if there:
        raise InvalidArgument(f"{folder} has files of {', '.join(dict.fromkeys(there))} already: none is overwritten")
    write_new(folder / "ca.pem", authority.pem)
    for name, (certificate, key) in made.items():
        write_new(folder / f"{name}.pem", certificate)
        write_new(folder / f"{name}.key", key, secret=True)
    if json:
        write_json({"folder": str(folder), "ca": "ca.pem", "made": list(made), "days": days})
        return
    lines = ["[listen]", 'amqps = "127.0.0.1:5671"', "", "[tls]"]
    files = {"certificate": "server.pem", "key": "server.key", **({"ca": "ca.pem"} if client else {})}
    lines += [f"{key} = {dumps(str(folder / name))}" for key, name in files.items()]
    write("\n".join([*lines, 'verify = "peer"'] if client else lines))
    note(f"clients trust it with ca = {folder / 'ca.pem'}; good for {days} days, for development")
