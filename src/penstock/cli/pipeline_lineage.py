"""`pipeline lineage` and `pipeline graph`: which output came of which input, and who reads and writes what."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.output import DEFAULT_URL, Json, Url, counted, note, write, write_json, write_table
from penstock.cli.serving import ConfigFile, read_settings

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.spark.pipelines.lineage import Batch, Input, Output


RANGES_SHOWN = 3


def add_to(app: typer.Typer) -> None:
    """Put these commands into the family `pipeline`."""
    app.command()(lineage)
    app.command()(graph)


def lineage(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The pipeline.")],
    lsn: Annotated[
        int | None, typer.Option("--lsn", min=1, help="Only what this message went into, or came of.")
    ] = None,
    last: Annotated[int, typer.Option("--last", min=1, help="How many batches, the newest ones.")] = 20,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Show of which messages each batch of a pipeline was made, and what it became.  The log tells it.

    Example: penstock pipeline lineage revenue --lsn 123456
    """
    from penstock.spark.pipelines.lineage import about, read
    from penstock.spark.remote import BATCH_PATIENCE_S, Remote, Where

    server = Remote(Where(url, patience=BATCH_PATIENCE_S))
    batches = read(server, name)
    found = [(one, "") for one in batches] if lsn is None else about(server, batches, lsn)
    shown = found[-last:]
    if json:
        write_json([{**one.plain(), **({"message": what} if what else {})} for one, what in shown])
        return
    if not found:
        what = f"message {lsn} is neither input nor output" if lsn is not None else "the log knows no finished batch"
        note(f"{what} of pipeline {name}")
        return
    if len(shown) < len(found):
        note(f"the newest {len(shown)} of {len(found)} batches; --last shows more")
    head = ("batch", "finished", "input", "output")
    write_table(
        (*head, "message") if lsn is not None else head,
        [(*_row(one), what) if lsn is not None else _row(one) for one, what in shown],
        title=f"pipeline {name}",
        whole=("batch", "finished"),
    )


def finished(name: str, url: str) -> list[Batch]:
    """The batches of a pipeline that the log knows, oldest first."""
    from penstock.spark.pipelines.lineage import read
    from penstock.spark.remote import BATCH_PATIENCE_S, Remote, Where

    return read(Remote(Where(url, patience=BATCH_PATIENCE_S)), name)


def show_batches(name: str, batches: Sequence[Batch], *, json: bool) -> None:
    """A line for each: what it read, what it wrote, how many rows."""
    if json:
        write_json([one.plain() for one in batches])
        return
    if not batches:
        note(f"pipeline {name} has finished no batch yet")
        return
    write_table(
        ("batch", "finished", "read", "wrote"),
        [_row(one) for one in batches],
        title=f"pipeline {name}",
        whole=("batch", "finished"),
    )


def graph(
    config: ConfigFile = None,
    dot: Annotated[bool, typer.Option("--dot", help="Print a graph for Graphviz instead.")] = False,
    json: Json = False,
) -> None:
    """Show what each pipeline of the settings reads and writes.

    Example: penstock pipeline graph penstock.toml --dot | dot -Tsvg > pipelines.svg
    """
    edges = edges_of(read_settings(config, {}))
    if json:
        write_json([{"pipeline": name, "reads": reads, "writes": writes} for name, reads, writes in edges])
    elif dot:
        write("digraph pipelines {\n  rankdir=LR")
        for name, reads, writes in edges:
            write(f"  {_quoted('pipeline ' + name)} [shape=box]")
            for source in reads:
                write(f"  {_quoted(source)} -> {_quoted('pipeline ' + name)}")
            for target in writes:
                write(f"  {_quoted('pipeline ' + name)} -> {_quoted(target)}")
        write("}")
    else:
        write_table(("reads", "pipeline", "writes"), [(", ".join(r), name, ", ".join(w)) for name, r, w in edges])


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
