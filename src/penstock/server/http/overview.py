"""The server as a whole: `/api/overview`, `/api/nodes`, who asks, the names of cluster and features; and for load
balancers and scrapers whether it lives, takes clients and leads, and its metrics.

Health checks (`/api/health/checks/...`, `/api/aliveness-test/{vhost}`): one that holds is 200 with
`{"status": "ok"}`, one that does not 503 with a reason.

Most probes ask for no login.  What one scrape has found is good for a second, whoever asks.  Its text is sent as it is
made: with a line for each of many queues it would take more memory than they do.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.errors import InvalidArgument
from penstock.records.declared_types import EXCHANGE_TYPES
from penstock.records.rights import ADMINISTERS, LOGIN, MONITORS, USES, WATCHES, Right
from penstock.server.doors.line import Ended
from penstock.server.http.facts import Facts
from penstock.server.http.metrics import QUEUES, Metrics
from penstock.server.http.reception import DETAILED, PER_OBJECT
from penstock.server.http.routes import RABBITMQ_VERSION, Ask, Handler, Row
from penstock.server.http.totals import Totals, memory_of
from penstock.server.people.access import Who, judge
from penstock.wire.http.lists import COLUMNS, gathered, json_response, not_found, only_columns

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from penstock.server.http.messages import Messages

_TYPES = [{"name": name, "description": "", "enabled": True} for name in EXCHANGE_TYPES]


def _plain(path: str, look: Callable[[], object], text: str, right: Right, *, own: bool = False) -> Row:
    """A path whose answer is what there is, for everybody the same."""

    async def handler(_: Ask) -> Response:
        return json_response(look())

    return Row("GET", path, handler, text, right, own=own)


def _listed(
    path: str, look: Callable[[str], Iterable[Mapping[str, object]]], text: str, right: Right, operation: str = ""
) -> Row:
    """A list of our own.  look: what a user sees of it."""

    async def handler(ask: Ask) -> Response:
        return await ask.listed(map(dict[str, object], look(ask.user)))

    return Row("GET", path, handler, text, right, many=True, own=True, operation=operation)


def rows(facts: Facts) -> Sequence[Row]:
    doors = _Overview(facts)

    def streams(_: str) -> Iterable[Mapping[str, object]]:
        return ({"name": one.get("stream"), **one} for one in facts.streams())

    return (
        Row("GET", "/api/overview", doors.overview, "Totals, and the settings in force", LOGIN, query=COLUMNS),
        Row("GET", "/api/whoami", doors.whoami, "The user that is asking", LOGIN),
        _plain("/api/log", facts.segments, "The files of the log, and how far it is", MONITORS, own=True),
        _listed("/api/topics", facts.topics, "Topics with a key: how many records they have", LOGIN),
        _listed("/api/views", lambda _: facts.views(), "Views and conflated topics", MONITORS),
        _listed("/api/streams", streams, "Durable readers and their lag", WATCHES, "streams"),
        Row("GET", "/api/nodes", doors.nodes, "The one node", MONITORS, query=COLUMNS),
        Row("GET", "/api/nodes/{name}", doors.node, "The one node", MONITORS, query=COLUMNS),
        Row("GET", "/api/nodes/{name}/memory", doors.memory, "What the node has memory for", MONITORS, query=COLUMNS),
        # also while this member follows; 404 without a cluster
        _plain("/api/cluster", facts.cluster, "Who leads the cluster, who is in sync, how far each is", MONITORS,
               own=True),
        Row("GET", "/api/cluster-name", doors.cluster_name, "The name of the instance", LOGIN),
        _plain("/api/feature-flags", list, "No feature is behind a flag", LOGIN),
        _plain("/api/deprecated-features", list, "None", LOGIN),
        _plain("/api/deprecated-features/used", list, "None", LOGIN),
        _plain("/api/extensions", list, "None", LOGIN),
        _plain("/api/federation-links", list, "None", ADMINISTERS),
        _plain("/api/auth", lambda: {"oauth_enabled": False}, "How tools may log in", LOGIN),
    )  # fmt: skip


class _Overview:
    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._totals = Totals()

    async def overview(self, ask: Ask) -> Response:
        """Totals of what the user sees; addresses and the settings in force are for those who see everything."""
        seen, numbers = self._facts.seen(ask.who), self._facts.metrics()
        sums = await seen.queues()
        answer: dict[str, object] = {
            "product_name": "Penstock",
            "product_version": numbers.version,
            "rabbitmq_version": RABBITMQ_VERSION,
            "management_version": RABBITMQ_VERSION,
            "rates_mode": "basic",
            "cluster_name": numbers.cluster or numbers.node,
            "node": numbers.node,
            "exchange_types": _TYPES,
            **self._totals.of_overview(seen, sums, numbers, self._facts.mono()),
        }
        if seen.everything:
            answer["listeners"] = list(self._facts.listeners())
            answer["penstock"] = dict(self._facts.overview())
        return json_response(only_columns(answer, ask.query))

    async def whoami(self, ask: Ask) -> Response:
        """The user that is asking."""
        return json_response({"name": ask.user, "tags": list(self._facts.users.tags(ask.user))})

    def _node(self) -> dict[str, object]:
        numbers = self._facts.metrics()
        return {
            "name": numbers.node,
            "type": "disc",
            "running": True,
            "being_drained": self._facts.health().get("status") == "draining",
            "partitions": [],
            "fd_used": numbers["rabbitmq_process_open_fds"],
            "mem_used": numbers["rabbitmq_process_resident_memory_bytes"],
            "mem_calculation_strategy": "rss",
            "mem_limit": numbers["rabbitmq_resident_memory_limit_bytes"],
            "mem_alarm": bool(numbers["rabbitmq_alarms_memory_used_watermark"]),
            "disk_free": numbers["rabbitmq_disk_space_available_bytes"],
            "disk_free_limit": numbers["rabbitmq_disk_space_available_limit_bytes"],
            "disk_free_alarm": bool(numbers["rabbitmq_alarms_free_disk_space_watermark"]),
            "exchange_types": _TYPES,
            "auth_mechanisms": [{"name": name, "enabled": True} for name in ("PLAIN", "AMQPLAIN")],
            "applications": [{"name": "penstock", "description": "Penstock", "version": numbers.version}],
            "contexts": [],
            "rates_mode": "basic",
            **self._facts.process(),
        }

    async def nodes(self, ask: Ask) -> Response:
        return json_response([only_columns(self._node(), ask.query)])

    async def node(self, ask: Ask) -> Response:
        """The same by its name."""
        node = self._node()
        return json_response(only_columns(node, ask.query)) if ask.names["name"] == node["name"] else not_found()

    async def memory(self, ask: Ask) -> Response:
        """What the node has memory for."""
        known = ask.names["name"] == self._facts.node
        return json_response(only_columns(memory_of(self._facts), ask.query)) if known else not_found()

    async def cluster_name(self, _: Ask) -> Response:
        """The name of the instance, or the one that tools gave it."""
        numbers = self._facts.metrics()
        return json_response({"name": numbers.cluster or numbers.node})


TEST_QUEUE = "aliveness-test"

UNITS_S = {"days": 86_400, "weeks": 7 * 86_400, "months": 30 * 86_400, "years": 365 * 86_400}
"""Seconds of the units in which RabbitMQ's tool asks."""


def health_rows(facts: Facts, messages: Messages) -> Sequence[Row]:
    doors = _Checks(facts, messages)
    checks: Mapping[str, tuple[Handler, str]] = {
        "alarms": (doors.alarms, "No alarm in the cluster"),
        "local-alarms": (doors.alarms, "No alarm here"),
        "virtual-hosts": (doors.running, "All vhosts run"),
        "is-in-service": (doors.serving, "Clients are served: an alarm of the disk or of memory is another check's"),
        "ready-to-serve-clients": (doors.serving, "Clients are served: alarms are another check's"),
        "below-node-connection-limit": (doors.fine, "There is no such limit"),
        "node-is-quorum-critical": (doors.fine, "There is one node"),
        "node-is-mirror-sync-critical": (doors.fine, "There is one node"),
        "quorum-queues-without-elected-leaders/all-vhosts": (doors.fine, "Each has its leader"),
        "certificate-expiration/{within}/{unit}": (doors.certificate, "No certificate ends so soon"),
        "port-listener/{port}": (doors.port, "Somebody listens on a port"),
        "protocol-listener/{protocol}": (doors.protocol, "A door is open for a protocol"),
    }
    return (
        *(Row("GET", f"/api/health/checks/{path}", handler, text, LOGIN) for path, (handler, text) in checks.items()),
        Row("GET", "/api/healthchecks/node", doors.alarms, "As health/checks/local-alarms, for older probes", LOGIN),
        Row("GET", "/api/healthchecks/node/{name}", doors.node, "The same by the node's name", LOGIN),
        Row("GET", "/api/aliveness-test/{vhost}", doors.alive, "Declare, publish and consume", USES),
    )


class _Checks:
    def __init__(self, facts: Facts, messages: Messages) -> None:
        self._facts = facts
        self._messages = messages

    async def alarms(self, _: Ask) -> Response:
        """The disk has room, the log can be written, and publishers do not wait for memory."""
        health = self._facts.health()
        status = health.get("status")
        if status in {"ok", "draining", "recovering"}:
            if self._facts.metrics()["rabbitmq_alarms_memory_used_watermark"]:
                alarm = {"node": health.get("name"), "resource": "memory"}
                return _failed("server.memory is used up: publishers wait", alarms=[alarm])
            return json_response({"status": "ok"})
        alarm = {"node": health.get("name"), "resource": "disk" if status == "full" else "log"}
        return _failed(f"the server is {status}", alarms=[alarm])

    async def node(self, ask: Ask) -> Response:
        """The same, where it is this node that is asked about."""
        return await self.alarms(ask) if ask.names["name"] == self._facts.node else not_found()

    async def running(self, _: Ask) -> Response:
        """The log can be written; a restart, which who asks this may answer with, frees no disk."""
        return self._stands({"ok", "degraded", "full", "draining"})

    async def serving(self, _: Ask) -> Response:
        """The same, and the server does not drain; consumers are served on a full disk, too."""
        return self._stands({"ok", "degraded", "full"})

    def _stands(self, well: Container[object]) -> Response:
        health = self._facts.health()
        status = health.get("status")
        return json_response({"status": "ok"}) if status in well else _failed(f"the server is {status}")

    async def fine(self, _: Ask) -> Response:
        return json_response({"status": "ok"})

    async def port(self, ask: Ask) -> Response:
        text = ask.names["port"]
        if not (text.isascii() and text.isdecimal() and len(text) < 6):
            raise InvalidArgument(f"port is {text[:60]!r}, not a number from 0 to 65535")
        ports = [listener["port"] for listener in self._facts.listeners()]
        if int(text) in ports:
            return json_response({"status": "ok", "port": int(text)})
        return _failed(f"no active listener on port {text}", missing=int(text), ports=ports)

    async def certificate(self, ask: Ask) -> Response:
        """None of the server's ends within so long; there may be none."""
        within, unit = ask.names["within"], ask.names["unit"].lower()
        unit = unit if unit.endswith("s") else f"{unit}s"
        if unit not in UNITS_S:
            raise InvalidArgument(f"unit is {unit[:60]!r}, not one of {', '.join(UNITS_S)}")
        if not (within.isascii() and within.isdecimal() and 0 < len(within) < 6):
            raise InvalidArgument(f"within is {within[:60]!r}, not a number from 0 to 99999")
        left, whose = min(((left, whose) for whose, left in self._facts.certificates_left().items()), default=(inf, ""))
        if left > int(within) * UNITS_S[unit]:
            return json_response({"status": "ok"})
        what = "has ended" if left <= 0 else f"ends in {left / 86400:.1f} days"
        return _failed(f"the server's certificate ({whose}) {what}", seconds_left=round(left))

    async def protocol(self, ask: Ask) -> Response:
        """By name; `amqp091` and `http/prometheus` too."""
        known = {"amqp091": "amqp", "amqp0.9.1": "amqp", "http/prometheus": "http", "amqps": "amqp/ssl"}
        name = ask.names["protocol"].lower()
        name = known.get(name, name)
        protocols = [listener["protocol"] for listener in self._facts.listeners()]
        if name in protocols:
            return json_response({"status": "ok", "protocol": name})
        return _failed(f"no active listener for {name}", missing=name, protocols=protocols)

    async def alive(self, ask: Ask) -> Response:
        """A message goes through a queue."""
        vhost = ask.names["vhost"]
        await self._messages.declare(ask.user, vhost, TEST_QUEUE)
        routed = await self._messages.publish(ask.user, vhost, "", TEST_QUEUE, b"\x00\x00", b"test_message")
        if routed and await self._messages.get(ask.user, vhost, TEST_QUEUE, 1, "ack_requeue_false"):
            return json_response({"status": "ok"})
        return _failed("the message that was published did not come")


def _failed(reason: str, **more: object) -> Response:
    return json_response({"status": "failed", "reason": reason, **more}, 503)


logger = logging.getLogger(__name__)

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

KEPT_S = 1.0
"""For so long who scrapes gets what was found for somebody before: it takes seconds where there are many queues."""

LONG_MOST = 4
LONG_S = 30.0
"""Texts of more than one piece: so many are sent at a time, and each is to be read within so long."""

SHARED_PIECES, SHARED_MOST = 16, 4
"""Pieces of a text that is made once for all who ask for it in that time, and how many such texts there are."""

_HEALTHY = frozenset({"ok", "draining", "recovering", "following", "degraded"})


_Asked: TypeAlias = "tuple[str, ...]"
"""Which text: its path, and what its query names."""

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
        self._shared = dict[_Asked, tuple[Metrics, list[bytes]]]()  # what of a text is there, and of which figures
        self._making = asyncio.Lock()  # one piece of whatever text at a time: threads that make one hold up the loop
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
        if not told["ready"] and (status := self._facts.health().get("status")) != "ok":
            told["status"] = status
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

        return await self._sent((PER_OBJECT,), partial(self._exposition, per_object=True))

    async def metrics_detailed(self, request: Request, who: Who) -> Response:
        """The families that the query names."""
        from penstock.server.http.exposition import There, detailed

        self._judge(who)
        families, vhosts = request.query_params.getlist("family"), set(request.query_params.getlist("vhost"))

        def text(metrics: Metrics) -> Iterator[bytes]:
            exchanges = self._facts.exchanges() if any(one.startswith("exchange_") for one in families) else ()
            there = There(list(self._facts.vhosts), exchanges, self._facts.membership())
            return detailed(metrics, families, vhosts, there)

        return await self._sent((DETAILED, *families, "", *sorted(vhosts)), text, whole=False)

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
        self._shared = {asked: one for asked, one in self._shared.items() if one[0] is not metrics}

    def _exposition(self, metrics: Metrics, *, per_object: bool) -> Iterator[bytes]:
        """As of `exposition`, which is loaded by whoever scrapes first: many servers are never scraped."""
        from penstock.server.http.exposition import exposition

        known, links = self._facts.membership(), self._facts.links()
        return exposition(metrics, per_object=per_object, membership=known, links=links)

    async def _sent(self, asked: _Asked, made: Callable[[Metrics], Iterator[bytes]], *, whole: bool = True) -> Response:
        """An answer with its length where it is one piece, else one that is made as it is read, or for all who read."""

        async def text() -> Iterator[bytes]:
            return made(await self._found(whole=whole))

        begun = await self._begun(asked, made, whole=whole)
        if len(begun) == 1:
            return Response(begun[0], media_type=_METRICS_TYPE)
        return Long(partial(_again, begun) if begun else text, self._long, self._making)

    async def _begun(self, asked: _Asked, made: Callable[[Metrics], Iterator[bytes]], *, whole: bool) -> list[bytes]:
        """The pieces of a text that is shared; none of one that is too long for that."""
        async with self._making:
            metrics = await self._found(whole=whole)
            before, begun = self._shared.get(asked, (None, list[bytes]()))
            if before is not metrics:
                begun = await asyncio.to_thread(list, islice(made(metrics), SHARED_PIECES + 1))
                begun = begun if len(begun) <= SHARED_PIECES else []
                if len(self._shared) < SHARED_MOST and self._kept is not None and self._kept[1] is metrics:
                    self._shared[asked] = metrics, begun
            return begun


async def all_metrics(facts: Facts) -> Metrics:
    """The numbers of the server with those of its queues."""
    queues = await gathered(facts.queue_metrics())
    found = facts.metrics()
    consumers = QUEUES.total(queues, "rabbitmq_queue_consumers")
    return replace(
        found, lines={**found.lines, "queues": queues}, figures={**found.figures, "rabbitmq_consumers": consumers}
    )


async def _again(pieces: Sequence[bytes]) -> Iterator[bytes]:
    return iter(pieces)


class Long(StreamingResponse):
    """A text of many pieces, each made beside the loop when the one before is sent."""

    def __init__(self, text: Text, places: asyncio.Semaphore, making: asyncio.Lock) -> None:
        """making: held while a piece is made."""
        super().__init__(self._pieces(text), media_type=_METRICS_TYPE)
        self._places = places
        self._making = making

    async def _pieces(self, text: Text) -> AsyncIterator[bytes]:
        found = await text()  # anew: who waits for a place holds no figures meanwhile
        while piece := await self._next(found):
            yield piece

    async def _next(self, text: Iterator[bytes]) -> bytes:
        async with self._making:
            return await asyncio.to_thread(next, text, b"")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI's.  Ended, which closes the connection: a text that stops is never taken for a whole one."""
        try:
            async with self._places, asyncio.timeout(LONG_S):
                await super().__call__(scope, receive, send)
        except TimeoutError:
            logger.info("metrics over HTTP stopped: they were not read within %g s", LONG_S)
            raise Ended from None
