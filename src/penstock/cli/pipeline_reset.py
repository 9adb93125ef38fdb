"""`pipeline reset`: let a pipeline begin anew, by whoever runs it or here where nobody does."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.output import Json, note, write, write_json

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.spark.pipelines.pipeline import Pipeline
    from penstock.spark.remote import Where


LOOK_S = 0.1
PATIENCE_S = 60.0
"""How long the process that runs the pipeline may take to let it begin anew."""


def add_to(app: typer.Typer) -> None:
    """Put this command into the family `pipeline`."""
    app.command()(reset)


def reset(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The pipeline, or view.NAME for a view on Spark.")],
    config: Annotated[str, typer.Argument(metavar="[CONFIG]", help="The settings file that has it.")] = "penstock.toml",
    keep_place: Annotated[
        bool, typer.Option("--keep-place", help="Topics go on where they are; only what it remembers is forgotten.")
    ] = False,
    url: Annotated[
        str | None, typer.Option("--url", envvar="PENSTOCK_URL", help="The server; without it, that of CONFIG.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Let a pipeline begin anew: forget its checkpoint and what it remembers.  Says what will be read again, and asks.

    What is in its outputs stays.  The process that runs the pipeline does it; where nobody runs it, this command does.

    Example: penstock pipeline reset revenue penstock.toml --keep-place
    """
    from penstock.cli.driver_jobs import folder_of
    from penstock.cli.pipeline_backfill import where_of
    from penstock.cli.queues import confirmed
    from penstock.cli.serving import read_settings
    from penstock.errors import DataFolderInUse
    from penstock.spark.pipelines.folders import locked
    from penstock.spark.pipelines.reset import ask, foreseen, request_of

    settings = read_settings(config, {})
    folder = folder_of(settings)
    pipeline = pipeline_of(settings, config, name, where_of(settings, url), folder)
    told = foreseen(pipeline, keep_place=keep_place)
    if not json:
        for one in told:
            note(one.text)
    if not confirmed(f"pipeline {name} forgets what it remembers and begins anew: go on?", yes):
        return
    folder.mkdir(parents=True, exist_ok=True)
    ask(folder, name, keep_place=keep_place)
    try:
        with locked(folder, name):
            pipeline.begin_anew()
    except DataFolderInUse:
        wait_for(request_of(folder, name), name)
    if json:
        inputs = [
            {"input": one.input, "stream": one.stream, "start": one.start, "position": one.position,
             "messages": one.held, "kept": one.kept} for one in told
        ]  # fmt: skip
        write_json({"pipeline": name, "reset": True, "inputs": inputs})
    else:
        write(f"pipeline {name} begins anew")


def pipeline_of(settings: Settings, config: str, name: str, where: Where, folder: Path) -> Pipeline:
    """The pipeline, or the view on Spark, of this name.  NotFound when the settings have none."""
    from penstock.config.known_names import known_name
    from penstock.errors import NotFound
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
    from penstock.errors import Unavailable

    event, deadline = threading.Event(), time.monotonic() + PATIENCE_S
    while request.exists():
        if time.monotonic() > deadline:
            raise Unavailable(
                f"the process that runs pipeline {name} has not let it begin anew within {PATIENCE_S:g} s; it will "
                "when it can: see penstock pipeline status"
            )
        event.wait(LOOK_S)
