"""`serve`, `up`, `check`, `convert`: the server, with its pipelines or without, and settings, ours or of others.

What `convert` makes goes to standard output and its table to standard error, so that `convert FILE > penstock.toml` is
the whole of a move.

What is wrong in filters, patterns, places, registers, actions, rights, views and certificates of settings is looked for
here (`mistakes_inside`): what reads these stands above what reads the file.  Each mistake has the path of its value, so
that it is told with the file, the line and the words of all others.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, cast

import typer

from penstock.cli.output import Json, Told, note, root, telling, write, write_table
from penstock.config.foreign import Converted, Remark, Verdict, is_foreign, read_bytes, read_foreign
from penstock.config.foreign.converted import Path_, to_toml
from penstock.config.mistakes import Problem
from penstock.config.settings import Settings
from penstock.errors import ExpressionError, InvalidArgument, SettingsError
from penstock.records.message_types import typed

VALUES = ("priority_expression", "group_key", "fairness_key", "last_value_key")
EXPRESSIONS = ("filter", "barrier_expression", *VALUES)
"""Settings of queues that are expressions; those of `VALUES` are worth something else than true or false."""


def mistakes_inside(settings: Settings, *, serves: bool = True) -> Iterator[Problem]:
    """All of them; without `serves` the server's own files apart, which may be on another machine."""
    yield from _in_expressions(settings)
    yield from _in_places(settings)
    yield from _in_cluster(settings)
    yield from _in_actions(settings)
    yield from _in_entitlements(settings)
    yield from _in_views(settings)
    if serves:
        yield from _in_certificates(settings)
        yield from _in_password_files(settings)


def _expressions(settings: Settings) -> Iterator[tuple[Path_, str | None, str]]:
    """Of queues, policies, pipelines and links: where each stands, its text, and which setting of a queue it is."""
    for index, queue in enumerate(settings.queue):
        for key in EXPRESSIONS:
            yield ("queue", index, key), getattr(queue.settings, key), key
    for section, policies in (("policy", settings.policy), ("operator_policy", settings.operator_policy)):
        for index, policy in enumerate(policies):
            for key in EXPRESSIONS:
                text = cast("str | None", policy.policy().settings.get(key))
                yield (section, index, "definition", key.replace("_", "-")), text, key
    for index, pipeline in enumerate(settings.pipeline):
        for name, one in pipeline.source.items():
            yield ("pipeline", index, "from", name, "filter"), one.filter, ""
    for index, link in enumerate(settings.link):
        for number, topic in enumerate(link.topic):
            text = None if topic.filter is None else typed(topic.filter, topic.message_type)
            yield ("link", index, "topic", number, "filter"), text, ""


def _judged(path: Path_, judge: Callable[..., object], *of: object) -> Iterator[Problem]:
    """What somebody finds wrong with the value there, if anything; an error of settings begins with its key."""
    try:
        judge(*of)
    except ExpressionError as error:
        yield Problem(path, error.pointed())
    except InvalidArgument as error:
        yield Problem(path, str(error))
    except SettingsError as error:
        key, _, text = str(error).partition(": ")
        yield Problem((*path, *key.split(".")), text)


def _in_expressions(settings: Settings) -> Iterator[Problem]:
    from penstock.expr import compile_filter, compile_value

    def compiled(text: str, key: str) -> None:
        made = compile_value(text) if key in VALUES else compile_filter(text)
        if key:
            made.require_deterministic(f"a queue's {key}")

    for path, text, key in _expressions(settings):
        if text is not None:
            yield from _judged(path, compiled, text, key)


def _in_places(settings: Settings) -> Iterator[Problem]:
    """Where the first runs of pipelines begin."""
    if not settings.pipeline:
        return
    from penstock.spark.options import place

    for index, pipeline in enumerate(settings.pipeline):
        places: dict[Path_, str | None] = {("from", name, "start"): one.start for name, one in pipeline.source.items()}
        if pipeline.backfill is not None:
            places["backfill", "from"] = pipeline.backfill.start
        for path, text in places.items():
            yield from _judged(("pipeline", index, *path), place, "EPOCH" if text is None else text)


def _in_cluster(settings: Settings) -> Iterator[Problem]:
    """A register that is none."""
    if settings.cluster is not None:
        from penstock.server.cluster.registers import register_at

        yield from _judged((), register_at, settings.cluster.registry, settings.server.data)


def _in_actions(settings: Settings) -> Iterator[Problem]:
    if settings.action:
        from penstock.core.action_rules import Rules

        for index, action in enumerate(settings.actions):
            yield from _judged(("action", index), Rules, [action])


def _in_entitlements(settings: Settings) -> Iterator[Problem]:
    if settings.entitlement:
        from penstock.server.people.entitlements import compiled

        for index, section in enumerate(settings.entitlement):
            yield from _judged(("entitlement", index), compiled, section)


def _in_views(settings: Settings) -> Iterator[Problem]:
    if settings.view:
        from penstock.server.opening import unreadable

        for number, fault in unreadable(settings):
            yield Problem(("view", number), fault.pointed())


def _in_certificates(settings: Settings) -> Iterator[Problem]:
    """Those without which nothing works; a link without its own is down, and says so."""
    if settings.tls.certificate is None and (settings.cluster is None or settings.cluster.tls is None):
        return
    from penstock.server.sockets.certificates import LINK, of_settings

    for _, files in of_settings(settings):
        if files.section != LINK:
            yield from _judged((), files.look)


def _in_password_files(settings: Settings) -> Iterator[Problem]:
    if any(user.password_file for user in settings.user):
        from penstock.server.people.users import password_of

        for index, user in enumerate(settings.user):
            yield from _judged(("user", index), password_of, user)


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
    from penstock.config.load import load_file, load_mapping, no_judge

    judge = partial(mistakes_inside, serves=serves) if inside else no_judge
    given = {place: value for place, value in options.items() if value is not None}
    if config is None:
        return load_mapping({}, environ=os.environ, options=given, judge=judge)
    remarked = write_remarks if tell else None
    return load_file(config, environ=os.environ, options=given, judge=judge, remarked=remarked)


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

    for name in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):  # who has renewed certificates may say so already
        signal.signal(name, signal.SIG_IGN)
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
        raise SettingsError(f"option --ready-file: {folder} is no folder")
    if os.path.isdir(name) or not os.access(folder, os.W_OK):
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


@telling(root)
def check(config: Annotated[str, typer.Argument(metavar="CONFIG", help=_CONFIG)], json: Json = False) -> Told:
    """Check a settings file, its filters and patterns included, as a server with an empty folder would take it.

    Bookmarks of recovery points are held against the log of the data folder that the settings name, if it is there.

    Example: penstock check penstock.toml
    """
    from penstock.server.opening import try_settings

    settings = read_settings(config, {}, tell=not json, inside=True)
    compared = try_settings(settings)  # whether there is a log that bookmarks were compared with
    counts = {name: len(getattr(settings, name)) for name in DECLARED}
    facts = {"ok": True, "declares": counts, "settings": settings.model_dump(mode="json", by_alias=True)}
    return facts, lambda _: _show_good(config, settings, counts, compared=compared)


def _show_good(config: str, settings: Settings, counts: Mapping[str, int], *, compared: bool) -> None:
    from penstock.config.impossible import of_views

    declared = ", ".join(
        f"{count} {name.replace('_', ' ')}{'' if count == 1 else 's'}" for name, count in counts.items() if count
    )
    write(f"{config}: good{f' ({declared})' if declared else ''}")
    if not compared:
        note(f"{settings.server.data} holds no log yet, so that bookmarks of recovery points were compared with none")
    for told in of_views(settings):
        note(told)
    if settings.pipeline:
        note(f"Spark has not looked at the pipelines: penstock pipeline check {config}")
    if settings.server.sync != "commit":
        note(f'warning: sync = "{settings.server.sync}": a confirmed message may be lost in a power cut')


class Target(Enum):
    """What a file can be turned into."""

    TOML = "toml"


@telling(root)
def convert(
    file: Annotated[str, typer.Argument(help="AMPSConfig XML, Artemis broker.xml or RabbitMQ definitions.json.")],
    to: Annotated[Target, typer.Option("--to", help="The format to write.")] = Target.TOML,
) -> Told:
    """Turn a settings file of another server into ours, and list what has no equal.

    Exit status 2 for a file that its own server would not take either.

    Example: penstock convert amps.xml --to toml > penstock.toml
    """
    from penstock.config.load import judged

    data = read_bytes(Path(file), file)
    if not is_foreign(data):
        raise SettingsError(f"{file}: is neither XML nor JSON; our own settings file needs no conversion")
    converted = read_foreign(file, os.environ, data=data)
    remarks = judged(converted)
    text = to_toml(converted.settings, converted.places, [f"From {converted.kind}, {file}"])
    facts = {
        "format": converted.kind,
        to.value: text,
        "settings": converted.settings,
        "remarks": [remark_as_json(remark) for remark in remarks],
    }
    return facts, lambda _: _show_converted(converted, text, remarks)


def _show_converted(converted: Converted, text: str, remarks: Sequence[Remark]) -> None:
    from penstock.config.load import load_converted

    sys.stdout.write(text)
    sys.stdout.flush()
    write_remarks(remarks)
    held = sum(one.verdict is Verdict.REFUSED for one in remarks)
    if held:
        note(f"the server does not start with {'this' if held == 1 else f'these {held}'}: penstock check tells each")
        return
    try:
        load_converted(converted, environ={}, options={}, judge=partial(mistakes_inside, serves=False))
    except SettingsError as error:
        note(f"the server does not start with this:\n{error}")


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
