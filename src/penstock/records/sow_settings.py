"""What makes a declared topic a SOW topic, and what else is said of a topic: its settings, and what they may hold.

Versions of its schema are settings, too: each other text that was declared has the next number.  So the record that
declares the topic has them, and nothing is worked out again.  A schema that a reader registered, because it looked at
the messages, stays when the topic is declared again without one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from penstock.records.ddl import TEXT_MOST, parse_ddl
from penstock.records.message_types import FIELDLESS, JSON, MESSAGE_TYPE, alike, wrong_type

KEY, KEY_FROM, EXPIRATION, INDEX = "key", "key_from", "expiration", "index"
"""Fields of the key, a list of paths; "publisher" where it is given; microseconds until a record expires; where the
index is, one of `INDEXES`.
"""

KEY_DOMAIN = "key_domain"
"""A name: topics that share it have the same number for equal values.  Without it the topic's own name."""

SCHEMA = "schema"
"""The columns of its JSON bodies, as Spark writes a schema: told to readers, and not asked of publishers."""

JSON_SCHEMA, JSON_SCHEMA_CHECK = "json_schema", "json_schema_check"
"""A JSON Schema as text, and what becomes of a body that does not fit it, one of `CHECKS`."""

CHECKS = ("off", "warn", "reject")
"""Nothing; it is counted and stored; it is refused, which is so without the setting."""

INDEXES = ("memory", "file")
"""In memory, or paged to a file; without it in memory."""

FIELDS_MOST = 16
"""Fields of one key."""

DOMAIN_MOST = 255
"""Bytes of the name of a key domain."""


def parse_paths(fields: Sequence[object]) -> tuple[tuple[str, ...], ...]:
    """Key fields as they are written, `/id` or `/customer/id`.  ValueError with a sentence for what is no path."""
    if len(fields) > FIELDS_MOST:
        raise ValueError(f"a key has at most {FIELDS_MOST} fields, not {len(fields)}")
    paths: list[tuple[str, ...]] = []
    for field in fields:
        names = tuple(field[1:].split("/")) if isinstance(field, str) else ()
        if not isinstance(field, str) or field[:1] != "/" or not all(names) or any(c in field for c in "[]*()'\" "):
            raise ValueError(f"the key field {str(field)[:60]!r} is no path: write /id or /customer/id")
        if names in paths:
            raise ValueError(f"the key field {field[:60]!r} is there twice")
        paths.append(names)
    return tuple(paths)


def is_sow(settings: Mapping[str, object]) -> bool:
    """Whether a topic with these settings keeps the last message of each key."""
    return bool(settings.get(KEY)) or settings.get(KEY_FROM) == "publisher"


def goes_on_with_records(settings: Mapping[str, object], before: Mapping[str, object]) -> bool:
    """Whether a SOW topic keeps its records although its bodies are of another type: of one that has more schemas,
    or fewer.  Of the same key and type it does so anyway, of any other it begins anew.
    """
    kind, former = str(settings.get(MESSAGE_TYPE, JSON)), str(before.get(MESSAGE_TYPE, JSON))
    told_apart = all(settings.get(name) == before.get(name) for name in (KEY, KEY_FROM, KEY_DOMAIN))
    return is_sow(settings) and told_apart and kind != former and alike(kind, former)


def wrong(settings: Mapping[str, object]) -> str | None:
    """Why these settings of a topic cannot be; None: they can."""
    for name, judge in _JUDGES.items():
        value = settings.get(name)
        why = None if value is None else judge(value, settings)
        if why is not None:
            return why
    return None


def _wrong_key(key: object, settings: Mapping[str, object]) -> str | None:
    if not isinstance(key, list) or not key:
        return f'key is a list of paths such as ["/id"], not {key!r}'
    if settings.get(KEY_FROM) is not None:
        return "a key comes from the fields of `key` or, with `key_from`, from its publisher"
    try:
        parse_paths(cast("list[object]", key))
    except ValueError as error:
        return str(error)
    if (kind := settings.get(MESSAGE_TYPE)) in FIELDLESS:
        return f"key is made of fields, and bodies of message_type {kind} have none"
    return None


def _wrong_domain(domain: object, settings: Mapping[str, object]) -> str | None:
    if not isinstance(domain, str) or not 0 < len(domain.encode()) <= DOMAIN_MOST:
        return f"key_domain is {str(domain)[:60]!r}, not a name of 1 to {DOMAIN_MOST} bytes"
    return "a key_domain is of keys that come from the fields of `key`" if settings.get(KEY) is None else None


def _wrong_source(source: object, _: Mapping[str, object]) -> str | None:
    return None if source == "publisher" else f"key_from is 'publisher' or nothing, not {source!r}"


def _wrong_schema(schema: object, _: Mapping[str, object]) -> str | None:
    if not isinstance(schema, str):
        return f"schema is text such as 'id bigint, total double', not {str(schema)[:60]!r}"
    try:
        parse_ddl(schema)
    except ValueError as error:
        return f"schema: {error}"
    return None


def _wrong_json_schema(schema: object, settings: Mapping[str, object]) -> str | None:
    if not isinstance(schema, str) or len(schema) > TEXT_MOST:
        return f"json_schema is a JSON Schema as text of at most {TEXT_MOST} letters, not {str(schema)[:60]!r}"
    if (kind := settings.get(MESSAGE_TYPE, JSON)) in FIELDLESS:
        return f"json_schema is for bodies with fields, and those of message_type {kind} have none"
    return None


def _wrong_check(check: object, settings: Mapping[str, object]) -> str | None:
    if check not in CHECKS:
        return f"json_schema_check is one of {', '.join(CHECKS)}, not {check!r}"
    return None if settings.get(JSON_SCHEMA) is not None else "json_schema_check says what json_schema is for: give one"


def _wrong_index(index: object, settings: Mapping[str, object]) -> str | None:
    if not is_sow(settings):
        return "an index is of records, and a topic without a key has none"
    return None if index in INDEXES else f"index is one of {', '.join(INDEXES)}, not {index!r}"


def _wrong_expiration(expiration: object, settings: Mapping[str, object]) -> str | None:
    if not is_sow(settings):
        return "records expire, and a topic without a key has none"
    if isinstance(expiration, bool) or not isinstance(expiration, int) or expiration < 0:
        return f"expiration is {expiration!r}, not a number of microseconds"
    return None


def _wrong_type(kind: object, _: Mapping[str, object]) -> str | None:
    return wrong_type(kind)


_JUDGES: dict[str, Callable[[object, Mapping[str, object]], str | None]] = {
    KEY: _wrong_key,
    KEY_DOMAIN: _wrong_domain,
    KEY_FROM: _wrong_source,
    SCHEMA: _wrong_schema,
    JSON_SCHEMA: _wrong_json_schema,
    JSON_SCHEMA_CHECK: _wrong_check,
    MESSAGE_TYPE: _wrong_type,
    INDEX: _wrong_index,
    EXPIRATION: _wrong_expiration,
}


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
