"""What metrics see of a server: each figure of the families of `metrics`, as it is now."""

from __future__ import annotations

import os
import resource
from itertools import accumulate
from math import inf
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from penstock.core.commands.queues import age_of_oldest_lease, seconds_behind
from penstock.core.queue.limits import NOTHING_COUNTED
from penstock.core.queue.places import weighed
from penstock.operations.vhosts import CLUSTER_NAME
from penstock.server.allocator import resident_bytes
from penstock.server.clock import SystemClock
from penstock.server.figures import processes, replay_numbers, standings, topic_facts, view_facts
from penstock.server.http.metrics import (
    ACTIONS,
    MESSAGES,
    PIPELINES,
    PROCESSES,
    QUEUES,
    SHARES,
    STREAMS,
    TOPICS,
    VIEWS,
    WHOLE,
    Line,
    Metrics,
)
from penstock.server.rounds import BOUNDS

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.queue.queue import Queue
    from penstock.records.chunks import Now
    from penstock.server.engine import Engine
    from penstock.server.progress import Progress
    from penstock.server.services import Server


_BEGAN = SystemClock().mono()  # about when the process began: the start loads this


def queue_line(core: Core, queue: Queue, now: Now) -> Line:
    """One queue; times in seconds, rates a second."""
    figures, weight = queue.figures or NOTHING_COUNTED, weighed(queue)
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


def metrics_of(server: Server, version: str, progress: Progress | None = None) -> Metrics:
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
        return Metrics(node, cluster, version, early)
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
        disk_low=server.log.settings.low_space + server.log.settings.reserve,
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
        **_archive(engine),
    )
    figures = dict(zip((one.name for one in WHOLE.figures), WHOLE.look(seen).values, strict=True))
    messages = {f"rabbitmq_global_messages_{name}": getattr(counters, of) for name, of, _ in MESSAGES}
    return Metrics(
        node,
        cluster,
        version,
        {**cast("dict[str, float]", figures), **messages},
        streams=list(map(STREAMS.look, standings(engine))),
        views=list(map(VIEWS.look, view_facts(engine))),
        topics=list(map(TOPICS.look, topic_facts(engine.core))),
        pipelines=list(map(PIPELINES.look, engine.pipelines.all())),
        actions=[
            ACTIONS.look(SimpleNamespace(name=name, runs=one.runs, reasons=one.reasons))
            for name, one in sorted(engine.acts.counts.by_name.items())
        ],
        shares=[
            SHARES.look(SimpleNamespace(name=name, one=one, most=(one.largest() or ("", 0))[1]))
            for name, one in server.shares.by_name.items()
        ],
        processes=list(map(PROCESSES.look, processes(server))),
        dead_lettered=dict(engine.core.dead_lettered),
        logins_refused=dict(server.logins.refused),
        memory=engine.bodies.budget.by_name(),
        gave_way=engine.relief.counts(),
        certificate_seconds_left=None if server.tls is None else server.tls.seconds_left(),
        strangers=strangers,
        strangers_closed=closed,
        pause_total=pauses.total,
        message_sizes=counters.sizes.told(),
        pause_counts=list(zip((*BOUNDS, inf), accumulate(pauses.counts), strict=True)),
    )


def _strangers(server: Server) -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    """Connections that have not logged in, by door; and those that were closed, by door and what they went beyond."""
    guards, flight = server.entry.guards.by_door, server.flight.entrance.connections
    there = {door: len(guard) for door, guard in guards.items()} | flight.there()
    closed = {(door, what): count for door, guard in guards.items() for what, count in guard.closed.items()}
    closed |= flight.closed
    for doors in (server.doors, server.http_doors):
        if doors is not None:
            there |= doors.there()
            closed |= doors.closed
    return there, closed


def _archive(engine: Engine) -> dict[str, int]:
    archive = engine.archive
    found = (0,) * 5
    if archive is not None:
        manifest = archive.manifest
        found = manifest.size, len(manifest.files), manifest.rows, archive.behind(), archive.failures
    names = ("bytes", "files", "rows", "behind", "failures")
    return {f"archive_{name}": value for name, value in zip(names, found, strict=True)}
