"""`vhost list|add|delete|set-limit|clear-limit|list-limits`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from penstock.cli.output import (
    DEFAULT_URL,
    Json,
    Url,
    connect,
    counted,
    tell,
    write,
    write_json,
    write_list,
    write_table,
)
from penstock.cli.queues import Yes, confirmed
from penstock.errors import NotFound

app = typer.Typer(help="List, add and delete vhosts.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(help="Its name.")]
Limit = Annotated[str, typer.Argument(help="max-connections or max-queues.")]
Value = Annotated[int, typer.Argument(min=0, help="How many there may be.")]


@app.command("list")
def list_(url: Url = DEFAULT_URL, json: Json = False) -> None:
    """List the vhosts that the user may open; all for administrators.

    Example: penstock vhost list
    """
    with connect(url) as client:
        found = client.vhosts()
    write_list(found, ("name", "description", "tags"), json)


@app.command()
def add(
    name: Name,
    description: Annotated[str | None, typer.Option("--description", help="What it is for.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="A word to find it by.")] = None,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Add a vhost.  Users made at run time open it once `penstock user set-permissions` lets them.

    Example: penstock vhost add shop --description "orders and parcels"
    """
    with connect(url) as client:
        client.add_vhost(name, description=description, tags=tag)
    tell({"added": name}, f"vhost {name} added", json)


@app.command()
def delete(name: Name, yes: Yes = False, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Delete a vhost with its queues, exchanges, topics, policies and permissions.  Its connections close.

    Example: penstock vhost delete shop --yes
    """
    with connect(url) as client:
        if all(one["name"] != name for one in client.vhosts()):
            raise NotFound(f"no vhost '{name}'")
        queues: list[dict[str, int]] = client.action("list", with_vhost=False, vhost=name)["queues"]
        messages = sum(one["ready"] + one["leased"] + one["delayed"] for one in queues)
        connections = sum(one["vhost"] == name for one in client.connections())
        has = f"{counted(len(queues), 'queue')}, {counted(messages, 'message')}, {counted(connections, 'connection')}"
        if not confirmed(f"vhost {name} has {has}: delete it with all of that?", yes):
            return
        client.delete_vhost(name)
    tell(
        {"deleted": name, "queues": len(queues), "messages": messages, "connections": connections},
        f"vhost {name} deleted with {has}",
        json,
    )


@app.command("set-limit")
def set_limit(name: Name, limit: Limit, value: Value, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Limit the connections or queues of a vhost.  What is there already stays.

    Example: penstock vhost set-limit shop max-queues 100
    """
    with connect(url) as client:
        client.set_vhost_limit(name, limit, value)
    tell({"vhost": name, limit: value}, f"vhost {name}: {limit} {value}", json)


@app.command("clear-limit")
def clear_limit(name: Name, limit: Limit, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Take a limit of a vhost away.

    Example: penstock vhost clear-limit shop max-queues
    """
    with connect(url) as client:
        client.set_vhost_limit(name, limit, None)
    tell({"vhost": name, limit: None}, f"vhost {name}: no {limit}", json)


@app.command("list-limits")
def list_limits(url: Url = DEFAULT_URL, json: Json = False) -> None:
    """List the limits of vhosts.

    Example: penstock vhost list-limits
    """
    with connect(url) as client:
        limits = client.limits()
    write_limits("vhost", limits, as_json=json)


def write_limits(whose: str, limits: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    """Limits of users or of vhosts."""
    found = [one for one in limits if whose in one]
    if as_json:
        write_json(found)
    elif found:
        write_table((whose, "limit", "value"), [(one[whose], *pair) for one in found for pair in one["value"].items()])
    else:
        write("no limits")
