"""The command line: which file has which command, and the exit status of each end.

0  done
1  the server said no, or a check found something
2  wrong usage, settings, expression or value, whoever found it
3  another process serves the data folder
4  the log is damaged
5  no server answers
6  the server may not lead its cluster any more: start it again
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup
from typer.models import CommandInfo

from penstock.cli.output import Told, root, tell, tell_error, telling
from penstock.errors import InvalidArgument, PenstockError, SettingsError, shown
from penstock.server.base.allowed import NO_MORE, bound_on_addresses, is_no_more
from penstock.server.base.loading import do_without_pandas
from penstock.version import __version__

FILES: Mapping[str, str] = {
    "serving": "serve up check convert",
    "tools": "expr doctor tls",
    "messages": "publish consume message",
    "topics": "replay sow query topic",
    "working": "worker",
    "backups": "backup restore",
    "top": "drain top",
    "queues": "queue",
    "queue_recovery": "queue",
    "streams": "stream",
    "pipeline_status": "pipeline",
    "pipeline_runs": "pipeline",
    "log_commands": "log audit",
    "benching": "bench",
    "exchanges": "exchange binding policy operator-policy",
    "people": "user token vhost connection",
    "clusters": "cluster",
    "links": "link",
    "migrating": "migrate",
}
"""The commands and families that each file puts at the root.  A command loads its own files and no others."""

WITH_PANDAS = {"bench", "expr", "pipeline", "worker", "--spark"}
"""Words of a command line that runs Spark or what others wrote.  All the rest does without, and saves loading it."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What the system says of a file that takes nothing; of one without a name, as standard output is."""

NO_FILE = (
    errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS, *NO_ROOM,
)  # fmt: skip
"""What the system says of files that a command names and nobody can look at or write, wherever it first does."""


WrongUsage = cast("type[typer.BadParameter]", typer.BadParameter.__bases__[0])
"""Every mistake in a command line that was found before a command began."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; always ends in SystemExit."""
    with_standard_files()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None and WITH_PANDAS.isdisjoint(given):  # else this is somebody's process, and for more than this
        do_without_pandas()
    as_json = "--json" in given
    try:
        try:
            ended = command(given[0] if given else None).main(given, prog_name="penstock", standalone_mode=not as_json)
            sys.exit(ended if isinstance(ended, int) else 0)
        except SystemExit:
            sys.stdout.flush()  # here, where it is told what does not go out
            raise
    except PenstockError as error:
        sys.exit(tell_error(error, as_json=as_json))
    except WrongUsage as error:  # with --json alone: for a person it is told with the usage of the command
        sys.exit(tell_error(InvalidArgument(error.format_message()), as_json=True))
    except (KeyboardInterrupt, typer.Abort):  # while what the command needs is loaded, or with --json
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away; there is nobody to tell
        sys.exit(1)
    except (OSError, RuntimeError) as error:
        told = _of_this_machine(error)
        if told is None:
            raise
        sys.exit(tell_error(told, as_json=as_json))


def _of_this_machine(error: OSError | RuntimeError) -> PenstockError | None:
    """What a person is told where memory or threads are short, or a file cannot be had; None: it is a fault of ours."""
    if is_no_more(error):
        return SettingsError(NO_MORE + bound_on_addresses())
    if not isinstance(error, OSError):
        return None
    if error.errno in NO_ROOM and error.filename is None:
        _drop_output()
        return InvalidArgument(f"the output cannot be written: {error.strerror}")
    if error.errno not in NO_FILE or error.filename is None:
        return None
    return InvalidArgument(f"{shown(str(error.filename))}: {error.strerror}")


def _drop_output() -> None:
    """What cannot go out is not tried again as the process ends, which would have another status for it."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def with_standard_files() -> None:
    """Standard input, output and error are open, to nothing where who started us has closed them.

    Else the next file that is opened has such a number, a segment of the log perhaps, and is given what some library
    writes to standard error.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            assert opened == number
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


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


def whole() -> typer.Typer:
    """The tree of all commands."""
    return _tree(_names())


@cache
def command(name: str | None) -> TyperGroup:
    """What answers a command line that begins so: the whole tree where no command or family has that name."""
    found = typer.main.get_command(_tree([name]) if name is not None and name in _names() else whole())
    assert isinstance(found, TyperGroup)
    _name_arguments(found)
    return found


def _name_arguments(found: Any) -> None:
    """Arguments stand in capitals in every help and every mistake, as in the documents."""
    for one in found.params:
        if one.param_type_name == "argument":
            one.metavar = one.metavar or one.name.upper()
    for one in getattr(found, "commands", {}).values():
        _name_arguments(one)


def _names() -> list[str]:
    """Of all commands and families, in the order of the help."""
    return [*(name for names in FILES.values() for name in names.split()), "version"]


def _tree(names: Sequence[str]) -> typer.Typer:
    """These commands and families, in this order."""
    for file, has in FILES.items():
        if not set(names).isdisjoint(has.split()):
            import_module(f"penstock.cli.{file}")
    app = typer.Typer(
        name="penstock",
        cls=Root,
        help="A message-queue server whose log is an Arrow table.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    commands = {_name_of(one): one for one in root.registered_commands}
    families = {one.name: one for one in root.registered_groups}
    app.registered_commands = [commands[name] for name in names if name in commands]
    app.registered_groups = [families[name] for name in names if name in families]
    if "version" in names:
        telling(app)(version)
    app.callback()(_root)
    return app


def _name_of(one: CommandInfo) -> str:
    return one.name or typer.main.get_command_name(one.callback.__name__ if one.callback is not None else "")


def _tell_version(wanted: bool) -> None:
    if wanted:
        tell(version(), as_json=False)
        raise typer.Exit


def _root(
    wanted: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A message-queue server whose log is an Arrow table."""


def version() -> Told:
    """Print the version.

    Example: penstock version --json
    """
    return {"penstock": __version__, "python": sys.version.split()[0]}, f"penstock {__version__}"
