"""The tree of commands, and the exit status of each end.

0  done
1  the server said no, or a check found something
2  wrong usage, settings or expression
3  another process serves the data folder
4  the log is damaged
5  no server answers
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from penstock import __version__
from penstock.cli import backups, converting, logs, messages, queues, serving, tools
from penstock.cli.output import Json, tell_error, write, write_json
from penstock.errors import PenstockError

app = typer.Typer(
    name="penstock",
    help="A message-queue server whose log is an Arrow table.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for family in (serving, converting, messages, tools, backups):
    family.add_to(app)
app.add_typer(queues.app, name="queue")
app.add_typer(logs.app, name="log")
logs.add_audit_to(app)


@app.command()
def version(json: Json = False) -> None:
    """Print the version.

    Example: penstock version --json
    """
    if json:
        write_json({"penstock": __version__, "python": sys.version.split()[0]})
    else:
        write(f"penstock {__version__}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; always ends in SystemExit."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(given, prog_name="penstock")
    except PenstockError as error:
        sys.exit(tell_error(error, as_json="--json" in given))
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away; there is nobody to tell
        sys.exit(1)
