"""The command line, and the exit status of each end.

0  done
1  the server said no, or a check found something
2  wrong usage, settings, expression or value, whoever found it
3  another process serves the data folder
4  the log is damaged
5  no server answers
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from penstock.cli import tree
from penstock.cli.output import tell_error
from penstock.errors import PenstockError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; always ends in SystemExit."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        tree.command(given[0] if given else None).main(given, prog_name="penstock")
    except PenstockError as error:
        sys.exit(tell_error(error, as_json="--json" in given))
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away; there is nobody to tell
        sys.exit(1)
