"""`convert`: a settings file of AMPS, Artemis or RabbitMQ as ours, and a table of what is not the same here.

The settings go to standard output and the table to standard error, so that `convert FILE > penstock.toml` is the
whole of a move.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.output import Json, note, write_json, write_table

if TYPE_CHECKING:
    from penstock.config.foreign import Remark


class Target(Enum):
    """What a file can be turned into."""

    TOML = "toml"


def add_to(app: typer.Typer) -> None:
    """Put this command into the tree."""
    app.command()(convert)


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
                "remarks": [as_json(remark) for remark in remarks],
            }
        )
        return
    sys.stdout.write(text)
    sys.stdout.flush()
    write_remarks(remarks)


def as_json(remark: Remark) -> dict[str, object]:
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
    from penstock.config.foreign.converted import BLOCKING

    held = sum(one.verdict in BLOCKING for one in remarks)
    if held:
        note(f"the server does not start with {'this' if held == 1 else f'these {held}'}: penstock check tells each")
