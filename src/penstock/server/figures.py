"""What the HTTP door shows of queues, consumers, replays, views, topics and actions: plain values, taken on the loop.

Each is made from what is at hand; nothing is read and nothing is walked but the list itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast

from penstock.core.commands.queues import age_of_oldest_lease, seconds_behind
from penstock.core.queue.dispatching.consumers import UNLIMITED
from penstock.core.queue.places import weighed
from penstock.server.amqp.channel import Channel
from penstock.server.streams.lag import standings
from penstock.wire.flight.bookmarks import format_bookmark
from penstock.wire.http.facts import (
    ActionMetrics,
    PipelineMetrics,
    QueueMetrics,
    ReplayMetrics,
    StreamMetrics,
    TopicMetrics,
    ViewMetrics,
)

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.queue.dispatching.consumers import Consumer
    from penstock.core.queue.queue import Queue
    from penstock.records.chunks import Now
    from penstock.server.engine import Engine
    from penstock.server.entitlements import Rights
    from penstock.server.replaying.log_source import LogSource


def queue_numbers(core: Core, queue: Queue, now: Now) -> QueueMetrics:
    """One queue."""
    figures, weight = queue.figures, weighed(queue)
    return QueueMetrics(
        queue.vhost,
        queue.name,
        queue.available,
        queue.leased,
        queue.delayed,
        ready_bytes=weight.ready + weight.held,
        bytes=weight.total,
        consumers=len(queue.consumers),
        inactive=queue.inactive,
        barriers=queue.barriers_waiting,
        backlog=queue.outstanding,
        deferred_acks=core.deferred_acks(queue),
        oldest_lease=age_of_oldest_lease(queue, now),
        behind=seconds_behind(queue, now, core.stamps),
        published=queue.arrived,
        delivered=queue.delivered,
        acked=queue.acked,
        cancelled=core.cancelled(queue),
        expired_leases=queue.expired_leases,
        redelivered=0 if figures is None else figures.redelivered,
        dropped=0 if figures is None else figures.dropped,
        replaced=0 if figures is None else figures.replaced,
        refused=0 if figures is None else figures.refused,
        duplicates=queue.duplicates,
        letters_refused=0 if figures is None else figures.letters_refused,
        expirations={} if figures is None else dict(figures.expirations or {}),
        ack_rate=0.0 if figures is None else figures.rate(now.mono),
        lease_to_ack={} if figures is None else figures.quantiles(),
    )


def stream_numbers(engine: Engine) -> list[StreamMetrics]:
    """Every durable stream."""
    return [
        StreamMetrics(one.name, one.mode, one.lag, one.messages, one.age, one.held_bytes, max(one.idle, 0.0))
        for one in standings(engine)
    ]


def replay_numbers(engine: Engine) -> ReplayMetrics:
    """All subscriptions to topics that clients have."""
    replays = engine.replays
    asked = [one for one in replays.sources if one.asked is not None]
    return ReplayMetrics(
        open=len(asked),
        paused=sum(one.paused for one in asked),
        live=sum(_level(engine, one) for one in asked),
        sent=replays.sent,
        lag=max(map(replays.lag, asked), default=0),
    )


def view_numbers(engine: Engine) -> list[ViewMetrics]:
    """Every view and conflated topic that has a name."""
    views = engine.views
    return [
        ViewMetrics(
            one.vhost,
            one.name,
            one.count,
            views.lag(one),
            one.rebuilds,
            stopped=getattr(one, "error", None) is not None,
        )
        for one in views.all_shown()
    ]


def pipeline_numbers(engine: Engine) -> list[PipelineMetrics]:
    """Every Spark pipeline, as its driver told last."""
    return [_pipeline(one) for one in engine.pipelines.all()]


def _pipeline(status: Mapping[str, object]) -> PipelineMetrics:
    """One status as numbers."""

    def number(name: str) -> float:
        value = status.get(name)
        return float(value) if isinstance(value, (int, float)) else 0.0

    expect = cast("dict[str, list[dict[str, str | int]]]", status.get("expect") or {})
    rules = expect.get("rules", ())
    unmet = [(str(one["input"]), str(one["rule"]), str(one["otherwise"]), int(one["rows"])) for one in rules]
    return PipelineMetrics(
        str(status["pipeline"]),
        str(status.get("state", "")),
        rows=int(number("rows")),
        rows_per_second=number("rows_per_second"),
        batches=int(number("batches")),
        lag=int(number("lag")),
        batch_seconds=number("batch_ms") / 1000,
        state_rows=int(number("state_rows")),
        state_bytes=int(number("state_bytes")),
        late_rows=int(number("late_rows")),
        failures=int(number("failures_total")),
        unmet=unmet,
    )


def topic_numbers(core: Core) -> list[TopicMetrics]:
    """Every topic with a key."""
    return [TopicMetrics(sow.vhost, sow.exchange, sow.name, sow.index.count, sow.index.nbytes) for sow in core.sows]


def action_numbers(engine: Engine) -> dict[str, ActionMetrics]:
    """Every action of the settings."""
    acts = engine.acts
    return {name: ActionMetrics(one.runs, dict(one.reasons)) for name, one in acts.counts.by_name.items()}


# -- consumers


def consumers(
    engine: Engine, rights: Rights | None, vhost: str | None, name: str | None
) -> Iterator[dict[str, object]]:
    """Consumers of queues, then those that replay, each as `wire.http.queues` takes it."""
    for queue in list(engine.core.queues()):
        if vhost not in {None, queue.vhost} or name not in {None, queue.name}:
            continue
        if rights is None or rights.sees_queue(queue.vhost, queue.name):
            for consumer in list(queue.consumers):
                yield _consuming(queue, consumer)
    for source in list(engine.replays.sources):
        asked = source.asked
        if asked is None or vhost not in {None, asked.selection.vhost} or name not in {None, asked.name}:
            continue
        if rights is None or _sees(rights, asked.selection.vhost, asked.name):
            yield _replaying(engine, source)


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
        "active": not consumer.paused,
        "unacknowledged": consumer.outstanding,
    }


def _whose(holder: object) -> dict[str, object]:
    """The user of a consumer, and the name of its connection."""
    if not isinstance(holder, Channel):
        return {"user": ""}
    session = holder.session
    return {"user": session.user, "connection": f"{session.peer} -> {session.local}"}


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
