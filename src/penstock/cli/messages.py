"""`publish` and `consume`: files and pipes in, queues out; `message show|cancel|reschedule`: one message by its LSN."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from penstock.cli.messagefiles import columns_said, format_of, tables, with_columns
from penstock.cli.output import (
    DEFAULT_URL,
    Json,
    JsonLines,
    Told,
    Url,
    connect,
    counted,
    family,
    moment,
    note,
    root,
    served,
    telling,
    until_or_for,
    when_of,
    write,
    write_bytes,
    write_json,
    write_table,
)
from penstock.errors import AccessRefused, InvalidArgument, NotFound, PreconditionFailed, Refused, told_as
from penstock.records.dataclass import dataclass
from penstock.records.message_types import JSON, MessageType
from penstock.records.properties import EMPTY, Properties, encode

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client import Client, Message, TableReceipt


Raw = Annotated[bool, typer.Option("--raw", help="Bodies as they are, also those of a type such as Avro.")]


@telling(root)
def publish(
    topic: Annotated[str | None, typer.Argument(help="The topic: a key, or exchange/key.")] = None,
    file: Annotated[
        Path | None, typer.Argument(help="Lines, CSV, Parquet or Arrow; without it, or with -: stdin.")
    ] = None,
    format: Annotated[
        str | None, typer.Option("--format", help="jsonl (lines), csv, parquet or arrow; default by name.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="A header; may come several times.")
    ] = None,
    priority: Annotated[int | None, typer.Option("--priority", min=0, max=255, help="0 to 255.")] = None,
    delay: Annotated[str | None, typer.Option("--delay", help="Not delivered before so long, as in 10s.")] = None,
    expiration: Annotated[str | None, typer.Option("--expiration", help="Ends undelivered after so long.")] = None,
    content_type: Annotated[str | None, typer.Option("--content-type", help="As in application/json.")] = None,
    message_id: Annotated[str | None, typer.Option("--message-id", help="Of the publisher's own.")] = None,
    correlation_id: Annotated[str | None, typer.Option("--correlation-id", help="What it belongs to.")] = None,
    reply_to: Annotated[str | None, typer.Option("--reply-to", help="Where an answer goes.")] = None,
    from_cut: Annotated[
        str | None,
        typer.Option(
            "--from-cut", metavar="CONFIG", help="Instead: what was cut off the log of this member of a cluster."
        ),
    ] = None,
    cut_file: Annotated[
        list[str] | None, typer.Option("--cut-file", help="Of it this file alone; may come several times.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="With --from-cut: publish, and do not only count.")] = False,
    amqp: Annotated[
        str | None, typer.Option("--amqp", help="With --from-cut: where AMQP is, amqp://host:port.")
    ] = None,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> Told:
    """Publish the lines or rows of a file: a line as it stands, or a row as JSON, is a message.

    Rows that the server refuses make the exit status 1, and so does what no queue and no declared topic takes, which is
    not stored; of an exchange (exchange/key) that is told and no failure.

    Headers, priority and the like are those of every message, but where a row has its own in a column of that name.

    With --from-cut and a member's settings: what `cluster lost` lists and no other member has, to where it was
    published.  Without --yes it is counted only.  A second time does nothing.

    Example: penstock publish orders orders.jsonl
    Example: echo '{"id": 7}' | penstock publish orders --header region=north --priority 3 --delay 10s
    """
    said = columns_said(header, priority, delay, expiration, content_type, message_id, correlation_id, reply_to)
    if from_cut is not None:
        if said:
            raise InvalidArgument(f"--from-cut goes without --{min(said)}: each message goes as it was published")
        if topic is not None:
            raise InvalidArgument("--from-cut goes without a topic: each message goes to where it was published")
        from penstock.cli.republishing import publish_of_member

        return publish_of_member(from_cut, cut_file or [], url, amqp, partial(progress, json=json), do=yes)
    if cut_file or yes or amqp is not None:
        raise InvalidArgument("--cut-file, --yes and --amqp go with --from-cut")
    if not topic:
        raise InvalidArgument("the topic is empty")
    file = None if file == Path("-") else file
    kind = format_of(file, format, topic)
    started = time.monotonic()
    with connect(url) as client:
        done = send(client, topic, with_columns(tables(file, kind), said), lambda rows: progress(rows, json=json))
    seconds = time.monotonic() - started
    ends: Exception | None = None
    if done.refused:
        ends = Refused(f"{done.refused:,} of {done.rows:,} messages were refused; the first: {done.why}")
    elif done.unroutable and "/" not in topic:
        ends = typer.Exit(1)
    facts = {"topic": topic, **done.plain(), "seconds": round(seconds, 6)}
    return facts, lambda _: _show_published(topic, file, done, seconds), ends


def progress(rows: int, *, json: bool) -> None:
    """How far it is, for a person who looks on."""
    if not json and sys.stderr.isatty():
        sys.stderr.write(f"\r{rows:,} messages")


@dataclass(slots=True)
class Sent:
    """What became of the messages of a file."""

    rows: int = 0
    stored: int = 0
    unroutable: int = 0  # confirmed and not stored: nobody wanted them
    refused: int = 0
    why: str = ""  # of the first that was refused
    first: int = 0  # the LSNs of those that are stored lie in first..last
    last: int = 0

    def plain(self) -> dict[str, int]:
        lsns = {"first_lsn": self.first, "last_lsn": self.last} if self.stored else {}
        return {"published": self.stored, "unroutable": self.unroutable, "refused": self.refused, **lsns}

    def place(self) -> str:
        """Where the log has them, for `message show`."""
        return f"LSN {self.first}" if self.first == self.last else f"LSNs {self.first} to {self.last}"

    def add(self, receipt: TableReceipt) -> None:
        """What became of one table."""
        if receipt.refused and not self.why:
            self.why = receipt.refused[0].message
        self.rows += receipt.rows
        self.stored += receipt.stored
        if receipt.stored:
            self.first, self.last = self.first or receipt.first, receipt.last
        self.unroutable += receipt.unroutable
        self.refused += receipt.refused_rows


def _show_published(topic: str, file: Path | None, done: Sent, seconds: float) -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r")
    if not done.rows:
        write(f"nothing was published to {topic}: {file or 'standard input'} has no message")
        return
    kept = f", all on disk: {done.place()}" if done.stored else ""
    write(f"{counted(done.stored, 'message')} published to {topic} in {seconds:.2f} s{kept}")
    if done.unroutable:
        note(f"{counted(done.unroutable, 'message')} not stored: no queue and no declared topic takes {topic!r}")


def send(client: Client, topic: str, tables: Iterable[pa.Table], told: Callable[[int], None]) -> Sent:
    """Publish tables to `K`, or to `E/K` where there is an exchange E: a key of the default one may hold a slash."""
    done = Sent()
    exchange, _, key = topic.partition("/")
    routed = bool(key and exchange)
    for table in tables:
        if routed:
            try:
                done.add(client.publish_table(key, table, exchange=exchange, mandatory=False))
            except NotFound:
                if done.rows:
                    raise  # the exchange was there when it began
                routed = False
        if not routed:
            done.add(client.publish_table(topic, table, mandatory=False))
        told(done.rows)
    return done


@root.command()
def consume(
    queue: Annotated[str, typer.Argument(help="The queue.")],
    filter: Annotated[str | None, typer.Option("--filter", help="An expression: take only what matches.")] = None,
    count: Annotated[
        int, typer.Option("--count", min=0, help="Stop after so many; 0 never stops, with --peek after all.")
    ] = 0,
    exec_: Annotated[
        str | None,
        typer.Option("--exec", help="Run this for each message, its body on stdin; status 0 acknowledges."),
    ] = None,
    peek: Annotated[bool, typer.Option("--peek/--ack", help="Look without taking, or take and acknowledge.")] = False,
    url: Url = DEFAULT_URL,
    json: JsonLines = False,
) -> None:
    """Take messages, print their bodies a line each, and acknowledge what was printed.

    Example: penstock consume to-ship --filter "/total > 5" --exec "./ship.sh"
    """
    from penstock.client.queue_contents import messages_of
    from penstock.wire.flight.commands import CONTENT_DEFAULT, of_messages

    if peek and (exec_ is not None or filter is not None):
        raise InvalidArgument("--peek goes with neither --exec nor --filter")
    command = None if exec_ is None else read_command(exec_)
    with connect(url) as client:
        if peek:
            columns = of_messages(CONTENT_DEFAULT)
            some = client.queue_batches(queue, limit=count if count > 0 else None, columns=columns)
            for message in messages_of(some):
                show(message, as_json=json)
            return
        backlog = min(count, 32) if count else 32
        with client.consume(queue, backlog=backlog, filter=filter) as consumer:  # whose end tells what was not settled

            def narrow(left: int) -> None:
                if left < backlog:
                    consumer.replace(max_backlog=left)

            settled = take(consumer, count, command, as_json=json, narrow=narrow)
    if exec_ is not None:
        note(f"{settled[0]:,} done, {settled[1]:,} put back")


def _acked(message: Message) -> None:
    """Say so where the message comes again."""
    if not message.ack():
        note(f"{message.bookmark} comes again: the connection it came over was lost")


def read_command(text: str) -> list[str]:
    """The words of a command, which is looked up before any message is taken.  InvalidArgument when it cannot run."""
    with told_as(InvalidArgument, f"--exec {text!r}: "):
        words = shlex.split(text)
    if not words:
        raise InvalidArgument("--exec names no command")
    if shutil.which(words[0]) is None:
        raise InvalidArgument(f"--exec {text!r}: {words[0]} is no program that can be run")
    return words


def take(
    messages: Iterable[Message],
    count: int,
    arguments: Sequence[str] | None,
    *,
    as_json: bool,
    narrow: Callable[[int], object] | None = None,
) -> tuple[int, int]:
    """Handle up to `count` messages (0: all that come), by a command if there is one.

    `narrow` is told before a message is settled how many more are wanted, so that no others are granted.
    Result: how many were done and how many were put back.  InvalidArgument when the command cannot be started; the
    message that it was meant for is put back.
    """
    done = failed = 0
    for message in messages:
        if count and narrow is not None:
            narrow(count - done - failed - 1)
        if arguments is None:
            show(message, as_json=as_json)
            sys.stdout.flush()
            _acked(message)
            done += 1
        else:
            try:
                status = subprocess.run(arguments, input=message.body, check=False).returncode
            except OSError as error:
                message.release()
                raise InvalidArgument(f"--exec {shlex.join(arguments)!r}: {error.strerror or error}") from error
            if status == 0:
                _acked(message)
                done += 1
            else:
                message.retry(error=f"{arguments[0]} ended with status {status}")
                failed += 1
        if count and done + failed == count:
            break
    return done, failed


def reader(ask: Callable[[], Mapping[str, object]]) -> Callable[[Message], bytes]:
    """How messages' bodies are shown to a person: those of a type that has fields as JSON, all others as they are.

    ask: the facts of the queue or topic that has them.
    """
    from penstock.expr.bodies import body_type

    try:
        kind = body_type(cast("MessageType", ask().get("message_type") or JSON))
    except (NotFound, AccessRefused, InvalidArgument, PreconditionFailed):  # no type that is known here
        return as_it_is
    if kind.name in _AS_THEY_ARE:
        return as_it_is

    def read(message: Message) -> bytes:
        heads = EMPTY if kind.header is None else encode(Properties(headers=dict(message.headers)))
        try:
            return kind.json(kind.one_whole(message.body, heads))
        except ValueError:
            return as_it_is(message)

    return read


_AS_THEY_ARE = frozenset({JSON, "binary", "nvfix", "fix", "xml"})
"""Types whose bodies are text already, or have no fields."""


def as_it_is(message: Message) -> bytes:
    """The body itself, byte for byte."""
    return message.body


def show(message: Message, *, as_json: bool, line: Callable[[Message], bytes] = as_it_is, before: bytes = b"") -> None:
    """One message on a line.  line: what a person sees of its body, and before: what of it stands there first."""
    if as_json:
        fields = ("lsn", "bookmark", "topic", "attempt", "reason", "body")
        write_json({field: getattr(message, field) for field in fields}, indent=False)
    else:
        write_bytes(before + line(message))


app = family("message", "Show, withdraw or move one message.")

Lsn = Annotated[str, typer.Argument(help="Its LSN, or its bookmark.")]
Queue = Annotated[str | None, typer.Option("--queue", help="In this queue alone; otherwise wherever it waits.")]

_TIMES = frozenset({"not_before", "expires_at", "until"})


@served(app, "show")
def tell_story(client: Client, lsn: Lsn) -> Told:
    """Tell the life of one message: published, delivered, given back, settled, dead, and why it waits now.

    Example: penstock message show 1042
    """
    return {**client.story(lsn), "now": client.explain(bookmark=lsn)["queues"]}, _show_story


def _show_story(story: Mapping[str, object]) -> None:
    rows = [
        [moment(cast("float", event["time"])), event["event"], event["queue"], details(event)]
        for event in cast("Sequence[Mapping[str, object]]", story["events"])
    ]
    write_table(("time", "event", "queue", "details"), rows)
    for one in cast("Sequence[Mapping[str, object]]", story["now"]):
        for line in reasons(one):
            write(f"{one['queue']}: {line}" if one["queue"] else line)
    if not story["whole"]:
        note(f"read from LSN {story['lsn']} to {story['read_to']}; the log begins at {story['log_begins']}")


@served(app)
def cancel(client: Client, lsn: Lsn, queue: Queue = None) -> Told:
    """Withdraw a message while it waits; no dead letter comes of it.

    Example: penstock message cancel 1042
    """
    return _told(client.cancel(lsn, queue=queue), "withdrawn from")


@served(app)
def reschedule(
    client: Client,
    lsn: Lsn,
    when: Annotated[str, typer.Argument(help="A duration from now (2h), or a time.")],
    queue: Queue = None,
) -> Told:
    """Let a message wait until another time, earlier or later.

    Example: penstock message reschedule 1042 2026-12-01T08:00:00Z
    """
    return _told(client.reschedule(lsn, when_of(when, "WHEN"), queue=queue), f"waits {until_or_for(when)} in")


def _told(done: Mapping[str, object], what: str) -> Told:
    return dict(done), f"message {done['lsn']} {what} {', '.join(cast('Sequence[str]', done['queues']))}"


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
