"""Bodies as trees of fields: merging what a delta brings into a record, and what changed between two.

A field is merged where both sides have an object, else it is replaced; arrays are replaced whole, and nothing can be
taken away.  Bodies are JSON objects; anything else is refused in a sentence.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

import orjson

from penstock.errors import InvalidArgument
from penstock.records.message_bodies import read_exact

Fields = dict[str, object]


def read_object(body: bytes, what: str) -> Fields:
    """The fields of a body.  InvalidArgument, naming `what`, for one that is no JSON object."""
    try:
        value = read_exact(body)
    except ValueError as error:
        raise InvalidArgument(f"{what} is no JSON: {str(error)[:100]}") from None
    if not isinstance(value, dict):
        raise InvalidArgument(f"{what} is no JSON object, so it has no fields to merge")
    return cast("Fields", value)


def write_object(fields: Fields) -> bytes:
    """The inverse of `read_object`, without spaces."""
    try:
        return orjson.dumps(fields)
    except TypeError:  # an integer beyond 64 bits
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def merged(record: Fields, delta: Fields) -> Fields:
    """A record with the fields of a delta; neither is changed."""
    out = dict(record)
    for name, value in delta.items():
        present = out.get(name)
        if isinstance(present, dict) and isinstance(value, dict):
            out[name] = merged(cast("Fields", present), cast("Fields", value))
        else:
            out[name] = value
    return out


def merge(record: bytes, delta: bytes) -> bytes:
    """A record's body with the fields of a delta.  InvalidArgument unless both are JSON objects."""
    changes = read_object(delta, "a delta")
    return write_object(merged(read_object(record, "the present record"), changes))


def changed(before: Fields, after: Fields) -> Fields:
    """The fields of `after` that `before` has not, or with another value; objects field by field."""
    out: Fields = {}
    for name, value in after.items():
        if name not in before:
            out[name] = value
            continue
        present = before[name]
        if isinstance(present, dict) and isinstance(value, dict):
            inner = changed(cast("Fields", present), cast("Fields", value))
            if inner:
                out[name] = inner
        elif not _same(before[name], after[name]):
            out[name] = value
    return out


def _same(a: object, b: object) -> bool:
    return type(a) is type(b) and a == b


def with_key(changes: Fields, record: Fields, paths: Sequence[Sequence[str]]) -> Fields:
    """The key fields of the record, which say whose they are, and the changes."""
    out: Fields = {}
    for path in paths:
        _copy(out, record, path)
    return merged(out, changes)


def _copy(out: Fields, record: Fields, path: Sequence[str]) -> None:
    name = path[0]
    if name not in record:
        return
    if len(path) == 1:
        out[name] = record[name]
        return
    inner, source = out.get(name), record[name]
    if isinstance(source, dict):
        own: Fields = {**cast("Fields", inner)} if isinstance(inner, dict) else {}
        _copy(own, cast("Fields", source), path[1:])
        out[name] = own
