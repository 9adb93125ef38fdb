"""docs/settings.md, made from the schema: every key with its type, default, bounds and sentence.

    .venv/bin/python tools/settings_page.py          # writes the page
    .venv/bin/python tools/settings_page.py --check  # status 1 where it is not what the code says

The sentences are in the code: `config/settings.py`, `config/queue_settings.py`, `records/address_settings.py` ...
"""

from __future__ import annotations

import argparse
import ast
import functools
import inspect
import itertools
import json
import re
import sys
import typing
from collections import ChainMap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, cast, get_args, get_origin

from annotated_types import Ge, Gt, Le, MinLen
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from penstock.config.load import in_file
from penstock.config.queue_arguments import DECLARED
from penstock.config.queue_settings import KEY_ALIASES, QUEUE_KEYS, Keys
from penstock.config.queue_values import COUNT_MAX, TEN_YEARS_US, Kind, QueueKey, in_line, written
from penstock.config.sections import Address, Section
from penstock.config.settings import Settings
from penstock.config.vhost_sections import Queue
from penstock.records.address_settings import AddressKeys
from penstock.records.queue_settings import MODES, QueueSettings, Retry
from penstock.units import format_duration

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"

TOP = """\
# Settings

Made from the code by `tools/settings_page.py`; a test holds it equal. The sentences are those of the schema.

`penstock serve penstock.toml` reads one TOML file; without one every setting has its default. `penstock check
penstock.toml` finds mistakes with their lines, and `penstock doctor penstock.toml` tells every value in force and where
it came from. Unknown keys are errors, with the nearest one that there is.

- **Environment.** `PENSTOCK_SERVER__SYNC=interval` goes before `sync` of `[server]` in the file: section and key in
  capitals, two underscores between them. Lists of tables (`[[queue]]` and its like) are for the file alone.
- **Durations** are text with a unit: `250us 500ms 30s 5m 2h 1d 1w`, at most 100 years.
  **Sizes** too: `64KiB 512MiB 10GB`.
- **A change** of the file is taken up by the next start, unless its section here says otherwise. Many things have a
  command that changes them while the server runs; the section names it.
- **What is there otherwise**, and cannot become what the file says, stays and keeps no server from its start: a client
  may have made it, such as an exchange of another type. The start warns of each such thing with its line, and the alarm
  `settings` names them until a start finds none. What is wrong in the file itself ends the start.

| section | holds |
| --- | --- |
"""

QUEUES = """\
Each key is also an argument of an AMQP declare (`max_backlog` is `x-max-backlog`), a keyword of `client.declare`, and,
but where **policy** says no, a key of a policy (`max-backlog`). Over AMQP a size is a number of bytes and a duration a
number of milliseconds or text with a unit; under RabbitMQ's own names, marked **ms**, it is milliseconds alone.

While the server runs `penstock queue alter NAME --set KEY=VALUE` and `client.alter` change any of them at once, with
the exceptions that are told below. Which settings exclude each other is told when they are set, with the reason.
"""

UNITS: typing.Mapping[str, str] = {"_duration": "duration", "_interval": "duration", "_size": "size"}


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


@functools.cache
def below(table: type) -> Mapping[str, str]:
    """What stands below each key of a class in the code, by its name there."""
    body, out = cast("ast.ClassDef", ast.parse(inspect.getsource(table)).body[0]).body, dict[str, str]()
    for key, text in itertools.pairwise(body):
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            for name in [key.target] if isinstance(key, ast.AnnAssign) else getattr(key, "targets", []):
                out[cast("ast.Name", name).id] = str(text.value.value)
    return out


def sentences(table: type[BaseModel]) -> Mapping[str, str]:
    """What is said of each key of a table, by its name in the code."""
    of_bases = ChainMap(*(dict(below(one)) for one in table.__mro__ if issubclass(one, Section)))
    return {**of_bases, **{name: one.description for name, one in table.model_fields.items() if one.description}}


def tables(annotation: object) -> Iterator[type[BaseModel]]:
    """The tables within a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from tables(part)


def unit_of(field: FieldInfo) -> str:
    """`duration` or `size` where the type has such a unit, also inside `| None`."""

    def metas(annotation: object) -> Iterator[object]:
        for part in get_args(annotation):
            yield part
            yield from metas(part)
            yield from getattr(part, "__metadata__", ())

    for one in (*field.metadata, *metas(field.annotation)):
        name = getattr(getattr(one, "func", None), "__name__", "")
        if name in UNITS:
            return UNITS[name]
    return ""


def words(annotation: Any, unit: str) -> str:
    """A type as people write it."""
    if unit:
        return unit
    origin, parts = get_origin(annotation), [one for one in get_args(annotation) if one is not type(None)]
    if origin is typing.Annotated:
        return words(parts[0], unit)
    if origin is Literal:
        return ", ".join(f'`"{one}"`' for one in parts)
    if origin in (typing.Union, UnionType):
        return " or ".join(dict.fromkeys(words(one, unit) for one in parts))
    if origin is tuple:
        return f"list of {words(parts[0], unit)}"
    if origin is dict:
        return "table" if any(tables(annotation)) else f"table of {words(parts[1], unit)}"
    if annotation is Address:
        return "address"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "table"
    simple = {bool: "true or false", int: "whole number", float: "number", str: "text", SecretStr: "text"}
    return simple.get(annotation, "value")


def bounds(field: FieldInfo, unit: str) -> str:
    """`8MiB at least`, `1 to 65535`."""
    low = next((one.ge for one in field.metadata if isinstance(one, Ge)), None)
    above = next((one.gt for one in field.metadata if isinstance(one, Gt)), None)
    high = next((one.le for one in field.metadata if isinstance(one, Le)), None)
    least = next((one.min_length for one in field.metadata if isinstance(one, MinLen)), 0)
    out = list[str]()
    if above is not None:
        out.append(f"above {in_unit(above, unit)}")
    elif low is not None and high is not None:
        return f"{in_unit(low, unit)} to {in_unit(high, unit)}"
    elif low is not None and (low or not unit):
        out.append(f"{in_unit(low, unit)} at least")
    if high is not None:
        out.append(f"{in_unit(high, unit)} at most")
    if least and get_origin(field.annotation) is tuple:
        out.append(f"{least} at least")
    return ", ".join(out)


def in_unit(value: object, unit: str) -> str:
    """A value as the file writes it, without quotes."""
    return in_file(value, unit).replace(" ", "") if unit else str(value)


def default_of(field: FieldInfo, unit: str) -> str:
    """What holds where nothing is written."""
    if field.is_required():
        return "must be given"
    value = field.get_default(call_default_factory=True)
    if value is None or value is PydanticUndefined or value in ((), {}, "") or isinstance(value, BaseModel):
        return "" if value != "" else '`""`'
    if isinstance(value, Address):
        return f'`"{value}"`'
    if isinstance(value, tuple):
        return f"`{json.dumps(value)}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if isinstance(value, int | float) and not unit else f'`"{in_unit(value, unit)}"`'


def rows(table: type[BaseModel], before: str = "", within: tuple[type, ...] = ()) -> Iterator[str]:
    """A row for each key of a table, those of tables in it behind it: `retention.age`."""
    for name, field in table.model_fields.items():
        sentence = sentences(table).get(name)
        if sentence is None or (table is Queue and name == "given"):  # the keys of a table of their own
            continue
        key, unit = before + (field.alias or name), unit_of(field)
        inner = [one for one in tables(field.annotation) if one not in within]
        kind = "table" if inner and get_origin(field.annotation) is not tuple else words(field.annotation, unit)
        if inner and get_origin(field.annotation) is tuple:
            kind = "list of tables"
        limits = bounds(field, unit)
        kind += f"; {limits}" if limits else ""
        yield f"| `{key}` | {kind} | {default_of(field, unit)} | {cell(sentence)} |"
        for one in inner:
            yield from rows(one, f"{key}.", (*within, one))


def queue_type(key: QueueKey) -> str:
    """Type and bounds of a setting of queues."""
    if key.kind in (Kind.CHOICE, Kind.BODIES):
        return ", ".join(f'`"{one}"`' for one in key.choices)
    limits = ""
    if key.kind is Kind.DURATION:
        limits = f"{format_duration(key.low)} to 10 years" if key.low else "10 years at most"
        assert key.high == TEN_YEARS_US, key.name
    elif key.kind in (Kind.COUNT, Kind.SIZE) and (key.low or key.high < COUNT_MAX):
        limits = f"{key.low} at least" if key.high >= COUNT_MAX else f"{key.low} to {key.high}"
    return f"{key.kind.value}{'; ' + limits if limits else ''}"


def queue_default(key: QueueKey) -> str:
    """What a queue has that says nothing of it."""
    value = getattr(QueueSettings(), key.name)
    if value is None or value in ("", ()):
        return ""
    text = in_line(written(key, value, "file"))
    return f'`"{text}"`' if key.kind in (Kind.BODIES, Kind.CHOICE, Kind.DURATION, Kind.SIZE, Kind.TEXT) else f"`{text}`"


def queue_row(key: QueueKey) -> str:
    """A row of the table of queues."""
    names = f"`{key.name}`{' **ms**' if key.rabbitmq and key.kind is Kind.DURATION else ''}"
    names += "".join(f", alias `{alias}`" for alias, name in KEY_ALIASES.items() if name == key.name)
    text, *more = below(Keys)[key.name].split("\n\n")
    more_of = dict(one.strip().split(": ", 1) for one in more)
    *victims, last = (mode.victim for mode in MODES.values())
    text = text.replace("{victims}", f"{', '.join(victims)}, or {last}")
    if key.kind is Kind.RETRY:
        text += f"  What a table leaves out: `{in_line(written(key, Retry(), 'file'))}`."
    if "Change" in more_of:
        text += f"  *Change:* {more_of['Change']}"
    policy, crash = "no" if key.name in DECLARED else "", more_of.get("Crash", "")
    return f"| {names} | {cell(queue_type(key))} | {queue_default(key)} | {policy} | {cell(text)} | {cell(crash)} |"


def head(name: str, field: FieldInfo) -> str:
    """A section as the file writes it."""
    return f"[[{name}]]" if get_origin(field.annotation) is tuple else f"[{name}]"


def page() -> str:
    """The whole page."""
    out = [TOP]
    sections = {(field.alias or name): field for name, field in Settings.model_fields.items()}
    told = {(field.alias or name): sentences(Settings)[name] for name, field in Settings.model_fields.items()}
    for name, field in sections.items():
        out.append(f"| [`{head(name, field)}`](#{name}) | {cell(told[name].partition('.  ')[0].rstrip('.'))} |\n")
    for name, field in sections.items():
        out.append(f"\n## {name}\n\n`{head(name, field)}`. {cell(told[name])}\n\n")
        out.append("| key | type | default | |\n| --- | --- | --- | --- |\n")
        out += [f"{row}\n" for row in rows(next(tables(field.annotation)))]
        if name == "queue":
            out.append(f"\n### Settings of a queue\n\n{QUEUES}\n")
            out.append("| key | type | default | policy | | after a crash |\n| --- | --- | --- | --- | --- | --- |\n")
            out += [f"{queue_row(key)}\n" for key in QUEUE_KEYS.values()]
        if name == "address":
            out.append("\nAnd the keys of Artemis' address settings:\n\n| key | |\n| --- | --- |\n")
            out += [f"| `{key}` | {cell(text)} |\n" for key, text in below(AddressKeys).items()]
    return "".join(out)


def main() -> int:
    """Status 0: the page is what the code says."""
    reader = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    reader.add_argument("--check", action="store_true", help="write nothing")
    if reader.parse_args().check:
        return int(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
