"""Whether the server lives, takes clients and leads, and its metrics: for load balancers and scrapers.

Most of it asks for no login.  What one scrape has found is good for a second, whoever asks.  Its text is sent as it is
made: with a line for each of many queues it would take more memory than they do.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.records.rights import MONITORS
from penstock.server.doors.line import Ended
from penstock.server.http.facts import Facts
from penstock.server.http.metrics import QUEUES, Metrics
from penstock.server.http.reception import DETAILED, PER_OBJECT
from penstock.server.people.access import Who, judge
from penstock.wire.http.lists import gathered, json_response

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

logger = logging.getLogger(__name__)

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

KEPT_S = 1.0
"""For so long who scrapes gets what was found for somebody before: it takes seconds where there are many queues."""

LONG_MOST = 4
LONG_S = 30.0
"""Texts of more than one piece: so many are sent at a time, and each is to be read within so long."""

_HEALTHY = frozenset({"ok", "draining", "recovering", "following", "degraded"})


Text: TypeAlias = "Callable[[], Awaitable[Iterator[bytes]]]"
"""Has the pieces of one made, of what there is by then."""


class Probe(NamedTuple):
    """A path beside the table's, for whoever watches the server.

    Scrapers and load balancers send what they like: parameters that it does not have are passed over.
    """

    handler: Callable[[Request, Who], Awaitable[Response]]  # of nobody where no login is asked for
    summary: str
    query: str = ""  # its parameters, with spaces between
    content: str = "application/json"  # media type of the answer


class Probes:
    """The paths beside those of the table: for whoever watches the server."""

    def __init__(self, facts: Facts, kept_s: float) -> None:
        self._facts = facts
        self._kept_s = kept_s
        self._looking = asyncio.Lock()
        self._kept: tuple[float, Metrics] | None = None  # until when, what was found
        self._sums = 0.0, b""  # until when, the text of `/metrics`
        self._long = asyncio.Semaphore(LONG_MOST)

    def paths(self) -> Mapping[str, Probe]:
        """All of them."""
        return {
            "/healthz": Probe(self.health, "The server can keep what it is given, or is on the way to that"),
            "/readyz": Probe(self.ready, "The doors are open and publishes are taken"),
            "/leader": Probe(self.leader, "Clients are served here"),
            "/replica": Probe(self.replica, "A copy is kept here that may lead one day"),
            "/metrics": Probe(self.metrics, "Metrics, with the sums of all queues", content="text/plain"),
            PER_OBJECT: Probe(self.metrics_per_object, "Metrics, with a line for each queue", content="text/plain"),
            DETAILED: Probe(self.metrics_detailed, "Families of metrics", "family vhost", "text/plain"),
        }

    async def health(self, _: Request, __: Who) -> Response:
        """200 while the server can keep what it is given or is on the way to that, 503 when a restart is needed."""
        facts = self._facts.health()
        return json_response(facts, 200 if facts.get("status") in _HEALTHY else 503)

    async def ready(self, _: Request, __: Who) -> Response:
        """200 once the doors are open, publishes are taken, and other sites have told what happened meanwhile."""
        told: dict[str, object] = {"ready": self._facts.ready()}
        if behind := self._facts.behind:
            told["behind"] = behind
        if leader := self._facts.membership().get("leader_name"):
            told["leader"] = leader
        return json_response(told, 200 if told["ready"] else 503)

    async def leader(self, _: Request, __: Who) -> Response:
        """For load balancers: 200 where clients are served, 503 elsewhere."""
        role = self._facts.role()
        return json_response({"role": role}, 200 if role == "leading" else 503)

    async def replica(self, _: Request, __: Who) -> Response:
        """200 where a copy is kept that may lead one day, 503 elsewhere."""
        role = self._facts.role()
        return json_response({"role": role}, 200 if role == "following" else 503)

    async def metrics(self, _: Request, __: Who) -> Response:
        """Small, and anybody may ask for it: its text is kept as well."""
        metrics = await self._found()
        until, text = self._sums
        if time.monotonic() >= until:
            text = await asyncio.to_thread(b"".join, self._exposition(metrics, per_object=False))
            self._sums = self._until(metrics), text
        return Response(text, media_type=_METRICS_TYPE)

    async def metrics_per_object(self, _: Request, who: Who) -> Response:
        """A line for each queue."""
        self._judge(who)

        async def text() -> Iterator[bytes]:
            return self._exposition(await self._found(), per_object=True)

        return await self._sent(text)

    async def metrics_detailed(self, request: Request, who: Who) -> Response:
        """The families that the query names."""
        from penstock.server.http.exposition import There, detailed

        self._judge(who)
        families, vhosts = request.query_params.getlist("family"), set(request.query_params.getlist("vhost"))

        async def text() -> Iterator[bytes]:
            metrics = await self._found(whole=False)
            exchanges = self._facts.exchanges() if any(one.startswith("exchange_") for one in families) else ()
            there = There(list(self._facts.vhosts), exchanges, self._facts.membership())
            return detailed(metrics, families, vhosts, there)

        return await self._sent(text)

    def _judge(self, who: Who) -> None:
        if not self._facts.open_metrics():
            judge(who, MONITORS, {}, self._facts.vhosts, "Metrics of each queue")

    async def _found(self, *, whole: bool = True) -> Metrics:
        """What there is.  One look at a time, whoever asks.  whole: what is measured since the last one is told."""
        async with self._looking:
            if self._kept is None or time.monotonic() >= self._kept[0]:
                metrics = await all_metrics(self._facts)
                if whole:
                    self._facts.scraped()
                self._kept = self._until(metrics), metrics
                asyncio.get_running_loop().call_later(self._kept_s, self._forget, metrics)
            return self._kept[1]

    def _until(self, metrics: Metrics) -> float:
        """Until when it is good.  Of a start those are few, and there is another word in a moment."""
        return 0.0 if metrics["penstock_recovering"] else time.monotonic() + self._kept_s

    def _forget(self, metrics: Metrics) -> None:
        if self._kept is not None and self._kept[1] is metrics:
            self._kept = None

    def _exposition(self, metrics: Metrics, *, per_object: bool) -> Iterator[bytes]:
        """As of `exposition`, which is loaded by whoever scrapes first: many servers are never scraped."""
        from penstock.server.http.exposition import exposition

        known, links = self._facts.membership(), self._facts.links()
        return exposition(metrics, per_object=per_object, membership=known, links=links)

    async def _sent(self, text: Text) -> Response:
        """An answer with its length where it is one piece, else one that is made as it is read."""
        begun = await asyncio.to_thread(list, islice(await text(), 2))
        return Long(text, self._long) if len(begun) > 1 else Response(b"".join(begun), media_type=_METRICS_TYPE)


async def all_metrics(facts: Facts) -> Metrics:
    """The numbers of the server with those of its queues."""
    queues = await gathered(facts.queue_metrics())
    found = facts.metrics()
    consumers = QUEUES.total(queues, "rabbitmq_queue_consumers")
    return replace(
        found, lines={**found.lines, "queues": queues}, figures={**found.figures, "rabbitmq_consumers": consumers}
    )


class Long(StreamingResponse):
    """A text of many pieces, each made beside the loop when the one before is sent."""

    def __init__(self, text: Text, places: asyncio.Semaphore) -> None:
        super().__init__(self._pieces(text), media_type=_METRICS_TYPE)
        self._places = places

    async def _pieces(self, text: Text) -> AsyncIterator[bytes]:
        found = await text()  # anew: who waits for a place holds no figures meanwhile
        while piece := await asyncio.to_thread(next, found, b""):
            yield piece

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI's.  Ended, which closes the connection: a text that stops is never taken for a whole one."""
        try:
            async with self._places, asyncio.timeout(LONG_S):
                await super().__call__(scope, receive, send)
        except TimeoutError:
            logger.info("metrics over HTTP stopped: they were not read within %g s", LONG_S)
            raise Ended from None
