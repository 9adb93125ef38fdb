"""Metrics as the text of a scrape: Prometheus format 0.0.4.

`/metrics` sums over queues and whatever else has a name, or takes the greatest; `/metrics/per-object` has a line for
each.  Nothing is counted or looked at here: that may take seconds, in a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from penstock.server.http.facts import Metrics
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
    Family,
    Line,
)

_DEATHS = ("maxlen", "expired", "rejected", "delivery_limit")


class _Once(Collector):
    """A collector of families that are already there."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def exposition(metrics: Metrics, *, per_object: bool = False) -> bytes:
    """The text of a scrape, UTF-8."""
    found = list(map(_metric, _families(metrics, per_object=per_object)))
    if metrics.pause_counts:
        found.append(
            HistogramMetricFamily(
                "penstock_loop_pause_seconds",
                "Turns of the event loop: how long a client had to wait for its next look",
                buckets=[("+Inf" if end == inf else str(end), count) for end, count in metrics.pause_counts],
                sum_value=metrics.pause_total,
            )
        )
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(found))
    return generate_latest(registry)


def _metric(one: Family) -> Metric:
    family = (CounterMetricFamily if one.counter else GaugeMetricFamily)(one.name, one.text, labels=one.labels)
    for named, value in one.values:
        family.add_metric(named, float(value))
    return family


def _families(metrics: Metrics, *, per_object: bool) -> Iterator[Family]:
    whole = Line((), [metrics[figure.name] for figure in WHOLE.figures])
    yield from WHOLE.families([whole], per_object=False)
    for name, _, text in MESSAGES:
        name = f"rabbitmq_global_messages_{name}"
        yield Family(name, text, ["protocol"], [(["amqp091"], metrics[name])], counter=True)
    yield from _dead_letters(metrics.dead_lettered)
    if (left := metrics.certificate_seconds_left) is not None:
        text = "Time until the certificate of the doors with TLS ends; negative when it has"
        yield Family("penstock_tls_certificate_seconds_left", text, (), [((), left)])
    yield _of_each("penstock_memory_bytes", "What server.memory is used for", "account", metrics.memory)
    logins = {door: metrics.logins_refused.get(door, 0) for door in ("amqp", "http", "flight")}
    yield _of_each("penstock_logins_refused", "Logins that were refused", "door", logins, counter=True)
    yield _of_each("penstock_strangers", "Connections that have not logged in", "door", metrics.strangers)
    text, closed = "Connections closed for what they did before a login", metrics.strangers_closed.items()
    yield Family("penstock_strangers_closed", text, ["door", "reason"], closed, counter=True)
    product = [(["Penstock", metrics.version], 1)]
    yield Family("rabbitmq_build_info", "What runs here", ["product_name", "product_version"], product)
    node = [([metrics.node, metrics.cluster or metrics.node], 1)]
    yield Family("rabbitmq_identity_info", "Who runs here", ["rabbitmq_node", "rabbitmq_cluster"], node)
    for name, text, lines in (
        ("rabbitmq_queues", "Queues", metrics.queues),
        ("penstock_views", "Views and conflated topics of the settings", metrics.views),
        ("penstock_pipelines", "Spark pipelines", metrics.pipelines),
    ):
        yield Family(name, text, (), [((), len(lines))])
    yield from SHARES.families(metrics.shares, per_object=True)
    yield from PROCESSES.families(metrics.processes, per_object=True)
    for kind, lines in (
        (QUEUES, metrics.queues),
        (ACTIONS, metrics.actions),
        (STREAMS, metrics.streams),
        (VIEWS, metrics.views),
        (TOPICS, metrics.topics),
        (PIPELINES, metrics.pipelines),
    ):
        yield from kind.families(lines, per_object=per_object)


def _of_each(name: str, text: str, label: str, figures: Mapping[str, float], *, counter: bool = False) -> Family:
    return Family(name, text, [label], [([key], value) for key, value in figures.items()], counter=counter)


def _dead_letters(dead: Mapping[str, int]) -> Iterator[Family]:
    counts = [(f"_{reason}", "Messages dead-lettered for this reason", dead.get(reason, 0)) for reason in _DEATHS]
    counts.append(("_confirmed", "Dead letters that are in their targets, for whatever reason", sum(dead.values())))
    for name, text, count in counts:
        values = [(["rabbit_classic_queue", "at_least_once"], count)]
        labels = ("queue_type", "dead_letter_strategy")
        yield Family(f"rabbitmq_global_messages_dead_lettered{name}", text, labels, values, counter=True)
