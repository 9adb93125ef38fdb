"""Definitions: `/api/definitions`, what there is as one JSON document, and taking such a document over.

Taking over merges: it adds and replaces, never removes; a queue or exchange that is there with other properties is left
alone.  All of a document is taken, or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from starlette.responses import Response

from penstock.errors import InvalidArgument
from penstock.records.rights import ADMINISTERS, RULES
from penstock.wire.fields import Lenient
from penstock.wire.http.facts import ServerFacts
from penstock.wire.http.lists import done, encoded, gathered, json_bytes, json_response, not_found
from penstock.wire.http.overview import RABBITMQ_VERSION
from penstock.wire.http.routes import LARGE_MOST, Ask, Row

SECTIONS = (
    "users", "vhosts", "permissions", "topic_permissions", "parameters", "global_parameters", "policies", "queues",
    "exchanges", "bindings",
)  # fmt: skip

OF_A_VHOST = ("parameters", "policies", "queues", "exchanges", "bindings")


class Definitions(Protocol):
    """What these paths ask of the server."""

    def section(self, name: str, vhost: str | None) -> Iterable[Mapping[str, object]]:
        """Objects of one section, of one vhost or of all, with RabbitMQ's field names."""
        ...

    async def take(self, sections: Mapping[str, list[Lenient]], vhost: str | None) -> Sequence[str]:
        """Take a document over; raises what is wrong with it, and nothing has changed.

        What is taken and not the same here is told, a sentence each.
        """
        ...


def rows(facts: ServerFacts, definitions: Definitions) -> Sequence[Row]:
    doors = _Definitions(facts, definitions)
    every, of_vhost = "/api/definitions", "/api/definitions/{vhost}"
    fields = " ".join(SECTIONS)
    return (
        Row("GET", every, doors.every, "Everything that is defined", ADMINISTERS),
        Row("POST", every, doors.take, "Take definitions over", ADMINISTERS, fields),
        Row("GET", of_vhost, doors.of_vhost, "What is defined in a vhost", RULES),
        Row("POST", of_vhost, doors.take_into, "Take definitions over into a vhost", ADMINISTERS, fields),
    )


class _Definitions:
    def __init__(self, facts: ServerFacts, definitions: Definitions) -> None:
        self._facts = facts
        self._definitions = definitions

    async def every(self, _: Ask) -> Response:
        return await self._shown(SECTIONS, None)

    async def of_vhost(self, ask: Ask) -> Response:
        """Its objects do not name the vhost."""
        vhost = ask.names["vhost"]
        return await self._shown(OF_A_VHOST, vhost) if vhost in self._facts.vhosts() else not_found()

    async def _shown(self, sections: Sequence[str], vhost: str | None) -> Response:
        version = self._facts.metrics().version
        head: dict[str, object] = {
            "rabbit_version": RABBITMQ_VERSION,
            "rabbitmq_version": RABBITMQ_VERSION,
            "product_name": "Penstock",
            "product_version": version,
        }
        parts = [bytes(json_response(head).body)[:-1]]
        for name in sections:
            found = await gathered(self._definitions.section(name, vhost))
            items: list[object] = [
                {key: value for key, value in one.items() if vhost is None or key != "vhost"} for one in found
            ]
            parts.append(b'"' + name.encode() + b'":' + await encoded(items))
        headers = {"content-disposition": "attachment; filename=definitions.json"}
        return json_bytes(b",".join(parts) + b"}", 200, headers)

    async def take(self, ask: Ask) -> Response:
        return await self._taken(ask, None)

    async def take_into(self, ask: Ask) -> Response:
        vhost = ask.names["vhost"]
        return await self._taken(ask, vhost) if vhost in self._facts.vhosts() else not_found()

    async def _taken(self, ask: Ask, vhost: str | None) -> Response:
        fields = await ask.fields(LARGE_MOST, once=True)
        if not any(name in fields.values for name in SECTIONS):
            raise InvalidArgument(f"the document has none of {', '.join(SECTIONS)}")
        warnings = await self._definitions.take({name: fields.items(name) for name in SECTIONS}, vhost)
        return json_response({"warnings": warnings}) if warnings else done()
