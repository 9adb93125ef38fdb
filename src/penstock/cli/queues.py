"""`queue list|show|declare|alter|purge|delete|peek|ack`."""

from __future__ import annotations

import sys
from typing import Annotated, Any, cast

import typer

from penstock.cli.messages import show as show_message
from penstock.cli.output import DEFAULT_URL, Json, Url, connect, counted, write, write_facts, write_json, write_table
from penstock.errors import InvalidArgument

app = typer.Typer(help="List, show, declare, change and look into queues.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(help="The queue.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]

COLUMNS = ("queue", "ready", "leased", "delayed", "bytes", "consumers")
LONG = frozenset(("bookmark", "deliverable"))
"""What JSON has of a message and a table has no room for: `lsn` and `state` say it too."""


@app.command("list")
def list_(url: Url = DEFAULT_URL, json: Json = False) -> None:
    """List the queues with what is in them.

    Example: penstock queue list
    """
    with connect(url) as client:
        queues = client.queues()
    if json:
        write_json([dict(queue) for queue in queues])
    else:
        write_table(COLUMNS, [[queue.get(column) for column in COLUMNS] for queue in queues])


@app.command()
def show(
    name: Name,
    details: Annotated[bool, typer.Option("--details", help="Its first messages, and its subscriptions.")] = False,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Show one queue: what is in it, and what went through it since the server started.

    Example: penstock queue show to-ship --details
    """
    with connect(url) as client:
        queue = client.details(name) if details else client.queue(name)
    if details and not json:
        for heading in ("subscriptions", "messages"):
            rows = cast("list[dict[str, object]]", queue[heading])
            if not rows:
                write(f"no {heading}")
                continue
            columns = [column for column in rows[0] if column not in LONG]
            write_table(columns, [[row.get(column) for column in columns] for row in rows], title=heading)
        queue = {name: value for name, value in queue.items() if not isinstance(value, list)}
    if json:
        write_json(dict(queue))
        return
    settings = queue.get("settings")
    write_facts({name: value for name, value in queue.items() if name != "settings"})
    if isinstance(settings, dict) and settings:
        table = cast("dict[str, dict[str, object]]", settings)
        write_table(("setting", "value", "from"), [(name, row["value"], row["from"]) for name, row in table.items()])


@app.command()
def declare(
    name: Name,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting, as in the settings file.")
    ] = None,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Declare a queue; the same again changes nothing.

    Example: penstock queue declare to-ship --set underlying_topic=orders --set lease_period=30s
    """
    settings: dict[str, Any] = dict(map(read_setting, setting or []))
    with connect(url) as client:
        client.declare(name, **settings)
    if json:
        write_json({"declared": name})
    else:
        write(f"queue {name} declared")


@app.command()
def alter(
    name: Name,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting, as in the settings file.")
    ] = None,
    unset: Annotated[list[str] | None, typer.Option("--unset", metavar="KEY", help="Back to its default.")] = None,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Change settings of a queue while it works; those that are not named stay.

    With a later recovery_point the messages that came before it leave the queue: that is asked about first.

    Example: penstock queue alter to-ship --set lease_period=1m --unset filter
    """
    settings = dict(map(read_setting, setting or []))
    settings |= {key.strip().replace("-", "_"): None for key in unset or []}
    if not settings:
        raise InvalidArgument("name what to change: --set KEY=VALUE, or --unset KEY")
    with connect(url) as client:
        if settings.get("recovery_point") not in (None, "epoch"):
            depth = cast("int", client.queue(name)["queue_depth"])
            question = f"queue {name} has {counted(depth, 'message')}: remove those from before the new recovery_point?"
            if depth and not confirmed(question, yes):
                return
        left = client.alter(name, **settings)
    if json:
        write_json({"altered": name, "settings": sorted(settings), "left": left})
    else:
        write(f"queue {name} altered" + (f"; {counted(left, 'message')} left it" if left else ""))


@app.command()
def purge(name: Name, yes: Yes = False, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Remove what is ready in a queue.  What is leased or delayed stays.

    Example: penstock queue purge to-ship --yes
    """
    with connect(url) as client:
        counts = client.queue(name)
        ready = sum(cast("int", counts[state]) for state in ("ready", "held", "inactive"))
        if not confirmed(f"queue {name} has {counted(ready, 'ready message')}: remove what is ready?", yes):
            return
        messages = client.purge(name)
    if json:
        write_json({"purged": name, "messages": messages})
    else:
        write(f"{counted(messages, 'message')} removed from queue {name}")


@app.command()
def delete(name: Name, yes: Yes = False, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Delete a queue and what waits in it.  Its topics keep what the log keeps of them.

    Example: penstock queue delete to-ship --yes
    """
    with connect(url) as client:
        counts = client.queue(name)
        waiting = f"{counts['ready']} ready, {counts['leased']} leased, {counts['delayed']} delayed"
        if not confirmed(f"queue {name} has {waiting}: delete it?", yes):
            return
        client.delete(name)
    if json:
        write_json({"deleted": name})
    else:
        write(f"queue {name} deleted")


def confirmed(question: str, yes: bool) -> bool:
    """Whether to go on with what takes something away.  InvalidArgument where nobody is there to ask."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise InvalidArgument(f"{question}  Nobody is there to ask: say --yes")
    return typer.confirm(question)


def read_setting(text: str) -> tuple[str, object]:
    """`KEY=VALUE`: the value as TOML where it is TOML (numbers, tables, lists), as text otherwise."""
    import tomllib

    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InvalidArgument(f"--set {text!r}: write KEY=VALUE, as in lease_period=30s")
    try:
        read: object = tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        read = value
    name = key.strip().replace("-", "_")
    from penstock.config.queue_settings import KEY_ALIASES, QUEUE_KEYS
    from penstock.config.queue_values import Kind

    known = QUEUE_KEYS.get(KEY_ALIASES.get(name, name))
    if known is not None and known.kind is Kind.DURATION and isinstance(read, int | float):
        raise InvalidArgument(f"--set {text!r}: a duration needs a unit: write {name}={read}s if seconds are meant")
    return name, read


@app.command()
def peek(
    name: Name,
    count: Annotated[int, typer.Option("--count", min=1, help="How many, from the oldest.")] = 10,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Print the oldest messages and leave them where they are.

    Example: penstock queue peek to-ship --count 3
    """
    with connect(url) as client:
        messages = client.peek(name, count)
    for message in messages:
        show_message(message, as_json=json)
        if message.reason and not json:
            write(f"  died: {message.reason}")


@app.command()
def ack(
    name: Name,
    bookmarks: Annotated[list[str] | None, typer.Argument(help="Bookmarks, apart or with commas.")] = None,
    filter: Annotated[str | None, typer.Option("--filter", help="Instead: whatever matches this expression.")] = None,
    option: Annotated[str | None, typer.Option("--option", help="`cancel` or `expire` instead of an ack.")] = None,
    by: Annotated[str, typer.Option("--by", help="The consumer that holds them, where leasing is strict.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Settle by a filter without asking.")] = False,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Settle messages wherever they are, by bookmarks or by a filter, whoever holds them.

    Example: penstock queue ack to-ship --filter "/status = 'withdrawn'"
    """
    if (filter is None) == (not bookmarks):
        raise InvalidArgument("name bookmarks, or a --filter")
    with connect(url) as client:
        if filter is None:
            affected = client.ack(name, ",".join(bookmarks or []), by=by, option=option)
        else:
            if not yes:
                if not sys.stdin.isatty():
                    raise InvalidArgument("nobody is there to ask: say --yes to settle whatever matches")
                counts = client.queue(name)
                waiting = f"{counts['ready']} ready, {counts['leased']} leased, {counts['delayed']} delayed"
                if not typer.confirm(f"queue {name} has {waiting}: settle what matches?"):
                    return
            affected = client.ack_filter(name, filter, by=by, option=option)
    if json:
        write_json({"queue": name, "affected": affected})
    else:
        write(f"{affected} messages of queue {name}")
