"""Connections and channels: `/api/connections`, `/api/channels`.

Whoever has no tag for more sees and closes his own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from starlette.responses import Response

from penstock.records.rights import ADMINISTRATOR, LOGIN, MONITORING, SEES
from penstock.wire.http.answers import done, json_response, not_found
from penstock.wire.http.lists import only_columns
from penstock.wire.http.routes import Ask, Row

REASON_MOST = 200


class Links(Protocol):
    """What these paths ask of the server; `user` None is everybody's."""

    def connections(self, user: str | None, vhost: str | None = None) -> Iterable[dict[str, object]]:
        """Open connections with RabbitMQ's field names."""
        ...

    def channels(
        self, user: str | None, vhost: str | None = None, connection: str | None = None
    ) -> Iterable[dict[str, object]]:
        """Open channels with RabbitMQ's field names."""
        ...

    async def close(self, name: str, reason: str) -> None:
        """Close a connection with code 320."""
        ...


def rows(links: Links) -> Sequence[Row]:
    """The paths."""
    doors = _Links(links)
    one = "/api/connections/{name}"
    return (
        Row("GET", "/api/connections", doors.every, "Every connection", LOGIN, many=True),
        Row("GET", one, doors.one, "One connection", LOGIN),
        Row("DELETE", one, doors.close, "Close a connection; the header X-Reason tells its client why", LOGIN),
        Row("GET", f"{one}/channels", doors.channels_of, "Channels of a connection", LOGIN, many=True),
        Row("GET", "/api/connections/username/{user}", doors.of_user, "Connections of a user", LOGIN, many=True),
        Row("DELETE", "/api/connections/username/{user}", doors.close_user, "Close the connections of a user", LOGIN),
        Row("GET", "/api/vhosts/{vhost}/connections", doors.of_vhost, "Connections of a vhost", SEES, many=True),
        Row("GET", "/api/vhosts/{vhost}/channels", doors.channels_of_vhost, "Channels of a vhost", SEES, many=True),
        Row("GET", "/api/channels", doors.channels, "Every channel", LOGIN, many=True),
        Row("GET", "/api/channels/{name}", doors.channel, "One channel", LOGIN),
    )


class _Links:
    """The handlers."""

    def __init__(self, links: Links) -> None:
        self._links = links

    @staticmethod
    def _whose(ask: Ask) -> str | None:
        return None if ask.may(MONITORING) else ask.user

    async def every(self, ask: Ask) -> Response:
        """Of all vhosts."""
        return await ask.listed(self._links.connections(self._whose(ask)))

    async def of_vhost(self, ask: Ask) -> Response:
        """Of one."""
        return await ask.listed(self._links.connections(self._whose(ask), ask.names["vhost"]))

    async def of_user(self, ask: Ask) -> Response:
        """Of one user."""
        whose = self._whose(ask)
        user = ask.names["user"]
        return await ask.listed(self._links.connections(user) if whose in {None, user} else [])

    def _found(self, ask: Ask, user: str | None) -> dict[str, object] | None:
        return next((one for one in self._links.connections(user) if one["name"] == ask.names["name"]), None)

    async def one(self, ask: Ask) -> Response:
        """By name."""
        found = self._found(ask, self._whose(ask))
        return not_found() if found is None else json_response(only_columns(found, ask.query))

    async def close(self, ask: Ask) -> Response:
        """An operator's word: connection.close with 320."""
        found = self._found(ask, None if ask.may(ADMINISTRATOR) else ask.user)
        if found is None:
            return not_found()
        await self._links.close(str(found["name"]), self._reason(ask))
        return done()

    async def close_user(self, ask: Ask) -> Response:
        """All of one user."""
        if not ask.may(ADMINISTRATOR) and ask.user != ask.names["user"]:
            return not_found()
        for found in list(self._links.connections(ask.names["user"])):
            await self._links.close(str(found["name"]), self._reason(ask))
        return done()

    @staticmethod
    def _reason(ask: Ask) -> str:
        return ask.request.headers.get("x-reason", "Closed via management plugin")[:REASON_MOST]

    async def channels(self, ask: Ask) -> Response:
        """Of all connections."""
        return await ask.listed(self._links.channels(self._whose(ask)))

    async def channels_of(self, ask: Ask) -> Response:
        """Of one connection."""
        whose = self._whose(ask)
        if self._found(ask, whose) is None:
            return not_found()
        return await ask.listed(self._links.channels(whose, None, ask.names["name"]))

    async def channels_of_vhost(self, ask: Ask) -> Response:
        """Of one vhost."""
        return await ask.listed(self._links.channels(self._whose(ask), ask.names["vhost"]))

    async def channel(self, ask: Ask) -> Response:
        """By name."""
        every = self._links.channels(self._whose(ask))
        found = next((one for one in every if one["name"] == ask.names["name"]), None)
        return not_found() if found is None else json_response(only_columns(found, ask.query))
