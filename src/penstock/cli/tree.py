"""The tree of commands, and the shapes it is built in: all, one command or family, or those of the server alone.

Loading every command takes 25 ms, which `penstock serve` would pay at each start, and reading the options of all of
them 100 ms more, which every command would.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.models import CommandInfo

from penstock import __version__
from penstock.cli import serving
from penstock.cli.output import Json, tell

SERVER = frozenset(("serve", "up", "check"))
"""The commands of `of_the_server`."""


class Root(TyperGroup):
    """The tree, which knows where a command is that somebody misses at its top."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As its base, and an unknown command that some family has is told with the family."""
        name = args[0]
        if name not in self.commands:
            found = [family for family, one in self.commands.items() if name in getattr(one, "commands", ())]
            if found:
                ctx.fail(
                    f"No such command '{name}'; there is {' and '.join(f'penstock {one} {name}' for one in found)}."
                )
        return super().resolve_command(ctx, args)


@cache  # families are added to one another, once
def whole() -> typer.Typer:
    from penstock.cli import (
        backups,
        bench_deep,
        bench_spark,
        benching,
        certificates,
        connections,
        converting,
        draining,
        exchanges,
        log_commands,
        messages,
        pipeline_backfill,
        pipeline_commands,
        pipeline_lineage,
        pipeline_reset,
        policies,
        querying,
        queues,
        replaying,
        single,
        streams,
        tools,
        top,
        topics,
        users,
        vhosts,
        working,
    )

    app = _empty()
    for family in (
        serving,
        converting,
        messages,
        replaying,
        topics,
        querying,
        working,
        tools,
        backups,
        policies,
        draining,
        top,
    ):
        family.add_to(app)
    app.add_typer(queues.app, name="queue")
    app.add_typer(single.app, name="message")
    app.add_typer(streams.app, name="stream")
    pipeline_lineage.add_to(pipeline_commands.app)
    app.add_typer(pipeline_commands.app, name="pipeline")
    app.add_typer(log_commands.app, name="log")
    bench_deep.add_to(benching.app)
    bench_spark.add_to(benching.app)
    app.add_typer(benching.app, name="bench")
    app.add_typer(connections.app, name="connection")
    app.add_typer(exchanges.exchange, name="exchange")
    app.add_typer(exchanges.binding, name="binding")
    app.add_typer(certificates.app, name="tls")
    app.add_typer(users.app, name="user")
    app.add_typer(vhosts.app, name="vhost")
    pipeline_backfill.add_to(pipeline_commands.app)
    pipeline_reset.add_to(pipeline_commands.app)
    log_commands.add_audit_to(app)
    app.command()(version)
    app.callback()(_root)
    return app


@cache
def command(name: str | None) -> TyperGroup:
    """What answers a command line that begins so: the whole tree where no command or family has that name."""
    if name in SERVER:
        return _built(of_the_server())
    app, part = whole(), _empty()
    part.registered_commands = [one for one in app.registered_commands if _name_of(one) == name]
    part.registered_groups = [one for one in app.registered_groups if one.name == name]
    part.registered_callback = app.registered_callback
    return _built(part if part.registered_commands or part.registered_groups else app)


def _built(app: typer.Typer) -> TyperGroup:
    found = typer.main.get_command(app)
    assert isinstance(found, TyperGroup)
    return found


def _name_of(one: CommandInfo) -> str:
    return one.name or typer.main.get_command_name(one.callback.__name__ if one.callback is not None else "")


def of_the_server() -> typer.Typer:
    """`serve`, `up` and `check`, as in the whole tree."""
    app = _empty()
    serving.add_to(app)
    return app


def _empty() -> typer.Typer:
    return typer.Typer(
        name="penstock",
        cls=Root,
        help="A message-queue server whose log is an Arrow table.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _tell_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


def _root(
    wanted: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A message-queue server whose log is an Arrow table."""


def version(json: Json = False) -> None:
    """Print the version.

    Example: penstock version --json
    """
    tell({"penstock": __version__, "python": sys.version.split()[0]}, f"penstock {__version__}", json)
