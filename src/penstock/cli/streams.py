"""`stream list|show|release`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.driver_jobs import holds, orphans
from penstock.cli.output import (
    Told,
    Yes,
    ago,
    counted,
    family,
    make_sure,
    named,
    served,
    write,
    write_facts,
    write_table,
)
from penstock.units import format_duration

if TYPE_CHECKING:
    from penstock.client import Client

app = family("stream", "Durable readers of queues and of the log: what they hold.")

Name = Annotated[str, typer.Argument(help="The stream.")]


@served(app, "list")
def list_(client: Client) -> Told:
    """List the streams: what each reads, what it has not read yet, and what it holds.

    Example: penstock stream list
    """
    return client.streams(), _show_all


def _show_all(streams: list[dict[str, Any]]) -> None:
    columns = ("stream", "reads", "state", "behind", "holds", "read")
    write_table(columns, [_row(one) for one in streams])
    for line in orphans(streams):
        write(line)


@served(app)
def show(client: Client, name: Name) -> Told:
    """Show one stream: who reads it, how far it is, and what it holds.

    Example: penstock stream show eu-orders
    """
    return named(client.streams(), "stream", name, "stream"), _show_one


def _show_one(stream: Mapping[str, Any]) -> None:
    _, reads, state, behind, held, read = _row(stream)
    abandon = stream["abandon_after_seconds"]
    facts = {
        "stream": stream["stream"],
        "reads": reads,
        "pipeline": _pipeline(stream),
        "filter": stream["filter"],
        "mode": stream["mode"],
        "state": state,
        "reader": stream["reader"],
        "read": read,
        "abandon after": "never" if abandon is None else format_duration(round(abandon * 1e6)),
        "behind": behind,
        "holds": held,
        "batches planned": stream["planned"],
    }
    if stream["mode"] == "log":
        facts |= {"begins at LSN": stream["start"], "next LSN": stream["position"]}
    else:
        facts |= {"batches settled": stream["floor"]}
    facts |= {"holds the log from LSN": stream["holds_from"], "epoch": stream["epoch"]}
    write_facts({key: value for key, value in facts.items() if value is not None and value != ""})


@served(app)
def release(
    client: Client,
    name: Name,
    drop: Annotated[bool, typer.Option("--drop", help="Forget the stream too; its name begins anew.")] = False,
    yes: Yes = False,
) -> Told:
    """Let go of what a stream holds: messages go back to their queue, the log may be deleted.  Its reader is refused.

    A query that starts again under the name goes on where its checkpoint is, as far as the log still has it.

    Example: penstock stream release eu-orders --drop --yes
    """
    stream = named(client.streams(), "stream", name, "stream")
    held, what = holds(stream), "forget the stream and release what it holds?" if drop else "release it?"
    make_sure(f"stream {name} reads {_reads(stream)} and holds {held}: {what}", yes)
    released = client.release_stream(name, drop=drop)
    facts = {"released": name, "messages": released, "dropped": drop}
    if stream["mode"] == "queue":
        end = ", and it is forgotten" if drop else ""
        back = f"{counted(released, 'message')} went back to queue {stream['queue']}"
        return facts, f"stream {name} released: {back}{end}"
    return facts, f"stream {name} released{': it is forgotten' if drop else ': it holds nothing of the log'}"


def _row(stream: Mapping[str, Any]) -> list[object]:
    known = stream["lag_messages"]
    lag = counted(stream["lag"], "LSN") if known is None else counted(known, "message")
    age, read = stream["age_seconds"], stream["read_seconds"]
    return [
        stream["stream"],
        _reads(stream),
        "no pipeline" if stream["orphaned"] and stream["state"] == "held" else stream["state"],
        lag + (f", {ago(age)}" if age else ""),
        holds(stream),
        "" if read is None else f"{ago(read)} ago",
    ]


def _pipeline(stream: Mapping[str, Any]) -> str | None:
    name: str | None = stream["pipeline"]
    return f"{name}, which the settings do not have" if stream["orphaned"] else name


def _reads(stream: Mapping[str, Any]) -> str:
    for key in ("queue", "topic", "pattern"):
        if stream[key] is not None:
            where = f" of exchange {stream['exchange']}" if stream["exchange"] else ""
            return f"{key} {stream[key]}{where}"
    return "the log" if stream["mode"] == "log" else "a queue that is gone"
