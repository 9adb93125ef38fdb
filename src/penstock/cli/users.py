"""`user`: add, list, change and delete users of run time, what they may do, and their limits."""

from __future__ import annotations

import sys
from typing import Annotated, cast

import typer

from penstock.cli.output import DEFAULT_URL, Json, Url, connect, counted, tell, write_list
from penstock.cli.queues import Yes, confirmed
from penstock.cli.vhosts import write_limits
from penstock.errors import InvalidArgument, NotFound

app = typer.Typer(
    help="List, add, change and delete users, and say what they may do.", no_args_is_help=True, rich_markup_mode=None
)

Name = Annotated[str, typer.Argument(help="The user.")]
Password = Annotated[
    str | None, typer.Argument(help="The password; without it, it is asked for, or read from standard input.")
]
Vhost = Annotated[str | None, typer.Option("--vhost", "-p", help="The vhost; that of the address by default.")]
Limit = Annotated[str, typer.Argument(help="max-connections or max-channels.")]
Value = Annotated[int, typer.Argument(min=0, help="How many there may be.")]


def read_password(given: str | None) -> str:
    """The password as it was given, typed twice, or the first line of standard input.  Raises InvalidArgument."""
    if given is None and sys.stdin.isatty():
        given = cast("str", typer.prompt("password", hide_input=True, confirmation_prompt=True, err=True))
    elif given is None:
        given = sys.stdin.readline().rstrip("\r\n")
    if not given:
        raise InvalidArgument("the password is empty; `penstock user clear-password` lets nobody log in")
    return given


@app.command("list")
def list_(url: Url = DEFAULT_URL, json: Json = False) -> None:
    """List users with their tags and limits; those of the settings file first.

    Example: penstock user list
    """
    with connect(url) as client:
        found = client.users()
    write_list(found, ("name", "tags", "limits"), json)


@app.command()
def add(
    name: Name,
    password: Password = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", help="administrator, monitoring, policymaker or management.")
    ] = None,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Add a user, who may open no vhost until `set-permissions` says so.

    Example: echo "$SECRET" | penstock user add shop
    """
    secret = read_password(password)
    with connect(url) as client:
        client.add_user(name, secret, tags=tag or ())
    tell({"added": name, "tags": tag or []}, f"user {name} added; set-permissions lets it open a vhost", json)


@app.command("change-password")
def change_password(name: Name, password: Password = None, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Give a user another password.  Open connections stay.

    Example: penstock user change-password shop
    """
    secret = read_password(password)
    with connect(url) as client:
        client.change_password(name, secret)
    tell({"changed": name}, f"user {name} has another password", json)


@app.command("clear-password")
def clear_password(name: Name, yes: Yes = False, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Take a user's password away: nobody can log in as this user.

    Example: penstock user clear-password shop --yes
    """
    with connect(url) as client:
        if not confirmed(f"nobody can log in as {name} any more: clear the password?", yes):
            return
        client.change_password(name, "")
    tell({"cleared": name}, f"user {name} has no password", json)


@app.command("set-tags")
def set_tags(
    name: Name,
    tag: Annotated[list[str] | None, typer.Argument(help="Tags; none takes all away.")] = None,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Give a user these tags and no others.

    Example: penstock user set-tags shop monitoring policymaker
    """
    tags = tag or []
    with connect(url) as client:
        client.set_user_tags(name, *tags)
    tell({"user": name, "tags": tags}, f"user {name}: {', '.join(tags) or 'no tags'}", json)


@app.command()
def delete(name: Name, yes: Yes = False, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Delete a user with permissions and limits.  Its connections close.

    Example: penstock user delete shop --yes
    """
    with connect(url) as client:
        if all(one["name"] != name for one in client.users()):
            raise NotFound(f"no user '{name}'")
        vhosts, connections = len(client.permissions(name)), len(client.connections(name))
        has = f"may open {counted(vhosts, 'vhost')} and has {counted(connections, 'connection')}"
        if not confirmed(f"user {name} {has}: delete?", yes):
            return
        client.delete_user(name)
    tell({"deleted": name, "connections": connections}, f"user {name} deleted", json)


# -- permissions


@app.command("list-permissions")
def list_permissions(
    name: Annotated[str | None, typer.Argument(help="Of this user alone.")] = None,
    vhost: Annotated[str | None, typer.Option("--vhost", "-p", help="In this vhost alone.")] = None,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """List what users may do in which vhosts.

    Example: penstock user list-permissions shop
    """
    with connect(url) as client:
        if name is not None and all(one["name"] != name for one in client.users()):
            raise NotFound(f"no user '{name}'")
        found = client.permissions(name, vhost=vhost)
    write_list(found, ("user", "vhost", "configure", "write", "read"), json)


@app.command("set-permissions")
def set_permissions(
    name: Name,
    configure: Annotated[str, typer.Argument(help="What may be declared and deleted: a regular expression.")],
    write_: Annotated[str, typer.Argument(metavar="WRITE", help="What may be published to and bound.")],
    read: Annotated[str, typer.Argument(help="What may be consumed and bound to.")],
    vhost: Vhost = None,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Say what a user may do in a vhost: three regular expressions, found anywhere in a name; '' allows nothing.

    Example: penstock user set-permissions shop '^shop-' '^shop-|^amq.default$' '.*'
    """
    with connect(url) as client:
        client.set_permissions(name, configure, write_, read, vhost=vhost)
    what = {"user": name, "vhost": vhost, "configure": configure, "write": write_, "read": read}
    tell(what, f"user {name}: configure {configure!r}, write {write_!r}, read {read!r}", json)


@app.command("clear-permissions")
def clear_permissions(
    name: Name, vhost: Vhost = None, yes: Yes = False, url: Url = DEFAULT_URL, json: Json = False
) -> None:
    """Let a user open a vhost no more.  Open connections stay, and may do nothing there.

    Example: penstock user clear-permissions shop --vhost parcels --yes
    """
    with connect(url) as client:
        if not confirmed(f"user {name} may do nothing in {vhost or 'the vhost'} any more: go on?", yes):
            return
        client.clear_permissions(name, vhost=vhost)
    tell({"user": name, "vhost": vhost, "cleared": True}, f"user {name} may not open {vhost or 'the vhost'}", json)


# -- limits


@app.command("set-limit")
def set_limit(name: Name, limit: Limit, value: Value, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Limit the connections or channels of a user.  What is open already stays.

    Example: penstock user set-limit shop max-connections 10
    """
    with connect(url) as client:
        client.set_user_limit(name, limit, value)
    tell({"user": name, limit: value}, f"user {name}: {limit} {value}", json)


@app.command("clear-limit")
def clear_limit(name: Name, limit: Limit, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Take a limit of a user away.

    Example: penstock user clear-limit shop max-connections
    """
    with connect(url) as client:
        client.set_user_limit(name, limit, None)
    tell({"user": name, limit: None}, f"user {name}: no {limit}", json)


@app.command("list-limits")
def list_limits(url: Url = DEFAULT_URL, json: Json = False) -> None:
    """List the limits of users.

    Example: penstock user list-limits
    """
    with connect(url) as client:
        limits = client.limits()
    write_limits("user", limits, as_json=json)
