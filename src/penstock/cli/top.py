"""`top` and `drain`: a server as it works, and one that runs empty before it is stopped."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.output import (
    DEFAULT_URL,
    Json,
    Told,
    Url,
    connect,
    console_of,
    counted,
    root,
    served,
    shown,
    telling,
)
from penstock.errors import Draining, InvalidArgument, told_as
from penstock.records.dataclass import dataclass
from penstock.units import format_size, parse_duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.client import Client


RATES = {"in": "published", "out": "delivered", "acks": "acked"}
"""Messages a second, and the counts that they come from."""

COLUMNS = ("queue", "ready", "leased", "delayed", "consumers", "bytes")

SORTS = (*COLUMNS, *(f"{name}/s" for name in RATES))


@dataclass(frozen=True, slots=True)
class Look:
    """The server at one moment."""

    moment: float  # seconds, of a clock that never goes back
    server: dict[str, Any]
    queues: Sequence[dict[str, Any]]


def look(client: Client) -> Look:
    return Look(time.monotonic(), client.overview(), client.queues())


@telling(root)
def top(
    interval: Annotated[str, typer.Option("--interval", help="Time between two looks.")] = "1s",
    sort: Annotated[str, typer.Option("--sort", help=f"The highest first: {', '.join(SORTS)}.")] = "ready",
    once: Annotated[bool, typer.Option("--once", help="Print a single view, with rates over one interval.")] = False,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> Told:
    """Watch a server: queues with their rates, connections, memory and log.  q leaves.

    Where nobody looks on (a pipe), and with --json, it is as with --once.

    Example: penstock top --sort in/s
    """
    if sort not in SORTS:
        raise InvalidArgument(f"--sort {sort!r} is none of {', '.join(SORTS)}")
    with told_as(InvalidArgument, "--interval: "):
        seconds = parse_duration(interval) / 1e6
    with connect(url) as client:
        before = look(client)
        if once or json or not (sys.stdout.isatty() and sys.stdin.isatty()):
            time.sleep(seconds)
            return told(before, look(client), sort), lambda figures: console_of().print(view(figures))
        _watch(client, before, max(seconds, 0.1), sort)
    return None


def told(before: Look, now: Look, sort: str = "ready") -> dict[str, Any]:
    """Two looks as one view: `server` and `queues`, each with rates in messages a second."""
    passed = max(now.moment - before.moment, 1e-9)
    known = {one["queue"]: one for one in before.queues}
    queues: list[dict[str, Any]] = []
    for one in now.queues:
        then = known.get(one["queue"], one)  # what is new has no rate yet
        row = {name: one[name] for name in COLUMNS}
        for name, count in RATES.items():
            row[f"{name}/s"] = rate(then[count], one[count], passed)
        queues.append(row)
    queues.sort(key=lambda row: row["queue"])
    if sort != "queue":
        queues.sort(key=lambda row: -row[sort])
    server = dict(now.server)
    for name in ("published", "delivered", "acknowledged"):
        server[f"{name}/s"] = rate(before.server[name], now.server[name], passed)
    began = {one["pid"]: one["cpu"] for one in before.server.get("processes", ())}
    server["processes"] = [
        {**one, "cpu_share": round((one["cpu"] - began.get(one["pid"], one["cpu"])) / passed, 3)}
        for one in now.server.get("processes", ())
    ]
    return {"server": server, "queues": queues}


def rate(before: int, now: int, seconds: float) -> float:
    """A second; 0 where a count began anew, as after a restart."""
    return round(max(now - before, 0) / seconds, 1)


def view(figures: dict[str, Any], rows: int | None = None) -> RenderableType:
    """What a person sees; rows: so many queues at most."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    queues: list[dict[str, Any]] = figures["queues"]
    columns = (*COLUMNS[:-1], *(f"{name}/s" for name in RATES), "bytes")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        figure = column != "queue"  # where room is short names lose their end: a figure cut off is none
        table.add_column(column, justify="right" if figure else "left", no_wrap=figure)
    for one in queues[:rows]:
        size = format_size(one["bytes"])
        named = Text(shown(one["queue"]), no_wrap=True, overflow="ellipsis")
        table.add_row(named, *(Text(f"{one[name]:,}") for name in columns[1:-1]), Text(size))
    hidden = len(queues) - len(queues[:rows])
    more = [Text(f"and {hidden:,} more queues")] if hidden else []
    return Group(*(Text(line) for line in _head(figures["server"])), table, *more)


def _head(server: dict[str, Any]) -> Iterator[str]:
    """The lines above the queues."""
    yield (
        f"{server['name']}  {server['status']}  penstock {server['version']}  "
        f"{server['connections']:,} connections, {server['channels']:,} channels"
    )
    yield (
        f"messages/s  in {server['published/s']:,}  out {server['delivered/s']:,}  acks {server['acknowledged/s']:,}   "
        f"memory {format_size(server['resident_bytes'])}"
    )
    if gave_way := {name: count for name, count in server.get("memory_gave_way", {}).items() if count}:
        told = ", ".join(f"{count:,} of {name}" for name, count in gave_way.items())
        yield f"memory was short: {told} gave way"
    yield "processes  " + "   ".join(
        f"{one['name']} {format_size(one['resident'])} {100 * one['cpu_share']:.0f} %" for one in server["processes"]
    )
    yield (
        f"log {format_size(server['log_bytes'])} in {server['log_segments']:,} segments, "
        f"LSN {server['last_lsn']:,}, {server['last_lsn'] - server['durable_lsn']:,} not on disk yet; "
        f"disk free {format_size(server['disk_free_bytes'])}"
    )


def _watch(client: Client, before: Look, seconds: float, sort: str) -> None:
    """A screen that renews itself until q is typed, or Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    with _keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        now = before
        while True:
            live.update(view(told(before, now, sort), max(console.height - 8, 1)), refresh=True)
            if _leaves(seconds):
                return
            before, now = now, look(client)


@contextmanager
def _keys() -> Generator[None]:
    """Keys are read as they are typed, and not shown."""
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _leaves(seconds: float) -> bool:
    """Whether q was typed within so many seconds."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        try:
            if select.select([sys.stdin], [], [], left)[0] and sys.stdin.read(1) in {"q", "Q", ""}:
                return True
        except KeyboardInterrupt:
            return True
    return False


DRAIN_LOOK_S = 0.2


@served(root)
def drain(
    client: Client,
    timeout: Annotated[str, typer.Option("--timeout", help="How long to wait for leases to end.")] = "5m",
    undo: Annotated[bool, typer.Option("--undo", help="Take work again.")] = False,
    json: Json = False,
) -> Told:
    """Let a server run empty before it is stopped: no new messages, no new consumers, no new leases.

    Who holds messages settles them as ever; the command ends when no lease is left, with status 1 when the time is over
    first.  The server goes on draining then, until --undo or a restart.  Its readiness is false meanwhile.

    Example: penstock drain --timeout 2m && systemctl stop penstock
    """
    with told_as(InvalidArgument, "--timeout: "):
        seconds = parse_duration(timeout) / 1e6
    told = client.drain(undo=undo)
    if undo:
        return told, "the server takes work again"
    told = _emptied(client, told, seconds, quiet=json)
    if told["empty"]:
        return told, "the server is empty of work and may be stopped; `penstock drain --undo` lets it work again"
    left = f"{counted(told['leased'], 'message')} leased in {counted(told['queues'], 'queue')}"
    return told, None, Draining(f"still {left} after {timeout}; the server goes on draining")


def _emptied(remote: Client, told: dict[str, Any], seconds: float, *, quiet: bool) -> dict[str, Any]:
    """What is left when nothing is, or when the time is over."""
    shows = not quiet and sys.stderr.isatty()
    until = time.monotonic() + seconds
    while not told["empty"] and (left := until - time.monotonic()) > 0:
        if shows:
            sys.stderr.write(f"\r{counted(told['leased'], 'message')} leased ...   ")
        time.sleep(min(DRAIN_LOOK_S, left))
        told = remote.drain(look=True)
        if not told["draining"]:
            raise InvalidArgument("somebody undid the draining meanwhile")
    if shows:
        sys.stderr.write("\r" + " " * 40 + "\r")
    return told
