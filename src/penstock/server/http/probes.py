"""Whether the server lives, takes clients and leads, and its metrics: for load balancers and scrapers.

Most of it asks for no login.  One rendering of the metrics is good for a second, whoever asks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from penstock.records.rights import MONITORS
from penstock.server.access import Who, judge
from penstock.server.http import overview
from penstock.server.http.facts import Facts
from penstock.server.http.metrics import Metrics
from penstock.server.http.reception import DETAILED, PER_OBJECT
from penstock.wire.http.lists import json_response

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

KEPT_S = 1.0
"""For so long who scrapes gets what was rendered for somebody before: it takes seconds where there are many queues."""

_HEALTHY = frozenset({"ok", "draining", "recovering", "following", "degraded"})


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
        self._rendering = asyncio.Lock()
        self._kept = dict[bool, tuple[float, bytes]]()  # of each object or not -> until when, what was rendered

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
        return await self._scrape(per_object=False)

    async def metrics_per_object(self, _: Request, who: Who) -> Response:
        """A line for each queue."""
        self._judge(who)
        return await self._scrape(per_object=True)

    async def metrics_detailed(self, request: Request, who: Who) -> Response:
        """The families that the query names."""
        self._judge(who)
        families, vhosts = request.query_params.getlist("family"), set(request.query_params.getlist("vhost"))
        async with self._rendering:
            metrics = await overview.all_metrics(self._facts)
            exchanges = self._facts.exchanges() if any(one.startswith("exchange_") for one in families) else ()
            there = list(self._facts.vhosts), exchanges, self._facts.membership()
            content = await asyncio.to_thread(_detailed, metrics, families, vhosts, there)
        return Response(content, media_type=_METRICS_TYPE)

    def _judge(self, who: Who) -> None:
        if not self._facts.open_metrics():
            judge(who, MONITORS, {}, self._facts.vhosts, "Metrics of each queue")

    async def _scrape(self, *, per_object: bool) -> Response:
        """One rendering at a time, whoever asks."""
        async with self._rendering:
            until, content = self._kept.get(per_object, (0.0, b""))
            if time.monotonic() >= until:
                metrics = await overview.all_metrics(self._facts)
                known, links = self._facts.membership(), self._facts.links()
                content = await asyncio.to_thread(
                    _exposition, metrics, per_object=per_object, membership=known, links=links
                )
                self._facts.scraped()
                if not metrics["penstock_recovering"]:  # those are few, and another word in a moment
                    self._kept[per_object] = time.monotonic() + self._kept_s, content
                    asyncio.get_running_loop().call_later(self._kept_s, self._kept.pop, per_object, None)
        return Response(content, media_type=_METRICS_TYPE)


def _exposition(metrics: Metrics, **known: Any) -> bytes:
    """As of `exposition`, which is loaded by whoever scrapes first: many servers are never scraped."""
    from penstock.server.http.exposition import exposition

    return exposition(metrics, **known)


def _detailed(metrics: Metrics, families: Sequence[str], vhosts: Collection[str], there: tuple[Any, ...]) -> bytes:
    """Bytes of `/metrics/detailed` for the families and vhosts that were chosen."""
    from penstock.server.http.exposition import There, detailed

    return detailed(metrics, families, vhosts, There(*there))
