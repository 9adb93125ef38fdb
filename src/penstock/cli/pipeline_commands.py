"""`pipeline list|check|run|status`: the Spark pipelines of a settings file, and how they are on a server.

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

from penstock.cli.output import DEFAULT_URL, Json, Url, counted, note, write, write_facts, write_json, write_table
from penstock.units import format_size

if TYPE_CHECKING:
    from penstock.config.settings import Settings


app = typer.Typer(help="List, check, run and look at Spark pipelines.", no_args_is_help=True, rich_markup_mode=None)

WHAT = "Names of pipelines, and the settings file (default: --config)."
DEFAULT_CONFIG = "penstock.toml"

What = Annotated[list[str] | None, typer.Argument(metavar="[NAME]... [CONFIG]", help=WHAT)]
Config = Annotated[str, typer.Option("--config", "-c", envvar="PENSTOCK_CONFIG", help="The settings file.")]
SparkLog = Annotated[bool, typer.Option("--spark-log", help="Spark's own log, on standard error.")]
Server = Annotated[
    str | None, typer.Option("--url", envvar="PENSTOCK_URL", help="The server.  Default: where the settings listen.")
]

LOOK_S = 0.2
STOP_S = 20.0

CHECKER = (sys.executable, "-m", "penstock.spark.pipelines.plan_check")
DRIVER = (sys.executable, "-m", "penstock.spark.pipelines.driver")

BECAME = {"keep": "kept with a warning", "drop": "dropped", "dead-letter": "put aside", "fail": "stopped it"}
"""What became of rows that did not meet a rule, by its `otherwise`."""

STATUS_COLUMNS = ("pipeline", "state", "since", "rows/s", "lag", "batch", "remembers")


def statuses(url: str, name: str | None) -> list[dict[str, Any]]:
    """What the server knows of pipelines.  Raises NotFound for a name that it has never heard."""
    from penstock.client import connect

    with connect(url) as client:
        told = client.action("pipeline_status", with_vhost=False, pipeline=name)
    return cast("list[dict[str, Any]]", told["pipelines"])


@app.command("list")
def list_(url: Url = DEFAULT_URL, json: Json = False) -> None:
    """List the pipelines that a server's settings name or that run beside it: what they read, write, and when.

    Example: penstock pipeline list
    """
    found = statuses(url, None)
    if json:
        write_json(found)
        return
    rows = [[one["pipeline"], one["state"], one.get("reads"), one.get("writes"), one.get("when")] for one in found]
    write_table(("pipeline", "state", "reads", "writes", "when"), rows)


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(help="One pipeline, with everything known of it.")] = None,
    batches: Annotated[bool, typer.Option("--batches", help="Its last batches: what each read and wrote.")] = False,
    last: Annotated[int, typer.Option("--last", min=1, help="With --batches, how many.")] = 10,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Show how pipelines are: rows a second, lag, time of a batch, size of their state, last error.

    Example: penstock pipeline status revenue --batches
    """
    if batches:
        from penstock.cli.pipeline_lineage import finished, show_batches
        from penstock.errors import InvalidArgument

        if name is None:
            raise InvalidArgument("--batches are of one pipeline: name it")
        done = finished(name, url)
        if not done:
            statuses(url, name)  # NotFound where the server has not heard of it either
        show_batches(name, done[-last:], json=json)
        return
    found = statuses(url, name)
    if json:
        write_json(found[0] if name is not None else found)
    elif name is not None:
        write_facts(facts(found[0]))
    else:
        write_table(STATUS_COLUMNS, [row(one) for one in found], whole=("state", "since"))
        for line in (*filter(None, map(trouble, found)), *left_behind(url)):
            write(line)


def left_behind(url: str) -> list[str]:
    """Sentences about streams of pipelines that are no more; none for who may not see streams."""
    from penstock.cli.driver_jobs import orphans
    from penstock.client import connect
    from penstock.errors import Refused

    with connect(url) as client:
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


def chosen(what: Sequence[str], config: str) -> tuple[Settings, str, list[Any]]:
    """The settings, their file, and the pipelines that are meant.  SettingsError for names that are not there."""
    from penstock.cli.serving import read_settings
    from penstock.config.known_names import known_name
    from penstock.errors import NotFound, SettingsError

    files = [one for one in what if os.path.isfile(one) or one.endswith((".toml", ".json", ".xml"))]
    if len(files) > 1:
        raise SettingsError(f"name one settings file, not {' and '.join(files)}")
    file = files[0] if files else config
    settings = read_settings(file, {})
    names = [one for one in what if one not in files]
    known = [one.name for one in settings.pipeline]
    for name in names:
        if name not in known:
            raise NotFound(f"{file} has no [[pipeline]] {name!r}{known_name(name, known)}")
    found = [one for one in settings.pipeline if not names or one.name in names]
    if not found:
        raise SettingsError(f"{file} has no [[pipeline]]")
    return settings, file, found


def url_of(settings: Settings, url: str | None, pipelines: Sequence[Any] = ()) -> str:
    """Where the server is: as given, or where the settings have it listen.

    pipelines: that are to run, perhaps on a cluster; without, it is for this machine alone.
    SettingsError without a Flight door, and where executors would not reach it.
    """
    from penstock.cli.driver_jobs import url_for
    from penstock.cli.reaching import NO_DOOR, address_here, door_of
    from penstock.errors import SettingsError

    if url is not None:
        return url
    door = door_of(settings)
    if door is None:
        raise SettingsError(NO_DOOR)
    return url_for(settings, pipelines, door) if pipelines else address_here(settings, door)


@app.command()
def check(
    what: What = None,
    config: Config = DEFAULT_CONFIG,
    url: Server = None,
    spark_log: SparkLog = False,
    json: Json = False,
) -> None:
    """Let Spark plan pipelines without running them: mistakes in SQL, columns, outputs, and whether checkpoints fit.

    No server is needed where `columns` are named; without one nobody can tell the columns of JSON.

    Example: penstock pipeline check penstock.toml
    """
    from penstock.cli.driver_jobs import job, resources
    from penstock.spark.pipelines.inbox import line_of
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
        one["notes"] = undeclared(pipeline, settings, file)
    if json:
        write_json(verdicts)
    for one in [] if json else verdicts:
        write(verdict(one))
    if any(one["verdict"] == "wrong" for one in verdicts):
        raise typer.Exit(2)


def crashed(status: int, errors: bytes) -> Exception:
    """Spark did not even start: the last line that it printed."""
    from penstock.errors import SettingsError

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


def undeclared(pipeline: Any, settings: Settings, file: str) -> list[str]:
    """Sentences about queues that the settings do not have: a client may declare them, or a name is misspelt."""
    from penstock.config.known_names import known_name

    known = [one.name for one in settings.queue]
    asked = [one.queue for one in (*pipeline.source.values(), *pipeline.to) if one.queue is not None]
    return [
        f"{file} has no [[queue]] {name!r}{known_name(name, known)}: without it a client must declare it first"
        for name in dict.fromkeys(asked)
        if name not in known
    ]


@app.command()
def run(
    what: What = None,
    config: Config = DEFAULT_CONFIG,
    once: Annotated[bool, typer.Option("--once", help="Take what there is now, then end.")] = False,
    url: Server = None,
    spark_log: SparkLog = False,
    json: Json = False,
) -> None:
    """Run pipelines here, beside a server that runs already, until Ctrl-C; with --once until their input is used up.

    Example: penstock pipeline run revenue penstock.toml --once
    """
    from penstock.cli.driver_jobs import folder_of, groups, job, sweep
    from penstock.errors import SettingsError
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
        last = statuses_in(told)
        if json:
            write_json(last)
        failed = [one for one in last if one.get("error") and one["state"] == "failed"]
        for one in failed:
            note(f"penstock: {one['error']}")
        if ended and not failed:
            note(f"penstock: {last_line(log) or f'the driver ended with status {ended}'}")
        if ended:
            raise typer.Exit(ended if ended > 0 else 1)
    finally:
        for leftover in (told, log):
            leftover.unlink(missing_ok=True)


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
    from penstock.spark.pipelines.inbox import line_of

    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True)
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it died at once, as its exit status will say
        process.stdin.write(line_of(made))
        process.stdin.flush()
    return process


def tell(told: Path, shown: dict[str, str]) -> None:
    """A line on standard error for each pipeline that has come on."""
    for one in statuses_in(told):
        text = f"{one['pipeline']}: {one['state']}, {one['rows']:,} rows"
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
