"""`pipeline backfill`: run a pipeline over a past range, beside its live stream."""

from __future__ import annotations

import json as json_text
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.output import Json, note, write, write_json
from penstock.cli.serving import read_settings

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.spark.remote import Where


def add_to(app: typer.Typer) -> None:
    """Put this command into the family `pipeline`."""
    app.command()(backfill)


def backfill(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The pipeline.")],
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="The settings file that has it.")],
    start: Annotated[str, typer.Option("--from", help="Where the range begins: a date or time, a bookmark, earliest.")],
    end: Annotated[str | None, typer.Option("--to", help="Where it ends; without it, now.")] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Write to this topic instead.")] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="Write to this queue instead.")] = None,
    table: Annotated[str | None, typer.Option("--table", help="Write Parquet into this folder instead.")] = None,
    id: Annotated[
        str | None, typer.Option("--id", help="Its name, to go on with it; without one, by range and outputs.")
    ] = None,
    max_rows: Annotated[int | None, typer.Option("--max-rows", min=1, help="Most rows of a batch.")] = None,
    url: Annotated[
        str | None, typer.Option("--url", envvar="PENSTOCK_URL", help="The server; without it, that of CONFIG.")
    ] = None,
    json: Json = False,
) -> None:
    """Run a pipeline over a past range of its topic or queue, once; the live stream goes on untouched.

    Each batch is committed once under the backfill's own name: the same command again goes on where it was, and
    does nothing when it is done.

    Example: penstock pipeline backfill revenue penstock.toml --from 2026-11-01 --to 2026-11-08 --table out/again
    """
    from penstock.cli.driver_jobs import folder_of, job
    from penstock.cli.pipeline_commands import handed, url_of
    from penstock.cli.supervisor import DRIVER
    from penstock.errors import NotFound
    from penstock.spark.pipelines.backfill import backfill_id, backfilled
    from penstock.spark.remote import remote
    from penstock.spark.sessions import find_java

    settings = read_settings(config, {})
    found = [one for one in settings.pipeline if one.name == name]
    if not found:
        raise NotFound(f"{config} has no pipeline {name!r}; it has {', '.join(one.name for one in settings.pipeline)}")
    given = found[0].model_dump(mode="json", by_alias=True)
    outputs = [{kind: one} for kind, one in (("topic", topic), ("queue", queue), ("table", table)) if one is not None]
    outputs = [{"vhost": found[0].to[0].vhost, **one} for one in outputs]
    key = id or backfill_id(start, end, json_text.dumps(outputs))
    what: dict[str, object] = {"id": key, "from": start, "to": end, "outputs": outputs, "max_rows": max_rows}
    folder = folder_of(settings)
    where = where_of(settings, url)
    reached = where.url if url is not None else url_of(settings, None, found)
    find_java()
    definition = backfilled(given, what, where, folder)  # what is wrong is told here
    job_name = definition.name
    made = job(settings, found, job_name, reached, path=[str(Path(config).absolute().parent)])
    made |= {"user": where.user, "password": where.password, "once": True, "pipelines": [{**given, "range": what}]}
    log = folder / f"{job_name}.log"
    note(f"backfill {key} of pipeline {name} runs; Spark writes to {log}")
    with open(log, "ab") as errors:
        process = handed(DRIVER, made, errors)
    try:
        status = process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGTERM)
        process.wait()
        note("stopped; the same command goes on where it was")
        raise typer.Exit(1) from None
    told = told_by(folder, job_name)
    if status == 0:
        remote(where).act("stream_release", stream=definition.name)
    if json:
        write_json({"id": key, "pipeline": name, **told})
    elif status:
        note(f"backfill {key} failed: {told.get('error') or f'see {log}'}")
    else:
        rows, batches = told.get("rows", 0), told.get("batches", 0)
        write(f"backfill {key} of pipeline {name} is done: {rows:,} rows in {batches} batches")
    if status:
        raise typer.Exit(status)


def told_by(folder: Path, name: str) -> dict[str, Any]:
    """What the driver said last."""
    try:
        found: Any = json_text.loads((folder / f"status-{name}.json").read_text())
        return dict(next(iter(found["pipelines"].values())))
    except (OSError, ValueError, KeyError, StopIteration):
        return {}
    finally:
        (folder / f"status-{name}.json").unlink(missing_ok=True)


def where_of(settings: Settings, url: str | None) -> Where:
    """The server of the settings, or that of a URL."""
    from penstock.cli.driver_jobs import login
    from penstock.cli.pipeline_commands import url_of
    from penstock.spark.remote import Where

    if url is not None:
        return Where(url, patience=10.0)
    user, password = login(settings)
    return Where(url_of(settings, None), user, password, 10.0)
