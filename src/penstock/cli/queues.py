"""`queue list|show|declare|alter|purge|delete|peek|ack|pause|resume|explain|redrive|move`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from penstock.cli.messages import Raw, as_it_is, reader, reasons
from penstock.cli.messages import show as show_message
from penstock.cli.output import (
    DEFAULT_URL,
    Json,
    JsonLines,
    Told,
    Url,
    Yes,
    ago,
    connect,
    counted,
    family,
    make_sure,
    served,
    telling,
    until_or_for,
    when_of,
    write,
    write_facts,
    write_table,
)
from penstock.core.queue.limits import Limits
from penstock.core.queue.order.runs import NEVER
from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    from penstock.client import Client

app = family("queue", "List, show, declare, change and look into queues.")

Name = Annotated[str, typer.Argument(help="The queue.")]
Setting = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting, as in the settings file.")
]

COLUMNS = ("queue", "ready", "leased", "delayed", "bytes", "consumers", "paused")
AGES = frozenset(("age", "leased_age"))
"""Columns of seconds."""
LIMITS = frozenset(("max_length", "max_length_bytes", "overflow"))
"""Settings by which what is ready may be too much at once."""
LONG = frozenset(("bookmark", "deliverable"))
"""What JSON has of a message and a table has no room for: `lsn` and `state` say it too."""


@served(app, "list")
def list_(client: Client) -> Told:
    """List the queues with what is in them.

    Example: penstock queue list
    """
    queues = client.queues()
    return queues, COLUMNS


@served(app)
def show(
    client: Client,
    name: Name,
    details: Annotated[bool, typer.Option("--details", help="Its first messages, and its subscriptions.")] = False,
) -> Told:
    """Show one queue: what is in it, and what went through it since the server started.

    Example: penstock queue show to-ship --details
    """
    return dict(client.details(name) if details else client.queue(name)), _show_one


def _show_one(queue: dict[str, object]) -> None:
    """Its lists, its facts, its settings."""
    if "subscriptions" in queue:
        _show_lists(queue)
        queue = {name: value for name, value in queue.items() if not isinstance(value, list)}
    settings = queue.get("settings")
    write_facts({name: value for name, value in queue.items() if name != "settings"})
    if isinstance(settings, dict) and settings:
        table = cast("dict[str, dict[str, object]]", settings)
        write_table(("setting", "value", "from"), [(name, row["value"], row["from"]) for name, row in table.items()])


def _show_lists(details: Mapping[str, object]) -> None:
    for heading in ("subscriptions", "messages"):
        rows = cast("list[dict[str, object]]", details[heading])
        if not rows:
            write(f"no {heading}")
            continue
        columns = [column for column in rows[0] if column not in LONG]
        write_table(columns, [[_cell(column, row.get(column)) for column in columns] for row in rows], title=heading)


def _cell(column: str, value: object) -> object:
    return ago(value) if column in AGES and isinstance(value, int | float) else value


@served(app)
def declare(client: Client, name: Name, setting: Setting = None) -> Told:
    """Declare a queue; the same again changes nothing.

    Example: penstock queue declare to-ship --set underlying_topic=orders --set lease_period=30s
    """
    settings = read_settings(setting, flags=FLAGS)
    client.declare(name, **settings)
    return {"declared": name}, f"queue {name} declared"


@served(app)
def alter(
    client: Client,
    name: Name,
    setting: Setting = None,
    unset: Annotated[list[str] | None, typer.Option("--unset", metavar="KEY", help="Back to its default.")] = None,
    yes: Yes = False,
) -> Told:
    """Change settings of a queue while it works; those that are not named stay.

    With a later recovery_point the messages that came before it leave the queue, with a lower limit those that are
    above it: that is asked about first.

    Example: penstock queue alter to-ship --set lease_period=1m --unset filter
    """
    settings = read_settings(setting, unset)
    if not settings:
        raise InvalidArgument("name what to change: --set KEY=VALUE, or --unset KEY")
    for question in () if yes else _losses(client, name, settings):
        make_sure(question, yes)
    left = client.alter(name, **settings)
    more = f"; {counted(left, 'message')} left it" if left else ""
    return {"altered": name, "settings": sorted(settings), "left": left}, f"queue {name} altered{more}"


def _losses(client: Client, name: str, settings: Mapping[str, object]) -> Iterator[str]:
    """What has to be asked before a queue has these settings, for messages would leave it at once."""
    counts = client.queue(name)
    depth = counts["queue_depth"]
    if depth and settings.get("recovery_point") not in (None, "epoch"):
        yield f"queue {name} has {counted(depth, 'message')}: remove those from before the new recovery_point?"
    if not LIMITS.isdisjoint(settings):
        limits = limits_after(name, counts["settings"], settings)
        if limits.mode.drops_head and (counts["ready"] > limits.length or counts["ready_bytes"] > limits.size):
            most = [f"{limits.length:,}"] if limits.length < NEVER else []
            most += [f"{limits.size:,} bytes"] if limits.size < NEVER else []
            has = f"{counted(counts['ready'], 'ready message')} of {counts['ready_bytes']:,} bytes"
            yield f"queue {name} has {has}, and may have {' and '.join(most)} then: drop the oldest above that?"


def limits_after(name: str, present: Mapping[str, Mapping[str, object]], settings: Mapping[str, object]) -> Limits:
    """The limits of a queue that is given these settings, beside those that policies say."""
    from penstock.config.queue_arguments import queue_settings_from_mapping

    known = {key: (one["value"], one["from"] == "argument") for key, one in present.items() if key in LIMITS}
    own = {key: value for key, (value, mine) in known.items() if mine}
    own |= {key: value for key, value in settings.items() if key in LIMITS}
    ruled = queue_settings_from_mapping({key: value for key, (value, mine) in known.items() if not mine}, name)
    given = {key: value for key, value in own.items() if value is not None}
    said = queue_settings_from_mapping(given, name, ruled)
    length, size = (
        min((one for one in both if one is not None), default=None)
        for both in ((said.max_length, ruled.max_length), (said.max_length_bytes, ruled.max_length_bytes))
    )
    return Limits(replace(said, max_length=length, max_length_bytes=size))


@served(app)
def purge(client: Client, name: Name, yes: Yes = False) -> Told:
    """Remove what is ready in a queue.  What is leased or delayed stays.

    Example: penstock queue purge to-ship --yes
    """
    counts = client.queue(name)
    ready = sum(cast("int", counts[state]) for state in ("ready", "held", "inactive"))
    make_sure(f"queue {name} has {counted(ready, 'ready message')}: remove what is ready?", yes)
    messages = client.purge(name)
    return {"purged": name, "messages": messages}, f"{counted(messages, 'message')} removed from queue {name}"


def _waiting(counts: Mapping[str, object]) -> str:
    return f"{counts['ready']} ready, {counts['leased']} leased, {counts['delayed']} delayed"


@served(app)
def delete(client: Client, name: Name, yes: Yes = False) -> Told:
    """Delete a queue and what waits in it.  Its topics keep what the log keeps of them.

    Example: penstock queue delete to-ship --yes
    """
    make_sure(f"queue {name} has {_waiting(client.queue(name))}: delete it?", yes)
    client.delete(name)
    return {"deleted": name}, f"queue {name} deleted"


FLAGS = frozenset({"durable", "auto_delete", "passive"})
"""What a declare takes beside the settings of a queue."""


def read_settings(
    given: Sequence[str] | None, unset: Sequence[str] | None = None, *, flags: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """What `--set` and `--unset` say.  InvalidArgument for what is no setting, and for one that is named twice."""
    from penstock.config.queue_arguments import refuse_unknown
    from penstock.config.queue_settings import KEY_ALIASES

    pairs = [*map(read_setting, given or []), *((_name_of(key), None) for key in unset or [])]
    settings = dict[str, Any]()
    for name, value in pairs:
        if name not in flags:
            refuse_unknown(KEY_ALIASES.get(name, name))
        if name in settings:
            raise InvalidArgument(f"{name} is named twice: say once what it is to be")
        settings[name] = value
    return settings


def _name_of(key: str) -> str:
    return key.strip().replace("-", "_")


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
    name = _name_of(key)
    from penstock.config.queue_settings import KEY_ALIASES, QUEUE_KEYS
    from penstock.config.queue_values import Kind

    known = QUEUE_KEYS.get(KEY_ALIASES.get(name, name))
    number = isinstance(read, int | float) and not isinstance(read, bool)
    if number and known is not None and known.kind in (Kind.DURATION, Kind.SIZE):
        what, unit, meant = ("duration", "s", "seconds") if known.kind is Kind.DURATION else ("size", "B", "bytes")
        raise InvalidArgument(f"--set {text!r}: a {what} needs a unit: write {name}={read}{unit} if {meant} are meant")
    return name, read


@app.command()
def peek(
    name: Name,
    count: Annotated[int, typer.Option("--count", min=1, help="How many, from the oldest.")] = 10,
    raw: Raw = False,
    lsn: Annotated[
        bool | None, typer.Option("--lsn/--no-lsn", help="Each behind its LSN; by default for a terminal.")
    ] = None,
    url: Url = DEFAULT_URL,
    json: JsonLines = False,
) -> None:
    """Print the oldest messages and leave them where they are.

    Example: penstock queue peek to-ship --count 3 --lsn
    """
    numbered = sys.stdout.isatty() if lsn is None else lsn
    with connect(url) as client:
        messages = client.peek(name, count)
        line = as_it_is if raw or json else reader(partial(client.queue, name))
    for message in messages:
        show_message(message, as_json=json, line=line, before=f"{message.lsn}  ".encode() if numbered else b"")
        if message.reason and not json:
            write(f"  died: {message.reason}")


@served(app)
def ack(
    client: Client,
    name: Name,
    bookmarks: Annotated[list[str] | None, typer.Argument(help="Bookmarks, apart or with commas.")] = None,
    filter: Annotated[str | None, typer.Option("--filter", help="Instead: whatever matches this expression.")] = None,
    option: Annotated[str | None, typer.Option("--option", help="`cancel` or `expire` instead of an ack.")] = None,
    by: Annotated[str, typer.Option("--by", help="The consumer that holds them, where leasing is strict.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Settle by a filter without asking.")] = False,
) -> Told:
    """Settle messages wherever they are, by bookmarks or by a filter, whoever holds them.

    Example: penstock queue ack to-ship --filter "/status = 'withdrawn'"
    """
    if (filter is None) == (not bookmarks):
        raise InvalidArgument("name bookmarks, or a --filter")
    if filter is None:
        affected = client.ack(name, ",".join(bookmarks or []), by=by, option=option)
    else:
        make_sure(f"queue {name} has {_waiting(client.queue(name))}: settle what matches?", yes)
        affected = client.ack_filter(name, filter, by=by, option=option)
    return {"queue": name, "affected": affected}, f"{counted(affected, 'message')} of queue {name}"


Filter = Annotated[str | None, typer.Option("--filter", help="Only messages that match this expression.")]
Count = Annotated[int | None, typer.Option("--count", min=1, help="So many at most, the oldest first.")]
Dry = Annotated[bool, typer.Option("--dry", "--dry-run", help="Say what would be moved, and change nothing.")]
Rate = Annotated[float | None, typer.Option("--rate", min=0.001, help="Messages a second at most.")]


@served(app)
def pause(
    client: Client,
    name: Name,
    until: Annotated[
        str | None, typer.Option("--until", help="A duration from now (10m) or a time; without it, until resumed.")
    ] = None,
) -> Told:
    """Deliver nothing from a queue for a while.  Publishes and acks go on, and a restart changes nothing.

    Example: penstock queue pause to-ship --until 15m
    """
    told = client.pause(name, None if until is None else when_of(until, "--until"))
    return dict(told), f"queue {name} is paused" + ("" if until is None else f" {until_or_for(until)}")


@served(app)
def resume(client: Client, name: Name) -> Told:
    """Deliver again.

    Example: penstock queue resume to-ship
    """
    was = client.resume(name)
    return {"queue": name, "was_paused": was}, f"queue {name} goes on" if was else f"queue {name} was not paused"


@served(app)
def explain(
    client: Client,
    name: Name,
    message: Annotated[str | None, typer.Option("--message", help="Of one message: its LSN or bookmark.")] = None,
) -> Told:
    """Say why a queue, or one message of it, is not being delivered now.  It changes nothing.

    Example: penstock queue explain to-ship --message 1042
    """
    told = client.explain(name, bookmark=message)
    if message is None:
        return told, "\n".join(reasons(told) or [f"nothing holds queue {name} back"])
    return told, "\n".join(line for one in told["queues"] for line in reasons(one))


@telling(app)
def redrive(
    name: Name,
    filter: Filter = None,
    count: Count = None,
    rate: Rate = None,
    dry: Dry = False,
    yes: Yes = False,
    spark: Annotated[bool, typer.Option("--spark", help="Have Spark look for them; the same ones are sent.")] = False,
    master: Annotated[str, typer.Option("--master", help="With --spark: local[*], or spark://host:port.")] = "local[*]",
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> Told:
    """Send dead letters back to the queue in which they died first.  Tells what it would do, and asks.

    Example: penstock queue redrive graveyard --filter "/error = 'timeout'" --count 500 --rate 50
    """
    if spark:
        if rate is not None:
            raise InvalidArgument("--rate does not go with --spark")
        return _redriven_by_spark(name, filter, count, master, url, dry=dry, yes=yes, strays=not json)
    with connect(url) as client:
        work = partial(client.redrive, name, filter=filter, count=count)
        return _moved(work, name, rate, dry=dry, yes=yes, strays=not json)


def _redriven_by_spark(
    name: str, filter: str | None, count: int | None, master: str, url: str, *, dry: bool, yes: bool, strays: bool
) -> Told:
    from penstock.expr import compile_filter
    from penstock.spark import session
    from penstock.spark.audits import redrive as run

    if filter is not None:
        compile_filter(filter)
    with connect(url) as client:
        client.queue(name)  # says within seconds if nobody answers, or knows it
    with session(master) as made:
        return _moved(partial(run, made, url, name, filter=filter, count=count), name, dry=dry, yes=yes, strays=strays)


@served(app)
def move(
    client: Client,
    name: Name,
    to: Annotated[str, typer.Option("--to", help="The queue that gets them.")],
    filter: Filter = None,
    count: Count = None,
    rate: Rate = None,
    dry: Dry = False,
    yes: Yes = False,
) -> Told:
    """Move what waits in a queue to the end of another.  Tells what it would do, and asks.

    Example: penstock queue move to-ship --to to-ship-later --filter "/weight > 30" --yes
    """
    return _moved(partial(client.move, name, to, filter=filter, count=count), name, rate, dry=dry, yes=yes)


def _moved(
    work: Callable[..., dict[str, Any]], name: str, rate: float | None = None, *, dry: bool, yes: bool,
    strays: bool = False,
) -> Told:  # fmt: skip
    """What `work` does, once it is known what that would be.  strays: what would stay is told before."""
    preview = work(dry_run=True)
    for why, number in preview["strays"].items() if strays else ():
        write(f"{counted(number, 'message')} would stay: {why}")
    matched = preview["matched"]
    if not matched:
        nothing: dict[str, object] = {"moved": 0, "matched": 0, "targets": {}, "strays": preview["strays"]}
        return nothing, f"nothing to move in queue {name}"
    if dry:
        return preview, f"{counted(matched, 'message')} of queue {name} would be moved: {_targets(preview)}"
    make_sure(f"{counted(matched, 'message')} of queue {name}: {_targets(preview)}.  Go on?", yes)
    done = work() if rate is None else work(rate=rate)
    moved = done["moved"]
    return done, f"{counted(moved, 'message')} moved" + (f": {_targets(done)}" if moved else "")


def _targets(done: Mapping[str, object]) -> str:
    targets = cast("Mapping[str, int]", done["targets"])
    return ", ".join(f"{number:,} to {queue}" for queue, number in sorted(targets.items()))
