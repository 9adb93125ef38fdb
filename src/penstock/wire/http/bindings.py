"""Bindings: `/api/bindings`, and those of one queue or exchange.

A binding has no name; `properties_key` stands for one: its routing key (`~` for an empty one), and when it has
arguments `~` and a digest of them.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, cast
from urllib.parse import quote, quote_plus

import orjson
from starlette.responses import Response

from penstock.records.rights import LISTS, SEES, Thing, uses
from penstock.wire.http.answers import created, done, json_response, not_found
from penstock.wire.http.exchanges import DEFAULT_NAME, exchange_name
from penstock.wire.http.fields import short
from penstock.wire.http.lists import only_columns
from penstock.wire.http.routes import Ask, Row

DIGEST = 22
"""Characters of a digest of arguments."""

KINDS: Mapping[str, Thing] = {"q": "queue", "e": "exchange"}


class Bindings(Protocol):
    """What these paths ask of the server; items are `source vhost destination destination_type routing_key arguments`.

    All raise what the core refuses, NotFound for a missing end.
    """

    def bindings(self, vhost: str | None) -> Iterable[Mapping[str, object]]:
        """Of one vhost or of all."""
        ...

    def bindings_to_queue(self, user: str, vhost: str, name: str) -> Iterable[Mapping[str, object]]:
        """Of one queue."""
        ...

    def bindings_of_exchange(self, vhost: str, name: str, *, as_source: bool) -> Iterable[Mapping[str, object]]:
        """That begin, or end, at an exchange."""
        ...

    def bindings_between(self, vhost: str, source: str, kind: str, name: str) -> list[Mapping[str, object]]:
        """From one exchange to one queue or exchange."""
        ...

    async def bind(
        self, user: str, vhost: str, source: str, kind: str, name: str, key: str, arguments: Mapping[str, object]
    ) -> None:
        """Bind."""
        ...

    async def unbind(
        self, user: str, vhost: str, source: str, kind: str, name: str, key: str, arguments: Mapping[str, object]
    ) -> None:
        """Unbind."""
        ...


def properties_key(key: str, arguments: Mapping[str, object]) -> str:
    """What stands for the name of a binding."""
    if not arguments:
        return quote_plus(key) or "~"
    canonical = orjson.dumps(arguments, default=str, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    digest = base64.urlsafe_b64encode(hashlib.sha256(canonical).digest()).decode()
    return f"{quote_plus(key)}~{digest[:DIGEST]}"


def binding_item(facts: Mapping[str, object]) -> dict[str, object]:
    """One binding with RabbitMQ's field names."""
    arguments = cast("Mapping[str, object]", facts["arguments"])
    return {**facts, "properties_key": properties_key(cast("str", facts["routing_key"]), arguments)}


def rows(bindings: Bindings) -> Sequence[Row]:
    """The paths."""
    doors = _Bindings(bindings)
    one_queue, one_exchange = "/api/queues/{vhost}/{name}/bindings", "/api/exchanges/{vhost}/{name}/bindings"
    found: list[Row] = [
        Row("GET", "/api/bindings", doors.every, "Every binding", LISTS, many=True),
        Row("GET", "/api/bindings/{vhost}", doors.of_vhost, "Every binding of a vhost", SEES, many=True),
        Row("GET", one_queue, doors.to_queue, "Bindings of a queue", SEES, many=True),
        Row(
            "GET", f"{one_exchange}/source", doors.from_exchange, "Bindings that begin at an exchange", SEES, many=True
        ),
        Row(
            "GET", f"{one_exchange}/destination", doors.to_exchange, "Bindings that end at an exchange", SEES, many=True
        ),
    ]
    for letter, kind in KINDS.items():
        path = f"/api/bindings/{{vhost}}/e/{{source}}/{letter}/{{destination}}"
        pair = _Pair(bindings, letter, kind)
        binds = uses(("write", kind, "destination"), ("read", "exchange", "source"))
        found += [
            Row("GET", path, pair.all, f"Bindings between an exchange and a {kind}", SEES, many=True),
            Row("POST", path, pair.bind, f"Bind a {kind}", binds, "routing_key arguments"),
            Row("GET", f"{path}/{{props}}", pair.one, "One binding by its properties_key", SEES),
            Row("DELETE", f"{path}/{{props}}", pair.unbind, "Remove a binding", binds),
        ]
    return found


class _Bindings:
    """The handlers of lists."""

    def __init__(self, bindings: Bindings) -> None:
        self._bindings = bindings

    async def every(self, ask: Ask) -> Response:
        """Of all vhosts."""
        return await ask.listed(map(binding_item, self._bindings.bindings(None)))

    async def of_vhost(self, ask: Ask) -> Response:
        """Of one."""
        return await ask.listed(map(binding_item, self._bindings.bindings(ask.names["vhost"])))

    async def to_queue(self, ask: Ask) -> Response:
        """Of one queue."""
        found = self._bindings.bindings_to_queue(ask.user, ask.names["vhost"], ask.names["name"])
        return await ask.listed(map(binding_item, found))

    async def from_exchange(self, ask: Ask) -> Response:
        """That begin at one exchange."""
        return await self._of_exchange(ask, as_source=True)

    async def to_exchange(self, ask: Ask) -> Response:
        """That end at one."""
        return await self._of_exchange(ask, as_source=False)

    async def _of_exchange(self, ask: Ask, *, as_source: bool) -> Response:
        name = exchange_name(ask.names["name"])
        found = self._bindings.bindings_of_exchange(ask.names["vhost"], name, as_source=as_source)
        return await ask.listed(map(binding_item, found))


class _Pair:
    """The handlers for an exchange and what is bound to it, of one kind."""

    def __init__(self, bindings: Bindings, letter: str, kind: str) -> None:
        self._bindings = bindings
        self._letter = letter
        self._kind = kind

    def _ends(self, ask: Ask) -> tuple[str, str, str, str]:
        name = ask.names["destination"]
        source = exchange_name(ask.names["source"])
        return ask.names["vhost"], source, self._kind, exchange_name(name) if self._kind == "exchange" else name

    def _found(self, ask: Ask) -> list[dict[str, object]]:
        return [binding_item(one) for one in self._bindings.bindings_between(*self._ends(ask))]

    async def all(self, ask: Ask) -> Response:
        """Those between the two."""
        return await ask.listed(self._found(ask))

    async def bind(self, ask: Ask) -> Response:
        """201 with the place of the binding; the same twice is one."""
        fields = await ask.fields()
        key, arguments = short(fields.text("routing_key", ""), "routing_key"), fields.table("arguments")
        vhost, source, kind, name = self._ends(ask)
        await self._bindings.bind(ask.user, vhost, source, kind, name, key, arguments)
        parts = (vhost, "e", source or DEFAULT_NAME, self._letter, name, properties_key(key, arguments))
        return created("/api/bindings/" + "/".join(quote(part, safe="") for part in parts))

    def _one(self, ask: Ask) -> dict[str, object] | None:
        """By its key; a part of a path is decoded, so a quoted key is compared in both forms."""
        wanted = ask.names["props"]
        for one in self._found(ask):
            if wanted in {one["properties_key"], one["routing_key"] if not one["arguments"] else None}:
                return one
        return None

    async def one(self, ask: Ask) -> Response:
        """One of them."""
        found = self._one(ask)
        return not_found() if found is None else json_response(only_columns(found, ask.query))

    async def unbind(self, ask: Ask) -> Response:
        """Remove it."""
        found = self._one(ask)
        if found is None:
            return not_found()
        key, arguments = cast("str", found["routing_key"]), cast("Mapping[str, object]", found["arguments"])
        await self._bindings.unbind(ask.user, *self._ends(ask), key, arguments)
        return done()
