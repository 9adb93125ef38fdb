"""`user`, `token`, `vhost`, `connection`: who may come in, what they may do there, and who is there now."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from penstock.cli.output import Told, Yes, counted, family, in_order, make_sure, named, note, served, write_table
from penstock.errors import InvalidArgument, NotFound, told_as
from penstock.records.declared_types import QUEUE_TYPES

if TYPE_CHECKING:
    from penstock.client import Client

vhost_app = family("vhost", "List, add and delete vhosts.")

VhostName = Annotated[str, typer.Argument(help="Its name.")]
VhostLimit = Annotated[str, typer.Argument(help="max-connections or max-queues.")]
Most = Annotated[int, typer.Argument(min=0, help="How many there may be.")]


@served(vhost_app, "list")
def list_vhosts(client: Client) -> Told:
    """List the vhosts that the user may open; all for administrators.

    Example: penstock vhost list
    """
    found = in_order(client.vhosts(), "name")
    return found, ("name", "description", "tags")


@served(vhost_app, "add")
def add_vhost(
    client: Client,
    name: VhostName,
    description: Annotated[str | None, typer.Option("--description", help="What it is for.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="A word to find it by.")] = None,
    default_queue_type: Annotated[
        str | None, typer.Option("--default-queue-type", help=f"Of queues that name none: {', '.join(QUEUE_TYPES)}.")
    ] = None,
) -> Told:
    """Add a vhost.  Users made at run time open it once `penstock user set-permissions` lets them.

    Example: penstock vhost add shop --description "orders and parcels"
    """
    client.add_vhost(name, description=description, tags=tag, default_queue_type=default_queue_type)
    return {"added": name}, f"vhost {name} added"


@served(vhost_app, "delete")
def delete_vhost(client: Client, name: VhostName, yes: Yes = False) -> Told:
    """Delete a vhost with its queues, exchanges, topics, policies and permissions.  Its connections close.

    Example: penstock vhost delete shop --yes
    """
    named(client.vhosts(), "vhost", name)
    queues: list[dict[str, int]] = client.action("list", with_vhost=False, vhost=name)["queues"]
    messages = sum(one["ready"] + one["leased"] + one["delayed"] for one in queues)
    connections = sum(one["vhost"] == name for one in client.connections())
    has = f"{counted(len(queues), 'queue')}, {counted(messages, 'message')}, {counted(connections, 'connection')}"
    make_sure(f"vhost {name} has {has}: delete it with all of that?", yes)
    client.delete_vhost(name)
    return {
        "deleted": name,
        "queues": len(queues),
        "messages": messages,
        "connections": connections,
    }, f"vhost {name} deleted with {has}"


@served(vhost_app, "trace")
def trace_vhost(
    client: Client,
    name: VhostName,
    off: Annotated[bool, typer.Option("--off", help="Tell nothing more.")] = False,
) -> Told:
    """Tell what is published and delivered in a vhost to who binds a queue to its exchange amq.rabbitmq.trace.

    Example: penstock vhost trace shop
    """
    client.trace_vhost(name, not off)
    return {"vhost": name, "tracing": not off}, f"vhost {name}: tracing is {'off' if off else 'on'}"


@served(vhost_app, "set-limit")
def set_vhost_limit(client: Client, name: VhostName, limit: VhostLimit, value: Most) -> Told:
    """Limit the connections or queues of a vhost.  What is there already stays.

    Example: penstock vhost set-limit shop max-queues 100
    """
    client.set_vhost_limit(name, limit, value)
    return {"vhost": name, limit: value}, f"vhost {name}: {limit} {value}"


@served(vhost_app, "clear-limit")
def clear_vhost_limit(client: Client, name: VhostName, limit: VhostLimit) -> Told:
    """Take a limit of a vhost away.

    Example: penstock vhost clear-limit shop max-queues
    """
    client.set_vhost_limit(name, limit, None)
    return {"vhost": name, limit: None}, f"vhost {name}: no {limit}"


@served(vhost_app, "list-limits")
def list_vhost_limits(client: Client) -> Told:
    """List the limits of vhosts.

    Example: penstock vhost list-limits
    """
    return _limits(client, "vhost")


def _limits(client: Client, whose: str) -> Told:
    """Those of users or of vhosts."""
    found = [one for one in client.limits() if whose in one]
    rows = [(one[whose], *pair) for one in found for pair in one["value"].items()]
    return found, lambda _: write_table((whose, "limit", "value"), rows)


user_app = family("user", "List, add, change and delete users, and say what they may do.")

Name = Annotated[str, typer.Argument(help="The user.")]
Password = Annotated[
    str | None, typer.Argument(help="The password; without it, it is asked for, or read from standard input.")
]
Vhost = Annotated[str | None, typer.Option("--vhost", "-p", help="The vhost; that of the address by default.")]
Limit = Annotated[str, typer.Argument(help="max-connections or max-channels.")]


def read_password(given: str | None) -> str:
    """The password as it was given, typed twice, or the first line of standard input.  Raises InvalidArgument."""
    if given is None and sys.stdin.isatty():
        given = cast("str", typer.prompt("password", hide_input=True, confirmation_prompt=True, err=True))
    elif given is None:
        with told_as(InvalidArgument, "the password from standard input is no text: ", instead=UnicodeDecodeError):
            given = sys.stdin.readline().rstrip("\r\n")
    if not given:
        raise InvalidArgument("the password is empty; `penstock user clear-password` lets nobody log in")
    return given


@served(user_app, "list")
def list_(client: Client) -> Told:
    """List users with their tags and limits; those of the settings file first.

    Example: penstock user list
    """
    found = client.users()
    return found, ("name", "tags", "limits")


@served(user_app)
def add(
    client: Client,
    name: Name,
    password: Password = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", help="administrator, monitoring, policymaker or management.")
    ] = None,
) -> Told:
    """Add a user, who may open no vhost until `set-permissions` says so.

    Example: echo "$SECRET" | penstock user add shop
    """
    secret = read_password(password)
    _note_each(client.add_user(name, secret, tags=tag or ()))
    return {"added": name, "tags": tag or []}, f"user {name} added; set-permissions lets it open a vhost"


@served(user_app, "change-password")
def change_password(client: Client, name: Name, password: Password = None) -> Told:
    """Give a user another password.  Open connections stay.

    Example: penstock user change-password shop
    """
    secret = read_password(password)
    client.change_password(name, secret)
    return {"changed": name}, f"user {name} has another password"


@served(user_app, "clear-password")
def clear_password(client: Client, name: Name, yes: Yes = False) -> Told:
    """Take a user's password away: nobody can log in as this user.

    Example: penstock user clear-password shop --yes
    """
    make_sure(f"nobody can log in as {name} any more: clear the password?", yes)
    client.change_password(name, "")
    return {"cleared": name}, f"user {name} has no password"


@served(user_app, "set-tags")
def set_tags(
    client: Client,
    name: Name,
    tag: Annotated[list[str] | None, typer.Argument(help="Tags; none takes all away.")] = None,
) -> Told:
    """Give a user these tags and no others.

    Example: penstock user set-tags shop monitoring policymaker
    """
    tags = tag or []
    _note_each(client.set_user_tags(name, *tags))
    return {"user": name, "tags": tags}, f"user {name}: {', '.join(tags) or 'no tags'}"


def _note_each(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        note(sentence)


@served(user_app)
def delete(client: Client, name: Name, yes: Yes = False) -> Told:
    """Delete a user with permissions and limits.  Its connections close.

    Example: penstock user delete shop --yes
    """
    named(client.users(), "user", name)
    vhosts, connections = len(client.permissions(name)), len(client.connections(name))
    has = f"may open {counted(vhosts, 'vhost')} and has {counted(connections, 'connection')}"
    make_sure(f"user {name} {has}: delete?", yes)
    client.delete_user(name)
    return {"deleted": name, "connections": connections}, f"user {name} deleted"


# -- permissions


@served(user_app, "list-permissions")
def list_permissions(
    client: Client,
    name: Annotated[str | None, typer.Argument(help="Of this user alone.")] = None,
    vhost: Annotated[str | None, typer.Option("--vhost", "-p", help="In this vhost alone.")] = None,
) -> Told:
    """List what users may do in which vhosts.

    Example: penstock user list-permissions shop
    """
    if name is not None:
        named(client.users(), "user", name)
    found = in_order(client.permissions(name, vhost=vhost), "user", "vhost")
    return found, ("user", "vhost", "configure", "write", "read")


@served(user_app, "set-permissions")
def set_permissions(
    client: Client,
    name: Name,
    configure: Annotated[str, typer.Argument(help="What may be declared and deleted: a regular expression.")],
    write_: Annotated[str, typer.Argument(metavar="WRITE", help="What may be published to and bound.")],
    read: Annotated[str, typer.Argument(help="What may be consumed and bound to.")],
    vhost: Vhost = None,
) -> Told:
    """Say what a user may do in a vhost: three regular expressions, found anywhere in a name; '' allows nothing.

    Example: penstock user set-permissions shop '^shop-' '^shop-|^amq.default$' '.*'
    """
    vhost = vhost or client.vhost
    client.set_permissions(name, configure, write_, read, vhost=vhost)
    what = {"user": name, "vhost": vhost, "configure": configure, "write": write_, "read": read}
    return what, f"user {name} in vhost {vhost}: configure {configure!r}, write {write_!r}, read {read!r}"


@served(user_app, "clear-permissions")
def clear_permissions(client: Client, name: Name, vhost: Vhost = None, yes: Yes = False) -> Told:
    """Let a user open a vhost no more.  Open connections stay, and may do nothing there.

    Example: penstock user clear-permissions shop --vhost parcels --yes
    """
    vhost = vhost or client.vhost
    make_sure(f"user {name} may do nothing in vhost {vhost} any more: go on?", yes)
    client.clear_permissions(name, vhost=vhost)
    return {"user": name, "vhost": vhost, "cleared": True}, f"user {name} may not open vhost {vhost} any more"


# -- limits


@served(user_app, "set-limit")
def set_limit(client: Client, name: Name, limit: Limit, value: Most) -> Told:
    """Limit the connections or channels of a user.  What is open already stays.

    Example: penstock user set-limit shop max-connections 10
    """
    client.set_user_limit(name, limit, value)
    return {"user": name, limit: value}, f"user {name}: {limit} {value}"


@served(user_app, "clear-limit")
def clear_limit(client: Client, name: Name, limit: Limit) -> Told:
    """Take a limit of a user away.

    Example: penstock user clear-limit shop max-connections
    """
    client.set_user_limit(name, limit, None)
    return {"user": name, limit: None}, f"user {name}: no {limit}"


@served(user_app, "list-limits")
def list_limits(client: Client) -> Told:
    """List the limits of users.

    Example: penstock user list-limits
    """
    return _limits(client, "user")


connection_app = family("connection", "List and close AMQP connections.")

COLUMNS = ("name", "user", "vhost", "state", "channels", "client", "since")


@served(connection_app, "list")
def list_connections(
    client: Client,
    user: Annotated[str | None, typer.Option("--user", help="Those of this user alone.")] = None,
) -> Told:
    """List open AMQP connections of all vhosts, oldest first.  Without a tag for more a user sees his own.

    Flight has no connections: each of its calls stands by itself.

    Example: penstock connection list --user shop
    """
    found = client.connections(user)
    rows = [_row(one) for one in found]
    return found, lambda _: write_table(COLUMNS, rows, whole=("name",))


@served(connection_app)
def close(
    client: Client,
    name: Annotated[str | None, typer.Argument(help="The connection, as `list` names it.")] = None,
    user: Annotated[str | None, typer.Option("--user", help="Instead: all of this user.")] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="What its client is told.")] = None,
    yes: Yes = False,
) -> Told:
    """Close a connection, or all of a user, with code 320.  What it holds goes back to its queues.

    Example: penstock connection close --user shop --reason "maintenance" --yes
    """
    if (name is None) == (user is None):
        raise InvalidArgument("name a connection, or a --user")
    found = [one for one in client.connections(user) if name in {None, one["name"]}]
    if name is not None and not found:
        raise NotFound(f"no connection '{name}'; `penstock connection list` has their names")
    channels = sum(one["channels"] for one in found)
    what = f"connection {name}" if name is not None else f"user {user} has {counted(len(found), 'connection')}"
    make_sure(f"{what} with {counted(channels, 'channel')}: close?", yes)
    closed = client.close_connection(name, user=user, reason=reason)
    return {"closed": list(closed)}, f"{counted(len(closed), 'connection')} closed"


def _row(one: dict[str, Any]) -> list[object]:
    properties = one["client_properties"]
    client = " ".join(str(properties[key]) for key in ("product", "version") if key in properties)
    since = datetime.fromtimestamp(one["connected_at"] / 1000, UTC).isoformat(timespec="seconds")
    return [*(one[key] for key in COLUMNS[:5]), client, since.replace("+00:00", "Z")]


token_app = family("token", "Logins of your own that end, for who should not have the password.")

TokenId = Annotated[str, typer.Argument(metavar="ID", help="Its id, as `penstock token list` shows it.")]
Lasts = Annotated[str, typer.Option("--lasts", help="How long it lasts, as in 15m; 7d at most.")]


@served(token_app, "list")
def list_tokens(client: Client) -> Told:
    """List your tokens without their secrets; an administrator's list has everybody's.

    Example: penstock token list
    """
    return client.tokens(), ("id", "user", "label", "vhost", "configure", "write", "read", "tags", "ends")


@served(token_app, "issue")
def issue_token(
    client: Client,
    label: Annotated[str, typer.Argument(help="What you call it.")] = "",
    lasts: Lasts = "1h",
    read: Annotated[str, typer.Option("--read", help="Which queues and topics; RE2 of whole names.")] = ".*",
    write: Annotated[str, typer.Option("--write", help="The same of what is written to.")] = ".*",
    configure: Annotated[str, typer.Option("--configure", help="The same of what it may declare.")] = "",
    tag: Annotated[list[str] | None, typer.Option("--tag", help="A tag of yours that it has, too.")] = None,
) -> Told:
    """Make a token, and print it.  It is told this once, and stands wherever a password does.

    Example: penstock token issue nightly --lasts 8h --read 'orders.*'
    """
    made = client.issue_token(lasts, label=label, read=read, write=write, configure=configure, tags=tag or ())
    return made, str(made["token"])


@served(token_app, "renew")
def renew_token(
    client: Client,
    token: TokenId,
    lasts: Annotated[str | None, typer.Option("--lasts", help="Another time than before.")] = None,
) -> Told:
    """Have a token last as long again from now on.  It takes the password.

    Example: penstock token renew x7Kq2MzP0aBc
    """
    done = client.renew_token(token, lasts)
    return done, f"token {token} lasts until {done['ends']}"


@served(token_app, "revoke")
def revoke_token(client: Client, token: TokenId, yes: Yes = False) -> Told:
    """End a token at once: whoever uses it is logged in no more.

    Example: penstock token revoke x7Kq2MzP0aBc --yes
    """
    found = next((one for one in client.tokens() if one["id"] == token), None)
    if found is not None:  # else the server says that there is none
        label = f", called {found['label']}," if found["label"] else ""
        question = f"token {token} of {found['user']}{label} lasts until {found['ends']}: end it now?"
        make_sure(question, yes)
    client.revoke_token(token)
    return {"revoked": token}, f"token {token} is none any more"
