"""Metrics of queues beyond how many messages wait: ages, counts since the start, time from lease to acknowledgement.

Sums over queues for `/metrics`, the greatest age; a line for each queue for `/metrics/per-object`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from penstock.records.event_actions import REASONS
from penstock.wire.http.facts import QueueMetrics

Of = Callable[[QueueMetrics], float]

_SUMS: Mapping[str, tuple[Of, str]] = {
    "penstock_queue_messages_inactive": (lambda one: one.inactive, "Messages beyond the target depth"),
    "penstock_queue_barriers_waiting": (lambda one: one.barriers, "Barriers that wait for what is before them"),
    "penstock_queue_backlog": (lambda one: one.backlog, "Messages delivered and not settled"),
    "penstock_queue_deferred_acks": (lambda one: one.deferred_acks, "Acknowledgements of messages that are not there"),
    "penstock_queue_ack_rate": (lambda one: one.ack_rate, "Messages acknowledged a second"),
}

_AGES: Mapping[str, tuple[Of, str]] = {
    "penstock_queue_oldest_lease_seconds": (lambda one: one.oldest_lease, "Age of the oldest lease"),
    "penstock_queue_seconds_behind": (lambda one: one.behind, "Age of the oldest message that is not settled"),
}

_COUNTS: Mapping[str, tuple[Of, str]] = {
    "penstock_queue_published": (lambda one: one.published, "Messages that came into queues"),
    "penstock_queue_delivered": (lambda one: one.delivered, "Messages delivered from queues"),
    "penstock_queue_acked": (lambda one: one.acked, "Messages acknowledged"),
    "penstock_queue_cancelled": (lambda one: one.cancelled, "Messages that consumers gave back as failed"),
    "penstock_queue_expired_leases": (lambda one: one.expired_leases, "Leases that ended by time"),
    "penstock_queue_redelivered": (lambda one: one.redelivered, "Messages delivered again"),
    "penstock_queue_dropped": (lambda one: one.dropped, "Messages that gave way to a limit"),
    "penstock_queue_replaced": (lambda one: one.replaced, "Messages that gave way to a newer one of a ring"),
    "penstock_queue_refused": (lambda one: one.refused, "Messages that a queue did not take, for a limit was met"),
    "penstock_queue_duplicates": (
        lambda one: one.duplicates,
        "Messages that a queue did not take, for it had their key",
    ),
    "penstock_queue_dead_letters_refused": (
        lambda one: one.letters_refused,
        "Dead letters of queues that a full target refused, each time tried",
    ),
}


def queue_figures(queues: Sequence[QueueMetrics], *, per_object: bool) -> Iterable[Metric]:
    labels = ["vhost", "queue"] if per_object else []
    for name, (of, text) in _SUMS.items():
        yield _gauge(name, text, of, queues, sum, per_object=per_object)
    for name, (of, text) in _AGES.items():
        yield _gauge(name, text, of, queues, _greatest, per_object=per_object)
    for name, (of, text) in _COUNTS.items():
        counter = CounterMetricFamily(name, text, labels=labels)
        if per_object:
            for one in queues:
                counter.add_metric([one.vhost, one.name], of(one))
        else:
            counter.add_metric([], sum(map(of, queues)))
        yield counter
    expired = CounterMetricFamily(
        "penstock_queue_expired", "Messages expired for this reason, among others", labels=[*labels, "reason"]
    )
    for reason in REASONS:
        if per_object:
            for one in queues:
                expired.add_metric([one.vhost, one.name, reason], one.expirations.get(reason, 0))
        else:
            expired.add_metric([reason], sum(one.expirations.get(reason, 0) for one in queues))
    yield expired
    if per_object:
        lasted = GaugeMetricFamily(
            "penstock_queue_lease_to_ack_seconds",
            "Time from lease to acknowledgement that a share of messages kept to",
            labels=[*labels, "quantile"],
        )
        for one in queues:
            for share, seconds in one.lease_to_ack.items():
                lasted.add_metric([one.vhost, one.name, f"{share:g}"], seconds)
        yield lasted


def _gauge(
    name: str,
    text: str,
    of: Of,
    queues: Sequence[QueueMetrics],
    together: Callable[[Iterable[float]], float],
    *,
    per_object: bool,
) -> Metric:
    if not per_object:
        return GaugeMetricFamily(name, text, value=together(map(of, queues)))
    family = GaugeMetricFamily(name, text, labels=["vhost", "queue"])
    for one in queues:
        family.add_metric([one.vhost, one.name], of(one))
    return family


def _greatest(values: Iterable[float]) -> float:
    return max(values, default=0.0)
