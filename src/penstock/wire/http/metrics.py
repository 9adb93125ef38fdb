"""Prometheus metrics: RabbitMQ's names where dashboards read them, and `penstock_*` for what it has no name for.

`/metrics` sums over queues and whatever else has a name, or takes the greatest; `/metrics/per-object` has a line for
each.  Nothing is counted here: each scrape turns one `Metrics` into text, by the tables below.

Only who asks for each object is told names: those of the settings and of declared things.  What comes and goes with its
client, replays and aggregated subscriptions, is counted together, so that no client can make lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from penstock.records.event_actions import REASONS
from penstock.wire.http.facts import Metrics, PipelineMetrics, QueueMetrics, StreamMetrics

Together: TypeAlias = "Callable[[Iterable[float]], float]"
"""What many of one kind have together: a sum, or the highest."""

Values: TypeAlias = "Iterable[tuple[Sequence[str], float]]"
"""The lines of a metric: values of its labels, and the figure."""


def _highest(some: Iterable[float]) -> float:
    return max(some, default=0)


def _held(one: QueueMetrics) -> int:
    return one.ready + one.leased + one.delayed


def _lag_of_log(one: StreamMetrics) -> int | None:
    return one.lag if one.mode == "log" else None


def _running(one: PipelineMetrics) -> bool:
    return one.state == "running"


def _failed(one: PipelineMetrics) -> bool:
    return one.state == "failed"


class Figure(NamedTuple):
    """One metric of things of a kind."""

    name: str
    of: str | Callable[[Any], float | None]  # an attribute of the thing, or what is made of it; None: it has none
    text: str
    together: Together = sum


class Things(NamedTuple):
    """Things of a kind: what tells one from another, where that is asked for, and their metrics."""

    labels: Sequence[str]
    named: Sequence[str]  # attributes with the values of the labels
    figures: Sequence[Figure]
    counters: Sequence[Figure] = ()

    def families(self, things: Iterable[object], *, per_object: bool) -> Iterator[Metric]:
        """A line for each thing, or one for all together."""
        for figure in (*self.figures, *self.counters):
            of = attrgetter(figure.of) if isinstance(figure.of, str) else figure.of
            found = [(one, value) for one in things if (value := of(one)) is not None]
            labels = self.labels if per_object else ()
            yield _family(
                figure.name,
                figure.text,
                labels,
                [([getattr(one, name) for name in self.named], value) for one, value in found]
                if per_object
                else [((), figure.together(value for _, value in found))],
                counter=figure in self.counters,
            )


def _family(name: str, text: str, labels: Sequence[str], values: Values, *, counter: bool = False) -> Metric:
    family = (CounterMetricFamily if counter else GaugeMetricFamily)(name, text, labels=labels)
    for named, value in values:
        family.add_metric(named, float(value))
    return family


_WHOLE = Things(
    (),
    (),
    (
        Figure("rabbitmq_connections", "connections", "Open connections"),
        Figure("rabbitmq_channels", "channels", "Open channels"),
        Figure("rabbitmq_consumers", "consumers", "Consumers"),
        Figure("rabbitmq_process_resident_memory_bytes", "resident_bytes", "Memory in use"),
        Figure("rabbitmq_resident_memory_limit_bytes", "body_cache_limit_bytes", "What server.memory allows"),
        Figure("rabbitmq_alarms_memory_used_watermark", "memory_alarm", "1 if the memory alarm is on: publishers wait"),
        Figure("rabbitmq_disk_space_available_bytes", "disk_free_bytes", "Free disk space"),
        Figure("rabbitmq_alarms_free_disk_space_watermark", "disk_alarm", "1 if the disk alarm is on"),
        Figure("penstock_durable_lsn", "durable_lsn", "Last record that is on disk"),
        Figure("penstock_last_lsn", "last_lsn", "Last record given out"),
        Figure("penstock_log_bytes", "log_bytes", "Bytes of the log"),
        Figure("penstock_log_segments", "log_segments", "Files of the log"),
        Figure("penstock_log_index_bytes", "log_index_bytes", "Memory that the places of the log's batches take"),
        Figure("penstock_archive_bytes", "archive_bytes", "Bytes of the archive"),
        Figure("penstock_archive_files", "archive_files", "Files of the archive"),
        Figure("penstock_archive_records", "archive_rows", "Records of the archive"),
        Figure("penstock_archive_segments_behind", "archive_behind", "Closed segments that are not archived yet"),
        Figure(
            "penstock_log_damaged_batches",
            "log_damaged_batches",
            "Damaged batches of the log that somebody wanted to read",
        ),
        Figure(
            "penstock_upkeep_delay_seconds",
            "upkeep_delay_seconds",
            "How long a batch of publishes waits because the log has outgrown its retention",
        ),
        Figure("penstock_recovery_records", "recovery_records", "Records read at the last start"),
        Figure(
            "penstock_recovery_records_expected", "recovery_records_expected", "Records to be read at the last start"
        ),
        Figure("penstock_recovery_seconds", "recovery_seconds", "Time of recovery at the last start"),
        Figure("penstock_recovery_share", "recovery_share", "Share of the start that is done; 1: the doors are open"),
        Figure("penstock_recovering", "recovering", "1 while the log is recovered and the doors are closed"),
        Figure("penstock_body_cache_bytes", "body_cache_bytes", "Bodies held in memory"),
        Figure("penstock_body_cache_limit_bytes", "body_cache_limit_bytes", "Budget for bodies and buffers"),
        Figure("penstock_file_backed_bytes", "file_backed_bytes", "State of queues and topics that lies in files"),
        Figure("penstock_file_backed_file_bytes", "file_backed_file_bytes", "Size of these files"),
        Figure("penstock_bulk_running", "bulk_running", "Requests that the bulk process works on"),
        Figure(
            "penstock_loop_pause_longest_seconds",
            "pause_longest",
            "Longest turn of the event loop since the last scrape",
        ),
        Figure(
            "penstock_loop_pause_longest_cpu_seconds",
            "pause_longest_cpu",
            "CPU time of the turn that took most of it since the last scrape",
        ),
        Figure("rabbitmq_process_max_fds", "descriptors_limit", "Descriptors that connections and all else may have"),
        Figure("penstock_actions_waiting", "actions_waiting", "Messages whose actions have not begun"),
        Figure("penstock_broken", "broken", "1 if a sync failed and a restart is needed"),
    ),
)

_SINCE = Things(
    (),
    (),
    (),
    (
        Figure("penstock_bulk_requests", "bulk_requests", "Requests given to the bulk process"),
        Figure("penstock_bulk_starts", "bulk_starts", "Starts of the bulk process, which ends when idle"),
        Figure("penstock_archive_failures", "archive_failures", "Steps of the archive that failed and are tried again"),
        Figure("penstock_bulk_deaths", "bulk_deaths", "Ends of the bulk process that nobody asked for"),
        Figure(
            "penstock_upkeep_delayed_seconds",
            "upkeep_delayed_seconds",
            "Time that publishers waited for upkeep of the log",
        ),
        Figure("penstock_file_backed_refused", "file_backed_refused", "Times that such a file could not grow"),
        Figure("rabbitmq_queues_declared", "queues_declared", "Queues declared, also those that were there"),
        Figure("rabbitmq_queues_created", "queues_created", "Queues made"),
        Figure("rabbitmq_queues_deleted", "queues_deleted", "Queues deleted"),
        Figure("rabbitmq_connections_opened", "connections_opened", "Connections opened"),
        Figure("rabbitmq_connections_closed", "connections_closed", "Connections closed"),
        Figure("rabbitmq_channels_opened", "channels_opened", "Channels opened"),
        Figure("rabbitmq_channels_closed", "channels_closed", "Channels closed"),
        Figure("penstock_messages_refused", "refused", "Messages that a limit refused"),
        Figure("penstock_transactions_committed", "transactions", "Transactions committed, by whatever door"),
        Figure(
            "penstock_dead_letters_refused",
            "dead_letters_refused",
            "Dead letters that a full queue refused, each time tried",
        ),
        Figure("penstock_descriptors_short", "descriptors_short", "Times that no descriptor was left for a connection"),
        Figure("penstock_log_commits", "log_commits", "Commits written to the log"),
    ),
)

_MESSAGE_COUNTERS: Mapping[str, tuple[str, str]] = {
    "received": ("published", "Messages received from publishers"),
    "received_confirm": ("published_confirm", "Messages received that want a confirm"),
    "confirmed": ("confirmed", "Messages confirmed"),
    "routed": ("routed", "Messages that reached a queue"),
    "unroutable_dropped": ("unroutable_dropped", "Messages that no queue took"),
    "unroutable_returned": ("unroutable_returned", "Mandatory messages returned"),
    "delivered": ("delivered", "Messages delivered"),
    "delivered_consume_auto_ack": ("delivered_consume_auto_ack", "Delivered to consumers without acknowledgement"),
    "delivered_consume_manual_ack": ("delivered_consume_manual_ack", "Delivered to consumers that acknowledge"),
    "delivered_get_auto_ack": ("delivered_get_auto_ack", "Fetched without acknowledgement"),
    "delivered_get_manual_ack": ("delivered_get_manual_ack", "Fetched, to be acknowledged"),
    "get_empty": ("get_empty", "Fetches that found nothing"),
    "redelivered": ("redelivered", "Messages delivered again"),
    "acknowledged": ("acknowledged", "Messages acknowledged"),
}

_DEATHS = ("maxlen", "expired", "rejected", "delivery_limit")
_DEAD = ("queue_type", "dead_letter_strategy")

_QUEUES = Things(
    ("vhost", "queue"),
    ("vhost", "name"),
    (
        Figure(
            "rabbitmq_queue_messages",
            _held,
            "Messages ready, unacknowledged and delayed",
        ),
        Figure("rabbitmq_queue_messages_ready", "ready", "Messages ready to be delivered"),
        Figure("rabbitmq_queue_messages_unacked", "leased", "Messages delivered and not settled"),
        Figure("rabbitmq_queue_consumers", "consumers", "Consumers of queues"),
        Figure("penstock_queue_messages_delayed", "delayed", "Messages that wait for a time"),
        Figure("rabbitmq_queue_messages_bytes", "bytes", "Bytes of the bodies of all messages in queues"),
        Figure(
            "rabbitmq_queue_messages_ready_bytes",
            "ready_bytes",
            "Bytes of the bodies of messages ready to be delivered",
        ),
        Figure("penstock_queue_messages_inactive", "inactive", "Messages beyond the target depth"),
        Figure("penstock_queue_barriers_waiting", "barriers", "Barriers that wait for what is before them"),
        Figure("penstock_queue_backlog", "backlog", "Messages delivered and not settled"),
        Figure("penstock_queue_deferred_acks", "deferred_acks", "Acknowledgements of messages that are not there"),
        Figure("penstock_queue_ack_rate", "ack_rate", "Messages acknowledged a second"),
        Figure("penstock_queue_oldest_lease_seconds", "oldest_lease", "Age of the oldest lease", _highest),
        Figure("penstock_queue_seconds_behind", "behind", "Age of the oldest message that is not settled", _highest),
    ),
    (
        Figure("penstock_queue_published", "published", "Messages that came into queues"),
        Figure("penstock_queue_delivered", "delivered", "Messages delivered from queues"),
        Figure("penstock_queue_acked", "acked", "Messages acknowledged"),
        Figure("penstock_queue_cancelled", "cancelled", "Messages that consumers gave back as failed"),
        Figure("penstock_queue_expired_leases", "expired_leases", "Leases that ended by time"),
        Figure("penstock_queue_redelivered", "redelivered", "Messages delivered again"),
        Figure("penstock_queue_dropped", "dropped", "Messages that gave way to a limit"),
        Figure("penstock_queue_replaced", "replaced", "Messages that gave way to a newer one of a ring"),
        Figure("penstock_queue_refused", "refused", "Messages that a queue did not take, for a limit was met"),
        Figure("penstock_queue_duplicates", "duplicates", "Messages that a queue did not take, for it had their key"),
        Figure(
            "penstock_queue_dead_letters_refused",
            "letters_refused",
            "Dead letters of queues that a full target refused, each time tried",
        ),
    ),
)

_REPLAYS = Things(
    (),
    (),
    (
        Figure("penstock_replays", "open", "Subscriptions to topics that are open"),
        Figure("penstock_replays_paused", "paused", "Subscriptions to topics that are paused"),
        Figure("penstock_replays_live", "live", "Subscriptions to topics that are level with the log"),
        Figure("penstock_replay_lag_records", "lag", "Records that the one furthest behind has not looked at"),
    ),
    (Figure("penstock_replay_messages", "sent", "Messages sent by subscriptions to topics"),),
)

_STREAMS = Things(
    ("stream", "mode"),
    ("name", "mode"),
    (
        Figure(
            "penstock_stream_lag_messages",
            "messages",
            "Messages of its queue that a stream has not settled, or of its topic that it has not read",
        ),
        Figure(
            "penstock_stream_lag_lsns",
            _lag_of_log,
            "Records of the log, of all kinds, that a stream in mode log has not looked at",
            _highest,
        ),
        Figure("penstock_stream_age_seconds", "age", "By how much a stream is behind", _highest),
        Figure("penstock_stream_held_bytes", "held_bytes", "Bytes of the log that stay because of a stream", _highest),
        Figure("penstock_stream_idle_seconds", "idle", "Time since a stream was read", _highest),
    ),
)

_VIEWS = Things(
    ("vhost", "view"),
    ("vhost", "name"),
    (
        Figure("penstock_view_records", "records", "Rows of views and conflated topics"),
        Figure("penstock_view_lag_records", "lag", "Durable records of the log that a view has not taken in", _highest),
        Figure("penstock_view_errors", "stopped", "1 if the source of a view ended with an error"),
    ),
    (Figure("penstock_view_rebuilds", "rebuilds", "Times that a view began anew"),),
)

_TOPICS = Things(
    ("vhost", "exchange", "topic"),
    ("vhost", "exchange", "name"),
    (
        Figure("penstock_sow_records", "records", "Present records of topics with a key"),
        Figure("penstock_sow_index_bytes", "index_bytes", "Memory of their index"),
    ),
)

_PIPELINES = Things(
    ("pipeline",),
    ("name",),
    (
        Figure("penstock_pipeline_running", _running, "1 while the pipeline's query runs"),
        Figure("penstock_pipeline_failed", _failed, "1 if the pipeline was given up"),
        Figure("penstock_pipeline_rows_per_second", "rows_per_second", "Input rows a second"),
        Figure("penstock_pipeline_lag", "lag", "Messages, or records of the log, that it has yet to read"),
        Figure("penstock_pipeline_batch_seconds", "batch_seconds", "Time of the last batch", _highest),
        Figure("penstock_pipeline_state_rows", "state_rows", "Rows that it remembers between batches"),
        Figure("penstock_pipeline_state_bytes", "state_bytes", "Memory of these rows"),
    ),
    (
        Figure("penstock_pipeline_rows", "rows", "Input rows of finished batches"),
        Figure("penstock_pipeline_batches", "batches", "Finished batches"),
        Figure("penstock_pipeline_late_rows", "late_rows", "Rows that came later than the watermark allows"),
        Figure("penstock_pipeline_failures", "failures", "Times that it failed"),
    ),
)

_SHARES = (
    ("penstock_share_taken", "taken", "What logins have taken"),
    ("penstock_share_taken_of_user", "largest", "The most that one user has of it"),
    ("penstock_share_limit", "whole", "What there is of it"),
    ("penstock_share_limit_of_user", "of_user", "What one user may have of it"),
    ("penstock_share_refused", "refused", "Times that there was no more for a user"),
)

FAILURES = (
    "waiting",
    "rounds",
    "publish",
    "delete_sow",
    "query_sow",
    "extract_values",
    "execute_system",
    "increment_counter",
    "echo_message",
)
"""Why an action failed: too many messages waited, it set itself off too often, or the step that failed."""


class _Once(Collector):
    """A collector of families that are already there."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def exposition(metrics: Metrics, *, per_object: bool = False) -> bytes:
    """The text of a scrape, UTF-8, Prometheus format 0.0.4."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(list(_families(metrics, per_object=per_object))))
    return generate_latest(registry)


def _families(metrics: Metrics, *, per_object: bool) -> Iterator[Metric]:
    yield from _WHOLE.families([metrics], per_object=False)
    if metrics.certificate_seconds_left is not None:
        text = "Time until the certificate of the doors with TLS ends; negative when it has"
        yield _family("penstock_tls_certificate_seconds_left", text, (), [((), metrics.certificate_seconds_left)])
    yield _family("rabbitmq_queues", "Queues", (), [((), len(metrics.queues))])
    yield from _SINCE.families([metrics], per_object=False)
    for name, (attribute, text) in _MESSAGE_COUNTERS.items():
        yield _family(
            f"rabbitmq_global_messages_{name}",
            text,
            ["protocol"],
            [(["amqp091"], getattr(metrics, attribute))],
            counter=True,
        )
    yield _of_each("penstock_memory_bytes", "What server.memory is used for", "account", metrics.memory)
    if metrics.pause_counts:
        yield HistogramMetricFamily(
            "penstock_loop_pause_seconds",
            "Turns of the event loop: how long a client had to wait for its next look",
            buckets=[("+Inf" if end == inf else str(end), count) for end, count in metrics.pause_counts],
            sum_value=metrics.pause_total,
        )
    logins = {door: metrics.logins_refused.get(door, 0) for door in ("amqp", "http", "flight")}
    yield _of_each("penstock_logins_refused", "Logins that were refused", "door", logins, counter=True)
    yield from _dead_letters(metrics.dead_lettered)
    yield _of_each("penstock_strangers", "Connections that have not logged in", "door", metrics.strangers)
    text = "Connections closed for what they did before a login"
    closed = metrics.strangers_closed.items()
    yield _family("penstock_strangers_closed", text, ["door", "reason"], closed, counter=True)
    for name, attribute, text in _SHARES:
        taken = {of: getattr(share, attribute) for of, share in metrics.shares.items()}
        yield _of_each(name, text, "of", taken, counter=attribute == "refused")
    yield _family(
        "rabbitmq_build_info",
        "What runs here",
        ["product_name", "product_version"],
        [(["Penstock", metrics.version], 1)],
    )
    node = [metrics.node, metrics.cluster or metrics.node]
    yield _family("rabbitmq_identity_info", "Who runs here", ["rabbitmq_node", "rabbitmq_cluster"], [(node, 1)])
    yield from _queue_families(metrics, per_object=per_object)
    yield from _action_families(metrics, per_object=per_object)
    yield from _REPLAYS.families([metrics.replays], per_object=False)
    yield from _STREAMS.families(metrics.streams, per_object=per_object)
    yield _family("penstock_views", "Views and conflated topics of the settings", (), [((), len(metrics.views))])
    yield _family("penstock_views_unnamed", "Aggregated subscriptions", (), [((), metrics.views_unnamed)])
    yield from _VIEWS.families(metrics.views, per_object=per_object)
    yield from _TOPICS.families(metrics.topics, per_object=per_object)
    yield _family("penstock_pipelines", "Spark pipelines", (), [((), len(metrics.pipelines))])
    yield from _PIPELINES.families(metrics.pipelines, per_object=per_object)
    unmet = [([one.name, *which], count) for one in metrics.pipelines for *which, count in one.unmet]
    yield _family(
        "penstock_pipeline_expectation_failed_rows",
        "Input rows that a rule of a pipeline was not true of",
        ["pipeline", "input", "rule", "otherwise"] if per_object else (),
        unmet if per_object else [((), sum(count for _, count in unmet))],
        counter=True,
    )


def _of_each(name: str, text: str, label: str, figures: Mapping[str, float], *, counter: bool = False) -> Metric:
    return _family(name, text, [label], [([key], value) for key, value in figures.items()], counter=counter)


def _dead_letters(dead: Mapping[str, int]) -> Iterator[Metric]:
    counts = [(f"_{reason}", "Messages dead-lettered for this reason", dead.get(reason, 0)) for reason in _DEATHS]
    counts.append(("_confirmed", "Dead letters that are in their targets, for whatever reason", sum(dead.values())))
    for name, text, count in counts:
        values = [(["rabbit_classic_queue", "at_least_once"], count)]
        yield _family(f"rabbitmq_global_messages_dead_lettered{name}", text, _DEAD, values, counter=True)


def _queue_families(metrics: Metrics, *, per_object: bool) -> Iterator[Metric]:
    queues = metrics.queues
    yield from _QUEUES.families(queues, per_object=per_object)
    some = [([one.vhost, one.name], [one]) for one in queues] if per_object else [(list[str](), list(queues))]
    labels = _QUEUES.labels if per_object else ()
    yield _family(
        "penstock_queue_expired",
        "Messages expired for this reason, among others",
        [*labels, "reason"],
        [
            ([*names, reason], sum(one.expirations.get(reason, 0) for one in each))
            for reason in REASONS
            for names, each in some
        ],
        counter=True,
    )
    if per_object:
        yield _family(
            "penstock_queue_lease_to_ack_seconds",
            "Time from lease to acknowledgement that a share of messages kept to",
            [*labels, "quantile"],
            [
                ([one.vhost, one.name, f"{share:g}"], seconds)
                for one in queues
                for share, seconds in one.lease_to_ack.items()
            ],
        )


def _action_families(metrics: Metrics, *, per_object: bool) -> Iterator[Metric]:
    """What actions did; each has a line for each reason, be it 0, so that a rate can be taken of the first failure."""
    actions, labels = metrics.actions, ["action"] if per_object else list[str]()
    some = (
        [([name], [one]) for name, one in sorted(actions.items())] if per_object else [(labels, list(actions.values()))]
    )
    runs = [(names, sum(one.runs for one in each)) for names, each in some]
    failures = [
        ([*names, reason], sum(one.failures.get(reason, 0) for one in each))
        for names, each in some
        for reason in FAILURES
    ]
    yield _family("penstock_action_runs", "Actions that came to their end", labels, runs, counter=True)
    yield _family("penstock_action_failures", "Actions that failed", [*labels, "reason"], failures, counter=True)
