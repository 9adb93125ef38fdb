"""`topic`, `sow`, `query` and `replay`: looking at topics, their records and their history, without taking anything."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, cast

import typer

from penstock.cli.messagefiles import FORMATS, check_new, new_file, writing
from penstock.cli.messages import Raw, as_it_is, reader
from penstock.cli.messages import show as show_message
from penstock.cli.output import (
    DEFAULT_URL,
    Json,
    JsonLines,
    Told,
    Url,
    Yes,
    connect,
    counted,
    family,
    make_sure,
    note,
    root,
    served,
    tell,
    telling,
    write,
    write_bytes,
    write_facts,
    write_json,
    write_list,
    write_table,
)
from penstock.errors import InvalidArgument, NotFound, known_name, told_as
from penstock.records.compute import decimal_texts
from penstock.records.message_types import PROTOBUF, SCHEMA_TYPES

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.client.reading import Result


app = family("topic", "List and show declared topics and views.")

OfExchange = Annotated[str, typer.Option("--exchange", help="Its exchange, if it is not the default one.")]
Shown = Annotated[
    str | None, typer.Option("--fields", help="Fields of a JSON body to show: '-/,+/id', or all but '-/notes'.")
]

COLUMNS = ("topic", "kind", "exchange", "key", "expiration", "records")


@served(app, "list")
def list_(client: Client) -> Told:
    """List the declared topics and the views, with the key and the number of records of those that have one.

    Example: penstock topic list
    """
    topics = client.topics()
    rows = [{**topic, "key": _key(topic)} for topic in topics]
    return topics, lambda _: write_list(rows, COLUMNS)


@served(app)
def show(
    client: Client,
    name: Annotated[str, typer.Argument(help="The topic or view.")],
    exchange: OfExchange = "",
) -> Told:
    """Show one topic or view: its key, its records, and what became of them since the server started.

    Example: penstock topic show orders
    """
    return client.topic(name, exchange), lambda topic: write_facts({**topic, "key": _key(topic)})


@served(app)
def schema(
    client: Client,
    name: Annotated[str, typer.Argument(help="The topic.")],
    register: Annotated[
        str | None, typer.Option(help="The next version, such as 'id bigint, total double', for readers.")
    ] = None,
    exchange: OfExchange = "",
) -> Told:
    """Show the versions of a topic's schema, or register the next one.

    Example: penstock topic schema orders --register "id bigint, total double"
    """
    if register is not None:
        client.register_schema(name, register, exchange)
    schemas: dict[str, str] = client.topic(name, exchange)["schemas"]
    rows = [{"version": number, "schema": text} for number, text in schemas.items()]
    return schemas, lambda _: write_list(rows, ("version", "schema"))


@telling(app, "message-type")
def message_type(
    name: Annotated[str, typer.Argument(help="avro or protobuf.")],
    files: Annotated[list[str], typer.Argument(help="A file of one schema, or some with their ids: 7=orders.avsc.")],
    message: Annotated[str | None, typer.Option(help="Of protobuf: the message, such as shop.Order.")] = None,
    header: Annotated[str | None, typer.Option(help="The header that has the id, if no body begins with it.")] = None,
) -> Told:
    """Print the message type of bodies with these schemas, for `x-message-type` and all that takes a message type.

    Of protobuf a file is what `protoc --include_imports --descriptor_set_out` has written.

    Example: penstock topic message-type avro orders.avsc
    """
    from penstock.config.queue_values import of_files

    if name not in SCHEMA_TYPES:
        raise InvalidArgument(f"{name!r} is not one of {', '.join(SCHEMA_TYPES)}{known_name(name, SCHEMA_TYPES)}")
    if (message is None) == (name == PROTOBUF):
        raise InvalidArgument("--message goes with protobuf, which needs it: shop.Order")
    numbered = {number: path for number, _, path in (one.partition("=") for one in files) if number.isdecimal()}
    if len(numbered) < len(files) != 1:
        raise InvalidArgument("several schemas need ids: 7=orders-7.avsc 9=orders-9.avsc")
    with told_as(InvalidArgument):
        given = {"message": message, "header": header}
        kind = of_files({name: numbered or files[0]} | {key: one for key, one in given.items() if one is not None})
    return {"message_type": kind}, kind


def _key(topic: dict[str, object]) -> str | None:
    key = topic.get("key")
    if isinstance(key, list):
        return ", ".join(map(str, cast("list[object]", key)))
    return "given by publishers" if topic.get("key_from") else None


@root.command()
def sow(
    topic: Annotated[str, typer.Argument(help="A topic with a key, a view, or a queue.")],
    filter: Annotated[str | None, typer.Option("--filter", help="Only records that match this expression.")] = None,
    order_by: Annotated[str | None, typer.Option("--order-by", help="Such as '/total DESC, /id'.")] = None,
    top: Annotated[int | None, typer.Option("--top", min=1, help="The first so many.")] = None,
    skip: Annotated[int | None, typer.Option("--skip", min=0, help="Pass over so many first; with --top.")] = None,
    select: Annotated[
        str | None, typer.Option("--select", help="Gather: '/region, SUM(/total) AS /total'; with --group-by.")
    ] = None,
    group_by: Annotated[str | None, typer.Option("--group-by", help="One row for each of these, as '/region'.")] = None,
    exchange: OfExchange = "",
    fields: Shown = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="Say at the end how many were compared, matched and shown.")
    ] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="Remove the records that match; says how many first.")
    ] = False,
    yes: Yes = False,
    raw: Raw = False,
    url: Url = DEFAULT_URL,
    json: JsonLines = False,
) -> None:
    """Print the last message of each key, the rows of a view, or what is available in a queue.  Nothing is taken.

    Example: penstock sow orders --filter "/total > 5" --order-by "/total DESC" --top 10

    Example: penstock sow to-ship --select "/region, COUNT(/id) AS /n" --group-by /region
    """
    if skip is not None and top is None:
        raise InvalidArgument(f"--skip {skip} needs --top: it says how many of the first so many are passed over")
    _refuse_gathering(select, group_by, fields)
    _refuse_order(order_by)
    with connect(url) as client:
        if delete:
            tell(_delete(client, topic, exchange, filter, yes=yes), as_json=json)
            return
        records = client.sow(
            topic, exchange=exchange, filter=filter, order_by=order_by, top_n=top, skip_n=skip, projection=select,
            grouping=group_by, select=fields, stats=_stats if stats else None,
        )  # fmt: skip
        line = as_it_is if raw or json or select is not None else reader(partial(_facts, client, topic, exchange))
        for record in records:
            if json:
                shown = ("sow_key", "lsn", "bookmark", "topic", "body")
                write_json({field: getattr(record, field) for field in shown}, indent=False)
            else:
                write_bytes(line(record))


def _refuse_gathering(select: str | None, group_by: str | None, fields: str | None) -> None:
    if (select is None) != (group_by is None):
        given, missing = ("--select", "--group-by") if group_by is None else ("--group-by", "--select")
        raise InvalidArgument(f"{given} needs {missing}: together they say what rows to gather")
    if select is not None and fields is not None:
        raise InvalidArgument("--fields does not go with --select, which says which fields there are")


def _refuse_order(order_by: str | None) -> None:
    """What cannot be read is told in the words of the command line, before anybody is asked."""
    if order_by is not None:
        from penstock.core.sow.select import order_of

        try:
            order_of(order_by)
        except InvalidArgument as error:
            raise InvalidArgument(str(error).replace("order_by", "--order-by")) from None


def _facts(client: Client, topic: str, exchange: str) -> Mapping[str, object]:
    """Of a topic or view, or of a queue of that name."""
    try:
        return client.topic(topic, exchange)
    except NotFound:
        return client.queue(topic)


def _stats(told: dict[str, int]) -> None:
    note(f"{told['topic_matches']} compared, {told['matches']} matched, {told['records_returned']} shown")


def _delete(remote: Client, topic: str, exchange: str, filter: str | None, *, yes: bool) -> Told:
    if filter is None:
        raise InvalidArgument("--delete needs a --filter; '1=1' is all")
    if not yes:
        found = sum(1 for _ in remote.sow(topic, exchange=exchange, filter=filter))
        note(f"{counted(found, 'record')} of {topic} match now")
        make_sure("Remove them?", yes, status=1)
    removed = remote.sow_delete(topic, filter=filter, exchange=exchange)
    return {"removed": removed}, f"{counted(removed, 'record')} removed"


SHOWN = 1000
"""Rows of a table for a person, unless `--limit` says otherwise."""


@root.command()
def query(
    sql: Annotated[str, typer.Argument(help="A SELECT in DuckDB's SQL; `-` reads it from standard input.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A file to write: .parquet, .csv, .arrow, .arrows or .jsonl.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Rows to show to a person at most; 0 for all.")] = SHOWN,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it is there.")] = False,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Ask in SQL, where each queue, topic and view is a table: of its messages, with the fields of JSON bodies.

    A queue has a column `state` (ready, leased, delayed).  topic.NAME is the history of a topic, queue.NAME, sow.NAME
    and view.NAME say which of several is meant.  Nothing is taken and nothing changes.

    Example: penstock query 'SELECT region, count(*) FROM "to-ship" GROUP BY 1'
    """
    statement = sys.stdin.read() if sql == "-" else sql
    if output is not None and json:
        raise InvalidArgument("--output and --json are two places for the rows: give one of them")
    if output is not None:
        check_new(output, overwrite=overwrite)
    with connect(url) as client:
        result = client.query(statement)
        if output is not None:
            rows = write_file(result, output)
            note(f"{counted(rows, 'row')} in {output}")
        elif json:
            _write_lines(result)
        else:
            _write_rows(result, limit)


def _write_lines(result: Result) -> None:
    """One JSON array of objects, each on a line of its own, written as they come."""
    from penstock.server.sql.value_types import to_json, values

    before = "["
    for batch in result.batches():
        for row in zip(*values(batch), strict=True):
            write(before + to_json(dict(zip(batch.schema.names, row, strict=True))).decode())
            before = ","
    write("[]" if before == "[" else "]")


def _write_rows(result: Result, limit: int) -> None:
    from penstock.server.sql.value_types import values

    names = list(result.schema.names)
    rows: list[list[object]] = []
    more = False
    for batch in result.batches():
        rows += map(list, zip(*values(batch), strict=True))
        if limit and len(rows) > limit:
            rows, more = rows[:limit], True
            break
    write_table(names, [[_cell(value) for value in row] for row in rows])
    note(f"{counted(len(rows), 'row')}{', and more: --limit 0 shows all, --output FILE keeps them' if more else ''}")


def _cell(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + ("Z" if value.tzinfo else "")
    return f"{value:.12g}" if isinstance(value, float) and not value.is_integer() else value


def write_file(result: Result, path: Path) -> int:
    """The rows as a file, whole or not at all; how many there were.

    Errors: InvalidArgument for an end of no format, and for a place where no file can be written.
    """
    import pyarrow as pa

    form = FORMATS.get(path.suffix.lower())
    if form is None:
        raise InvalidArgument(f"{path}: the end of the name says the format, one of {', '.join(FORMATS)}")
    rows = 0
    with new_file(path) as sink, writing(form, sink, "text" if form in ("csv", "jsonl") else "binary") as writer:
        for batch in result.batches():
            rows += batch.num_rows
            writer.write(plain(batch) if form == "csv" else batch)
        if not rows:
            writer.write(pa.RecordBatch.from_pylist([], result.schema))
    return rows


def plain(batch: Any) -> Any:
    """A batch whose structs and lists are JSON text, and whose decimals are text: CSV has nothing else for them."""
    import pyarrow as pa

    from penstock.server.sql.value_types import to_json

    for at, name in enumerate(batch.schema.names):
        column = batch.column(at)
        if pa.types.is_nested(column.type) and not pa.types.is_map(column.type):
            cells = [None if cell is None else to_json(cell).decode() for cell in column.to_pylist()]
            batch = batch.set_column(at, name, pa.array(cells, pa.string()))
        elif pa.types.is_decimal(column.type):
            batch = batch.set_column(at, name, decimal_texts(column))
    return batch


@root.command()
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
    fields: Shown = None,
    url: Url = DEFAULT_URL,
    json: JsonLines = False,
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
            show_message(message, as_json=json)
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
    if looked_at_all and (hint := _unknown(client, topic)) is not None:
        raise NotFound(f"{said} in the log, and no queue or declared topic has that name{hint}")
    note(said if looked_at_all else f"{said} from there on that match")


def _unknown(client: _Named, topic: str) -> str | None:
    """Of a name that nothing has, what the server says beside: `; did you mean 'x'?`, or nothing; None: one that is."""
    exchange, _, key = topic.rpartition("/")
    hint = ""
    for ask in (partial(client.queue, topic), partial(client.topic, topic), partial(client.topic, key, exchange)):
        try:
            ask()
        except NotFound as error:
            hint = hint or "".join(str(error).partition("; did you mean ")[1:])
            continue
        return None
    return hint
