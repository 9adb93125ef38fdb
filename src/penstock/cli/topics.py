"""`topic list|show` and `sow`: declared topics, and the records of those with a key."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, cast

import typer

from penstock.cli.output import (
    DEFAULT_URL,
    Json,
    Url,
    connect,
    counted,
    note,
    tell,
    write,
    write_facts,
    write_json,
    write_table,
)
from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    from penstock.client import Client

app = typer.Typer(help="List and show declared topics and views.", no_args_is_help=True, rich_markup_mode=None)

COLUMNS = ("topic", "kind", "exchange", "key", "expiration", "records")


def add_to(tree: typer.Typer) -> None:
    """Put these commands into the tree."""
    tree.add_typer(app, name="topic")
    tree.command()(sow)


@app.command("list")
def list_(url: Url = DEFAULT_URL, json: Json = False) -> None:
    """List the declared topics and the views, with the key and the number of records of those that have one.

    Example: penstock topic list
    """
    with connect(url) as client:
        topics = client.topics()
    if json:
        write_json(topics)
        return
    for topic in topics:
        topic["key"] = _key(topic)
    write_table(COLUMNS, [[topic.get(column) for column in COLUMNS] for topic in topics])


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="The topic or view.")],
    exchange: Annotated[str, typer.Option(help="Its exchange, if it is not the default one.")] = "",
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Show one topic or view: its key, its records, and what became of them since the server started.

    Example: penstock topic show orders
    """
    with connect(url) as client:
        topic = client.topic(name, exchange)
    if json:
        write_json(topic)
    else:
        write_facts({**topic, "key": _key(topic)})


def _key(topic: dict[str, object]) -> str | None:
    key = topic.get("key")
    if isinstance(key, list):
        return ", ".join(map(str, cast("list[object]", key)))
    return "given by publishers" if topic.get("key_from") else None


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
    exchange: Annotated[str, typer.Option(help="Its exchange, if it is not the default one.")] = "",
    fields: Annotated[
        str | None, typer.Option("--fields", help="Fields of a JSON body to show: '-/,+/id', or all but '-/notes'.")
    ] = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="Say at the end how many were compared, matched and shown.")
    ] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="Remove the records that match; says how many first.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Print the last message of each key, the rows of a view, or what is available in a queue.  Nothing is taken.

    Example: penstock sow orders --filter "/total > 5" --order-by "/total DESC" --top 10

    Example: penstock sow to-ship --select "/region, COUNT(/id) AS /n" --group-by /region
    """
    if skip is not None and top is None:
        raise InvalidArgument(f"--skip {skip} needs --top: it says how many of the first so many are passed over")
    if (select is None) != (group_by is None):
        given, missing = ("--select", "--group-by") if group_by is None else ("--group-by", "--select")
        raise InvalidArgument(f"{given} needs {missing}: together they say what rows to gather")
    if select is not None and fields is not None:
        raise InvalidArgument("--fields does not go with --select, which says which fields there are")
    if order_by is not None:
        from penstock.core.sow.ordering import order_of

        try:
            order_of(order_by)
        except InvalidArgument as error:
            raise InvalidArgument(str(error).replace("order_by", "--order-by")) from None
    with connect(url) as client:
        if delete:
            _delete(client, topic, exchange, filter, yes=yes, json=json)
            return
        records = client.sow(
            topic, exchange=exchange, filter=filter, order_by=order_by, top_n=top, skip_n=skip, projection=select,
            grouping=group_by, select=fields, stats=_stats if stats else None,
        )  # fmt: skip
        for record in records:
            if json:
                shown = ("sow_key", "lsn", "bookmark", "topic", "body")
                write_json({field: getattr(record, field) for field in shown}, indent=False)
            else:
                write(record.body.decode("utf-8", "replace"))


def _stats(told: dict[str, int]) -> None:
    note(f"{told['topic_matches']} compared, {told['matches']} matched, {told['records_returned']} shown")


def _delete(remote: Client, topic: str, exchange: str, filter: str | None, *, yes: bool, json: bool) -> None:
    if filter is None:
        raise InvalidArgument("--delete needs a --filter; '1=1' is all")
    if not yes:
        found = sum(1 for _ in remote.sow(topic, exchange=exchange, filter=filter))
        note(f"{counted(found, 'record')} of {topic} match now")
        if not sys.stdin.isatty():
            raise InvalidArgument("nobody is there to ask: say --yes to remove them")
        if not typer.confirm("Remove them?"):
            raise typer.Exit(1)
    removed = remote.sow_delete(topic, filter=filter, exchange=exchange)
    tell({"removed": removed}, f"{counted(removed, 'record')} removed", json)
