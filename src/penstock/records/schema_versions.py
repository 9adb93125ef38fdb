"""The versions of a topic's schema: each other text that was declared has the next number.

They are settings of the topic, so the record that declares it has them, and nothing is worked out again.  A schema that
a reader registered, because it looked at the messages, stays when the topic is declared again without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from penstock.records.sow_settings import SCHEMA

SCHEMAS, BEFORE, REGISTERED = "schemas", "schemas_before", "schema_registered"
"""Texts in the order of their numbers; how many were before the first of them, if not all are kept; whether the last
was registered and not declared.
"""

KEPT_MOST = 100
"""Versions of a topic that are known; the oldest ones are forgotten."""


def with_versions(
    given: Mapping[str, object], present: Mapping[str, object] | None, *, registered: bool = False
) -> Mapping[str, object]:
    """The settings of a declare with the versions of its schema.  present: the topic as it is.

    registered: it is the schema alone that is given.
    """
    before = present or {}
    told, schema = _told(before), given.get(SCHEMA)
    if schema is None and before.get(REGISTERED):
        schema, registered = before[SCHEMA], True
    if schema is not None and (not told or told[-1] != schema):
        told = [*told, cast("str", schema)]
    made = {name: value for name, value in given.items() if name not in {SCHEMA, SCHEMAS, BEFORE, REGISTERED}}
    if schema is not None:
        made[SCHEMA] = schema
    if registered:
        made[REGISTERED] = True
    if len(told) > 1 or (told and schema is None):
        made |= _kept(told, _before(before))
    return made


def _kept(told: Sequence[str], before: int) -> dict[str, object]:
    """The newest of all schemas, and how many came before them.  before: as many were forgotten earlier."""
    forgotten = max(0, len(told) - KEPT_MOST)
    kept: dict[str, object] = {SCHEMAS: told[forgotten:]}
    if gone := forgotten + before:
        kept[BEFORE] = gone
    return kept


def versions(settings: Mapping[str, object]) -> Mapping[int, str]:
    """Number and text of each schema that the topic has had, as far as they are kept."""
    return dict(enumerate(_told(settings), _before(settings) + 1))


def version(settings: Mapping[str, object]) -> int | None:
    """The number of the present schema; None without one."""
    return None if settings.get(SCHEMA) is None else _before(settings) + len(_told(settings))


def _told(settings: Mapping[str, object]) -> Sequence[str]:
    found = settings.get(SCHEMAS)
    if found is not None:
        return cast("list[str]", found)
    schema = settings.get(SCHEMA)
    return [] if schema is None else [cast("str", schema)]


def _before(settings: Mapping[str, object]) -> int:
    return cast("int", settings.get(BEFORE, 0))
