"""Vhosts, their limits, and what the whole cluster keeps by name: `/api/vhosts`, `/api/vhost-limits`,
`/api/global-parameters`, `/api/parameters`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from starlette.responses import Response

from penstock.errors import InvalidArgument
from penstock.records.rights import ADMINISTERS, KNOWS_VALUES, LISTS, LOGIN, SEES
from penstock.wire.http.answers import done, json_response, made, not_found
from penstock.wire.http.fields import Fields, short, too_deep
from penstock.wire.http.people import LIMIT_MOST
from penstock.wire.http.routes import Ask, Row

CLUSTER_NAME = "cluster_name"
"""The global parameter that names the instance for tools; without it the name of the settings does."""


class Vhosts(Protocol):
    """What these paths ask of the server.  Changes raise what is refused, and are durable when they return."""

    def vhosts(self, user: str) -> Iterable[Mapping[str, object]]:
        """Those that the user may open: `name description tags`."""
        ...

    async def put_vhost(self, user: str, name: str, more: Mapping[str, object]) -> bool:
        """Make or describe; whether it is new.  Whoever makes one at run time may use it."""
        ...

    async def delete_vhost(self, name: str) -> None:
        """With everything in it."""
        ...

    def permissions(self) -> Iterable[Mapping[str, object]]:
        """`user vhost configure write read`."""
        ...

    def topic_permissions(self) -> Iterable[Mapping[str, object]]:
        """`user vhost exchange write read`."""
        ...

    def vhost_limits(self) -> Iterable[Mapping[str, object]]:
        """`vhost value`: limits by name."""
        ...

    async def put_vhost_limit(self, vhost: str, name: str, value: int | None) -> None:
        """None: no limit of that name."""
        ...

    def global_parameters(self) -> Mapping[str, object]:
        """Values by name."""
        ...

    async def put_global_parameter(self, name: str, value: object) -> bool:
        """Whether it is new."""
        ...

    async def delete_global_parameter(self, name: str) -> None:
        """NotFound when there is none."""
        ...


def description_of(fields: Fields) -> dict[str, object]:
    """What a vhost says of itself, in the order of its keys."""
    found: dict[str, object] = {}
    if fields.values.get("description") is not None:
        found["description"] = fields.text("description")
    tags = fields.values.get("tags")
    if tags is not None:
        if isinstance(tags, str):
            tags = [part.strip() for part in tags.split(",") if part.strip()]
        if not isinstance(tags, list) or not all(isinstance(one, str) for one in tags):  # pyright: ignore[reportUnknownVariableType]
            raise InvalidArgument("tags is neither a list of texts nor a text with commas")
        found["tags"] = tags
    kind = fields.values.get("default_queue_type")
    if kind not in {None, "", "classic", "undefined"}:
        raise InvalidArgument(f"default_queue_type is {str(kind)[:60]!r}, not classic: there is one kind of queue")
    return found


def rows(vhosts: Vhosts) -> Sequence[Row]:
    """The paths."""
    doors = _Vhosts(vhosts)
    one, limit, value = "/api/vhosts/{vhost}", "/api/vhost-limits/{vhost}/{name}", "/api/global-parameters/{name}"
    return (
        Row("GET", "/api/vhosts", doors.every, "Every vhost", LOGIN, many=True),
        Row("GET", one, doors.one, "One vhost", SEES),
        Row("PUT", one, doors.put, "Make or describe a vhost", ADMINISTERS, "description tags"),
        Row("DELETE", one, doors.delete, "Delete a vhost with everything in it", ADMINISTERS),
        Row("GET", f"{one}/permissions", doors.permissions, "Permissions in a vhost", ADMINISTERS, many=True),
        Row("GET", f"{one}/topic-permissions", doors.topics, "Topic permissions in a vhost", ADMINISTERS, many=True),
        Row("GET", "/api/vhost-limits", doors.limits, "Limits of vhosts", LISTS, many=True),
        Row("GET", "/api/vhost-limits/{vhost}", doors.limits_of, "Limits of a vhost", SEES, many=True),
        Row("PUT", limit, doors.put_limit, "Set max-connections or max-queues", ADMINISTERS, "value"),
        Row("DELETE", limit, doors.delete_limit, "Take a limit away", ADMINISTERS),
        Row("GET", "/api/global-parameters", doors.values, "Every global parameter", KNOWS_VALUES, many=True),
        Row("GET", value, doors.value, "One global parameter", KNOWS_VALUES),
        Row("PUT", value, doors.put_value, "Keep a value under a name", ADMINISTERS, "value"),
        Row("DELETE", value, doors.delete_value, "Forget a value", ADMINISTERS),
        Row("PUT", "/api/cluster-name", doors.put_cluster_name, "Name the instance for tools", ADMINISTERS, "name"),
    )


class _Vhosts:
    """The handlers."""

    def __init__(self, vhosts: Vhosts) -> None:
        self._vhosts = vhosts

    async def every(self, ask: Ask) -> Response:
        """Those that the user may open."""
        return await ask.listed(map(dict, self._vhosts.vhosts(ask.user)))

    def _found(self, ask: Ask) -> Mapping[str, object] | None:
        return next((one for one in self._vhosts.vhosts(ask.user) if one["name"] == ask.names["vhost"]), None)

    async def one(self, ask: Ask) -> Response:
        """By name."""
        found = self._found(ask)
        return not_found() if found is None else json_response(found)

    async def put(self, ask: Ask) -> Response:
        """201 for a new one."""
        name = short(ask.names["vhost"], "the name of a vhost")
        return made(await self._vhosts.put_vhost(ask.user, name, description_of(await ask.fields())))

    async def delete(self, ask: Ask) -> Response:
        """Its connections close."""
        await self._vhosts.delete_vhost(ask.names["vhost"])
        return done()

    async def permissions(self, ask: Ask) -> Response:
        """In one vhost."""
        if self._found(ask) is None:
            return not_found()
        found = (dict(one) for one in self._vhosts.permissions() if one["vhost"] == ask.names["vhost"])
        return await ask.listed(found)

    async def topics(self, ask: Ask) -> Response:
        """In one vhost."""
        if self._found(ask) is None:
            return not_found()
        found = (dict(one) for one in self._vhosts.topic_permissions() if one["vhost"] == ask.names["vhost"])
        return await ask.listed(found)

    async def put_cluster_name(self, ask: Ask) -> Response:
        """As RabbitMQ keeps it: a global parameter."""
        name = short((await ask.fields()).text("name"), "the name of a cluster")
        if not name:
            raise InvalidArgument("name is empty")
        await self._vhosts.put_global_parameter(CLUSTER_NAME, name)
        return done()

    async def limits(self, ask: Ask) -> Response:
        """Of all that have some."""
        return await ask.listed(map(dict, self._vhosts.vhost_limits()))

    async def limits_of(self, ask: Ask) -> Response:
        """Of one."""
        found = (dict(one) for one in self._vhosts.vhost_limits() if one["vhost"] == ask.names["vhost"])
        return await ask.listed(found)

    async def put_limit(self, ask: Ask) -> Response:
        """-1 is none."""
        value = (await ask.fields()).count("value", -1, LIMIT_MOST)
        await self._vhosts.put_vhost_limit(ask.names["vhost"], ask.names["name"], value)
        return done()

    async def delete_limit(self, ask: Ask) -> Response:
        """Whether there was one or not."""
        await self._vhosts.put_vhost_limit(ask.names["vhost"], ask.names["name"], None)
        return done()

    async def values(self, ask: Ask) -> Response:
        """All."""
        found = self._vhosts.global_parameters()
        return await ask.listed(({"name": name, "value": value} for name, value in found.items()))

    async def value(self, ask: Ask) -> Response:
        """One."""
        found, name = self._vhosts.global_parameters(), ask.names["name"]
        return json_response({"name": name, "value": found[name]}) if name in found else not_found()

    async def put_value(self, ask: Ask) -> Response:
        """Any JSON."""
        fields = await ask.fields()
        if "value" not in fields.values:
            raise InvalidArgument("value is missing")
        value = fields.values["value"]
        if too_deep(value, 32):
            raise InvalidArgument("value nests deeper than 32")
        return made(await self._vhosts.put_global_parameter(short(ask.names["name"], "the name of a value"), value))

    async def delete_value(self, ask: Ask) -> Response:
        """Forget it."""
        await self._vhosts.delete_global_parameter(ask.names["name"])
        return done()
