"""`drain`: let a server run empty of work before it is stopped."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.output import DEFAULT_URL, Json, Url, connect, counted, write, write_json
from penstock.errors import Draining, InvalidArgument
from penstock.units import parse_duration

if TYPE_CHECKING:
    from penstock.client import Client

LOOK_S = 0.2


def add_to(tree: typer.Typer) -> None:
    """Put this command into the tree."""
    tree.command()(drain)


def drain(
    timeout: Annotated[str, typer.Option("--timeout", help="How long to wait for leases to end.")] = "5m",
    undo: Annotated[bool, typer.Option("--undo", help="Take work again.")] = False,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Let a server run empty before it is stopped: no new messages, no new consumers, no new leases.

    Who holds messages settles them as ever; the command ends when no lease is left, with status 1 when the time is over
    first.  The server goes on draining then, until --undo or a restart.  Its readiness is false meanwhile.

    Example: penstock drain --timeout 2m && systemctl stop penstock
    """
    try:
        seconds = parse_duration(timeout) / 1e6
    except ValueError as error:
        raise InvalidArgument(f"--timeout: {error}") from None
    with connect(url) as client:
        told = client.drain(undo=undo)
        if not undo:
            told = _wait(client, told, seconds, quiet=json)
    if json:
        write_json(told)
    elif undo:
        write("the server takes work again")
    elif told["empty"]:
        write("the server is empty of work and may be stopped; `penstock drain --undo` lets it work again")
    if not undo and not told["empty"]:
        left = f"{counted(told['leased'], 'message')} leased in {counted(told['queues'], 'queue')}"
        raise Draining(f"after {timeout} there are {left}; the server goes on draining")


def _wait(remote: Client, told: dict[str, Any], seconds: float, *, quiet: bool) -> dict[str, Any]:
    """What is left when nothing is, or when the time is over."""
    shows = not quiet and sys.stderr.isatty()
    until = time.monotonic() + seconds
    while not told["empty"] and (left := until - time.monotonic()) > 0:
        if shows:
            sys.stderr.write(f"\r{counted(told['leased'], 'message')} leased ...   ")
        time.sleep(min(LOOK_S, left))
        told = remote.drain(look=True)
        if not told["draining"]:
            raise InvalidArgument("somebody undid the draining meanwhile")
    if shows:
        sys.stderr.write("\r" + " " * 40 + "\r")
    return told
