"""What two sites say to each other over a link: one DoExchange, called by the site that tells.

    it tells     {"link": {...}} as the command; then parcels: the head as metadata, the messages as rows beside it,
                 or no rows; and between them `{"say": "ask", "ask": [...]}`, `{"say": "beat"}`, which may have an
                 `"enquiry": [...]`, and once `{"say": "level"}`: what happened there before the link came up is told
    it hears     {"welcome": {"site", "origin", "group", "has", "offers", "sites"}}, then {"ack": LSN},
                 {"heartbeat": true}, and at the end perhaps {"ended": why}

What a head says is the core's to read (`core.links.parcels`), and so are asks and offers.  Rows are judged here.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import orjson
import pyarrow as pa

from penstock.errors import InvalidArgument, ProtocolError
from penstock.records.compute import compute, one_value
from penstock.records.properties import peek, plain_mode_of_all
from penstock.records.schema import CARRIED
from penstock.units import LATEST
from penstock.wire.fields import LSN_MAX, NAME_LIMIT, Fields, read_json
from penstock.wire.flight.received import Bounds, Layout, Received, check_bodies, columns_of
from penstock.wire.flight.tickets import origin_of, sites_of, told_sites

LINKED = Layout("link", CARRIED, tuple(CARRIED.names))

SAID = b'{"say":'
"""How words begin that are no head of a parcel."""

BEAT = orjson.dumps({"say": "beat"})
LEVEL = orjson.dumps({"say": "level"})

PROPERTIES_MOST = 1 << 20
"""Bytes of a message's header."""


def ask_words(ask: bytes) -> bytes:
    """An ask, as it is sent."""
    return orjson.dumps({"say": "ask", "ask": orjson.Fragment(ask)})


def enquiry_words(enquiry: bytes) -> bytes:
    """An enquiry, as it is sent: to an older site, which passes over it, it is a sign of life."""
    return orjson.dumps({"say": "beat", "enquiry": orjson.Fragment(enquiry)})


class Said(NamedTuple):
    """Words that are no parcel: an ask, an enquiry, that the site has told what was before, or a sign of life."""

    ask: bytes | None = None
    level: bool = False
    enquiry: bytes | None = None


def read_said(words: bytes) -> Said:
    """Words that are no parcel.  InvalidArgument for what a link does not say."""
    fields = Fields("link", read_json(words, "the words of a link"))
    say = fields.name("say")
    rest = fields.rest()
    ask, enquiry = rest.pop("ask", None), rest.pop("enquiry", None)
    if say == "ask" and isinstance(ask, list):
        return Said(orjson.dumps(ask))
    if say == "beat" and isinstance(enquiry, list):
        return Said(enquiry=orjson.dumps(enquiry))
    if say not in ("beat", "level") or ask is not None:
        raise InvalidArgument(f"link: {say[:40]!r} is not what a link says")
    return Said(level=say == "level")


def read_rows(received: Received, bounds: Bounds) -> pa.RecordBatch:
    """Messages that another site tells of, each value in its bounds.  InvalidArgument says which is not."""
    columns = columns_of(received)
    for name in ("lsn", "name", "time", "properties", "body"):
        if columns[name].null_count:
            raise InvalidArgument(f"link: column {name!r} has {columns[name].null_count} nulls")
    check_bodies(columns["body"], bounds, "link")
    if len(received):
        _within("lsn", columns["lsn"], 1, LSN_MAX)
        names, properties = _each_once(columns["name"]), _each_once(columns["properties"])
        _within("bytes of a name", compute.binary_length(names), 0, NAME_LIMIT)
        _within("bytes of properties", compute.binary_length(properties), 0, PROPERTIES_MOST)
        for name in ("time", "expires_at", "not_before"):
            if columns[name].null_count < len(received):
                _within(name, columns[name].cast(pa.int64()), 0, LATEST)
        _within("priority", columns["priority"], 0, 255)
        _check_properties(cast("list[bytes]", properties.to_pylist()))
    return pa.RecordBatch.from_arrays([columns[name] for name in CARRIED.names], schema=CARRIED)


def _within(what: str, column: pa.Array[Any], low: int, high: int) -> None:
    ends = cast("dict[str, int | None]", compute.min_max(column).as_py())
    for end in (ends["min"], ends["max"]):
        if end is not None and not low <= end <= high:
            raise InvalidArgument(f"link: {what} is {end}, not in {low}..{high}")


def _each_once(column: pa.Array[Any]) -> pa.Array[Any]:
    """The different values of a column."""
    return column.slice(0, 1) if one_value(column) else cast("Any", column).unique()


def _check_properties(found: list[bytes]) -> None:
    """InvalidArgument unless each is the properties of a message."""
    if plain_mode_of_all(found) >= 0:
        return
    for one in found:
        try:
            peek(one)
        except ProtocolError as error:
            raise InvalidArgument(f"link: properties of a message: {error}") from None


class Welcome(NamedTuple):
    """What the other site says when a link comes up.  has: how far of the caller's log is there."""

    site: str
    origin: int
    group: str
    has: int
    offers: Sequence[object]
    sites: Sequence[tuple[str, int, str]] = ()  # that it has met: name, origin, group

    def words(self) -> bytes:
        """The welcome as bytes of JSON, as it is sent."""
        return orjson.dumps(
            {"welcome": {**self._asdict(), "origin": str(self.origin), "sites": told_sites(self.sites)}}
        )


class Heard(NamedTuple):
    """What came back on a link; None is not said."""

    welcome: Welcome | None = None
    ack: int | None = None
    ended: str | None = None


def read_heard(words: bytes) -> Heard:
    """Words of the site that is told.  ProtocolError for what it may not say."""
    try:
        fields = Fields("link", read_json(words, "the answer of a link"))
        welcome, ack, ended = (
            fields.inner("welcome"),
            fields.optional_count("ack"),
            fields.optional_text("ended", 1 << 16),
        )
        fields.flag("heartbeat")
        fields.finish()
        if welcome is None:
            return Heard(None, ack, ended)
        found = Welcome(
            welcome.name("site"), origin_of(welcome, "origin"), welcome.text("group"), welcome.number("has"),
            welcome.objects("offers"), sites_of(welcome, "sites"),
        )  # fmt: skip
        welcome.finish()
        return Heard(found, ack, ended)
    except InvalidArgument as error:
        raise ProtocolError(f"the other site speaks no link: {error}") from None
