"""Our own paths of a queue, as `wire.http.own` asks for them.

What Flight has as an action is that action here: it reads the log in a thread and decides on the loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import orjson

from penstock.core.queue.places import AVAILABLE, leased
from penstock.errors import AccessRefused, NotFound
from penstock.records.chunks import as_chunk
from penstock.records.dataclass import dataclass
from penstock.server.entitlements import narrowed
from penstock.server.http.commands import Commands
from penstock.wire.flight.bookmarks import format_bookmark

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue
    from penstock.expr import Filter
    from penstock.records.entries import Rows
    from penstock.server.flight.actions.messages import MessageActions
    from penstock.server.flight.entitled import Gatekeeper


LOOKED_MOST = 10_000
"""Messages that a peek with a filter looks at, the first of the queue."""

PART = 250
"""Messages whose bodies it reads at once."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One message that was looked at."""

    exchange: str
    key: str
    header: bytes
    body: bytes
    redelivered: bool
    attempt: int
    left: int
    bookmark: str
    time: int


class Own(Commands):
    """Nothing here leases a message."""

    _actions: MessageActions | None = None
    _gate: Gatekeeper | None = None

    async def act(self, user: str, name: str, values: Mapping[str, object]) -> Mapping[str, object]:
        """One of Flight's actions, in a thread of its own."""
        from penstock.server.flight.actions.messages import MessageActions
        from penstock.server.flight.calls import Caller
        from penstock.server.flight.entitled import Gatekeeper
        from penstock.server.flight.handover import Handover
        from penstock.wire.fields import Fields

        engine, loop = self.engine, asyncio.get_running_loop()
        if self._actions is None or self._gate is None:
            handover = Handover(engine, loop.call_soon_threadsafe)
            self._actions = MessageActions(handover)
            self._gate = Gatekeeper(handover, self.server.accounts.vhosts)
        action, gate, gone = self._actions.table[name], self._gate, threading.Event()
        caller = Caller(self.server.users.who(user), f"http/{user}", gone.is_set)
        body: dict[str, object] = orjson.loads(orjson.dumps(values))

        def run() -> Mapping[str, object]:
            gate.act(caller, name, action, body)
            return action.run(caller, Fields(name, body))

        try:
            return await asyncio.to_thread(run)
        finally:
            gone.set()

    def _readable(self, user: str, vhost: str, name: str) -> tuple[Queue, Filter | None]:
        queue, rights = self.queue(vhost, name), self.rights(user)
        if rights is None:
            return queue, None
        if not rights.sees_queue(vhost, name):
            raise NotFound("Not Found")
        return queue, rights.read_queue(vhost, name)

    async def peek(
        self, user: str, vhost: str, name: str, count: int, filter: str | None
    ) -> tuple[Sequence[Seen], int]:
        """The first messages that are ready or held, of those that the user may read, and that a filter matches."""
        queue, right = self._readable(user, vhost, name)
        wanted = narrowed(filter, right)
        most = count if filter is None else LOOKED_MOST
        standing = queue.first(most, *AVAILABLE)
        lsns = sorted(lsn for _, run, _ in standing for lsn in run.chunk)[:most]
        if not lsns:
            return [], 0
        below = queue.redelivered_below
        attempts = {lsn: run.tally.attempt for _, run, _ in standing for lsn in run.chunk}
        await self.durable(lsns[-1])
        there, origin, found, looked = queue.available, self.engine.log.origin, list[Seen](), 0
        while lsns[looked:] and len(found) < count:
            part = lsns[looked : looked + PART]
            rows = await self._rows(part, queue.id)
            if wanted is None:
                allowed = [True] * len(rows)
            else:
                allowed = await asyncio.to_thread(wanted.matches, rows.bodies, rows.properties)
            found += [
                Seen(topic.exchange, topic.name, header, body, attempts[lsn] > 0 or lsn < below, attempts[lsn],
                     max(there - looked - place - 1, 0), format_bookmark(origin, lsn), time)
                for place, (lsn, topic, header, body, time, good) in enumerate(
                    zip(rows.lsns, rows.topics, rows.properties, rows.bodies, rows.times, allowed, strict=True)
                )
                if good
            ]  # fmt: skip
            looked += len(part)
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
