"""Our own paths of a queue: why it does not deliver, what waits in it, who holds what; pausing, redriving, moving.

GET explain | peek | leases      touch nothing
POST pause | resume | redrive | move
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from starlette.responses import Response

from penstock.errors import InvalidArgument
from penstock.records.rights import TENDS, sees, uses
from penstock.units import parse_duration
from penstock.wire.http.answers import json_response
from penstock.wire.http.fields import Fields
from penstock.wire.http.messages import Got, message_item
from penstock.wire.http.routes import Ask, Row

PEEK_MOST = 1000

LOOKED = "x-looked-at"
"""Header of a peek: at how many messages it looked, of which a filter may have chosen some."""


class Seen(Got, Protocol):
    """A message as `Own.peek` gives it."""

    @property
    def attempt(self) -> int:
        """How often it was delivered."""
        ...

    @property
    def bookmark(self) -> str:
        """Where it is."""
        ...

    @property
    def time(self) -> int:
        """When it was published, in microseconds since the epoch."""
        ...


class Own(Protocol):
    """What these paths ask of the server.  All raise what is refused."""

    async def act(self, user: str, name: str, values: Mapping[str, object]) -> Mapping[str, object]:
        """One of the actions that Flight has too, with its fields."""
        ...

    async def peek(
        self, user: str, vhost: str, name: str, count: int, filter: str | None
    ) -> tuple[Sequence[Seen], int]:
        """The first messages that are ready, which stay, of those that a filter matches; how many were looked at."""
        ...

    def leases(self, user: str, vhost: str, name: str, most: int) -> Sequence[Mapping[str, object]]:
        """Who holds which messages."""
        ...


_WANTED = ("filter", "count", "after", "dry")


def rows(own: Own) -> Sequence[Row]:
    """The paths."""
    doors, path = _Own(own), "/api/queues/{vhost}/{name}"
    return (
        Row(
            "GET",
            f"{path}/explain",
            doors.explain,
            "Why nothing, or one message (bookmark=), is not delivered",
            sees("queue", "name"),
        ),
        Row(
            "GET",
            f"{path}/peek",
            doors.peek,
            "The first messages (count=, filter=, truncate=)",
            uses(("read", "queue", "name")),
        ),
        Row("GET", f"{path}/leases", doors.leases, "Who holds which messages", uses(("read all", "queue", "name"))),
        Row("POST", f"{path}/pause", doors.pause, "Deliver nothing: for a while (for), or for good", TENDS, "for"),
        Row("POST", f"{path}/resume", doors.resume, "Deliver again", TENDS),
        Row(
            "POST",
            f"{path}/redrive",
            doors.redrive,
            "Dead letters back to where they came from",
            TENDS,
            "filter count after dry",
        ),
        Row("POST", f"{path}/move", doors.move, "What waits to another queue", TENDS, "to filter count after dry"),
    )


class _Own:
    """The handlers."""

    def __init__(self, own: Own) -> None:
        self._own = own

    async def _act(self, ask: Ask, action: str, **values: object) -> Response:
        given = {"queue": ask.names["name"], "vhost": ask.names["vhost"]}
        told = {key: value for key, value in values.items() if value is not None}
        return json_response(await self._own.act(ask.user, action, {**given, **told}))

    async def explain(self, ask: Ask) -> Response:
        """Reasons with their codes."""
        return await self._act(ask, "explain", bookmark=ask.query.get("bookmark"))

    async def peek(self, ask: Ask) -> Response:
        """As a get shows them, with bookmark and time."""
        fields = Fields(ask.query)
        count, wanted = fields.count("count", 1, PEEK_MOST, 10), fields.text("filter", "")
        truncate = fields.count("truncate", -1, 1 << 31, -1)
        found, looked = await self._own.peek(ask.user, ask.names["vhost"], ask.names["name"], count, wanted or None)
        items = [
            {
                "bookmark": one.bookmark,
                "time": one.time / 1e6,
                "attempt": one.attempt,
                **message_item(one, "auto", truncate),
            }
            for one in found
        ]
        return json_response(items, headers={LOOKED: str(looked)})

    async def leases(self, ask: Ask) -> Response:
        """By holder."""
        most = Fields(ask.query).count("count", 1, PEEK_MOST, PEEK_MOST)
        return json_response(self._own.leases(ask.user, ask.names["vhost"], ask.names["name"], most))

    async def pause(self, ask: Ask) -> Response:
        """`{"for": "5m"}`, or for good."""
        fields = await self._fields(ask, "for")
        text = fields.text("for", "")
        try:
            wait = parse_duration(text) if text else None
        except ValueError as error:
            raise InvalidArgument(f"for: {error}") from None
        return await self._act(ask, "pause", wait=wait)

    async def resume(self, ask: Ask) -> Response:
        """Whether it was paused."""
        await self._fields(ask)
        return await self._act(ask, "resume")

    async def redrive(self, ask: Ask) -> Response:
        """How many, and from where to go on."""
        return await self._act(ask, "redrive", **self._wanted(await self._fields(ask, *_WANTED)))

    async def move(self, ask: Ask) -> Response:
        """The same, to a queue that is named."""
        fields = await self._fields(ask, "to", *_WANTED)
        return await self._act(ask, "move", to=fields.text("to"), **self._wanted(fields))

    @staticmethod
    async def _fields(ask: Ask, *known: str) -> Fields:
        """The body; a field that is not known is refused, since a misspelled `dry` would move messages."""
        fields = await ask.fields()
        for name in fields.values:
            if name not in known:
                allowed = f"not one of {', '.join(known)}" if known else "and none is known here"
                raise InvalidArgument(f"unknown field {name!r}, {allowed}")
        return fields

    @staticmethod
    def _wanted(fields: Fields) -> dict[str, object]:
        has = fields.values
        return {
            "filter": fields.text("filter") if has.get("filter") is not None else None,
            "count": fields.count("count", 1, 1 << 53) if has.get("count") is not None else None,
            "after": fields.count("after", 0, 1 << 53) if has.get("after") is not None else None,
            "dry": fields.flag("dry", False) or None,
        }
