"""The first messages of a queue, and who holds which, for a person with a browser: nothing here touches a message."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.queue.places import AVAILABLE, leased
from penstock.errors import AccessRefused, NotFound
from penstock.records.chunks import as_chunk
from penstock.records.dataclass import dataclass
from penstock.records.rights import uses
from penstock.server.http.messages import GET_BYTES, Commands, Got, message_item, told
from penstock.server.http.routes import Ask, Row
from penstock.server.people.entitlements import narrowed
from penstock.wire.flight.bookmarks import format_bookmark
from penstock.wire.http.bodies import Lenient
from penstock.wire.http.lists import json_response

if TYPE_CHECKING:
    from starlette.responses import Response

    from penstock.core.queue.queue import Queue
    from penstock.expr import Filter
    from penstock.records.entries import Rows


@dataclass(frozen=True, slots=True)
class Seen(Got):
    """One message that was looked at."""

    attempt: int  # how often it was delivered
    bookmark: str
    time: int  # of its publish, in microseconds since the epoch


PEEK_MOST = 1000

LOOKED = "x-looked-at"
"""Header of a peek: at how many messages it looked, of which a filter may have chosen some."""

LOOKED_MOST = 10_000
"""Messages that a peek with a filter looks at, the first of the queue."""

PART = 250
"""Messages whose bodies it reads at once."""

PART_BYTES = 1 << 20
"""Bytes of them; one may be longer."""


class Peeking(Commands):
    """Nothing here leases a message."""

    def rows(self) -> Sequence[Row]:
        path, peeks = "/api/queues/{vhost}/{name}", uses(("read", "queue", "name"))
        holds = uses(("read all", "queue", "name"))
        return (
            Row("GET", f"{path}/peek", self.peeked, "The first messages", peeks,
                query="count filter truncate", own=True),
            Row("GET", f"{path}/leases", self.held, "Who holds which messages", holds, query="count", own=True),
        )  # fmt: skip

    async def peeked(self, ask: Ask) -> Response:
        """As a get shows them, with bookmark and time."""
        fields = Lenient(ask.query)
        count, wanted = fields.count("count", 10, 1, PEEK_MOST), fields.optional_text("filter")
        truncate = fields.count("truncate", -1, -1, 1 << 31)
        vhost, name = ask.names["vhost"], ask.names["name"]
        found, looked = await self.peek(ask.user, vhost, name, count, wanted, truncate)
        return await told(found, _item, {LOOKED: str(looked)})

    async def held(self, ask: Ask) -> Response:
        most = Lenient(ask.query).count("count", PEEK_MOST, 1, PEEK_MOST)
        return json_response(self.leases(ask.user, ask.names["vhost"], ask.names["name"], most))

    def _readable(self, user: str, vhost: str, name: str) -> tuple[Queue, Filter | None]:
        queue, rights = self.queue(vhost, name), self.rights(user)
        if rights is None:
            return queue, None
        if not rights.sees_queue(vhost, name):
            raise NotFound("Not Found")
        return queue, rights.read_queue(vhost, name)

    async def peek(
        self, user: str, vhost: str, name: str, count: int, filter: str | None, truncate: int
    ) -> tuple[Sequence[Seen], int]:
        """The first messages that are ready or held, of those that the user may read, and that a filter matches.

        truncate: bytes of a body that are shown; -1: all.  Those that follow `GET_BYTES` shown are left out.
        """
        queue, right = self._readable(user, vhost, name)
        wanted = narrowed(filter, right)
        wanted = None if wanted is None else wanted.reading(queue.settings.message_type)
        most = count if filter is None else LOOKED_MOST
        attempts = {lsn: run.tally.attempt for _, run, _ in queue.first(most, *AVAILABLE) for lsn in run.chunk}
        lsns = sorted(attempts)[:most]
        if not lsns:
            return [], 0
        below = queue.redelivered_below
        await self.durable(lsns[-1])
        there, origin, found, looked, shown = queue.available, self.engine.log.origin, list[Seen](), 0, 0
        sizes = queue.sizes.of(as_chunk(lsns))
        while looked < len(lsns) and len(found) < count and shown < GET_BYTES:
            within = int(np.searchsorted(np.cumsum(sizes[looked : looked + PART]), PART_BYTES, "right"))
            part = lsns[looked : looked + max(within, 1)]
            rows = await self._rows(part, queue.id)
            allowed = await _allowed(wanted, rows)
            some = [
                Seen(topic.exchange, topic.name, header, body if truncate < 0 else body[:truncate], len(body),
                     attempts[lsn] > 0 or lsn < below, max(there - looked - place - 1, 0), attempts[lsn],
                     format_bookmark(origin, lsn), time)
                for place, (lsn, topic, header, body, time, good) in enumerate(
                    zip(rows.lsns, rows.topics, rows.properties, rows.bodies, rows.times, allowed, strict=True)
                )
                if good
            ]  # fmt: skip
            found += some
            shown += sum(len(one.body) for one in some)
            looked += len(part)
            await asyncio.sleep(0)  # what is in memory is there at once
        return found[:count], looked

    async def _rows(self, lsns: list[int], queue: int) -> Rows:
        answer: asyncio.Future[Rows] = asyncio.get_running_loop().create_future()

        def read(rows: Rows) -> None:
            if not answer.done():
                answer.set_result(rows)

        self.engine.read_rows(as_chunk(lsns), read, queue)
        self.engine.arm()
        return await answer

    def leases(self, user: str, vhost: str, name: str, most: int) -> Sequence[Mapping[str, object]]:
        """Holders with the messages they hold, oldest grants first."""
        queue, right = self._readable(user, vhost, name)
        if right is not None:
            raise AccessRefused(f"leases of queue '{name}' need the right to read all of it")
        return list(islice(self._leases(queue), most))

    def _leases(self, queue: Queue) -> Iterator[Mapping[str, object]]:
        now, origin = self.now(), self.engine.log.origin
        for run, consumer in leased(queue):
            for lsn in run.chunk:
                yield {
                    "bookmark": format_bookmark(origin, lsn),
                    "lsn": lsn,
                    "client": consumer.client,
                    "consumer_tag": consumer.tag,
                    "deliveries": run.tally.attempt,
                    "leased_age": round(max(now.mono - run.granted, 0) / 1e6, 6) if run.granted else None,
                }


async def _allowed(wanted: Filter | None, rows: Rows) -> Sequence[bool]:
    """Which of them a filter matches."""
    if wanted is None:
        return [True] * len(rows)
    return await asyncio.to_thread(wanted.matches, rows.bodies, rows.properties)


def _item(one: Seen) -> dict[str, object]:
    item = message_item(one, "auto", -1)
    return {"bookmark": one.bookmark, "time": one.time / 1e6, "attempt": one.attempt, **item}
