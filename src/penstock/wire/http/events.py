"""`GET /api/events`: what changes, as server-sent events, and once in an interval how the server stands.

    : penstock                  first of all, so that a client sees that it is there
    event: queue.created        one that can be resumed has an id
    id: 6921-17
    data: {"time": 1795300000.5, "vhost": "/", "queue": "jobs", ...}

    event: stats                no id: the next one says it anew
    data: {...}

A client that comes again says the last id it saw in the header `Last-Event-ID`; `gap` says when some after it are not
kept any more.  A comment goes out when nothing else has for a while.  Nothing is queued for a client: what it does not
read waits in the ring that all share, and `end` tells it why it is cut off.
Source: WHATWG HTML, 9.2 Server-sent events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.errors import InvalidArgument, told_as
from penstock.records.dataclass import dataclass
from penstock.units import format_duration, parse_duration
from penstock.wire.http.bodies import Lenient
from penstock.wire.http.lists import HEADERS, turn

INTERVAL_LEAST_US, INTERVAL_MOST_US = 250_000, 3_600_000_000

HEARTBEAT_S = 15.0

FEW, AT_ONCE = 16, 200
"""Events that are written at once by each who looks on, and by one of those who are further behind in each round."""

UNSENT_MOST = 64 << 10
"""Bytes that wait to be sent, beyond which nothing is added."""

BUFFER_MOST = 1 << 20
"""Above this the server would hold writing up by itself, and a last sentence with it."""

SLOW_S = 30.0
"""Who has read nothing for so long, while there was something to read, is cut off."""

LOOK_S = 0.25
"""How often a client that does not read is looked at."""

GOODBYE_S = 5.0
"""Who has not read his last sentence by then is cut off without it."""

STOP_S = 0.5
"""The same where the server wants to end."""

QUEUES_MOST = 500
TOP_MOST = 500

NO_STATS = "off"


QUERY = ("interval", "vhost", "queue", "top", "only", "last_event_id")
"""Its parameters; `queue` may be there more than once."""


NOUNS = (
    "address_setting", "alarm", "binding", "bindings", "connection", "consumer", "dead_letters", "exchange", "log",
    "operator_policy", "parameter", "permission", "pipeline", "policy", "queue", "queues", "stats", "stream", "topic",
    "user", "vhost",
)  # fmt: skip
"""What names of events begin with, up to the first dot."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a client asked for."""

    interval: float  # seconds between two `stats`; 0: none
    vhost: str
    queues: tuple[str, ...]  # of the vhost, that `stats` tells of
    top: int  # the deepest queues that it tells of beside them
    only: tuple[str, ...]  # what names of events begin with; none: all
    last: str  # the id it saw last; "": it is new


@dataclass(frozen=True, slots=True)
class Told:
    """One event as it is sent."""

    name: str
    data: Mapping[str, object]
    id: str = ""

    def encoded(self) -> bytes:
        """Its lines; JSON has no line break that could end a field."""
        name = f"event: {self.name}\nid: {self.id}\n" if self.id else f"event: {self.name}\n"
        return name.encode() + b"data: " + orjson.dumps(self.data, option=orjson.OPT_NON_STR_KEYS) + b"\n\n"


class Watching(Protocol):
    """One client's place in what happens.  The loop's."""

    @property
    def ended(self) -> str:
        """Why nothing more comes; empty while something may."""
        ...

    def news(self, most: int) -> Sequence[Told]:
        """What has happened since the last call, of what this client may see and wants; at most so many."""
        ...

    async def stats(self) -> Told: ...

    async def wait(self, seconds: float) -> None:
        """Return when something has happened, or that time is over."""

    def close(self) -> None: ...


class Link(Protocol):
    """What is asked of a connection beyond ASGI: asyncio's transport has it."""

    def get_write_buffer_size(self) -> int:
        """Bytes that the kernel has not taken."""
        ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """When to hold writing up."""

    def abort(self) -> None: ...


TYPE = "text/event-stream; charset=utf-8"


def read_wanted(request: Request) -> Wanted:
    """The query and the header.  Raises InvalidArgument."""
    query = request.query_params
    fields = Lenient(query)
    queues = tuple(dict.fromkeys(query.getlist("queue")))
    if len(queues) > QUEUES_MOST:
        raise InvalidArgument(f"queue is there {len(queues)} times, at most {QUEUES_MOST} are allowed")
    only = tuple(one for one in fields.text("only", "").split(",") if one)
    for one in only:
        if not any(begin.startswith(one) or one.startswith(f"{begin}.") for begin in NOUNS):
            raise InvalidArgument(f"only: no event has a name that begins with {one!r}, but with {', '.join(NOUNS)}")
    last = request.headers.get("last-event-id", "") or fields.text("last_event_id", "")
    top = fields.count("top", 10, 0, TOP_MOST)
    return Wanted(read_interval(fields.text("interval", "1s")), fields.text("vhost", "/"), queues, top, only, last)


def read_interval(text: str) -> float:
    """Seconds; 0 for `off`.  Raises InvalidArgument."""
    if text == NO_STATS:
        return 0.0
    with told_as(InvalidArgument, "interval: "):
        found = parse_duration(text)
    if not INTERVAL_LEAST_US <= found <= INTERVAL_MOST_US:
        low, high = format_duration(INTERVAL_LEAST_US), format_duration(INTERVAL_MOST_US)
        raise InvalidArgument(f"interval is {text}, not {NO_STATS!r} or a duration from {low} to {high}")
    return found / 1e6


class EventStream(Response):
    """The answer: goes on until the client leaves, reads too slowly, or nothing more comes."""

    media_type = "text/event-stream"

    def __init__(self, watching: Watching, interval: float) -> None:
        super().__init__(headers={**HEADERS, "x-accel-buffering": "no"}, media_type=self.media_type)
        del self.headers["content-length"]  # nobody knows it
        self._watching = watching
        self._interval = interval
        self._link: Link | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI's.  While it writes it also waits for the client to leave."""
        self._link = scope.get("state", {}).get("transport")
        if self._link is not None:
            self._link.set_write_buffer_limits(high=BUFFER_MOST)
        writing = asyncio.ensure_future(self._write(send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
        finally:
            for task in (writing, leaving):
                task.cancel()
            await asyncio.gather(writing, leaving, return_exceptions=True)
            self._watching.close()

    def _unsent(self) -> int:
        return 0 if self._link is None else self._link.get_write_buffer_size()

    async def _write(self, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await _body(send, b": penstock\n\n")
        watching, next_stats, sent = self._watching, clock(), clock()
        while not (why := watching.ended):
            if self._unsent() > UNSENT_MOST:
                if clock() - sent > SLOW_S:
                    why = f"cut off: nothing was read for {SLOW_S:.0f} s"
                    break
                await asyncio.sleep(LOOK_S)
                continue
            told = list(watching.news(FEW))
            now = clock()
            if self._interval and now >= next_stats:
                told.append(await watching.stats())
                next_stats = max(next_stats + self._interval, now)
            if len(told) >= FEW:
                async with turn():
                    await _tell(send, [*told, *watching.news(AT_ONCE)])
                sent = clock()
            elif told:
                await _tell(send, told)
                sent = clock()
            elif now - sent >= HEARTBEAT_S:
                await _body(send, b":\n\n")
                sent = now
            else:
                until = sent + HEARTBEAT_S
                await watching.wait((min(until, next_stats) if self._interval else until) - now)
        await self._end(send, why)

    async def _end(self, send: Send, why: str) -> None:
        """A last sentence, which has a moment to arrive."""
        clock = asyncio.get_running_loop().time
        await _body(send, Told("end", {"reason": why}).encoded(), more=False)
        until = clock() + (STOP_S if self._watching.ended else GOODBYE_S)
        while self._unsent() and clock() < until:  # noqa: ASYNC110 - a transport has no event for it
            await asyncio.sleep(LOOK_S)
        if self._unsent() and self._link is not None:
            self._link.abort()


async def _body(send: Send, content: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": content, "more_body": more})


async def _tell(send: Send, told: Sequence[Told]) -> None:
    """Events, and then it is others' turn."""
    await _body(send, b"".join([one.encoded() for one in told]))
    await asyncio.sleep(0)


async def _left(receive: Receive) -> None:
    """Return when the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
