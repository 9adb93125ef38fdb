"""The server as HTTP shows it: health, totals, queues, consumers, and each figure of `metrics` as it is now.

It answers from counters and reads no file.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import accumulate
from math import inf
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from penstock.config.load import in_force
from penstock.core.commands.queues import age_of_oldest_lease, head_published, seconds_behind
from penstock.core.queue.places import places, weighed
from penstock.core.topology.topology import PREDECLARED
from penstock.errors import NotFound, Unavailable
from penstock.operations.queues import settings_in_force
from penstock.operations.vhosts import CLUSTER_NAME
from penstock.server.alarms import NO_DESCRIPTOR, stopped_by_a_fault
from penstock.server.base.allocator import resident_bytes
from penstock.server.base.clock import SystemClock
from penstock.server.base.rounds import BOUNDS
from penstock.server.cluster.troubles import confirms_nothing
from penstock.server.counters import Rates
from penstock.server.figures import (
    archive_numbers,
    consumers,
    idle_since,
    processes,
    replay_numbers,
    standings,
    topic_facts,
    view_facts,
)
from penstock.server.figures import facts as standing_facts
from penstock.server.http.metrics import KINDS, MESSAGES, QUEUES, WHOLE, Line, Metrics
from penstock.server.sums import Seen
from penstock.units import parted_address

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.queue.queue import Queue
    from penstock.records.chunks import Now
    from penstock.server.base.progress import Progress
    from penstock.server.people.access import Who
    from penstock.server.people.logins import Derive
    from penstock.server.services import Server


_BEGAN = SystemClock().mono()  # about when the process began: the start loads this


def queue_line(core: Core, queue: Queue, now: Now) -> Line:
    """One queue; times in seconds, rates a second."""
    figures, weight = queue.so_far, weighed(queue)
    came, went, double = queue.transfers
    seen = SimpleNamespace(
        queue=queue,
        weight=weight,
        figures=figures,
        messages=queue.available + queue.leased + queue.delayed,
        consumers=len(queue.consumers),
        ready_bytes=weight.ready + weight.held,
        deferred_acks=core.deferred_acks(queue),
        cancelled=core.cancelled(queue),
        ack_rate=figures.rate(now.mono),
        oldest_lease=age_of_oldest_lease(queue, now),
        behind=seconds_behind(queue, now, core.stamps),
        transferred_in=came,
        transferred_out=went,
        double=double,
        proxied=queue.id in core.proxied,
        lease_to_ack={f"{share:g}": seconds for share, seconds in figures.quantiles().items()},
    )
    return QUEUES.look(seen)


def metrics_of(server: Server, version: str, progress: Progress | None) -> Metrics:
    """All but those of queues.  progress: of a start that is not over; then hardly anything else is there."""
    node = server.settings.server.name
    cluster = str(server.accounts.global_parameters.get(CLUSTER_NAME, ""))
    if progress is not None:
        early = {
            "penstock_recovery_records": progress.records,
            "penstock_recovery_records_expected": progress.records_total,
            "penstock_recovery_seconds": progress.seconds,
            "penstock_recovery_share": progress.share,
            "penstock_recovering": True,
            "rabbitmq_process_resident_memory_bytes": resident_bytes(),
        }
        alarms = () if server.cluster is None else server.cluster.alarms
        return Metrics(node, cluster, version, early, alarms=dict.fromkeys(alarms, 1))
    engine, counters, pauses = server.engine, server.counters, server.pulse.pauses()
    segments, sessions = server.log.segments(), server.amqp.sessions
    strangers, closed = _strangers(server)
    seen = SimpleNamespace(
        server=server,
        engine=engine,
        core=engine.core,
        log=server.log,
        counters=counters,
        pauses=pauses,
        connections=len(sessions),
        channels=sum(len(one.channels) for one in sessions),
        consumers=0,
        resident=resident_bytes(),
        disk_free=server.log.disk.free(),
        disk_low=server.log.room.least,
        uptime=(SystemClock().mono() - _BEGAN) / 1e6,
        publishers=sum(channel.published > 0 for one in sessions for channel in one.channels.values()),
        open_descriptors=len(os.listdir("/proc/self/fd")),
        log_bytes=sum(one.bytes for one in segments),
        log_segments=len(segments),
        delay=server.pace.lag_us / 1e6,
        delayed=server.pace.slowed_us / 1e6,
        started=1.0,
        recovering=False,
        descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        replays=replay_numbers(engine),
        broken=engine.broken is not None,
        **archive_numbers(engine),
    )
    figures = dict(zip((one.name for one in WHOLE.figures), WHOLE.look(seen).values, strict=True))
    counted = server.amqp.counted()
    messages = {
        f"rabbitmq_global_messages_{name}": getattr(counters if of == "routed" else counted, of)
        for name, of, _ in MESSAGES
    }
    return Metrics(
        node,
        cluster,
        version,
        {**cast("dict[str, float]", figures), **messages},
        lines={kind: list(map(KINDS[kind].look, some)) for kind, some in _things(server).items()},
        dead_lettered=dict(engine.core.dead_lettered),
        logins_refused=dict(server.logins.refused),
        memory=engine.bodies.budget.by_name(),
        gave_way=engine.relief.counts(),
        certificates=certificates_left(server),
        alarms=dict.fromkeys(engine.alarms, 1),
        strangers=strangers,
        strangers_closed=closed,
        pause_total=pauses.total,
        message_sizes=counters.sizes.told(),
        pause_counts=list(zip((*BOUNDS, inf), accumulate(pauses.counts), strict=True)),
    )


def _things(server: Server) -> dict[str, Iterable[object]]:
    """By kind, all that has a name but queues."""
    engine = server.engine
    acts, shares = sorted(engine.acts.counts.by_name.items()), server.shares.by_name.items()
    return {
        "streams": standings(engine),
        "views": view_facts(engine),
        "topics": topic_facts(engine.core),
        "pipelines": engine.pipelines.all(),
        "actions": (SimpleNamespace(name=name, runs=one.runs, reasons=one.reasons) for name, one in acts),
        "shares": (SimpleNamespace(name=name, one=one, most=(one.largest() or ("", 0))[1]) for name, one in shares),
        "processes": processes(server),
    }


def _strangers(server: Server) -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    """Connections that have not logged in, by door; and those that were closed, by door and what they went beyond."""
    guards = server.entry.guards.by_door
    there = {door: len(guard) for door, guard in guards.items()}
    closed = {(door, what): count for door, guard in guards.items() for what, count in guard.closed.items()}
    for doors in (server.flight.entrance, server.doors, server.http_doors):
        if doors is not None:
            there |= doors.strangers.there()
            closed |= doors.strangers.closed
    return there, closed


PROTOCOLS = {"amqps": "amqp/ssl"}
"""Doors that RabbitMQ calls by another name than our settings."""
DAMAGE_SHOWN = 10
"""Sentences about damage in one answer."""


def certificates_left(server: Server) -> dict[str, float]:
    """Seconds until each certificate ends that this server shows: `doors`, `cluster`, `link NAME`."""
    doors = {} if server.tls is None else {"doors": server.tls.seconds_left()}
    return doors if server.ends is None else doors | server.ends.seconds_left()


class Facts:
    """The server as HTTP sees it.  Answers from counters; reads no file."""

    def __init__(self, server: Server, version: str, progress: Progress | None = None) -> None:
        """`progress`: of a start that is not over yet; until then nothing else of the server is there."""
        self._server = server
        self.version = version
        self.users = server.users
        self.vhosts: Collection[str] = server.accounts.vhosts  # those that there are, now and later
        self._progress = progress
        self._rates = Rates()
        self._began = SystemClock().mono()

    @property
    def node(self) -> str:
        """The name of the instance."""
        return self._server.settings.server.name

    def _recovering(self) -> Progress | None:
        if self._progress is not None and self._progress.done:
            self._progress = None
        return self._progress

    def refuse_early(self) -> None:
        """Unavailable before the start is over, NotLeading on a member that follows."""
        if self._server.cluster is not None:
            self._server.cluster.refuse_to_follow()
        if (progress := self._recovering()) is not None:
            raise Unavailable(f"the server is {progress.line()}")

    def health(self) -> Mapping[str, object]:
        """`ok`, `draining`, or `broken` with the reason when a write or sync failed; `full` when publishes are refused.

        `recovering` before that, with how far it is.
        """
        cluster = self._server.cluster
        if cluster is not None and cluster.turn is None:
            name, alarms = self._server.settings.server.name, {"alarms": list(cluster.alarms)} if cluster.alarms else {}
            return {"status": "following", "name": name, "cluster": cluster.shown(), **alarms}
        if (progress := self._recovering()) is not None:
            return {"status": "recovering", "name": self._server.settings.server.name, **progress.plain()}
        engine = self._server.engine
        status = "broken" if engine.broken is not None else "full" if engine.log.room.full else "ok"
        if status == "ok" and engine.core.draining:
            status = "draining"
        health: dict[str, object] = {
            "status": status,
            "name": self._server.settings.server.name,
            "sync": self._server.settings.server.sync,
            "durable_lsn": engine.log.durable,
            "last_lsn": engine.core.last_lsn,
        }
        if cluster is not None:
            health["cluster"] = cluster.shown()
            if status == "ok" and (why := confirms_nothing(cluster.known)):
                health["status"], health["reason"] = "degraded", why
        if status == "ok" and (stopped := engine.core.stopped):
            health["status"] = "degraded"
            health["reason"] = stopped_by_a_fault(stopped)
        return health | self._remarks()

    def _remarks(self) -> dict[str, object]:
        """Of health, what is there now and then."""
        engine, health = self._server.engine, self._server.engine.remarks()
        if engine.keeper is not None:
            health["retention"] = engine.keeper.rule
        if damaged := engine.log.damage.batches:
            health["damaged_batches"] = damaged
            health["damage"] = engine.log.damage.sentences(DAMAGE_SHOWN)
        if self._server.entry.short:
            health["descriptors"] = NO_DESCRIPTOR
        if engine.broken is not None:
            health["reason"] = engine.broken
            health["to_do"] = "restart the server: it replays the log"
        return health

    def role(self) -> str:
        """Of a cluster: what this member is; without one it leads, once the doors are open, or says why not.

        With a full disk it goes on to lead: who takes what waits makes room, and comes the same way as publishers.
        """
        cluster = self._server.cluster
        if cluster is not None and cluster.turn is None:
            return str(cluster.known.get("role", "joining"))
        if self._recovering() is not None or not self._server.serving:
            return "taking over"
        engine = self._server.engine
        return "broken" if engine.broken is not None else "draining" if engine.core.draining else "leading"

    def cluster(self) -> Mapping[str, object]:
        """All that this member knows of its cluster.  NotFound without one."""
        if self._server.cluster is None:
            raise NotFound("this server is in no cluster")
        return self.membership()

    def membership(self) -> Mapping[str, object]:
        """The same; empty without one."""
        return {} if self._server.cluster is None else self._server.cluster.known

    def links(self) -> Sequence[Mapping[str, object]]:
        """Links to other sites and from them."""
        found = [] if self._server.links is None else self._server.links.facts()
        wall = self._server.engine.clock.wall() if found else 0
        return [
            {
                **one,
                **{state: one["state"] == state for state in ("up", "paused", "refused")},
                "state_seconds": max(0, wall - cast("int", one["since"])) / 1e6,
            }
            for one in found
        ]

    def ready(self) -> bool:
        if self._recovering() is not None:
            return False
        return self._open() and not self.behind

    def _open(self) -> bool:
        engine = self._server.engine
        return self._server.serving and engine.broken is None and not engine.log.room.full and not engine.core.draining

    @property
    def behind(self) -> int:
        """How many sites have still to tell what happened while this one was away."""
        return 0 if self._server.links is None else len(self._server.links.behind)

    def overview(self) -> Mapping[str, object]:
        """The settings in force, with where they came from."""
        self.refuse_early()
        settings, tls = self._server.settings, self._server.tls
        return {
            "origin": str(self._server.log.origin),
            **({} if tls is None else {"tls": tls.facts()}),
            "memory": self._server.engine.bodies.budget.by_name(),
            "memory_gave_way": self._server.engine.relief.counts(),
            **({} if (keeper := self._server.engine.keeper) is None else {"retention": keeper.told()}),
            "shares": {name: share.told() for name, share in self._server.shares.by_name.items()},
            "settings": {name: {"value": value, "from": origin} for name, value, origin in in_force(settings)},
        }

    def queues(self, user: str) -> Iterator[Mapping[str, object]]:
        """Every queue that the user may see."""
        self.refuse_early()
        rights = self._server.users.rights(user)
        queues = self._server.engine.core.queues()
        return (self._queue(one) for one in queues if rights is None or rights.sees_queue(one.vhost, one.name))

    def short_queues(self, user: str, vhost: str | None, sort: str) -> Iterator[dict[str, object]]:
        """The same queues with what a list is chosen and sorted by alone, each with what makes all of it."""
        self.refuse_early()
        rights, clock = self._server.users.rights(user), self._server.engine.clock
        for queue in self._server.engine.core.queues():
            if vhost in {None, queue.vhost} and (rights is None or rights.sees_queue(queue.vhost, queue.name)):
                rates = self._rates.stats(queue, clock.mono()) if sort.startswith("message_stats") else {}
                ready, leased, delayed = queue.available, queue.leased, queue.delayed
                yield {
                    "name": queue.name,
                    "vhost": queue.vhost,
                    "messages": ready + leased + delayed,
                    "messages_ready": ready,
                    "messages_unacknowledged": leased,
                    "consumers": len(queue.consumers),
                    "penstock": {"delayed": delayed},
                    "message_stats": rates,
                    "make": partial(self._queue, queue),
                }

    def queue_metrics(self) -> Iterable[Line]:
        """The numbers of every queue, each looked at when it is asked for; none before the start is over."""
        if self._recovering() is not None:
            return iter(())
        core, now = self._server.engine.core, self._server.engine.now()
        return (queue_line(core, queue, now) for queue in core.queues())

    def queue(self, vhost: str, name: str, user: str) -> Mapping[str, object] | None:
        """One queue; None also where the user may not see it."""
        self.refuse_early()
        rights = self._server.users.rights(user)
        if rights is not None and not rights.sees_queue(vhost, name):
            return None
        core = self._server.engine.core
        queue = core.find_queue(vhost, name)
        return None if queue is None else {**self._queue(queue), "settings": settings_in_force(core, queue)}

    def consumers(self, user: str, vhost: str | None, queue: str | None = None) -> Iterator[Mapping[str, object]]:
        """Every consumer that the user may see."""
        self.refuse_early()
        return consumers(self._server.engine, self._server.users.rights(user), vhost, queue)

    async def login(self, user: str, password: str, host: str, derive: Derive | None = None) -> float | None:
        """None for who may log in; late for others.  derive: as of `Logins.ask`."""
        verdict = await self._server.logins.ask("http", user, password, host, derive, late=True)
        return None if verdict.good else verdict.wait_s

    def working(self, who: Who) -> AbstractContextManager[None]:
        """One of somebody's requests for as long as this lasts."""
        return self._server.shares.of("http_requests").held(who)

    def metrics(self) -> Metrics:
        """The numbers now, without those of queues."""
        return metrics_of(self._server, self.version, self._recovering())

    def segments(self) -> Mapping[str, object]:
        """The files of the log, and how far it is."""
        self.refuse_early()
        log, archive = self._server.log, self._server.engine.archive
        return {
            "segments": [one._asdict() for one in log.segments()],
            "first_lsn": log.first_lsn,
            "durable_lsn": log.durable,
            "last_lsn": self._server.engine.core.last_lsn,
            "archive": None if archive is None else archive.told(),
        }

    def topics(self, user: str) -> Sequence[Mapping[str, object]]:
        """Topics with a key that the user may read."""
        self.refuse_early()
        rights = self._server.users.rights(user)
        found = topic_facts(self._server.engine.core)
        return [one for one in found if rights is None or rights.sees_topic(one["vhost"], one["exchange"], one["name"])]

    def views(self) -> Sequence[Mapping[str, object]]:
        """Views and conflated topics that the settings name."""
        self.refuse_early()
        return view_facts(self._server.engine)

    def streams(self) -> Sequence[Mapping[str, object]]:
        self.refuse_early()
        return standing_facts(self._server.engine)

    def process(self) -> Mapping[str, object]:
        self.refuse_early()
        return {
            "uptime": (SystemClock().mono() - self._began) // 1000,
            "processors": os.cpu_count() or 1,
            "os_pid": str(os.getpid()),
            "fd_total": (descriptors := resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
            "sockets_total": descriptors,
            "sockets_used": len(self._server.amqp.sessions),
        }

    def listeners(self) -> Sequence[Mapping[str, object]]:
        self.refuse_early()
        node = self._server.settings.server.name
        return [
            {"node": node, "protocol": PROTOCOLS.get(name, name), "ip_address": host, "port": int(port)}
            for name, (host, port) in ((name, parted_address(one)) for name, one in self._server.addresses.items())
        ]

    def certificates_left(self) -> Mapping[str, float]:
        """Seconds until each certificate ends that the server shows, by whose it is."""
        return certificates_left(self._server)

    def mono(self) -> int:
        return self._server.engine.clock.mono()

    def memory(self) -> Mapping[str, int]:
        """Bytes of bodies and buffers, by what they are for."""
        self.refuse_early()
        return self._server.engine.bodies.budget.by_name()

    def seen(self, who: Who) -> Seen:
        self.refuse_early()
        return Seen(self._server, who)

    def exchanges(self) -> Sequence[tuple[str, str, str, int]]:
        """Vhost, name and type of each, and how many bindings begin there."""
        topology = self._server.engine.core.topology
        found = {(vhost, name): one for vhost in self.vhosts for name, one in PREDECLARED.items()}
        return [
            (*place, one.type, len([*topology.bindings_from(*place)]))
            for place, one in (found | topology.exchanges).items()
        ]

    def open_metrics(self) -> bool:
        return self._server.settings.server.open_metrics

    def scraped(self) -> None:
        """What is measured since the last scrape begins anew."""
        self._server.pulse.begin_anew()

    def _queue(self, queue: Queue) -> Mapping[str, object]:
        core, now = self._server.engine.core, self._server.engine.now()
        capacity = self._rates.capacity(queue, now.wall)
        stats = core.stats(queue, now)
        if any(places(queue, "held", "inactive", "foreign", "dying")):  # to clients that know no barriers it is ready
            weight = weighed(queue)
            stats |= {
                "ready": queue.available, "ready_bytes": weight.ready + weight.held, "bytes": weight.messages,
            }  # fmt: skip
        return {
            "name": queue.name,
            "vhost": queue.vhost,
            "durable": queue.durable,
            "auto_delete": queue.auto_delete,
            "type": queue.settings.queue_type,
            "exclusive": queue.exclusive_to is not None,
            "arguments": queue.arguments,
            **stats,
            **core.policy_facts(queue),
            "message_stats": self._rates.stats(queue, self._server.engine.clock.mono()),
            "consumer_capacity": capacity,
            "consumer_utilisation": capacity,
            "head_message_timestamp": head_published(queue, now, core.stamps),
            **idle_since(abs(queue.used_at), now.wall),
        }
