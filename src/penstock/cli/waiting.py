"""`queue pause|resume|explain|redrive|move`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, cast

import typer

from penstock.cli.output import DEFAULT_URL, Json, Url, connect, counted, write, write_json
from penstock.cli.queues import Name, Yes, confirmed
from penstock.cli.single import reasons, until_or_for, when_of
from penstock.errors import InvalidArgument

Filter = Annotated[str | None, typer.Option("--filter", help="Only messages that match this expression.")]
Count = Annotated[int | None, typer.Option("--count", min=1, help="So many at most, the oldest first.")]
Dry = Annotated[bool, typer.Option("--dry", "--dry-run", help="Say what would be moved, and change nothing.")]
Rate = Annotated[float | None, typer.Option("--rate", min=0.001, help="Messages a second at most.")]


def add_to(app: typer.Typer) -> None:
    """Put these commands beside the other ones about queues."""
    for command in (pause, resume, explain, redrive, move):
        app.command()(command)


def pause(
    name: Name,
    until: Annotated[
        str | None, typer.Option("--until", help="A duration from now (10m) or a time; without it, until resumed.")
    ] = None,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Deliver nothing from a queue for a while.  Publishes and acks go on, and a restart changes nothing.

    Example: penstock queue pause to-ship --until 15m
    """
    with connect(url) as client:
        told = client.pause(name, None if until is None else when_of(until))
    if json:
        write_json(dict(told))
    else:
        write(f"queue {name} is paused" + ("" if until is None else f" {until_or_for(until)}"))


def resume(name: Name, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Deliver again.

    Example: penstock queue resume to-ship
    """
    with connect(url) as client:
        was = client.resume(name)
    if json:
        write_json({"queue": name, "was_paused": was})
    else:
        write(f"queue {name} goes on" if was else f"queue {name} was not paused")


def explain(
    name: Name,
    message: Annotated[str | None, typer.Option("--message", help="Of one message: its LSN or bookmark.")] = None,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Say why a queue, or one message of it, is not being delivered now.  It changes nothing.

    Example: penstock queue explain to-ship --message 1042
    """
    with connect(url) as client:
        told = client.explain(name, bookmark=message)
    if json:
        write_json(dict(told))
    elif message is None:
        lines = reasons(told)
        for line in lines or [f"nothing holds queue {name} back"]:
            write(line)
    else:
        for one in cast("list[Mapping[str, object]]", told["queues"]):
            for line in reasons(one):
                write(line)


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
) -> None:
    """Send dead letters back to the queue in which they died first.  Tells what it would do, and asks.

    Example: penstock queue redrive graveyard --filter "/error = 'timeout'" --count 500 --rate 50
    """
    if spark:
        if rate is not None:
            raise InvalidArgument("--rate does not go with --spark")
        _redrive_by_spark(name, filter, count, master, url, dry=dry, yes=yes, json=json)
        return
    with connect(url) as client:
        preview = client.redrive(name, filter=filter, count=count, dry_run=True)
        _strays(preview, json)
        if not _agreed(preview, name, dry, yes, json):
            return
        done = client.redrive(name, filter=filter, count=count, rate=rate)
    _tell(done, json)


def _redrive_by_spark(
    name: str, filter: str | None, count: int | None, master: str, url: str, *, dry: bool, yes: bool, json: bool
) -> None:
    from penstock.spark import session
    from penstock.spark.jobs.redriving import redrive as run

    with connect(url):
        pass  # says within seconds if nobody answers
    made = session(master)
    try:
        preview = run(made, url, name, filter=filter, count=count, dry_run=True)
        _strays(preview, json)
        if _agreed(preview, name, dry, yes, json):
            _tell(run(made, url, name, filter=filter, count=count), json)
    finally:
        made.stop()


def move(
    name: Name,
    to: Annotated[str, typer.Option("--to", help="The queue that gets them.")],
    filter: Filter = None,
    count: Count = None,
    rate: Rate = None,
    dry: Dry = False,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Move what waits in a queue to the end of another.  Tells what it would do, and asks.

    Example: penstock queue move to-ship --to to-ship-later --filter "/weight > 30" --yes
    """
    with connect(url) as client:
        preview = client.move(name, to, filter=filter, count=count, dry_run=True)
        if not _agreed(preview, name, dry, yes, json):
            return
        done = client.move(name, to, filter=filter, count=count, rate=rate)
    _tell(done, json)


def _agreed(preview: Mapping[str, object], name: str, dry: bool, yes: bool, json: bool) -> bool:
    """Whether to go on after what a dry run has told."""
    matched = cast("int", preview["matched"])
    if not matched:
        if json:
            write_json({"moved": 0, "matched": 0, "targets": {}, "strays": preview["strays"]})
        else:
            write(f"nothing to move in queue {name}")
        return False
    if dry:
        if json:
            write_json(dict(preview))
        else:
            write(f"{counted(matched, 'message')} of queue {name} would be moved: {_targets(preview)}")
        return False
    return confirmed(f"{counted(matched, 'message')} of queue {name}: {_targets(preview)}.  Go on?", yes)


def _tell(done: Mapping[str, object], json: bool) -> None:
    if json:
        write_json(dict(done))
        return
    moved = cast("int", done["moved"])
    write(f"{counted(moved, 'message')} moved" + (f": {_targets(done)}" if moved else ""))


def _targets(done: Mapping[str, object]) -> str:
    targets = cast("Mapping[str, int]", done["targets"])
    return ", ".join(f"{number:,} to {queue}" for queue, number in sorted(targets.items()))


def _strays(preview: Mapping[str, object], json: bool) -> None:
    if not json:
        for why, number in cast("Mapping[str, int]", preview["strays"]).items():
            write(f"{counted(number, 'message')} would stay: {why}")
