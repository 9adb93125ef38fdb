"""The HTTP door: uvicorn on the server's own loop, and the facts it shows."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import uvicorn

from penstock.errors import Unavailable
from penstock.wire.http.app import create_app
from penstock.wire.http.facts import Metrics, QueueMetrics

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.core.queue.view import Queue
    from penstock.server.app import Server

PAGE = resource.getpagesize()


def resident_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[1]) * PAGE


class Facts:
    """The server as HTTP sees it.  Answers from counters; touches no disk."""

    def __init__(self, server: Server, version: str) -> None:
        self._server = server
        self._version = version

    def health(self) -> Mapping[str, object]:
        """`ok`, or `broken` with the reason when a write or sync failed; `full` when publishes are refused."""
        engine = self._server.engine
        status = "broken" if engine.broken is not None else "full" if engine.log.full else "ok"
        health: dict[str, object] = {
            "status": status,
            "name": self._server.settings.server.name,
            "sync": self._server.settings.server.sync,
            "durable_lsn": engine.log.durable,
            "last_lsn": engine.core.last_lsn,
        }
        if engine.broken is not None:
            health["reason"] = engine.broken
            health["to_do"] = "restart the server: it replays the log"
        return health

    def ready(self) -> bool:
        """Whether publishes are taken."""
        engine = self._server.engine
        return self._server.serving and engine.broken is None and not engine.log.full

    def overview(self) -> Mapping[str, object]:
        """Settings that people look for, with where they came from."""
        settings = self._server.settings
        places = ("server.name", "server.data", "server.sync", "server.memory", "log.segment")
        return {
            "origin": str(self._server.log.origin),
            "settings": {place: {"value": _value(settings, place), "from": settings.origin(place)} for place in places},
        }

    def queues(self) -> Sequence[Mapping[str, object]]:
        """Every queue."""
        return [self._queue(queue) for queue in self._server.engine.core.queues()]

    def queue(self, vhost: str, name: str) -> Mapping[str, object] | None:
        """One queue."""
        for queue in self._server.engine.core.queues():
            if queue.name == name and queue.vhost == vhost:
                return self._queue(queue)
        return None

    def vhosts(self) -> Sequence[str]:
        """Names of all vhosts."""
        return self._server.settings.vhosts

    def check_login(self, user: str, password: str, host: str) -> bool:
        """Whether this user may log in."""
        return self._server.users.check(user, password, host)

    def tags(self, user: str) -> Sequence[str]:
        """What else a user may do."""
        return next((known.tags for known in self._server.settings.users if known.name == user), ())

    def metrics(self) -> Metrics:
        """The numbers now."""
        server = self._server
        engine, counters, log = server.engine, server.counters, server.log
        queues = engine.core.queues()
        sessions = server.amqp.sessions
        segments = log.segments()
        return Metrics(
            node=server.settings.server.name,
            version=self._version,
            connections=len(sessions),
            channels=sum(len(session.channels) for session in sessions),
            consumers=sum(len(queue.consumers) for queue in queues),
            connections_opened=counters.connections_opened,
            connections_closed=counters.connections_closed,
            channels_opened=counters.channels_opened,
            channels_closed=counters.channels_closed,
            published=counters.published,
            published_confirm=counters.published_confirm,
            confirmed=counters.confirmed,
            routed=counters.routed,
            unroutable_dropped=counters.unroutable_dropped,
            unroutable_returned=counters.unroutable_returned,
            refused=counters.refused,
            delivered=counters.delivered,
            delivered_consume_auto_ack=counters.delivered_consume_auto_ack,
            delivered_consume_manual_ack=counters.delivered_consume_manual_ack,
            delivered_get_auto_ack=counters.delivered_get_auto_ack,
            delivered_get_manual_ack=counters.delivered_get_manual_ack,
            get_empty=counters.get_empty,
            redelivered=counters.redelivered,
            acknowledged=counters.acknowledged,
            dead_lettered=dict(counters.dead_lettered),
            durable_lsn=log.durable,
            last_lsn=engine.core.last_lsn,
            log_bytes=sum(segment.bytes for segment in segments),
            log_segments=len(segments),
            log_commits=log.commits,
            recovery_records=server.recovered_records,
            recovery_seconds=server.recovered_seconds,
            body_cache_bytes=engine.bodies.used,
            body_cache_limit_bytes=engine.bodies.budget,
            resident_bytes=resident_bytes(),
            disk_alarm=log.full,
            broken=engine.broken is not None,
            queues=[
                QueueMetrics(
                    queue.vhost, queue.name, queue.ready, queue.leased, queue.delayed, consumers=len(queue.consumers)
                )
                for queue in queues
            ],
        )

    def _queue(self, queue: Queue) -> Mapping[str, object]:
        return {
            "name": queue.name,
            "vhost": queue.vhost,
            "durable": queue.durable,
            "auto_delete": queue.auto_delete,
            "exclusive": queue.exclusive_to is not None,
            "arguments": queue.arguments,
            **self._server.engine.core.stats(queue),
        }


def _value(settings: Settings, place: str) -> object:
    section, key = place.split(".")
    return getattr(getattr(settings, section), key)


class HttpDoor:
    """uvicorn without its own signal handling, on our loop."""

    def __init__(self, server: Server, version: str) -> None:
        config = uvicorn.Config(
            create_app(Facts(server, version)),
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        self._uvicorn = uvicorn.Server(config)
        self._task: asyncio.Task[None] | None = None

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Bind and serve; returns the address that was bound."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=128)
        bound = listener.getsockname()
        self._task = asyncio.get_running_loop().create_task(self._serve(listener))
        while not self._uvicorn.started:
            if self._task.done():
                raise Unavailable(f"the HTTP door did not open on {host}:{port}") from self._task.exception()
            await asyncio.sleep(0)
        return bound[0], bound[1]

    async def _serve(self, listener: socket.socket) -> None:
        with contextlib.closing(listener):
            await self._uvicorn._serve([listener])  # pyright: ignore[reportPrivateUsage]  # `serve` takes over signals

    async def close(self) -> None:
        """Finish what is being answered, then stop."""
        self._uvicorn.should_exit = True
        if self._task is not None:
            await self._task
