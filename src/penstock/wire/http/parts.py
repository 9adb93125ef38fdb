"""Metrics of what is not a queue: replays, views, topics with a key, actions.

Only who asks for each object is told names: those of the settings and of declared topics.  What comes and goes with its
client, replays and aggregated subscriptions, is counted together, so that no client can make lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from penstock.wire.http.facts import (
    ActionMetrics,
    PipelineMetrics,
    ReplayMetrics,
    StreamMetrics,
    TopicMetrics,
    ViewMetrics,
)

T = TypeVar("T")

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

_REPLAYS: Mapping[str, tuple[Callable[[ReplayMetrics], int], str]] = {
    "penstock_replays": (lambda one: one.open, "Subscriptions to topics that are open"),
    "penstock_replays_paused": (lambda one: one.paused, "Subscriptions to topics that are paused"),
    "penstock_replays_live": (lambda one: one.live, "Subscriptions to topics that are level with the log"),
    "penstock_replay_lag_records": (lambda one: one.lag, "Records that the one furthest behind has not looked at"),
}

Together: TypeAlias = "Callable[[Iterable[float]], float]"
"""What many of one kind have together: a sum, or the highest."""


def _highest(some: Iterable[float]) -> float:
    return max(some, default=0)


_STREAMS: Mapping[str, tuple[Callable[[StreamMetrics], float | None], Together, str]] = {
    "penstock_stream_lag_messages": (
        lambda one: one.messages,
        sum,
        "Messages of its queue that a stream has not settled, or of its topic that it has not read",
    ),
    "penstock_stream_lag_lsns": (
        lambda one: one.lag if one.mode == "log" else None,
        _highest,
        "Records of the log, of all kinds, that a stream in mode log has not looked at",
    ),
    "penstock_stream_age_seconds": (lambda one: one.age, _highest, "By how much a stream is behind"),
    "penstock_stream_held_bytes": (
        lambda one: one.held_bytes,
        _highest,
        "Bytes of the log that stay because of a stream",
    ),
    "penstock_stream_idle_seconds": (lambda one: one.idle, _highest, "Time since a stream was read"),
}

_VIEWS: Mapping[str, tuple[Callable[[ViewMetrics], int], Together, str]] = {
    "penstock_view_records": (lambda one: one.records, sum, "Rows of views and conflated topics"),
    "penstock_view_lag_records": (
        lambda one: one.lag,
        _highest,
        "Durable records of the log that a view has not taken in",
    ),
    "penstock_view_errors": (lambda one: one.stopped, sum, "1 if the source of a view ended with an error"),
}

_TOPICS: Mapping[str, tuple[Callable[[TopicMetrics], int], str]] = {
    "penstock_sow_records": (lambda one: one.records, "Present records of topics with a key"),
    "penstock_sow_index_bytes": (lambda one: one.index_bytes, "Memory of their index"),
}


_PIPELINES: Mapping[str, tuple[Callable[[PipelineMetrics], float], Together, str]] = {
    "penstock_pipeline_running": (lambda one: one.state == "running", sum, "1 while the pipeline's query runs"),
    "penstock_pipeline_failed": (lambda one: one.state == "failed", sum, "1 if the pipeline was given up"),
    "penstock_pipeline_rows_per_second": (lambda one: one.rows_per_second, sum, "Input rows a second"),
    "penstock_pipeline_lag": (lambda one: one.lag, sum, "Messages, or records of the log, that it has yet to read"),
    "penstock_pipeline_batch_seconds": (lambda one: one.batch_seconds, _highest, "Time of the last batch"),
    "penstock_pipeline_state_rows": (lambda one: one.state_rows, sum, "Rows that it remembers between batches"),
    "penstock_pipeline_state_bytes": (lambda one: one.state_bytes, sum, "Memory of these rows"),
}

_PIPELINE_COUNTERS: Mapping[str, tuple[Callable[[PipelineMetrics], float], str]] = {
    "penstock_pipeline_rows": (lambda one: one.rows, "Input rows of finished batches"),
    "penstock_pipeline_batches": (lambda one: one.batches, "Finished batches"),
    "penstock_pipeline_late_rows": (lambda one: one.late_rows, "Rows that came later than the watermark allows"),
    "penstock_pipeline_failures": (lambda one: one.failures, "Times that it failed"),
}


def pipeline_figures(pipelines: Sequence[PipelineMetrics], *, per_object: bool) -> Iterable[Metric]:
    labels = ["pipeline"]
    yield GaugeMetricFamily("penstock_pipelines", "Spark pipelines", value=len(pipelines))
    for name, (of, together, text) in _PIPELINES.items():
        yield _gauge(name, text, pipelines, of, labels, _pipeline, together, per_object=per_object)
    for name, (of, text) in _PIPELINE_COUNTERS.items():
        counter = CounterMetricFamily(name, text, labels=labels if per_object else [])
        for one in pipelines if per_object else ():
            counter.add_metric(_pipeline(one), float(of(one)))
        if not per_object:
            counter.add_metric([], float(sum(map(of, pipelines))))
        yield counter
    text = "Input rows that a rule of a pipeline was not true of"
    labels = ["pipeline", "input", "rule", "otherwise"] if per_object else []
    unmet = CounterMetricFamily("penstock_pipeline_expectation_failed_rows", text, labels=labels)
    for one in pipelines if per_object else ():
        for *which, count in one.unmet:
            unmet.add_metric([one.name, *which], count)
    if not per_object:
        unmet.add_metric([], sum(rule[-1] for one in pipelines for rule in one.unmet))
    yield unmet


def replay_figures(replays: ReplayMetrics) -> Iterable[Metric]:
    """All subscriptions to topics together."""
    for name, (of, text) in _REPLAYS.items():
        yield GaugeMetricFamily(name, text, value=of(replays))
    yield CounterMetricFamily("penstock_replay_messages", "Messages sent by subscriptions to topics", replays.sent)


def stream_figures(streams: Sequence[StreamMetrics], *, per_object: bool) -> Iterable[Metric]:
    """Durable streams: one that nobody reads is what to find."""
    for name, (of, together, text) in _STREAMS.items():
        there = [one for one in streams if of(one) is not None]
        yield _gauge(name, text, there, of, ["stream", "mode"], _stream, together, per_object=per_object)


def view_figures(views: Sequence[ViewMetrics], unnamed: int, *, per_object: bool) -> Iterable[Metric]:
    """Views and conflated topics of the settings; those of subscribers are a number."""
    labels = ["vhost", "view"]
    yield GaugeMetricFamily("penstock_views", "Views and conflated topics of the settings", value=len(views))
    yield GaugeMetricFamily("penstock_views_unnamed", "Aggregated subscriptions", value=unnamed)
    for name, (of, together, text) in _VIEWS.items():
        yield _gauge(name, text, views, of, labels, _view, together, per_object=per_object)
    text = "Times that a view began anew"
    if per_object:
        rebuilds = CounterMetricFamily("penstock_view_rebuilds", text, labels=labels)
        for one in views:
            rebuilds.add_metric(_view(one), one.rebuilds)
    else:
        rebuilds = CounterMetricFamily("penstock_view_rebuilds", text, sum(one.rebuilds for one in views))
    yield rebuilds


def topic_figures(topics: Sequence[TopicMetrics], *, per_object: bool) -> Iterable[Metric]:
    labels = ["vhost", "exchange", "topic"]
    for name, (of, text) in _TOPICS.items():
        yield _gauge(name, text, topics, of, labels, _topic, sum, per_object=per_object)


def action_counters(actions: Mapping[str, ActionMetrics], *, per_object: bool) -> Iterable[Metric]:
    """What actions did; each has a line for each reason, be it 0, so that a rate can be taken of the first failure."""
    label = ["action"] if per_object else []
    runs = CounterMetricFamily("penstock_action_runs", "Actions that came to their end", labels=label)
    failures = CounterMetricFamily("penstock_action_failures", "Actions that failed", labels=[*label, "reason"])
    for names, some in (
        [([name], [one]) for name, one in sorted(actions.items())] if per_object else [([], list(actions.values()))]
    ):
        runs.add_metric(names, sum(one.runs for one in some))
        for reason in FAILURES:
            failures.add_metric([*names, reason], sum(one.failures.get(reason, 0) for one in some))
    yield runs
    yield failures


def _stream(one: StreamMetrics) -> list[str]:
    return [one.name, one.mode]


def _pipeline(one: PipelineMetrics) -> list[str]:
    return [one.name]


def _view(one: ViewMetrics) -> list[str]:
    return [one.vhost, one.name]


def _topic(one: TopicMetrics) -> list[str]:
    return [one.vhost, one.exchange, one.name]


def _gauge(
    name: str,
    text: str,
    things: Sequence[T],
    of: Callable[[T], float | None],
    labels: Sequence[str],
    named: Callable[[T], list[str]],
    together: Together,
    *,
    per_object: bool,
) -> Metric:
    if not per_object:
        return GaugeMetricFamily(name, text, value=together(of(one) or 0 for one in things))
    family = GaugeMetricFamily(name, text, labels=labels)
    for one in things:
        family.add_metric(named(one), of(one) or 0)
    return family
