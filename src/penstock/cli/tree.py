"""The tree of commands, and the two shapes it is built in: all of it, or those of the server alone.

Loading every command and reading its options takes 25 ms, which `penstock serve` would pay at each start.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Annotated

import typer

from penstock import __version__
from penstock.cli import serving
from penstock.cli.output import Json, write, write_json

SERVER = frozenset(("serve", "up", "check"))
"""The commands of `of_the_server`."""


@cache  # families are added to one another, once
def whole() -> typer.Typer:
    """Every command."""
    from penstock.cli import (
        backfilling,
        backups,
        connections,
        converting,
        exchanges,
        lineage,
        logs,
        messages,
        pipelines,
        policies,
        querying,
        queues,
        replaying,
        single,
        streams,
        tools,
        topics,
        users,
        vhosts,
        waiting,
        working,
    )

    app = _empty()
    for family in (serving, converting, messages, replaying, topics, querying, working, tools, backups, policies):
        family.add_to(app)
    waiting.add_to(queues.app)
    app.add_typer(queues.app, name="queue")
    app.add_typer(single.app, name="message")
    app.add_typer(streams.app, name="stream")
    lineage.add_to(pipelines.app)
    app.add_typer(pipelines.app, name="pipeline")
    app.add_typer(logs.app, name="log")
    app.add_typer(connections.app, name="connection")
    app.add_typer(exchanges.exchange, name="exchange")
    app.add_typer(exchanges.binding, name="binding")
    app.add_typer(users.app, name="user")
    app.add_typer(vhosts.app, name="vhost")
    backfilling.add_to(pipelines.app)
    logs.add_audit_to(app)
    app.command()(version)
    app.callback()(_root)
    return app


def of_the_server() -> typer.Typer:
    """`serve`, `up` and `check`, as in the whole tree."""
    app = _empty()
    serving.add_to(app)
    return app


def _empty() -> typer.Typer:
    return typer.Typer(
        name="penstock",
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
    if json:
        write_json({"penstock": __version__, "python": sys.version.split()[0]})
    else:
        write(f"penstock {__version__}")
