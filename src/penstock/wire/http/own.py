"""Our own paths of a queue: why it does not deliver, what waits in it, who holds what; redriving, moving.

GET explain | peek | leases      touch nothing
POST redrive | move
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from starlette.responses import Response

from penstock.records.rights import TENDS, sees, uses
from penstock.wire.fields import Lenient
from penstock.wire.http.answers import json_response
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
        fields = Lenient(ask.query)
        count, wanted = fields.count("count", 10, 1, PEEK_MOST), fields.text("filter", "")
        truncate = fields.count("truncate", -1, -1, 1 << 31)
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
        most = Lenient(ask.query).count("count", PEEK_MOST, 1, PEEK_MOST)
        return json_response(self._own.leases(ask.user, ask.names["vhost"], ask.names["name"], most))

    async def redrive(self, ask: Ask) -> Response:
        """How many, and from where to go on."""
        return await self._act(ask, "redrive", **self._wanted((await ask.fields()).only(*_WANTED)))

    async def move(self, ask: Ask) -> Response:
        """The same, to a queue that is named."""
        fields = (await ask.fields()).only("to", *_WANTED)
        return await self._act(ask, "move", to=fields.text("to"), **self._wanted(fields))

    @staticmethod
    def _wanted(fields: Lenient) -> dict[str, object]:
        has = fields.values
        return {
            "filter": fields.text("filter") if has.get("filter") is not None else None,
            "count": fields.number("count", 1, 1 << 53) if has.get("count") is not None else None,
            "after": fields.number("after", 0, 1 << 53) if has.get("after") is not None else None,
            "dry": fields.flag("dry", False) or None,
        }
