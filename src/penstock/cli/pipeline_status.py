"""`pipeline list|status|lineage|graph`: how Spark pipelines are, which output came of which input, who reads what."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from penstock.cli.output import (
    DEFAULT_URL,
    Told,
    Url,
    connect,
    counted,
    family,
    note,
    served,
    telling,
    write,
    write_facts,
    write_table,
)
from penstock.cli.serving import ConfigFile, read_settings
from penstock.units import format_size

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.config.settings import Settings
    from penstock.spark.pipelines.lineage import Batch, Input, Output


app = family("pipeline", "List, check, run and look at Spark pipelines.")

RANGES_SHOWN = 3

BECAME = {"keep": "kept with a warning", "drop": "dropped", "dead-letter": "put aside", "fail": "stopped it"}
"""What became of rows that did not meet a rule, by its `otherwise`."""

STATUS_COLUMNS = ("pipeline", "state", "since", "rows/s", "lag", "batch", "remembers")


def statuses(client: Client, name: str | None) -> list[dict[str, Any]]:
    """What the server knows of pipelines.  Raises NotFound for a name that it has never heard."""
    told = client.action("pipeline_status", with_vhost=False, pipeline=name)
    return cast("list[dict[str, Any]]", told["pipelines"])


@served(app, "list")
def list_(client: Client) -> Told:
    """List the pipelines that a server's settings name or that run beside it: what they read, write, and when.

    Example: penstock pipeline list
    """
    return statuses(client, None), ("pipeline", "state", "reads", "writes", "when")


@telling(app)
def status(
    name: Annotated[str | None, typer.Argument(help="One pipeline, with everything known of it.")] = None,
    batches: Annotated[bool, typer.Option("--batches", help="Its last batches: what each read and wrote.")] = False,
    last: Annotated[int, typer.Option("--last", min=1, help="With --batches, how many.")] = 10,
    url: Url = DEFAULT_URL,
) -> Told:
    """Show how pipelines are: rows a second, lag, time of a batch, size of their state, last error.

    Example: penstock pipeline status revenue --batches
    """
    if batches:
        from penstock.errors import InvalidArgument

        if name is None:
            raise InvalidArgument("--batches are of one pipeline: name it")
        done = finished(name, url)[-last:]
        if not done:
            with connect(url) as client:
                statuses(client, name)  # NotFound where the server has not heard of it either
        return [one.plain() for one in done], lambda _: show_batches(name, done)
    with connect(url) as client:
        found = statuses(client, name)
        if name is not None:
            return found[0], lambda one: write_facts(facts(one))
        left = left_behind(client)
    return found, lambda _: _show_all(found, left)


def _show_all(found: Sequence[Mapping[str, Any]], left: Sequence[str]) -> None:
    write_table(STATUS_COLUMNS, [row(one) for one in found], whole=("state", "since"))
    for line in (*filter(None, map(trouble, found)), *left):
        write(line)


def left_behind(client: Client) -> list[str]:
    """Sentences about streams of pipelines that are no more; none for who may not see streams."""
    from penstock.cli.driver_jobs import orphans
    from penstock.errors import Refused

    try:
        return orphans(client.streams())
    except Refused:
        return []


def row(one: Mapping[str, Any]) -> list[object]:
    """A line of the table."""
    rows, size = one.get("state_rows"), one.get("state_bytes")
    remembers = f"{rows:,}: {format_size(size or 0)}" if rows else None
    day, _, clock = str(one.get("since") or "").removesuffix("Z").partition("T")
    since = clock if day == time.strftime("%Y-%m-%d", time.gmtime()) else day
    speed, lag, batch = (one.get(name) for name in ("rows_per_second", "lag", "batch"))
    last = None if batch is None else f"{batch}: {told_ms(one.get('batch_ms'))}"
    return [one["pipeline"], one["state"], since, speed, lag, last, remembers]


def trouble(one: Mapping[str, Any]) -> str | None:
    """Its last error with the next try, or what it waits for, in one line; None where there is neither."""
    error, name = one.get("error"), one["pipeline"]
    if not error:
        return f"{name} waits: {one['waits_for']}" if one.get("waits_for") else None
    text = f"{name}: {str(error).removeprefix(f'pipeline {name}: ')}"
    return f"{text} (next try {one['next_try']})" if one.get("next_try") else text


def facts(one: Mapping[str, Any]) -> dict[str, object]:
    """Everything known of one pipeline, for a person; what is nothing is left out."""
    told = dict(one)
    expect = cast("dict[str, Any]", told.pop("expect", None) or {})
    told["batch time"] = told_ms(told.pop("batch_ms", None))
    told.pop("batch_time", None)
    phases = cast("dict[str, int]", told.pop("phases", None) or {})
    spent = [f"{name} {told_ms(ms)}" for name, ms in sorted(phases.items(), key=lambda one: -one[1]) if ms]
    told["phases"] = ", ".join(spent)
    rules = cast("list[dict[str, Any]]", expect.get("rules") or [])
    several = len({rule["input"] for rule in rules}) > 1
    for rule in rules:
        of = f"expect of {rule['input']}" if several else "expect"
        told[f"{of} {rule['rule']!r}"] = f"{counted(rule['rows'], 'row')} {BECAME.get(rule['otherwise'], '')}"
    if rules:
        told["rows checked"] = expect["rows"]
    return {name.replace("_", " "): value for name, value in told.items() if value not in (None, "", {}, [])}


def told_ms(value: object) -> str | None:
    return f"{value / 1000:.2f} s" if isinstance(value, (int, float)) else None


@telling(app)
def lineage(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The pipeline.")],
    lsn: Annotated[
        int | None, typer.Option("--lsn", min=1, help="Only what this message went into, or came of.")
    ] = None,
    last: Annotated[int, typer.Option("--last", min=1, help="How many batches, the newest ones.")] = 20,
    url: Url = DEFAULT_URL,
) -> Told:
    """Show of which messages each batch of a pipeline was made, and what it became.  The log tells it.

    Example: penstock pipeline lineage revenue --lsn 123456
    """
    from penstock.spark.pipelines.lineage import about, read
    from penstock.spark.remote import BATCH_PATIENCE_S, Remote, Where

    server = Remote(Where(url, patience=BATCH_PATIENCE_S))
    batches = read(server, name)
    found = [(one, "") for one in batches] if lsn is None else about(server, batches, lsn)
    shown = found[-last:]

    def show(told: object) -> None:
        if not shown:
            what = "the log knows no finished batch" if lsn is None else f"message {lsn} is neither input nor output"
            note(f"{what} of pipeline {name}")
            return
        if len(shown) < len(found):
            note(f"the newest {len(shown)} of {len(found)} batches; --last shows more")
        _show_rows(name, ("input", "output"), shown, ("message",) if lsn is not None else ())

    return [{**one.plain(), **({"message": what} if what else {})} for one, what in shown], show


def _show_rows(
    name: str, columns: tuple[str, str], batches: Sequence[tuple[Batch, str]], more: tuple[str, ...] = ()
) -> None:
    """Batches of a pipeline.  columns: what the last two are called.  more: the column of what stands beside each."""
    rows = [(*_row(one), *([what] if more else [])) for one, what in batches]
    head = ("batch", "finished")
    write_table((*head, *columns, *more), rows, title=f"pipeline {name}", whole=head)


def finished(name: str, url: str) -> list[Batch]:
    """The batches of a pipeline that the log knows, oldest first."""
    from penstock.spark.pipelines.lineage import read
    from penstock.spark.remote import BATCH_PATIENCE_S, Remote, Where

    return read(Remote(Where(url, patience=BATCH_PATIENCE_S)), name)


def show_batches(name: str, batches: Sequence[Batch]) -> None:
    """A line for each: what it read, what it wrote, how many rows."""
    if batches:
        _show_rows(name, ("read", "wrote"), [(one, "") for one in batches])
    else:
        note(f"pipeline {name} has finished no batch yet")


@telling(app)
def graph(
    config: ConfigFile = None,
    dot: Annotated[bool, typer.Option("--dot", help="Print a graph for Graphviz instead.")] = False,
) -> Told:
    """Show what each pipeline of the settings reads and writes.

    Example: penstock pipeline graph penstock.toml --dot | dot -Tsvg > pipelines.svg
    """
    edges = edges_of(read_settings(config, {}))
    found = [{"pipeline": name, "reads": reads, "writes": writes} for name, reads, writes in edges]
    return found, "\n".join(_dotted(edges)) if dot else ("reads", "pipeline", "writes")


def _dotted(edges: Sequence[tuple[str, Sequence[str], Sequence[str]]]) -> Iterator[str]:
    """The lines of a graph for Graphviz."""
    yield "digraph pipelines {\n  rankdir=LR"
    for name, reads, writes in edges:
        box = _quoted(f"pipeline {name}")
        yield f"  {box} [shape=box]"
        yield from (f"  {_quoted(source)} -> {box}" for source in reads)
        yield from (f"  {box} -> {_quoted(target)}" for target in writes)
    yield "}"


def edges_of(settings: Settings) -> list[tuple[str, list[str], list[str]]]:
    """Of each pipeline its name, what it reads and what it writes."""
    from penstock.spark.pipelines.definition import Definition

    out: list[tuple[str, list[str], list[str]]] = []
    for view in settings.view:
        if view.engine == "spark":
            out.append((f"view {view.name}", [_within(f"queue {view.source}", view.vhost)], [f"view {view.name}"]))
    for section in settings.pipeline:
        one = Definition.of(section.model_dump(mode="json", by_alias=True))
        letters = [f"topic {check.topic}" for given in one.inputs for check in given.expect if check.topic is not None]
        reads = [_within(given.text, given.vhost) for given in one.inputs]
        writes = [_within(to.text, to.vhost) for to in one.to]
        out.append((one.name, reads, [*writes, *dict.fromkeys(letters)]))
    return out


def _within(text: str, vhost: str) -> str:
    return text if vhost == "/" else f"{text} in vhost {vhost}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _row(one: Batch) -> tuple[str, str, str, str]:
    time = datetime.fromtimestamp(one.time_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")
    batch = str(one.batch) if one.backfill is None else f"{one.batch} of backfill {one.backfill}"
    made = [*map(_made, one.outputs), *(f"table {folder}" for folder in one.tables)]
    return batch, time, "; ".join(map(given, one.inputs)), "; ".join(made)


def given(one: Input) -> str:
    name = f"{one.kind} {one.exchange}/{one.name}" if one.exchange else f"{one.kind} {one.name}"
    if not one.known:
        return f"{name}: the log has lost which"
    if not one.pairs:
        return f"{name}: nothing"
    shown = ", ".join(_span(a, b - 1) for a, b in one.pairs[:RANGES_SHOWN])
    if len(one.pairs) > RANGES_SHOWN:
        shown = f"{_span(one.pairs[0][0], one.pairs[-1][1] - 1)} in {len(one.pairs)} ranges"
    return f"{name}: {shown}" if one.rows is None else f"{name}: {counted(one.rows, 'message')}, {shown}"


def _made(one: Output) -> str:
    name = f"{one.exchange}/{one.topic}" if one.exchange else one.topic
    return f"topic {name}: {counted(one.rows, 'message')}, {_span(one.first, one.last)}"


def _span(first: int, last: int) -> str:
    return f"LSN {first}" if first == last else f"LSN {first} to {last}"
