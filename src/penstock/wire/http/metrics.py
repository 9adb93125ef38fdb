"""Prometheus metrics: RabbitMQ's names where dashboards read them, and `penstock_*` for what it has no name for.

`/metrics` sums over queues and whatever else has a name; `/metrics/per-object` has a line for each.  Nothing is counted
here: each scrape turns one `Metrics` into text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from penstock.wire.http.facts import Metrics, ShareMetrics
from penstock.wire.http.figures import queue_figures
from penstock.wire.http.parts import (
    action_counters,
    pipeline_figures,
    replay_figures,
    stream_figures,
    topic_figures,
    view_figures,
)

_QUEUE_GAUGES = (
    ("rabbitmq_queue_messages", "Messages ready, unacknowledged and delayed"),
    ("rabbitmq_queue_messages_ready", "Messages ready to be delivered"),
    ("rabbitmq_queue_messages_unacked", "Messages delivered and not settled"),
    ("rabbitmq_queue_consumers", "Consumers of queues"),
    ("penstock_queue_messages_delayed", "Messages that wait for a time"),
    ("rabbitmq_queue_messages_bytes", "Bytes of the bodies of all messages in queues"),
    ("rabbitmq_queue_messages_ready_bytes", "Bytes of the bodies of messages ready to be delivered"),
)

_GAUGES: Mapping[str, tuple[str, str]] = {
    "rabbitmq_connections": ("connections", "Open connections"),
    "rabbitmq_channels": ("channels", "Open channels"),
    "rabbitmq_consumers": ("consumers", "Consumers"),
    "rabbitmq_process_resident_memory_bytes": ("resident_bytes", "Memory in use"),
    "rabbitmq_resident_memory_limit_bytes": ("body_cache_limit_bytes", "What server.memory allows"),
    "rabbitmq_alarms_memory_used_watermark": ("memory_alarm", "1 if the memory alarm is on: publishers wait"),
    "rabbitmq_disk_space_available_bytes": ("disk_free_bytes", "Free disk space"),
    "rabbitmq_alarms_free_disk_space_watermark": ("disk_alarm", "1 if the disk alarm is on"),
    "penstock_durable_lsn": ("durable_lsn", "Last record that is on disk"),
    "penstock_last_lsn": ("last_lsn", "Last record given out"),
    "penstock_log_bytes": ("log_bytes", "Bytes of the log"),
    "penstock_log_segments": ("log_segments", "Files of the log"),
    "penstock_log_index_bytes": ("log_index_bytes", "Memory that the places of the log's batches take"),
    "penstock_archive_bytes": ("archive_bytes", "Bytes of the archive"),
    "penstock_archive_files": ("archive_files", "Files of the archive"),
    "penstock_archive_records": ("archive_rows", "Records of the archive"),
    "penstock_archive_segments_behind": ("archive_behind", "Closed segments that are not archived yet"),
    "penstock_log_damaged_batches": ("log_damaged_batches", "Damaged batches of the log that somebody wanted to read"),
    "penstock_upkeep_delay_seconds": (
        "upkeep_delay_seconds",
        "How long a batch of publishes waits because the log has outgrown its retention",
    ),
    "penstock_recovery_records": ("recovery_records", "Records read at the last start"),
    "penstock_recovery_records_expected": ("recovery_records_expected", "Records to be read at the last start"),
    "penstock_recovery_seconds": ("recovery_seconds", "Time of recovery at the last start"),
    "penstock_recovery_share": ("recovery_share", "Share of the start that is done; 1: the doors are open"),
    "penstock_recovering": ("recovering", "1 while the log is recovered and the doors are closed"),
    "penstock_body_cache_bytes": ("body_cache_bytes", "Bodies held in memory"),
    "penstock_body_cache_limit_bytes": ("body_cache_limit_bytes", "Budget for bodies and buffers"),
    "penstock_file_backed_bytes": ("file_backed_bytes", "State of queues and topics that lies in files"),
    "penstock_file_backed_file_bytes": ("file_backed_file_bytes", "Size of these files"),
    "penstock_bulk_running": ("bulk_running", "Requests that the bulk process works on"),
    "penstock_loop_pause_longest_seconds": (
        "pause_longest",
        "Longest turn of the event loop since the last scrape",
    ),
    "penstock_loop_pause_longest_cpu_seconds": (
        "pause_longest_cpu",
        "CPU time of the turn that took most of it since the last scrape",
    ),
    "rabbitmq_process_max_fds": ("descriptors_limit", "Descriptors that connections and all else may have"),
    "penstock_actions_waiting": ("actions_waiting", "Messages whose actions have not begun"),
    "penstock_broken": ("broken", "1 if a sync failed and a restart is needed"),
}

_COUNTERS: Mapping[str, tuple[str, str]] = {
    "penstock_bulk_requests": ("bulk_requests", "Requests given to the bulk process"),
    "penstock_bulk_starts": ("bulk_starts", "Starts of the bulk process, which ends when idle"),
    "penstock_archive_failures": ("archive_failures", "Steps of the archive that failed and are tried again"),
    "penstock_bulk_deaths": ("bulk_deaths", "Ends of the bulk process that nobody asked for"),
    "penstock_upkeep_delayed_seconds": ("upkeep_delayed_seconds", "Time that publishers waited for upkeep of the log"),
    "penstock_file_backed_refused": ("file_backed_refused", "Times that such a file could not grow"),
    "rabbitmq_queues_declared": ("queues_declared", "Queues declared, also those that were there"),
    "rabbitmq_queues_created": ("queues_created", "Queues made"),
    "rabbitmq_queues_deleted": ("queues_deleted", "Queues deleted"),
    "rabbitmq_connections_opened": ("connections_opened", "Connections opened"),
    "rabbitmq_connections_closed": ("connections_closed", "Connections closed"),
    "rabbitmq_channels_opened": ("channels_opened", "Channels opened"),
    "rabbitmq_channels_closed": ("channels_closed", "Channels closed"),
    "penstock_messages_refused": ("refused", "Messages that a limit refused"),
    "penstock_transactions_committed": ("transactions", "Transactions committed, by whatever door"),
    "penstock_dead_letters_refused": (
        "dead_letters_refused",
        "Dead letters that a full queue refused, each time tried",
    ),
    "penstock_descriptors_short": ("descriptors_short", "Times that no descriptor was left for a connection"),
    "penstock_log_commits": ("log_commits", "Commits written to the log"),
}

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


def _families(metrics: Metrics, *, per_object: bool) -> Iterable[Metric]:
    for name, (attribute, text) in _GAUGES.items():
        yield GaugeMetricFamily(name, text, value=float(getattr(metrics, attribute)))
    if metrics.certificate_seconds_left is not None:
        text = "Time until the certificate of the doors with TLS ends; negative when it has"
        yield GaugeMetricFamily("penstock_tls_certificate_seconds_left", text, value=metrics.certificate_seconds_left)
    yield GaugeMetricFamily("rabbitmq_queues", "Queues", value=len(metrics.queues))
    for name, (attribute, text) in _COUNTERS.items():
        yield CounterMetricFamily(name, text, value=float(getattr(metrics, attribute)))
    for name, (attribute, text) in _MESSAGE_COUNTERS.items():
        messages = CounterMetricFamily(f"rabbitmq_global_messages_{name}", text, labels=["protocol"])
        messages.add_metric(["amqp091"], float(getattr(metrics, attribute)))
        yield messages
    memory = GaugeMetricFamily("penstock_memory_bytes", "What server.memory is used for", labels=["account"])
    for account, size in metrics.memory.items():
        memory.add_metric([account], size)
    yield memory
    if metrics.pause_counts:
        yield HistogramMetricFamily(
            "penstock_loop_pause_seconds",
            "Turns of the event loop: how long a client had to wait for its next look",
            buckets=[("+Inf" if end == inf else str(end), count) for end, count in metrics.pause_counts],
            sum_value=metrics.pause_total,
        )
    logins = CounterMetricFamily("penstock_logins_refused", "Logins that were refused", labels=["door"])
    for door in ("amqp", "http", "flight"):
        logins.add_metric([door], metrics.logins_refused.get(door, 0))
    yield logins
    for reason in _DEATHS:
        dead = CounterMetricFamily(
            f"rabbitmq_global_messages_dead_lettered_{reason}",
            "Messages dead-lettered for this reason",
            labels=["queue_type", "dead_letter_strategy"],
        )
        dead.add_metric(["rabbit_classic_queue", "at_least_once"], metrics.dead_lettered.get(reason, 0))
        yield dead
    dead = CounterMetricFamily(
        "rabbitmq_global_messages_dead_lettered_confirmed",
        "Dead letters that are in their targets, for whatever reason",
        labels=["queue_type", "dead_letter_strategy"],
    )
    dead.add_metric(["rabbit_classic_queue", "at_least_once"], sum(metrics.dead_lettered.values()))
    yield dead
    yield from _stranger_families(metrics)
    yield from _share_families(metrics)
    build = GaugeMetricFamily("rabbitmq_build_info", "What runs here", labels=["product_name", "product_version"])
    build.add_metric(["Penstock", metrics.version], 1)
    yield build
    labels = ["rabbitmq_node", "rabbitmq_cluster"]
    identity = GaugeMetricFamily("rabbitmq_identity_info", "Who runs here", labels=labels)
    identity.add_metric([metrics.node, metrics.cluster or metrics.node], 1)
    yield identity
    yield from _queue_families(metrics, per_object=per_object)
    yield from queue_figures(metrics.queues, per_object=per_object)
    yield from action_counters(metrics.actions, per_object=per_object)
    yield from replay_figures(metrics.replays)
    yield from stream_figures(metrics.streams, per_object=per_object)
    yield from view_figures(metrics.views, metrics.views_unnamed, per_object=per_object)
    yield from topic_figures(metrics.topics, per_object=per_object)
    yield from pipeline_figures(metrics.pipelines, per_object=per_object)


def _share_families(metrics: Metrics) -> Iterable[Metric]:
    figures: Mapping[str, tuple[str, Callable[[ShareMetrics], int]]] = {
        "penstock_share_taken": ("What logins have taken", lambda one: one.taken),
        "penstock_share_taken_of_user": ("The most that one user has of it", lambda one: one.largest),
        "penstock_share_limit": ("What there is of it", lambda one: one.whole),
        "penstock_share_limit_of_user": ("What one user may have of it", lambda one: one.of_user),
    }
    for name, (text, figure) in figures.items():
        gauge = GaugeMetricFamily(name, text, labels=["of"])
        for of, share in metrics.shares.items():
            gauge.add_metric([of], figure(share))
        yield gauge
    refused = CounterMetricFamily("penstock_share_refused", "Times that there was no more for a user", labels=["of"])
    for of, share in metrics.shares.items():
        refused.add_metric([of], share.refused)
    yield refused


def _stranger_families(metrics: Metrics) -> Iterable[Metric]:
    there = GaugeMetricFamily("penstock_strangers", "Connections that have not logged in", labels=["door"])
    for door, count in metrics.strangers.items():
        there.add_metric([door], count)
    yield there
    closed = CounterMetricFamily(
        "penstock_strangers_closed", "Connections closed for what they did before a login", labels=["door", "reason"]
    )
    for labels, count in metrics.strangers_closed.items():
        closed.add_metric(labels, count)
    yield closed


def _queue_families(metrics: Metrics, *, per_object: bool) -> Iterable[Metric]:
    rows = [
        (
            [queue.vhost, queue.name],
            (
                queue.ready + queue.leased + queue.delayed,
                queue.ready,
                queue.leased,
                queue.consumers,
                queue.delayed,
                queue.bytes,
                queue.ready_bytes,
            ),
        )
        for queue in metrics.queues
    ]
    for at, (name, text) in enumerate(_QUEUE_GAUGES):
        if per_object:
            family = GaugeMetricFamily(name, text, labels=["vhost", "queue"])
            for labels, values in rows:
                family.add_metric(labels, values[at])
            yield family
        else:
            yield GaugeMetricFamily(name, text, value=sum(values[at] for _, values in rows))
