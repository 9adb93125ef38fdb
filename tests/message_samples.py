"""One order as a body of every message type, and how its fields are reached: for tests that go over all types.

A reader of bodies is tested with each of these, so that one which reads JSON alone fails by the type's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import bson
import msgpack
import orjson

from penstock.records.message_types import MESSAGE_TYPES


def _pairs(order: Mapping[str, Any]) -> bytes:
    return b"".join(f"{name}={value}\x01".encode() for name, value in order.items())


FIX_TAGS = {"id": "11", "total": "44", "region": "207", "note": "58"}


def _xml(order: Mapping[str, Any]) -> bytes:
    inner = "".join(f"<{name}>{value}</{name}>" for name, value in order.items())
    return f"<order>{inner}</order>".encode()


@dataclass(frozen=True)
class Sample:
    """One type: how an order is written, and how the path of one of its fields begins."""

    name: str
    body: Callable[[Mapping[str, Any]], bytes]
    paths: Mapping[str, str]
    merges: bool = True  # deltas are merged
    texts: bool = False  # numbers are texts

    def path(self, field: str) -> str:
        """The field as an expression spells it."""
        return self.paths.get(field, f"/{field}")

    def said(self, text: str) -> str:
        """An expression with `{id}`, `{total}` .. as the fields of this type."""
        return text.format(**{name: self.path(name) for name in FIX_TAGS})


SAMPLES = {
    "json": Sample("json", lambda order: orjson.dumps(order), {}),
    "nvfix": Sample("nvfix", _pairs, {}, texts=True),
    "fix": Sample(
        "fix",
        lambda order: _pairs({FIX_TAGS[name]: value for name, value in order.items()}),
        {name: f"/{tag}" for name, tag in FIX_TAGS.items()},
        texts=True,
    ),
    "xml": Sample("xml", _xml, {name: f"/order/{name}" for name in FIX_TAGS}, merges=False, texts=True),
    "msgpack": Sample("msgpack", lambda order: bytes(msgpack.packb(dict(order))), {}),
    "bson": Sample("bson", lambda order: bytes(bson.encode(dict(order))), {}),
}
"""Every type with fields."""

assert set(SAMPLES) | {"binary"} == set(MESSAGE_TYPES), "a message type without a sample"
