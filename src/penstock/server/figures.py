"""What the HTTP door shows of queues, streams, consumers, replays, views, topics, actions, connections and processes.

Plain values, taken on the loop. Each is made from what is at hand; nothing is read and nothing is walked but the list
itself.

Where a durable stream stands: what it has not read yet, how old that is, what it holds of the log. In log mode the
position is where the last planned range ends, or farther: where the reader's last question found nothing more. The rest
is counted in LSNs, control records and other topics included: counting messages would read them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.core.queue.dispatching.consumers import UNLIMITED, Consumer
from penstock.errors import NotFound
from penstock.records.dataclass import dataclass
from penstock.server.amqp.channel import Channel
from penstock.server.bulk.relay import bytes_between
from penstock.server.counters import STATS, Rates, look, with_rates
from penstock.server.doors.door_process import figures_of
from penstock.server.notices import end_of, ends, said_of
from penstock.wire.flight.bookmarks import format_bookmark

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.queue.queue import Queue
    from penstock.core.state.streams import StreamState
    from penstock.server.amqp.connection import Connection
    from penstock.server.engine import Engine
    from penstock.server.people.entitlements import Rights
    from penstock.server.replaying.log_source import LogSource
    from penstock.server.services import Server


@dataclass(frozen=True, slots=True)
class Standing:
    name: str
    mode: str
    lag: int  # messages that wait or are planned in queue mode; records of the log in log mode
    messages: int | None  # the same in messages; log mode: of its topic, its filter not asked; None: not counted yet
    age: float  # seconds by which it is behind; 0: it is level
    held_bytes: int  # of the log, that cannot go because of it
    idle: float  # seconds since somebody read it; -1: that is not known

    @property
    def lag_of_log(self) -> int | None:
        """The lag in records of the log; None: it has none."""
        return self.lag if self.mode == "log" else None

    @property
    def unread(self) -> float:
        """Seconds since somebody read it, as far as that is known."""
        return max(self.idle, 0.0)


def standings(engine: Engine) -> list[Standing]:
    """All streams by name.  On the loop."""
    segments, durable, now = engine.log.segments(), engine.log.durable, engine.now().wall
    ahead = engine.walked.ahead.look()
    out = list[Standing]()
    for name, state in sorted(engine.core.streams.states.items()):
        holds = state.holds_from
        held = 0 if holds is None else bytes_between(segments, holds, durable + 1)
        seen = engine.core.streams.keeping.last_read(name, state)
        idle = (now - seen) / 1e6 if seen else -1.0
        lag, age = _behind(engine, name, state)
        messages = ahead.get(name) if state.mode == "log" else lag
        if messages == 0:
            age = 0.0  # what it has not read is records of other kinds
        out.append(Standing(name, state.mode, lag, messages, max(age, 0.0), held, max(idle, 0.0) if seen else idle))
    return out


def _behind(engine: Engine, name: str, state: StreamState) -> tuple[int, float]:
    """How much a stream has not read, and how many seconds it is behind."""
    if state.mode == "changes":
        return 0, 0.0  # it compares what is there, and has no place that could be behind
    if state.mode == "log":
        at = state.position
        lag = 0 if at is None else engine.log.records_between(engine.walked.begin(name, at), engine.log.durable + 1)
        level = engine.walked.since(name) or state.read
        return lag, (engine.now().wall - level) / 1e6 if lag and level else 0.0
    queue = engine.core.queue_by_id(state.queue)
    if queue is None:
        return 0, 0.0
    lag = queue.ready + _planned(state)
    oldest = engine.core.stats(queue, engine.now())["seconds_behind"] if lag else None
    return lag, float(oldest) if isinstance(oldest, int | float) else 0.0


def facts(engine: Engine) -> list[dict[str, object]]:
    """All streams as JSON has them.  On the loop."""
    found = list[dict[str, object]]()
    for one in standings(engine):
        state = engine.core.streams.states[one.name]
        queue = engine.core.queue_by_id(state.queue)
        found.append(
            {
                "stream": one.name,
                "mode": state.mode,
                "queue": None if queue is None else queue.name,
                **{key: state.asked.get(key) for key in ("topic", "pattern", "exchange", "vhost", "filter")},
                "pipeline": state.pipeline or None,
                "orphaned": bool(state.pipeline) and not engine.pipelines.knows(state.pipeline),
                "state": "abandoned" if state.abandoned else "released" if state.released else "held",
                "epoch": state.epoch,
                "reader": engine.core.streams.readers.get(one.name),
                "floor": state.floor,
                "planned": state.planned,
                "held": _planned(state) if state.mode == "queue" else 0,
                "start": state.start,
                "position": state.position if state.mode == "log" else None,
                "holds_from": state.holds_from,
                "held_bytes": one.held_bytes,
                "lag": one.lag,
                "lag_messages": one.messages,
                "age_seconds": round(one.age, 3),
                "read_seconds": round(one.idle, 3) if one.idle >= 0 else None,
                "abandon_after_seconds": state.abandon_after / 1e6 if state.abandon_after else None,
            }
        )
    return found


def _planned(state: StreamState) -> int:
    """Messages of the queue that it holds."""
    return sum(
        pairs[i + 1] - pairs[i]
        for batch, pairs in state.plans.items()
        if batch > state.floor
        for i in range(0, len(pairs), 2)
    )


class Replays(NamedTuple):
    """All subscriptions to topics together: they come and go with their clients, so none has a line."""

    open: int
    paused: int
    live: int  # level with the log
    lag: int  # records of the log between what is durable and the one that is furthest behind


def replay_numbers(engine: Engine) -> Replays:
    replays = engine.replays
    asked = [one for one in replays.sources if one.asked is not None]
    live = sum(_level(engine, one) for one in asked)
    return Replays(len(asked), sum(one.paused for one in asked), live, max(map(replays.lag, asked), default=0))


def view_facts(engine: Engine) -> list[dict[str, Any]]:
    """Every view and conflated topic that has a name."""
    views = engine.views
    return [
        {
            "vhost": one.vhost,
            "name": one.name,
            "records": one.count,
            "lag": views.lag(one),  # durable records of the log that it has not taken in
            "rebuilds": one.rebuilds,  # times that it began anew, from the start of the process
            "stopped": one.error is not None,  # and nothing more comes, or not before it has begun anew
            "error": None if one.error is None else str(one.error),
        }
        for one in views.all_shown()
    ]


def topic_facts(core: Core) -> list[dict[str, Any]]:
    """Every topic with a key, and every one that had bodies which did not fit its JSON Schema."""
    found = {
        (sow.vhost, sow.exchange, sow.name): {"records": sow.index.count, "index_bytes": sow.index.nbytes}
        for sow in core.sows
    }
    failed = {name: one.count for name, one in core.all_check_failures().items() if one.count}
    none: dict[str, int] = {"records": 0, "index_bytes": 0}
    return [
        {"vhost": vhost, "exchange": exchange, "name": name, **found.get((vhost, exchange, name), none),
         "schema_failed": failed.get((vhost, exchange, name), 0)}
        for vhost, exchange, name in dict.fromkeys((*found, *failed))
    ]  # fmt: skip


# -- consumers


def consumers(
    engine: Engine, rights: Rights | None, vhost: str | None, name: str | None
) -> Iterator[dict[str, object]]:
    """Consumers of queues, then those that replay, each as `server.http.topology` takes it."""
    for queue in _called(engine.core, vhost, name):
        if rights is None or rights.sees_queue(queue.vhost, queue.name):
            for consumer in list(queue.consumers):
                yield _consuming(queue, consumer)
    for source in list(engine.replays.sources):
        asked = source.asked
        if asked is None or vhost not in {None, asked.selection.vhost} or name not in {None, asked.name}:
            continue
        if rights is None or _sees(rights, asked.selection.vhost, asked.name):
            yield _replaying(engine, source)


def _called(core: Core, vhost: str | None, name: str | None) -> Sequence[Queue]:
    """Queues of one vhost or of all, or the one of a name in its vhost: for that nobody looks at the others."""
    if vhost is not None and name is not None:
        found = core.find_queue(vhost, name)
        return [] if found is None else [found]
    return [one for one in core.queues() if vhost in {None, one.vhost} and name in {None, one.name}]


def _sees(rights: Rights, vhost: str, name: str) -> bool:
    return rights.sees_queue(vhost, name) or bool(name and rights.reads_topic(vhost, "", name) is not False)


def _consuming(queue: Queue, consumer: Consumer) -> dict[str, object]:
    holder = consumer.holder
    return {
        "kind": "queue",
        "vhost": queue.vhost,
        "queue": queue.name,
        "tag": consumer.tag,
        "client": consumer.client,
        **_whose(holder),
        "ack_required": not consumer.no_ack,
        "exclusive": consumer.exclusive,
        "prefetch": 0 if consumer.limit >= UNLIMITED else consumer.limit,
        "active": not consumer.choked,
        "arguments": consumer.arguments or {},
        "unacknowledged": consumer.outstanding,
    }


def _whose(holder: object) -> dict[str, object]:
    """The user of a consumer, and the name of its connection."""
    told: dict[str, object] = {"user": getattr(holder, "user", "")}  # the core's own streams are nobody's
    if isinstance(holder, Channel):
        told["connection"] = holder.connection
    return told


def _level(engine: Engine, source: LogSource) -> bool:
    """Whether it has looked at all that is durable."""
    return not source.paused and (source.live or not engine.replays.lag(source))


def _replaying(engine: Engine, source: LogSource) -> dict[str, object]:
    asked = source.asked
    assert asked is not None
    return {
        "kind": "replay",
        "vhost": asked.selection.vhost,
        "queue": asked.name,
        "tag": asked.tag,
        "client": asked.client,
        "user": asked.user,
        "ack_required": False,
        "exclusive": False,
        "prefetch": 0,
        "active": not source.paused,
        "unacknowledged": 0,
        "state": "paused" if source.paused else "live" if _level(engine, source) else "behind",
        "bookmark": format_bookmark(engine.log.origin, max(source.position - 1, 0)),
        "lag": engine.replays.lag(source),
    }


IDLE_US = 5_000_000
"""What nobody had to do with for so long is idle."""


def idle_since(used: int, wall: int) -> dict[str, object]:
    """Since when nobody has to do with it, in RabbitMQ's words; nothing for what is busy.  used: when, or 0."""
    if wall - used < IDLE_US or not used:
        return {}
    return {"idle_since": datetime.fromtimestamp(used / 1e6, UTC).isoformat(timespec="milliseconds")}


class Links:
    """Looks at sessions as they are."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._rates = Rates()

    def connections(self, user: str | None, vhost: str | None = None) -> Iterator[dict[str, object]]:
        node = self.server.settings.server.name
        sessions = sorted(self.server.amqp.sessions, key=lambda one: one.opened_at)
        for session in sessions:
            if session.opened and user in {None, session.user} and vhost in {None, session.vhost}:
                yield self._connection(session, node)

    def _connection(self, session: Connection, node: str) -> dict[str, object]:
        clock = self.server.engine.clock
        incoming, outgoing = session.incoming, session.outgoing
        waits = incoming.paused or self.server.amqp.holding.holds(session)
        return {
            "name": session.name,
            "node": node,
            "vhost": session.vhost,
            "user": session.user,
            "user_who_performed_action": session.user,
            "type": "network",
            "state": "closing" if session.closing else "blocked" if waits else "running",
            **ends(session),
            **said_of(session),
            "channels": len(session.channels),
            "connected_at": session.came_at // 1000,
            **self._rates.told(
                session.name, clock.mono(), ("recv_oct", "send_oct"), (incoming.received, outgoing.sent)
            ),
            "recv_cnt": incoming.reads,
            "send_cnt": outgoing.writes,
            "send_pend": session.link.buffered(),
        }

    def channels(
        self, user: str | None, vhost: str | None = None, connection: str | None = None
    ) -> Iterator[dict[str, object]]:
        """Open channels, by connection and number."""
        node = self.server.settings.server.name
        for session in sorted(self.server.amqp.sessions, key=lambda one: one.opened_at):
            name = session.name
            if user not in {None, session.user} or vhost not in {None, session.vhost}:
                continue
            if connection in {None, name}:
                for number, channel in sorted(session.channels.items()):
                    yield self._channel(session, channel, name, number, node)

    def _channel(
        self, session: Connection, channel: Channel, connection: str, number: int, node: str
    ) -> dict[str, object]:  # fmt: skip
        clock, counts = self.server.engine.clock, channel.counts.stats()
        channel.looked = latest = look(channel.looked, clock.mono(), counts)
        consumers = [*channel.consumers.values(), *channel.getters.values(), *channel.cancelled_consumers]
        unacknowledged = sum(one.outstanding for one in consumers)
        return {
            "name": f"{connection} ({number})",
            "number": number,
            "node": node,
            "vhost": session.vhost,
            "user": session.user,
            "user_who_performed_action": session.user,
            "state": "running",
            "confirm": channel.confirming,
            "transactional": channel.tx is not None,
            "prefetch_count": channel.prefetch,
            "global_prefetch_count": 0 if channel.shared is None else channel.shared.limit,
            "consumer_count": len(channel.consumers) + len(channel.followings) + len(channel.subscriptions),
            "messages_unacknowledged": unacknowledged,
            "messages_unconfirmed": channel.unconfirmed,
            "messages_uncommitted": 0 if channel.tx is None else channel.tx.published,
            "acks_uncommitted": 0 if channel.tx is None else channel.tx.acknowledged,
            "message_stats": with_rates(STATS, counts, latest.rates),
            **idle_since(clock.wall() - (clock.mono() - latest.since), clock.wall()),
            "connection_details": {"name": connection, **end_of(session.peer, "peer_")},
        }

    def close(self, name: str, reason: str) -> None:
        """Close with 320; what the connection holds goes back to its queues."""
        session = next((one for one in self.server.amqp.sessions if one.name == name), None)
        if session is None or session.closing:
            raise NotFound("Not Found")
        session.close_by_server(reason)
        self.server.engine.arm()


class Process(NamedTuple):
    """A process of the server: seconds of CPU since its start, bytes, and how often one like it began and ended."""

    name: str
    pid: int
    cpu: float
    resident: int
    starts: int
    deaths: int


def processes(server: Server) -> list[Process]:
    """Those that the server is made of, this one first."""
    door, bulk = server.flight.entrance.process, server.bulk
    found = [("core", os.getpid(), 1, 0), ("flight", door.pid, door.starts, door.deaths)]
    for doors in (server.http_doors, server.doors):
        if doors is not None:
            found += ((one.name, one.pid, one.starts, one.deaths) for one in doors.processes)
    found.append(("bulk", bulk.pid, bulk.starts, bulk.deaths))
    return [Process(name, pid, *figures_of(pid), starts, deaths) for name, pid, starts, deaths in found if pid]


def archive_numbers(engine: Engine) -> dict[str, int]:
    """What the archive has and lacks, by metric; zeros without one."""
    archive = engine.archive
    found = (0,) * 5
    if archive is not None:
        manifest = archive.manifest
        found = manifest.size, len(manifest.files), manifest.rows, archive.behind(), archive.failures
    names = ("bytes", "files", "rows", "behind", "failures")
    return {f"archive_{name}": value for name, value in zip(names, found, strict=True)}
