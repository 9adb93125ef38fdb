"""Which settings are in force, as text, and where each came from.

Secrets are told as asterisks: their type writes them so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, cast, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from penstock.config.queue_settings import QUEUE_KEYS
from penstock.config.queue_values import in_line, written
from penstock.records.queue_settings import QueueSettings
from penstock.units import format_duration, format_size

if TYPE_CHECKING:
    from penstock.config.settings import Settings


NAMES = ("server", "listen", "before_login", "tls", "amqp", "log", "sql", "spark")


def in_force(settings: Settings) -> list[tuple[str, str, str]]:
    """Name, value as text and origin of every single setting, of users, and of what queues have beside the defaults."""
    lines = [line for name in NAMES for line in _lines(settings, name, getattr(settings, name))]
    for index, user in enumerate(settings.user):
        told_of = _lines(settings, f"user.{index}", user)
        lines += [(f'user "{user.name}" {place.rpartition(".")[2]}', value, origin) for place, value, origin in told_of]
    return [*lines, *_queue_lines(settings)]


def chosen(settings: Settings) -> list[tuple[str, str, str]]:
    """Those of `in_force` that are not the default."""
    return [line for line in in_force(settings) if line[2] != "default"]


def _queue_lines(settings: Settings) -> Iterator[tuple[str, str, str]]:
    usual = QueueSettings()
    for index, queue in enumerate(settings.queue):
        for name in (field.name for field in fields(QueueSettings)):
            value = cast("object", getattr(queue.settings, name))
            if value == getattr(usual, name):
                continue
            origin = settings.origin(f"queue.{index}.{name}")
            if origin == "default":
                origin = settings.origin(f"queue.{index}")  # what the reader of a foreign file put in
            yield f'queue "{queue.name}" {name}', in_line(written(QUEUE_KEYS[name], value, "file")), origin


def _lines(settings: Settings, place: str, table: BaseModel) -> Iterator[tuple[str, str, str]]:
    for key, field in type(table).model_fields.items():
        value = cast("object", getattr(table, key))
        inner = f"{place}.{key}"
        if isinstance(value, BaseModel):
            yield from _lines(settings, inner, value)
            continue
        origin = settings.origin(inner)
        if origin == "default":
            origin = settings.origin(place)  # an inline table has one origin for all of it
        yield inner, told(value, _unit(field)), origin


def _unit(field: FieldInfo) -> object:
    """`duration` or `size` where the type says so, also inside `| None`."""
    extras = [cast("object", field.json_schema_extra)]
    for part in cast("tuple[object, ...]", get_args(field.annotation)):
        if get_origin(part) is Annotated:
            extras += [cast("object", meta.json_schema_extra) for meta in get_args(part) if isinstance(meta, FieldInfo)]
    return next((cast("dict[str, object]", extra).get("unit") for extra in extras if isinstance(extra, dict)), None)


def told(value: object, unit: object) -> str:
    """A value as the settings file writes it."""
    if unit == "duration" and isinstance(value, int):
        return format_duration(value)
    if unit == "size" and isinstance(value, int):
        return format_size(value)
    return in_line(value)
