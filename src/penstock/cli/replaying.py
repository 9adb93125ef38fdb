"""`replay`: messages of a topic from a place in the log on, without taking any."""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated, Protocol, cast

import typer

from penstock.cli.messages import show
from penstock.cli.output import DEFAULT_URL, Json, Url, note
from penstock.errors import InvalidArgument, NotFound


def add_to(app: typer.Typer) -> None:
    """Put this command into the tree."""
    app.command()(replay)


def replay(
    topic: Annotated[
        str | None,
        typer.Argument(help="The topic: a key, or exchange/key.  A queue's name: what the queue is a view of."),
    ] = None,
    bookmark: Annotated[
        str,
        typer.Option("--bookmark", help="Where to start: a bookmark, EPOCH, NOW, a time, a list, or a range [a:b)."),
    ] = "EPOCH",
    pattern: Annotated[
        str | None, typer.Option("--pattern", help="A regular expression for topics, instead of one topic.")
    ] = None,
    filter: Annotated[str | None, typer.Option("--filter", help="An expression: show only what matches.")] = None,
    count: Annotated[int, typer.Option("--count", min=0, help="Stop after so many; 0: at the end.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what is published.")] = False,
    rate: Annotated[
        str | None, typer.Option("--rate", help="1000 (a second), 500KB (a second), or 2X as they came.")
    ] = None,
    rate_max_gap: Annotated[
        str | None, typer.Option("--rate-max-gap", help="The longest wait between two messages, for a rate like 2X.")
    ] = None,
    not_found: Annotated[
        str, typer.Option("--bookmark-not-found", help="What an unknown bookmark is: epoch, now or fail.")
    ] = "now",
    fields: Annotated[
        str | None, typer.Option("--fields", help="Fields of a JSON body to show: '-/,+/id', or all but '-/notes'.")
    ] = None,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Print the messages of a topic, settled or not, a line each.  Takes nothing.

    Example: penstock replay orders --bookmark 2026-11-20T08:00:00 --follow
    """
    from penstock.client import connect

    if (topic is None) == (pattern is None):
        raise InvalidArgument("name either a topic or a --pattern of topics")
    exchange, slash, key = (topic or "").partition("/")
    if not slash or not exchange:
        exchange, key = "", topic or ""
    with (
        connect(url) as client,
        client.replay(
            None if topic is None else key,
            bookmark,
            pattern=pattern,
            exchange=exchange,
            filter=filter,
            limit=count or None,
            follow=follow,
            rate=rate,
            rate_max_gap=rate_max_gap,
            bookmark_not_found=not_found,
            select=fields,
        ) as messages,
    ):
        shown = 0
        for message in messages:
            show(message, as_json=json)
            sys.stdout.flush()
            shown += 1
        if not shown:
            _tell_nothing(cast("_Named", client), topic, pattern, looked_at_all=bookmark == "EPOCH" and filter is None)


class _Named(Protocol):
    """What is asked of the client about a name."""

    def queue(self, name: str) -> object: ...
    def topic(self, name: str, exchange: str = "") -> object: ...


def _tell_nothing(client: _Named, topic: str | None, pattern: str | None, *, looked_at_all: bool) -> None:
    """Nothing was printed: say so.  NotFound where everything was looked at and nothing has that name."""
    if topic is None:
        note(f"no records for topics that match {pattern!r}")
        return
    said = f"no records for topic {topic!r}"
    if looked_at_all and not _is_known(client, topic):
        raise NotFound(f"{said} in the log, and no queue or declared topic has that name")
    note(said if looked_at_all else f"{said} from there on that match")


def _is_known(client: _Named, topic: str) -> bool:
    exchange, _, key = topic.rpartition("/")
    for ask in (partial(client.queue, topic), partial(client.topic, topic), partial(client.topic, key, exchange)):
        try:
            ask()
        except NotFound:
            continue
        return True
    return False
