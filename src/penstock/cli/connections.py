"""`connection list|close`: who is connected over AMQP."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from penstock.cli.output import DEFAULT_URL, Json, Url, connect, counted, tell, write, write_json, write_table
from penstock.cli.queues import Yes, confirmed
from penstock.errors import InvalidArgument, NotFound

app = typer.Typer(help="List and close AMQP connections.", no_args_is_help=True, rich_markup_mode=None)

COLUMNS = ("name", "user", "vhost", "state", "channels", "client", "since")


@app.command("list")
def list_(
    user: Annotated[str | None, typer.Option("--user", help="Those of this user alone.")] = None,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """List open AMQP connections of all vhosts, oldest first.  Without a tag for more a user sees his own.

    Flight has no connections: each of its calls stands by itself.

    Example: penstock connection list --user shop
    """
    with connect(url) as client:
        found = client.connections(user)
    if json:
        write_json(found)
    elif found:
        write_table(COLUMNS, [_row(one) for one in found], whole=("name",))
    else:
        write("no connections")


@app.command()
def close(
    name: Annotated[str | None, typer.Argument(help="The connection, as `list` names it.")] = None,
    user: Annotated[str | None, typer.Option("--user", help="Instead: all of this user.")] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="What its client is told.")] = None,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Close a connection, or all of a user, with code 320.  What it holds goes back to its queues.

    Example: penstock connection close --user shop --reason "maintenance" --yes
    """
    if (name is None) == (user is None):
        raise InvalidArgument("name a connection, or a --user")
    with connect(url) as client:
        found = [one for one in client.connections(user) if name in {None, one["name"]}]
        if name is not None and not found:
            raise NotFound(f"no connection '{name}'; `penstock connection list` has their names")
        channels = sum(one["channels"] for one in found)
        what = f"connection {name}" if name is not None else f"user {user} has {counted(len(found), 'connection')}"
        if not confirmed(f"{what} with {counted(channels, 'channel')}: close?", yes):
            return
        closed = client.close_connection(name, user=user, reason=reason)
    tell({"closed": list(closed)}, f"{counted(len(closed), 'connection')} closed", json)


def _row(one: dict[str, Any]) -> list[object]:
    properties = one["client_properties"]
    client = " ".join(str(properties[key]) for key in ("product", "version") if key in properties)
    since = datetime.fromtimestamp(one["connected_at"] / 1000, UTC).isoformat(timespec="seconds")
    return [*(one[key] for key in COLUMNS[:5]), client, since.replace("+00:00", "Z")]
