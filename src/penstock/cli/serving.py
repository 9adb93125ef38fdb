"""`serve`, `up`, `check`, `convert`: the server, with its pipelines or without, and settings, ours or of others.

What `convert` makes goes to standard output and its table to standard error, so that `convert FILE > penstock.toml` is
the whole of a move.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.output import Json, note, root, write, write_json, write_table

if TYPE_CHECKING:
    from penstock.config.foreign import Remark
    from penstock.config.settings import Settings


_CONFIG = "A settings file: TOML, or one of AMPS, Artemis or RabbitMQ."

ConfigFile = Annotated[str | None, typer.Argument(metavar="CONFIG", help=_CONFIG)]
Data = Annotated[str | None, typer.Option("--data", help="Folder of the log; overrides the file.")]
Amqp = Annotated[str | None, typer.Option("--amqp", help="host:port of AMQP; port 0 for a free one, off for none.")]
Http = Annotated[str | None, typer.Option("--http", help="host:port of HTTP, or off.")]
Flight = Annotated[str | None, typer.Option("--flight", help="host:port of Arrow Flight, or off.")]
Sync = Annotated[str | None, typer.Option("--sync", help="commit, interval or off: when a publish is confirmed.")]
ReadyFile = Annotated[
    str | None, typer.Option("--ready-file", help="Written as JSON with pid and addresses when the doors are open.")
]


DECLARED = (
    "user", "vhost", "exchange", "topic", "queue", "binding", "view", "conflated_topic", "action", "entitlement",
    "pipeline",
)  # fmt: skip
"""The sections that `check` counts."""


def read_settings(
    config: str | None,
    options: dict[str, str | None],
    *,
    tell: bool = False,
    inside: bool = False,
    serves: bool = True,
) -> Settings:
    """Settings of a file, the environment and options (`section.key` -> text, None where not given).

    With `tell`, what is not the same here as in the server that a file was written for is listed on standard error;
    with `inside`, what is wrong in filters and, where it `serves`, in certificates is told with all that is wrong.
    """
    from penstock.config.load import load_bytes, load_converted, load_mapping, no_judge

    judge = no_judge
    if inside:
        from penstock.cli.mistakes_inside import mistakes_inside

        judge = partial(mistakes_inside, serves=serves)
    given = {place: value for place, value in options.items() if value is not None}
    if config is None:
        return load_mapping({}, environ=os.environ, options=given, judge=judge)
    from penstock.config.foreign import is_foreign, read_bytes, read_foreign

    data = read_bytes(Path(config), config)
    if not is_foreign(data):
        return load_bytes(data, source=config, environ=os.environ, options=given, judge=judge)

    converted = read_foreign(config, os.environ, data=data)
    if tell:
        write_remarks(converted.remarks)
    return load_converted(converted, environ=os.environ, options=given, judge=judge)


@root.command()
def serve(
    config: ConfigFile = None,
    data: Data = None,
    amqp: Amqp = None,
    http: Http = None,
    flight: Flight = None,
    sync: Sync = None,
    ready_file: ReadyFile = None,
) -> None:
    """Run the server until SIGTERM or Ctrl-C.

    Example: penstock serve penstock.toml --data /var/lib/penstock
    """
    from penstock.cli.child_process import line, relax_collector

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # who has renewed certificates may say so before there is a server
    relax_collector()
    settings = read_settings(
        config,
        {
            "server.data": data,
            "server.sync": sync,
            "listen.amqp": amqp,
            "listen.http": http,
            "listen.flight": flight,
        },
        tell=True,
        inside=True,
    )
    check_ready_file(ready_file)
    from penstock.server.launching import serve as run

    run(settings, ready_file=ready_file, show=line())


def check_ready_file(name: str | None) -> None:
    """SettingsError, before anything is started, where no file can be written."""
    if name is None:
        return
    folder = os.path.dirname(name) or "."
    if not os.path.isdir(folder):
        from penstock.errors import SettingsError

        raise SettingsError(f"option --ready-file: {folder} is no folder")
    if os.path.isdir(name) or not os.access(folder, os.W_OK):
        from penstock.errors import SettingsError

        raise SettingsError(f"option --ready-file: {name} cannot be written")


@root.command()
def up(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A settings file with pipelines.")],
    ready_file: ReadyFile = None,
    spark_log: Annotated[
        bool, typer.Option("--spark-log", help="Spark's own log too, in driver.log under the data folder.")
    ] = False,
) -> None:
    """Run the server and its Spark pipelines, restart what falls over, and follow changes of the pipelines in CONFIG.

    Example: penstock up penstock.toml
    """
    settings = read_settings(config, {}, inside=True)
    check_ready_file(ready_file)
    from penstock.cli.supervisor import up as run

    run(
        settings,
        ready_file=ready_file,
        file=Path(config),
        reload=lambda: read_settings(config, {}, inside=True),
        spark_log=spark_log,
    )


@root.command()
def check(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help=_CONFIG)],
    json: Json = False,
) -> None:
    """Check a settings file, its filters and patterns included, as a server with an empty folder would take it.

    Bookmarks of recovery points are held against the log of the data folder that the settings name, if it is there.

    Example: penstock check penstock.toml
    """
    from penstock.server.opening import try_settings

    settings = read_settings(config, {}, tell=not json, inside=True)
    compared = try_settings(settings)  # whether there is a log that bookmarks were compared with
    counts = {name: len(getattr(settings, name)) for name in DECLARED}
    if json:
        write_json({"ok": True, "declares": counts, "settings": settings.model_dump(mode="json", by_alias=True)})
        return
    declared = ", ".join(
        f"{count} {name.replace('_', ' ')}{'' if count == 1 else 's'}" for name, count in counts.items() if count
    )
    write(f"{config}: good{f' ({declared})' if declared else ''}")
    if not compared:
        note(f"{settings.server.data} holds no log yet, so that bookmarks of recovery points were compared with none")
    if settings.pipeline:
        note(f"Spark has not looked at the pipelines: penstock pipeline check {config}")
    if settings.server.sync != "commit":
        note(f'warning: sync = "{settings.server.sync}": a confirmed message may be lost in a power cut')


class Target(Enum):
    """What a file can be turned into."""

    TOML = "toml"


@root.command()
def convert(
    file: Annotated[str, typer.Argument(help="AMPSConfig XML, Artemis broker.xml or RabbitMQ definitions.json.")],
    to: Annotated[Target, typer.Option("--to", help="The format to write.")] = Target.TOML,
    json: Json = False,
) -> None:
    """Turn a settings file of another server into ours, and list what has no equal.

    Exit status 2 for a file that its own server would not take either.

    Example: penstock convert amps.xml --to toml > penstock.toml
    """
    from penstock.config.foreign import is_foreign, read_bytes, read_foreign
    from penstock.config.foreign.converted import to_toml
    from penstock.config.load import judged
    from penstock.errors import SettingsError

    data = read_bytes(Path(file), file)
    if not is_foreign(data):
        raise SettingsError(f"{file}: is neither XML nor JSON; our own settings file needs no conversion")
    converted = read_foreign(file, os.environ, data=data)
    remarks = judged(converted)
    text = to_toml(converted.settings, converted.places, [f"From {converted.kind}, {file}"])
    if json:
        write_json(
            {
                "format": converted.kind,
                to.value: text,
                "settings": converted.settings,
                "remarks": [remark_as_json(remark) for remark in remarks],
            }
        )
        return
    sys.stdout.write(text)
    sys.stdout.flush()
    write_remarks(remarks)
    from penstock.config.foreign.converted import BLOCKING

    held = sum(one.verdict in BLOCKING for one in remarks)
    if held:
        note(f"the server does not start with {'this' if held == 1 else f'these {held}'}: penstock check tells each")


def remark_as_json(remark: Remark) -> dict[str, object]:
    """A remark for a program."""
    return {
        "verdict": remark.verdict.value,
        "file": remark.place.file,
        "line": remark.place.line or None,
        "what": remark.place.what,
        "text": remark.text,
    }


def write_remarks(remarks: Sequence[Remark]) -> None:
    """The table of what is not the same here, on standard error; nothing where all is."""
    if not remarks:
        return
    rows = [(one.place.where, one.verdict.value, f"{one.place.what}: {one.text}") for one in remarks]
    write_table(("where", "", "what"), rows, to_stderr=True)
