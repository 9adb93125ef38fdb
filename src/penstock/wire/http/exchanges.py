"""Changes of queues, and exchanges: `/api/queues/{vhost}/{name}` with PUT and DELETE, `/api/exchanges`.

The default exchange, which has no name, is `amq.default` in a path, as at the peer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from starlette.responses import Response

from penstock.records.rights import LISTS, SEES, USES, uses
from penstock.wire.http.answers import done, json_response, made, not_found
from penstock.wire.http.fields import short
from penstock.wire.http.lists import only_columns
from penstock.wire.http.routes import Ask, Row

DEFAULT_NAME = "amq.default"


class Topology(Protocol):
    """What these paths ask of the server.  All raise what the core refuses."""

    async def declare_queue(
        self, user: str, vhost: str, name: str, *, durable: bool, auto_delete: bool, arguments: Mapping[str, object]
    ) -> bool:
        """Whether it is new."""
        ...

    async def delete_queue(self, user: str, vhost: str, name: str, *, if_unused: bool, if_empty: bool) -> None:
        """Delete."""
        ...

    async def purge_queue(self, user: str, vhost: str, name: str) -> None:
        """Remove what is ready."""
        ...

    def exchanges(self, vhost: str | None) -> Iterable[Mapping[str, object]]:
        """`name vhost type durable auto_delete internal arguments` of each, of one vhost or of all."""
        ...

    def exchange(self, vhost: str, name: str) -> Mapping[str, object] | None:
        """One."""
        ...

    async def declare_exchange(
        self,
        user: str,
        vhost: str,
        name: str,
        kind: str,
        *,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Mapping[str, object],
    ) -> bool:
        """Whether it is new."""
        ...

    async def delete_exchange(self, user: str, vhost: str, name: str, *, if_unused: bool) -> None:
        """Delete with its bindings."""
        ...


def exchange_name(part: str) -> str:
    """The exchange that a part of a path names."""
    return "" if part == DEFAULT_NAME else part


def exchange_item(facts: Mapping[str, object]) -> dict[str, object]:
    """One exchange with RabbitMQ's field names."""
    return {"policy": None, "user_who_performed_action": "", **facts}


def rows(topology: Topology) -> Sequence[Row]:
    """The paths."""
    doors = _Exchanges(topology)
    queue, exchange = "/api/queues/{vhost}/{name}", "/api/exchanges/{vhost}/{name}"
    return (
        Row("PUT", queue, doors.declare_queue, "Declare a queue", USES, "durable auto_delete arguments"),
        Row("DELETE", queue, doors.delete_queue, "Delete a queue", uses(("configure", "queue", "name"))),
        Row("DELETE", f"{queue}/contents", doors.purge, "Purge a queue", uses(("read all", "queue", "name"))),
        Row("GET", "/api/exchanges", doors.every, "Every exchange", LISTS, many=True),
        Row("GET", "/api/exchanges/{vhost}", doors.of_vhost, "Every exchange of a vhost", SEES, many=True),
        Row("GET", exchange, doors.one, "One exchange", SEES),
        Row("PUT", exchange, doors.declare, "Declare an exchange", uses(("configure", "exchange", "name")),
            "type durable auto_delete internal arguments"),
        Row("DELETE", exchange, doors.delete, "Delete an exchange", uses(("configure", "exchange", "name"))),
    )  # fmt: skip


class _Exchanges:
    """The handlers."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology

    # -- queues

    async def declare_queue(self, ask: Ask) -> Response:
        """201 for a new one, 204 for an equal one."""
        fields = await ask.fields()
        fresh = await self._topology.declare_queue(
            ask.user,
            ask.names["vhost"],
            ask.names["name"],
            durable=fields.flag("durable", True),
            auto_delete=fields.flag("auto_delete", False),
            arguments=fields.table("arguments"),
        )
        return made(fresh)

    async def delete_queue(self, ask: Ask) -> Response:
        """With `if-unused=true` and `if-empty=true` only then."""
        await self._topology.delete_queue(
            ask.user,
            ask.names["vhost"],
            ask.names["name"],
            if_unused=ask.flag("if-unused"),
            if_empty=ask.flag("if-empty"),
        )
        return done()

    async def purge(self, ask: Ask) -> Response:
        """What is ready goes."""
        await self._topology.purge_queue(ask.user, ask.names["vhost"], ask.names["name"])
        return done()

    # -- exchanges

    async def every(self, ask: Ask) -> Response:
        """Of all vhosts."""
        return await ask.listed(map(exchange_item, self._topology.exchanges(None)))

    async def of_vhost(self, ask: Ask) -> Response:
        """Of one."""
        return await ask.listed(map(exchange_item, self._topology.exchanges(ask.names["vhost"])))

    async def one(self, ask: Ask) -> Response:
        """By its name."""
        found = self._topology.exchange(ask.names["vhost"], exchange_name(ask.names["name"]))
        if found is None:
            return not_found()
        return json_response(only_columns({**exchange_item(found), "incoming": [], "outgoing": []}, ask.query))

    async def declare(self, ask: Ask) -> Response:
        """201 for a new one, 204 for an equal one."""
        fields = await ask.fields()
        fresh = await self._topology.declare_exchange(
            ask.user,
            ask.names["vhost"],
            short(exchange_name(ask.names["name"]), "the name of an exchange"),
            fields.text("type", "direct"),
            durable=fields.flag("durable", True),
            auto_delete=fields.flag("auto_delete", False),
            internal=fields.flag("internal", False),
            arguments=fields.table("arguments"),
        )
        return made(fresh)

    async def delete(self, ask: Ask) -> Response:
        """With `if-unused=true` only then."""
        name = exchange_name(ask.names["name"])
        await self._topology.delete_exchange(ask.user, ask.names["vhost"], name, if_unused=ask.flag("if-unused"))
        return done()
