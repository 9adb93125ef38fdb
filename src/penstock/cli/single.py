"""`message show|cancel|reschedule`: one message, by its LSN or bookmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, cast

import typer

from penstock.cli.output import DEFAULT_URL, Json, Url, connect, note, tell, write, write_json, write_table
from penstock.errors import InvalidArgument
from penstock.units import parse_duration

app = typer.Typer(help="Show, withdraw or move one message.", no_args_is_help=True, rich_markup_mode=None)

Lsn = Annotated[str, typer.Argument(help="Its LSN, or its bookmark.")]
Queue = Annotated[str | None, typer.Option("--queue", help="In this queue alone; otherwise wherever it waits.")]

_TIMES = frozenset({"not_before", "expires_at", "until"})


@app.command()
def show(lsn: Lsn, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Tell the life of one message: published, delivered, given back, settled, dead, and why it waits now.

    Example: penstock message show 1042
    """
    with connect(url) as client:
        story = client.story(lsn)
        now = client.explain(bookmark=lsn)
    if json:
        write_json({**story, "now": now["queues"]})
        return
    rows = [
        [moment(cast("float", event["time"])), event["event"], event["queue"], details(event)]
        for event in cast("Sequence[Mapping[str, object]]", story["events"])
    ]
    write_table(("time", "event", "queue", "details"), rows)
    for one in cast("Sequence[Mapping[str, object]]", now["queues"]):
        for line in reasons(one):
            write(f"{one['queue']}: {line}" if one["queue"] else line)
    if not story["whole"]:
        note(f"read from LSN {story['lsn']} to {story['read_to']}; the log begins at {story['log_begins']}")


@app.command()
def cancel(lsn: Lsn, queue: Queue = None, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Withdraw a message while it waits; no dead letter comes of it.

    Example: penstock message cancel 1042
    """
    with connect(url) as client:
        done = client.cancel(lsn, queue=queue)
    _tell(done, json, "withdrawn from")


@app.command()
def reschedule(
    lsn: Lsn,
    when: Annotated[str, typer.Argument(help="A duration from now (2h), or a time.")],
    queue: Queue = None,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Let a message wait until another time, earlier or later.

    Example: penstock message reschedule 1042 2026-12-01T08:00:00Z
    """
    with connect(url) as client:
        done = client.reschedule(lsn, when_of(when), queue=queue)
    _tell(done, json, f"waits {until_or_for(when)} in")


def _tell(done: Mapping[str, object], json: bool, what: str) -> None:
    tell(dict(done), f"message {done['lsn']} {what} {', '.join(cast('Sequence[str]', done['queues']))}", json)


def when_of(text: str) -> datetime | str:
    """A duration as it is, anything else as a time; without a zone it is UTC."""
    try:
        parse_duration(text)
    except ValueError:
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            raise InvalidArgument(
                f"{text!r} is neither a duration such as 10m nor a time such as 2026-12-01T08:00:00Z"
            ) from None
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return text


def until_or_for(text: str) -> str:
    """A duration or a time, with the word that goes before it."""
    return f"for {text}" if isinstance(when_of(text), str) else f"until {text}"


def moment(seconds: float) -> str:
    """Seconds since the epoch, for people."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f} s after 1970"


def details(event: Mapping[str, object]) -> str:
    """What an event tells beside its name; nothing that is false or empty."""
    told = cast("Mapping[str, object]", event["details"])
    return ", ".join(
        f"{name} {moment(cast('float', value)) if name in _TIMES else _plain(value)}"
        for name, value in told.items()
        if value not in (None, False, "", [])
    )


def _plain(value: object) -> str:
    return " ".join(map(str, cast("list[object]", value))) if isinstance(value, list) else str(value)


def reasons(told: Mapping[str, object]) -> list[str]:
    """The sentences of an explanation."""
    return [one["text"] for one in cast("Sequence[Mapping[str, str]]", told["reasons"])]
