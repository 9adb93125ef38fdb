"""`pipeline check|run|backfill|reset`: what is done with the Spark pipelines of a settings file.

Spark runs in a process of its own, so that what Java prints stays out of the answers.
"""

from __future__ import annotations

import json as jsons
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from penstock.cli.output import Json, Told, Yes, counted, make_sure, note, telling
from penstock.cli.pipeline_status import app, told_ms
from penstock.cli.serving import read_settings
from penstock.errors import DataFolderInUse, NotFound, SettingsError, Unavailable, known_name

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.spark.pipelines.pipeline import Pipeline
    from penstock.spark.remote import Where


WHAT = "Names of pipelines, and the settings file (default: --config)."
DEFAULT_CONFIG = "penstock.toml"

What = Annotated[list[str] | None, typer.Argument(metavar="NAME|CONFIG", help=WHAT)]
Config = Annotated[str, typer.Option("--config", "-c", envvar="PENSTOCK_CONFIG", help="The settings file.")]
SparkLog = Annotated[bool, typer.Option("--spark-log", help="Spark's own log, on standard error.")]
Server = Annotated[
    str | None, typer.Option("--url", envvar="PENSTOCK_URL", help="The server.  Default: where the settings listen.")
]

OfConfig = Annotated[
    str | None, typer.Option("--url", envvar="PENSTOCK_URL", help="The server; without it, that of CONFIG.")
]

LOOK_S = 0.2
STOP_S = 20.0

RESET_LOOK_S = 0.1
PATIENCE_S = 60.0
"""How long the process that runs a pipeline may take to let it begin anew."""

CHECKER = (sys.executable, "-m", "penstock.spark.pipelines.plan_check")
DRIVER = (sys.executable, "-m", "penstock.spark.pipelines.driver")


def chosen(what: Sequence[str], config: str) -> tuple[Settings, str, list[Any]]:
    """The settings, their file, and the pipelines that are meant.  SettingsError for names that are not there."""
    files = [one for one in what if os.path.isfile(one) or one.endswith((".toml", ".json", ".xml"))]
    if len(files) > 1:
        raise SettingsError(f"name one settings file, not {' and '.join(files)}")
    file = files[0] if files else config
    settings = read_settings(file, {}, inside=True, serves=False)
    names = [one for one in what if one not in files]
    return settings, file, _named(settings, file, names)


def _named(settings: Settings, file: str, names: Sequence[str]) -> list[Any]:
    """The pipelines of these names, or all.  NotFound for a name that is not there, SettingsError where none is."""
    known = {one.name: one for one in settings.pipeline}
    for name in names:
        if name not in known:
            raise NotFound(f"{file} has no [[pipeline]] {name!r}{known_name(name, known)}")
    if not known:
        raise SettingsError(f"{file} has no [[pipeline]]")
    return [one for name, one in known.items() if name in (names or known)]


def url_of(settings: Settings, url: str | None, pipelines: Sequence[Any] = ()) -> str:
    """Where the server is: as given, or where the settings have it listen.

    pipelines: that are to run, perhaps on a cluster; without, it is for this machine alone.
    SettingsError without a Flight door, and where executors would not reach it.
    """
    from penstock.cli.driver_jobs import NO_DOOR, address_here, door_of, url_for

    if url is not None:
        return url
    door = door_of(settings)
    if door is None:
        raise SettingsError(NO_DOOR)
    return url_for(settings, pipelines, door) if pipelines else address_here(settings, door)


@telling(app)
def check(
    what: What = None,
    config: Config = DEFAULT_CONFIG,
    url: Server = None,
    spark_log: SparkLog = False,
) -> Told:
    """Let Spark plan pipelines without running them: mistakes in SQL, columns, outputs, and whether checkpoints fit.

    No server is needed where `columns` are named; without one nobody can tell the columns of JSON.

    Example: penstock pipeline check penstock.toml
    """
    from penstock.cli.driver_jobs import job, resources
    from penstock.config.impossible import of_pipeline
    from penstock.spark.pipelines.folders import line_of
    from penstock.spark.sessions import find_java

    settings, file, pipelines = chosen(what or [], config)
    find_java()
    path = [str(Path.cwd()), str(Path(file).absolute().parent)]
    made = job(settings, pipelines, "check", url_of(settings, url), path=path, spark_log=spark_log)
    made |= {"conf": resources(None, settings)["conf"], "memory": "512m"}
    errors = None if spark_log else subprocess.PIPE
    process = subprocess.run(CHECKER, input=line_of(made), stdout=subprocess.PIPE, stderr=errors, check=False)
    verdicts = [jsons.loads(line) for line in process.stdout.splitlines() if line.startswith(b"{")]
    if len(verdicts) != len(pipelines):
        raise crashed(process.returncode, process.stderr or b"")
    for one, pipeline in zip(verdicts, pipelines, strict=True):
        one["notes"] = of_pipeline(pipeline, settings, file)
    wrong = any(one["verdict"] == "wrong" for one in verdicts)
    return verdicts, "\n".join(map(verdict, verdicts)), typer.Exit(2) if wrong else None


def crashed(status: int, errors: bytes) -> Exception:
    """Spark did not even start: the last line that it printed."""
    lines = [line for line in errors.decode("utf-8", "replace").splitlines() if line.strip()]
    last = f": {lines[-1]}" if lines else ""
    return SettingsError(f"Spark ended with status {status}{last}; --spark-log shows all it said")


def verdict(one: Mapping[str, Any]) -> str:
    """One line about a pipeline."""
    notes = "".join(f"; {note}" for note in one.get("notes") or ())
    if one["verdict"] != "good":
        return f"{one['pipeline']}: {one['verdict']}: {one['why']}{notes}"
    columns = ", ".join(f"{name} {kind}" for name, kind in cast("dict[str, str]", one["columns"]).items())
    remembers = ", remembers rows between batches" if one["remembers"] else ""
    return f"{one['pipeline']}: good ({columns}; mode {one['mode']}{remembers}){notes}"


@telling(app)
def run(
    what: What = None,
    config: Config = DEFAULT_CONFIG,
    once: Annotated[bool, typer.Option("--once", help="Take what there is now, then end.")] = False,
    url: Server = None,
    spark_log: SparkLog = False,
    json: Json = False,
) -> Told:
    """Run pipelines here, beside a server that runs already, until Ctrl-C; with --once until their input is used up.

    Example: penstock pipeline run revenue penstock.toml --once
    """
    from penstock.cli.driver_jobs import folder_of, groups, job, sweep
    from penstock.spark.sessions import find_java

    settings, file, pipelines = chosen(what or [], config)
    alone = groups(settings.model_copy(update={"pipeline": tuple(pipelines)}))
    if len(alone) > 1:
        names = ", ".join(one.name for one in pipelines)
        raise SettingsError(f"{names} have resources of their own: run them one at a time")
    find_java()
    folder = folder_of(settings)
    folder.mkdir(parents=True, exist_ok=True)
    sweep(folder, time.time())
    name = f"run-{os.getpid()}"
    path = [str(Path.cwd()), str(Path(file).absolute().parent)]
    where = url_of(settings, url, pipelines)
    made = job(settings, pipelines, name, where, path=path, spark_log=spark_log) | {"once": once}
    log, told = folder / f"driver-{name}.log", folder / f"status-{name}.json"
    try:
        with log.open("wb") as output:
            ended = watch(DRIVER, made, None if spark_log else output, told, show=not json)
        return _told_end(ended, statuses_in(told), log)
    finally:
        for leftover in (told, log):
            leftover.unlink(missing_ok=True)


def _told_end(ended: int, last: list[dict[str, Any]], log: Path) -> Told:
    """How a run ended, by its exit status and the last word of each pipeline."""
    failed = [one["error"] for one in last if one.get("error") and one["state"] == "failed"]
    why = failed if failed or not ended else [last_line(log) or f"the driver ended with status {ended}"]
    for one in why:
        note(f"penstock: {one}")
    return last, None, typer.Exit(ended if ended > 0 else 1) if ended else None


def watch(command: Sequence[str], made: Mapping[str, Any], output: Any, told: Path, *, show: bool) -> int:
    """Run the driver with this job and show how it comes on; SIGTERM and Ctrl-C stop it.  Its exit status."""
    process = handed(command, made, output)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: stopping.set())
    shown: dict[str, str] = {}
    asked = 0.0
    while (status := process.poll()) is None:
        if stopping.is_set() and not asked:
            process.terminate()
            asked = time.monotonic()
        if asked and time.monotonic() - asked > STOP_S:
            os.killpg(process.pid, signal.SIGKILL)
        if show:
            tell(told, shown)
        try:
            process.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            continue
    if show:
        tell(told, shown)
    return 0 if stopping.is_set() and status in (0, -signal.SIGTERM) else status


def handed(command: Sequence[str], made: Mapping[str, Any], output: Any) -> subprocess.Popen[bytes]:
    """A driver that was given its job; it ends when its standard input does, as at our own end."""
    from penstock.spark.pipelines.folders import line_of

    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True)
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it died at once, as its exit status will say
        process.stdin.write(line_of(made))
        process.stdin.flush()
    return process


def tell(told: Path, shown: dict[str, str]) -> None:
    """A line on standard error for each pipeline that has come on."""
    for one in statuses_in(told):
        text = f"{one['pipeline']}: {one['state']}, {counted(one['rows'], 'row')}"
        if one.get("batch") is not None:
            text += f", batch {one['batch']} in {told_ms(one['batch_ms'])}"
        if one.get("lag"):
            text += f", {one['lag']:,} to go"
        if one.get("error") and one["state"] == "waiting":
            text += f"; {one['error']}; next try {one['next_try']}"
        if one.get("waits_for"):
            text += f"; {one['waits_for']}"
        if shown.get(one["pipeline"]) != text:
            shown[one["pipeline"]] = text
            note(text)


def statuses_in(told: Path) -> list[dict[str, Any]]:
    """What a driver has written about its pipelines; nothing before it has."""
    try:
        found: dict[str, Any] = jsons.loads(told.read_text())
    except (FileNotFoundError, ValueError):
        return []
    return [{"pipeline": name, **one} for name, one in cast("dict[str, dict[str, Any]]", found["pipelines"]).items()]


def last_line(log: Path) -> str:
    """Of what the driver printed, the last thing that it said itself."""
    lines = log.read_text("utf-8", "replace").splitlines()
    said = [line.partition("penstock.pipelines: ")[2] for line in lines if " ERROR penstock.pipelines: " in line]
    return said[-1] if said else next((line.strip() for line in reversed(lines) if line.strip()), "")


@telling(app)
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
    url: OfConfig = None,
) -> Told:
    """Run a pipeline over a past range of its topic or queue, once; the live stream goes on untouched.

    Each batch is committed once under the backfill's own name: the same command again goes on where it was, and
    does nothing when it is done.

    Example: penstock pipeline backfill revenue penstock.toml --from 2026-11-01 --to 2026-11-08 --table out/again
    """
    from penstock.cli.driver_jobs import folder_of, job
    from penstock.spark.pipelines.reset import backfill_id, backfilled
    from penstock.spark.remote import remote
    from penstock.spark.sessions import find_java

    settings = read_settings(config, {}, inside=True, serves=False)
    found = _named(settings, config, [name])
    given = found[0].model_dump(mode="json", by_alias=True)
    given_outputs = {"topic": topic, "queue": queue, "table": table}
    vhost = found[0].to[0].vhost
    outputs = [{"vhost": vhost, kind: one} for kind, one in given_outputs.items() if one is not None]
    key = id or backfill_id(start, end, jsons.dumps(outputs))
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
    status = _driven(made, log)
    told = told_by(folder, job_name)
    if status == 0:
        remote(where).act("stream_release", stream=definition.name)
    facts = {"id": key, "pipeline": name, **told}
    if status:
        failed = f"backfill {key} failed: {told.get('error') or f'see {log}'}"
        return facts, lambda _: note(failed), typer.Exit(status)
    rows, batches = told.get("rows", 0), told.get("batches", 0)
    in_batches = f"{batches:,} batch{'' if batches == 1 else 'es'}"
    return facts, f"backfill {key} of pipeline {name} is done: {counted(rows, 'row')} in {in_batches}"


def _driven(made: Mapping[str, Any], log: Path) -> int:
    """The exit status of a driver that runs by itself.  Exit 1 where somebody stops it."""
    with open(log, "ab") as errors:
        process = handed(DRIVER, made, errors)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGTERM)
        process.wait()
        note("stopped; the same command goes on where it was")
        raise typer.Exit(1) from None


def told_by(folder: Path, name: str) -> dict[str, Any]:
    """What the driver said last."""
    try:
        found: Any = jsons.loads((folder / f"status-{name}.json").read_text())
        return dict(next(iter(found["pipelines"].values())))
    except (OSError, ValueError, KeyError, StopIteration):
        return {}
    finally:
        (folder / f"status-{name}.json").unlink(missing_ok=True)


def where_of(settings: Settings, url: str | None) -> Where:
    """The server of the settings, or that of a URL."""
    from penstock.cli.driver_jobs import login
    from penstock.spark.remote import Where

    if url is not None:
        return Where(url, patience=10.0)
    user, password = login(settings)
    return Where(url_of(settings, None), user, password, 10.0)


@telling(app)
def reset(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The pipeline, or view.NAME for a view on Spark.")],
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="The settings file that has it.")] = "penstock.toml",
    keep_place: Annotated[
        bool, typer.Option("--keep-place", help="Topics go on where they are; only what it remembers is forgotten.")
    ] = False,
    url: OfConfig = None,
    yes: Yes = False,
    json: Json = False,
) -> Told:
    """Let a pipeline begin anew: forget its checkpoint and what it remembers.  Says what will be read again, and asks.

    What is in its outputs stays.  The process that runs the pipeline does it; where nobody runs it, this command does.

    Example: penstock pipeline reset revenue penstock.toml --keep-place
    """
    from penstock.cli.driver_jobs import folder_of
    from penstock.spark.pipelines.folders import locked
    from penstock.spark.pipelines.reset import ask, foreseen, request_of

    settings = read_settings(config, {}, inside=True, serves=False)
    folder = folder_of(settings)
    pipeline = pipeline_of(settings, config, name, where_of(settings, url), folder)
    told = foreseen(pipeline, keep_place=keep_place)
    if not json:
        for one in told:
            note(one.text)
    make_sure(f"pipeline {name} forgets what it remembers and begins anew: go on?", yes)
    folder.mkdir(parents=True, exist_ok=True)
    ask(folder, name, keep_place=keep_place)
    try:
        with locked(folder, name):
            pipeline.begin_anew()
    except DataFolderInUse:
        wait_for(request_of(folder, name), name)
    inputs = [
        {"input": one.input, "stream": one.stream, "start": one.start, "position": one.position,
         "messages": one.held, "kept": one.kept} for one in told
    ]  # fmt: skip
    return {"pipeline": name, "reset": True, "inputs": inputs}, f"pipeline {name} begins anew"


def pipeline_of(settings: Settings, config: str, name: str, where: Where, folder: Path) -> Pipeline:
    """The pipeline, or the view on Spark, of this name.  NotFound when the settings have none."""
    from penstock.spark.pipelines.definition import Definition
    from penstock.spark.pipelines.folders import Place
    from penstock.spark.pipelines.pipeline import Pipeline
    from penstock.spark.view_pipeline import PREFIX, ViewPipeline

    views = {PREFIX + one.name: one for one in settings.view if one.engine == "spark"}
    pipelines = {one.name: one for one in settings.pipeline}
    found: Any = pipelines.get(name) or views.get(name)
    if found is None:
        raise NotFound(f"{config} has no [[pipeline]] {name!r}{known_name(name, [*pipelines, *views])}")
    given = found.model_dump(mode="json", by_alias=True)
    place = Place(where, folder)
    return ViewPipeline(given, place) if name in views else Pipeline(Definition.of(given), place)


def wait_for(request: Path, name: str) -> None:
    """Until the process that runs the pipeline has done it.  Unavailable when it does not."""
    event, deadline = threading.Event(), time.monotonic() + PATIENCE_S
    while request.exists():
        if time.monotonic() > deadline:
            raise Unavailable(
                f"the process that runs pipeline {name} has not let it begin anew within {PATIENCE_S:g} s; it will "
                "when it can: see penstock pipeline status"
            )
        event.wait(RESET_LOOK_S)
