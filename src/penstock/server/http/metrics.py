"""What `/metrics` has: each metric once, with its name, where the server has it, and its sentence.

RabbitMQ's names where dashboards read them, `penstock_*` for what it has no name for.  `server.http.facts` looks at the
server on the loop and takes plain values by these tables; `server.http.exposition` turns them into text.
Counters count from the start of the process.

Only who asks for each object is told names: those of the settings and of declared things.  What comes and goes with its
client, replays and aggregated subscriptions, is counted together, so that no client can make lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeAlias, cast

from penstock.records.dataclass import dataclass
from penstock.records.event_actions import REASONS

Together: TypeAlias = "Callable[[Iterable[float]], float]"
"""What many of one kind have together: a sum, or the highest."""

Values: TypeAlias = "Iterable[tuple[Sequence[str], float]]"
"""The lines of a metric: values of its labels, and the figure."""

Key: TypeAlias = "str | tuple[str, ...]"


def _highest(some: Iterable[float]) -> float:
    return max(some, default=0)


class Figure(NamedTuple):
    """One metric of things of a kind."""

    name: str
    of: str | Callable[[Any], float | None]  # where the thing has it, or what is made of it; None: it has none
    text: str
    together: Together = sum


class Family(NamedTuple):
    """One metric with its lines."""

    name: str
    text: str
    labels: Sequence[str]
    values: Values
    counter: bool = False
    summary: bool = False  # its last label is a quantile


class Histogram(NamedTuple):
    """One metric that counts how many of something are up to each bound."""

    name: str
    text: str
    buckets: Sequence[tuple[float, float]]  # upper end, how many up to it; the last one is all
    total: float  # of what was counted
    labels: Sequence[str] = ()
    named: Sequence[str] = ()  # the values of its labels
    form: str = ""  # of upper ends


class Split(NamedTuple):
    """A metric with labels of its own, of which a thing has several figures."""

    name: str
    text: str
    labels: Sequence[str]
    of: str | Callable[[Any], Mapping[Any, float]]
    keys: Sequence[str] = ()  # that have a line, be it 0, so that a rate can be taken of the first; else what there is
    alone: bool = False  # a gauge that things have by themselves and not together

    def of_each(self, labels: Sequence[str], some: Sequence[tuple[Sequence[str], Mapping[Key, float]]]) -> Family:
        """Lines for each thing, of which there are the values of `labels` and the figures."""
        lines = (([*of, *_parts(key)], got.get(key, 0)) for of, got in some for key in self.keys or got)
        quantiles = "quantile" in self.labels
        return Family(self.name, self.text, (*labels, *self.labels), lines, counter=not self.alone, summary=quantiles)

    def of_all(self, some: Sequence[Mapping[Key, float]]) -> Family:
        """A line for each key, or one for all where keys come and go."""
        if self.keys:
            sums = [([key], sum(got.get(key, 0) for got in some)) for key in self.keys]
            return Family(self.name, self.text, self.labels, sums, counter=True)
        return Family(self.name, self.text, (), [((), sum(sum(got.values()) for got in some))], counter=True)


class Line(NamedTuple):
    """One thing at one moment: the values of its labels, and its figures and splits in the order of its kind."""

    labels: Sequence[str]
    values: Sequence[float | None]
    splits: Sequence[Mapping[Key, float]] = ()


class Things:
    """Things of a kind: what tells one from another, where that is asked for, and their metrics."""

    def __init__(
        self, labels: Sequence[str], named: Sequence[str], figures: Sequence[Figure], counters: Sequence[Figure] = (),
        splits: Sequence[Split] = (), *, get: Callable[[str], Callable[[Any], Any]] = attrgetter,
    ) -> None:  # fmt: skip
        """named: where a thing has the values of its labels.  get: what gives a value by its place."""
        self.labels, self.splits = labels, splits
        self.figures, self._counters = (*figures, *counters), len(figures)
        of = attrgetter if get is attrgetter else itemgetter
        self._named: list[Callable[[Any], Any]] = [of(one) for one in named]
        self._of = [get(one.of) if isinstance(one.of, str) else one.of for one in self.figures]
        self._split = [get(one.of) if isinstance(one.of, str) else one.of for one in splits]

    def look(self, thing: object) -> Line:
        """Its line."""
        labels, splits = [str(of(thing)) for of in self._named], [dict(of(thing) or {}) for of in self._split]
        return Line(labels, [of(thing) for of in self._of], splits)

    def total(self, lines: Iterable[Line], name: str) -> int:
        """A count of all of them."""
        at = next(at for at, one in enumerate(self.figures) if one.name == name)
        return sum(int(line.values[at] or 0) for line in lines)

    def families(self, lines: Sequence[Line], *, per_object: bool) -> Iterator[Family]:
        """A line for each thing, or one for all together.  Lines are made as they are taken."""
        for at, figure in enumerate(self.figures):
            labels: Sequence[str] = self.labels
            values: Values = _column(lines, at)
            if not per_object:
                labels, values = (), [((), figure.together(value for _, value in values))]
            yield Family(figure.name, figure.text, labels, values, counter=at >= self._counters)
        for at, split in enumerate(self.splits):
            some = [(line.labels, line.splits[at]) for line in lines]
            if per_object:
                yield split.of_each(self.labels, some)
            elif not split.alone:
                yield split.of_all([got for _, got in some])


def _column(lines: Iterable[Line], at: int) -> Iterator[tuple[Sequence[str], float]]:
    """One figure of those that have it."""
    return ((line.labels, value) for line in lines if (value := line.values[at]) is not None)


def _parts(key: Key) -> Sequence[str]:
    return [key] if isinstance(key, str) else key


def _is(state: str) -> Callable[[Mapping[str, object]], float]:
    """Whether a driver has told of this state."""
    return lambda status: status.get("state") == state


def _number(name: str, unit: int = 1) -> Callable[[Mapping[str, object]], float]:
    """What a driver has told under a name; 0 where that is no number."""

    def of(status: Mapping[str, object]) -> float:
        value = status.get(name)
        return value / unit if isinstance(value, (int, float)) else 0.0

    return of


def _phases(status: Mapping[str, object]) -> Mapping[Key, float]:
    """Seconds of the phases of the last batch."""
    return {name: spent / 1000 for name, spent in cast("dict[str, int]", status.get("phases") or {}).items()}


def _unmet(status: Mapping[str, object]) -> Mapping[Key, float]:
    """Rows by input, rule, and what becomes of those that it is not true of."""
    rules = cast("dict[str, list[dict[str, Any]]]", status.get("expect") or {}).get("rules", ())
    return {tuple(str(one[part]) for part in ("input", "rule", "otherwise")): int(one["rows"]) for one in rules}


def _checkpoint(seen: Any) -> float:
    """Of the last checkpoint; 0 where nobody makes any."""
    return float(seen.engine.keeper.checkpointed) if seen.engine.keeper is not None else 0.0


def _last_commit(seen: Any) -> float:
    """Seconds."""
    return float(seen.log.commit_us) / 1e6


def _memory_limit(seen: Any) -> int:
    """Bytes.  The process has more than `server.memory` is about, so what is left of that is what can be compared."""
    return int(seen.resident + seen.engine.bodies.spare_bytes)


WHOLE = Things(
    (),
    (),
    (
        Figure("rabbitmq_connections", "connections", "Open connections"),
        Figure("rabbitmq_channels", "channels", "Open channels"),
        Figure("rabbitmq_consumers", "consumers", "Consumers"),
        Figure("rabbitmq_process_resident_memory_bytes", "resident", "Memory in use"),
        Figure("rabbitmq_resident_memory_limit_bytes", _memory_limit,
               "Memory in use, and what server.memory leaves until publishers wait"),
        Figure("rabbitmq_alarms_memory_used_watermark", "engine.bodies.tight",
               "1 if the memory alarm is on: publishers go on in small portions"),
        Figure("rabbitmq_disk_space_available_bytes", "disk_free", "Free disk space"),
        Figure("rabbitmq_disk_space_available_limit_bytes", "disk_low", "Below this the log has no room for long"),
        Figure("rabbitmq_erlang_uptime_seconds", "uptime", "Time since the start, by the name that dashboards know"),
        Figure("penstock_confirming_channels", "publishers", "Channels that have published with confirms"),
        Figure("rabbitmq_alarms_free_disk_space_watermark", "log.room.full", "1 if the disk alarm is on"),
        Figure("penstock_durable_lsn", "log.durable", "Last record that is on disk"),
        Figure("penstock_last_lsn", "core.last_lsn", "Last record given out"),
        Figure("penstock_checkpoint_lsn", _checkpoint, "Last record that the last checkpoint has"),
        Figure("penstock_log_last_commit_seconds", _last_commit, "Time that the last commit to the log took"),
        Figure("penstock_log_bytes", "log_bytes", "Bytes of the log"),
        Figure("penstock_log_segments", "log_segments", "Files of the log"),
        Figure("penstock_log_index_bytes", "log.index_bytes", "Memory that the places of the log's batches take"),
        Figure("penstock_archive_bytes", "archive_bytes", "Bytes of the archive"),
        Figure("penstock_archive_files", "archive_files", "Files of the archive"),
        Figure("penstock_archive_records", "archive_rows", "Records of the archive"),
        Figure("penstock_archive_segments_behind", "archive_behind", "Closed segments that are not archived yet"),
        Figure("penstock_log_damaged_batches", "log.damage.batches",
               "Damaged batches of the log that somebody wanted to read"),
        Figure("penstock_upkeep_delay_seconds", "delay",
               "How long a batch of publishes waits because the log has outgrown its retention"),
        Figure("penstock_recovery_records", "server.recovered_records", "Records read at the last start"),
        Figure("penstock_recovery_records_expected", "server.recovered_records",
               "Records to be read at the last start"),
        Figure("penstock_recovery_seconds", "server.recovered_seconds", "Time of recovery at the last start"),
        Figure("penstock_recovery_share", "started", "Share of the start that is done; 1: the doors are open"),
        Figure("penstock_recovering", "recovering", "1 while the log is recovered and the doors are closed"),
        Figure("penstock_body_cache_bytes", "engine.bodies.used", "Bodies held in memory"),
        Figure("penstock_body_cache_limit_bytes", "engine.bodies.budget.limit", "Budget for bodies and buffers"),
        Figure("penstock_file_backed_bytes", "server.scratch.used", "State of queues and topics that lies in files"),
        Figure("penstock_file_backed_file_bytes", "server.scratch.size", "Size of these files"),
        Figure("penstock_bulk_running", "server.bulk.running", "Requests that the bulk process works on"),
        Figure("penstock_loop_pause_longest_seconds", "pauses.longest",
               "Longest turn of the event loop since the last scrape"),
        Figure("penstock_loop_pause_longest_cpu_seconds", "pauses.longest_cpu",
               "CPU time of the turn that took most of it since the last scrape"),
        Figure("rabbitmq_process_max_fds", "descriptors", "Descriptors that connections and all else may have"),
        Figure("rabbitmq_process_open_fds", "open_descriptors", "Descriptors in use"),
        Figure("penstock_actions_waiting", "engine.acts.waiting", "Messages whose actions have not begun"),
        Figure("penstock_replays", "replays.open", "Subscriptions to topics that are open"),
        Figure("penstock_replays_paused", "replays.paused", "Subscriptions to topics that are paused"),
        Figure("penstock_replays_live", "replays.live", "Subscriptions to topics that are level with the log"),
        Figure("penstock_replay_lag_records", "replays.lag", "Records that the one furthest behind has not looked at"),
        Figure("penstock_views_unnamed", "engine.views.unnamed", "Aggregated subscriptions"),
        Figure("penstock_broken", "broken", "1 if a sync failed and a restart is needed"),
    ),
    (
        Figure("penstock_bulk_requests", "server.bulk.requests", "Requests given to the bulk process"),
        Figure("penstock_bulk_starts", "server.bulk.starts", "Starts of the bulk process, which ends when idle"),
        Figure("penstock_archive_failures", "archive_failures", "Steps of the archive that failed and are tried again"),
        Figure("penstock_internal_errors", "engine.faults.total",
               "Faults that ended what was asked for, and nothing else; each is in the log with its traceback once"),
        Figure("penstock_bulk_deaths", "server.bulk.deaths", "Ends of the bulk process that nobody asked for"),
        Figure("penstock_upkeep_delayed_seconds", "delayed", "Time that publishers waited for upkeep of the log"),
        Figure("penstock_file_backed_refused", "server.scratch.refused", "Times that such a file could not grow"),
        Figure("rabbitmq_queues_declared", "core.queues_declared", "Queues declared, also those that were there"),
        Figure("rabbitmq_queues_created", "core.queues_created", "Queues made"),
        Figure("rabbitmq_queues_deleted", "core.queues_deleted", "Queues deleted"),
        Figure("rabbitmq_connections_opened", "counters.connections_opened", "Connections opened"),
        Figure("rabbitmq_connections_closed", "counters.connections_closed", "Connections closed"),
        Figure("rabbitmq_channels_opened", "counters.channels_opened", "Channels opened"),
        Figure("rabbitmq_channels_closed", "counters.channels_closed", "Channels closed"),
        Figure("penstock_messages_refused", "counters.refused", "Messages that a limit refused"),
        Figure("penstock_transactions_committed", "core.transactions", "Transactions committed, by whatever door"),
        Figure("penstock_dead_letters_refused", "core.dead_letters_refused",
               "Dead letters that a full queue refused, each time tried"),
        Figure("penstock_descriptors_short", "server.entry.exhausted",
               "Times that no descriptor was left for a connection"),
        Figure("penstock_replay_messages", "engine.replays.sent", "Messages sent by subscriptions to topics"),
        Figure("penstock_log_commits", "log.commits", "Commits written to the log"),
    ),
)  # fmt: skip

MESSAGES = (
    ("received", "published", "Messages received from publishers"),
    ("received_confirm", "published_confirm", "Messages received that want a confirm"),
    ("confirmed", "confirmed", "Messages confirmed"),
    ("routed", "routed", "Messages that reached a queue"),
    ("unroutable_dropped", "unroutable_dropped", "Messages that no queue took"),
    ("unroutable_returned", "unroutable_returned", "Mandatory messages returned"),
    ("delivered", "delivered", "Messages delivered"),
    ("delivered_consume_auto_ack", "delivered_consume_auto_ack", "Delivered to consumers without acknowledgement"),
    ("delivered_consume_manual_ack", "delivered_consume_manual_ack", "Delivered to consumers that acknowledge"),
    ("delivered_get_auto_ack", "delivered_get_auto_ack", "Fetched without acknowledgement"),
    ("delivered_get_manual_ack", "delivered_get_manual_ack", "Fetched, to be acknowledged"),
    ("get_empty", "get_empty", "Fetches that found nothing"),
    ("redelivered", "redelivered", "Messages delivered again"),
    ("acknowledged", "acknowledged", "Messages acknowledged"),
)
"""By the end of RabbitMQ's name."""

QUEUES = Things(
    ("vhost", "queue"),
    ("queue.vhost", "queue.name"),
    (
        Figure("rabbitmq_queue_messages", "messages", "Messages ready, unacknowledged and delayed"),
        Figure("rabbitmq_queue_messages_ready", "queue.available", "Messages ready to be delivered"),
        Figure("rabbitmq_queue_messages_unacked", "queue.leased", "Messages delivered and not settled"),
        Figure("rabbitmq_queue_consumers", "consumers", "Consumers of queues"),
        Figure("penstock_queue_messages_delayed", "queue.delayed", "Messages that wait for a time"),
        Figure("rabbitmq_queue_messages_bytes", "weight.messages",
               "Bytes of the bodies of messages ready, unacknowledged and delayed"),
        Figure("rabbitmq_queue_messages_ready_bytes", "ready_bytes",
               "Bytes of the bodies of messages ready to be delivered"),
        Figure("penstock_queue_messages_inactive", "queue.inactive", "Messages beyond the target depth"),
        Figure("penstock_queue_barriers_waiting", "queue.barriers_waiting",
               "Barriers that wait for what is before them"),
        Figure("penstock_queue_paused", "queue.paused", "Queues that somebody paused"),
        Figure("penstock_queue_messages_foreign", "queue.foreign_count", "Messages that other sites own"),
        Figure("penstock_queue_proxied", "proxied", "Queues in which this site acts for owners that are away"),
        Figure("penstock_queue_backlog", "queue.outstanding", "Messages delivered and not settled"),
        Figure("penstock_queue_deferred_acks", "deferred_acks", "Acknowledgements of messages that are not there"),
        Figure("penstock_queue_ack_rate", "ack_rate", "Messages acknowledged a second"),
        Figure("penstock_queue_oldest_lease_seconds", "oldest_lease", "Age of the oldest lease", _highest),
        Figure("penstock_queue_seconds_behind", "behind", "Age of the oldest message that is not settled", _highest),
    ),
    (
        Figure("penstock_queue_published", "queue.arrived", "Messages that came into queues"),
        Figure("penstock_queue_delivered", "figures.delivered", "Messages delivered from queues"),
        Figure("penstock_queue_acked", "figures.acked", "Messages acknowledged"),
        Figure("penstock_queue_cancelled", "cancelled", "Messages that consumers gave back as failed"),
        Figure("penstock_queue_expired_leases", "figures.expired_leases", "Leases that ended by time"),
        Figure("penstock_queue_redelivered", "figures.redelivered", "Messages delivered again"),
        Figure("penstock_queue_dropped", "figures.dropped", "Messages that gave way to a limit"),
        Figure("penstock_queue_replaced", "figures.replaced", "Messages that gave way to a newer one of a ring"),
        Figure("penstock_queue_refused", "figures.refused", "Messages that a queue did not take, for a limit was met"),
        Figure("penstock_queue_duplicates", "queue.duplicates",
               "Messages that a queue did not take, for it had their key"),
        Figure("penstock_queue_transferred_in", "transferred_in",
               "Messages that other sites gave away to this one"),
        Figure("penstock_queue_transferred_out", "transferred_out",
               "Messages that this site gave away to others"),
        Figure("penstock_queue_double", "double",
               "Messages that two sites delivered, one of them for an owner that was alive"),
        Figure("penstock_queue_dead_letters_refused", "figures.letters_refused",
               "Dead letters of queues that a full target refused, each time tried"),
    ),
    (
        Split("penstock_queue_expired", "Messages expired for this reason, among others", ("reason",),
              "figures.expirations", REASONS),
        Split("penstock_queue_lease_to_ack_seconds",
              "Time from lease to acknowledgement that a share of messages kept to", ("quantile",),
              "lease_to_ack", alone=True),
    ),
)  # fmt: skip

STREAMS = Things(
    ("stream", "mode"),
    ("name", "mode"),
    (
        Figure("penstock_stream_lag_messages", "messages",
               "Messages of its queue that a stream has not settled, or of its topic that it has not read"),
        Figure("penstock_stream_lag_lsns", "lag_of_log",
               "Records of the log, of all kinds, that a stream in mode log has not looked at", _highest),
        Figure("penstock_stream_age_seconds", "age", "By how much a stream is behind", _highest),
        Figure("penstock_stream_held_bytes", "held_bytes", "Bytes of the log that stay because of a stream", _highest),
        Figure("penstock_stream_idle_seconds", "unread", "Time since a stream was read", _highest),
    ),
)  # fmt: skip

VIEWS = Things(
    ("vhost", "view"),
    ("vhost", "name"),
    (
        Figure("penstock_view_records", "records", "Rows of views and conflated topics"),
        Figure("penstock_view_lag_records", "lag", "Durable records of the log that a view has not taken in", _highest),
        Figure("penstock_view_errors", "stopped", "1 if a view ended with an error, or begins anew after one"),
    ),
    (Figure("penstock_view_rebuilds", "rebuilds", "Times that a view began anew"),),
    get=itemgetter,
)  # fmt: skip

TOPICS = Things(
    ("vhost", "exchange", "topic"),
    ("vhost", "exchange", "name"),
    (
        Figure("penstock_sow_records", "records", "Present records of topics with a key"),
        Figure("penstock_sow_index_bytes", "index_bytes", "Memory of their index"),
    ),
    (Figure("penstock_topic_schema_failed", "schema_failed", "Bodies that did not fit their topic's JSON Schema"),),
    get=itemgetter,
)  # fmt: skip

PIPELINES = Things(
    ("pipeline",),
    ("pipeline",),
    (
        Figure("penstock_pipeline_running", _is("running"),
               "1 while the pipeline's query runs"),
        Figure("penstock_pipeline_failed", _is("failed"), "1 if the pipeline was given up"),
        Figure("penstock_pipeline_rows_per_second", "rows_per_second", "Input rows a second"),
        Figure("penstock_pipeline_lag", "lag", "Messages, or records of the log, that it has yet to read"),
        Figure("penstock_pipeline_batch_seconds", _number("batch_ms", 1000),
               "Time of the last batch", _highest),
        Figure("penstock_pipeline_state_rows", "state_rows", "Rows that it remembers between batches"),
        Figure("penstock_pipeline_state_bytes", "state_bytes", "Memory of these rows"),
    ),
    (
        Figure("penstock_pipeline_rows", "rows", "Input rows of finished batches"),
        Figure("penstock_pipeline_batches", "batches", "Finished batches"),
        Figure("penstock_pipeline_late_rows", "late_rows", "Rows that came later than the watermark allows"),
        Figure("penstock_pipeline_failures", "failures_total", "Times that it failed"),
    ),
    (
        Split("penstock_pipeline_expectation_failed_rows", "Input rows that a rule of a pipeline was not true of",
              ("input", "rule", "otherwise"), _unmet),
        Split("penstock_pipeline_phase_seconds", "Time of the phases of the last batch, as Spark names them",
              ("phase",), _phases, alone=True),
    ),
    get=_number,
)  # fmt: skip

SHARES = Things(
    ("of",),
    ("name",),
    (
        Figure("penstock_share_taken", "one.taken", "What logins have taken"),
        Figure("penstock_share_taken_of_user", "most", "The most that one user has of it"),
        Figure("penstock_share_limit", "one.whole", "What there is of it"),
        Figure("penstock_share_limit_of_user", "one.of_user", "What one user may have of it"),
    ),
    (Figure("penstock_share_refused", "one.refused", "Times that there was no more for a user"),),
)  # fmt: skip

PROCESSES = Things(
    ("process",),
    ("name",),
    (Figure("penstock_process_resident_bytes", "resident", "Resident memory of a process of the server"),),
    (
        Figure("penstock_process_cpu_seconds", "cpu", "CPU that a process of the server has used since its start"),
        Figure("penstock_process_starts", "starts", "Starts of a process of the server"),
        Figure("penstock_process_deaths", "deaths", "Ends of a process of the server that nobody asked for"),
    ),
)

FAILURES = (
    "waiting", "rounds", "publish", "delete_sow", "query_sow", "extract_values", "execute_system", "increment_counter",
    "echo_message", "proxied_transfer", "replication",
)  # fmt: skip
"""Why an action failed: too many messages waited, it set itself off too often, or the step that failed."""

ACTIONS = Things(
    ("action",),
    ("name",),
    (),
    (Figure("penstock_action_runs", "runs", "Actions that came to their end"),),
    (Split("penstock_action_failures", "Actions that failed", ("reason",), "reasons", FAILURES),),
)


KINDS: Mapping[str, Things] = {
    "shares": SHARES, "processes": PROCESSES, "queues": QUEUES, "actions": ACTIONS, "streams": STREAMS, "views": VIEWS,
    "topics": TOPICS, "pipelines": PIPELINES,
}  # fmt: skip

NAMED = ("shares", "processes")
"""Kinds that have a line for each thing everywhere."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a scrape has found."""

    node: str = ""  # name of the instance
    cluster: str = ""  # what tools call it, if not so
    version: str = ""
    figures: Mapping[str, float] = field(default_factory=dict[str, float])  # of `WHOLE` and `MESSAGES`, by name
    lines: Mapping[str, Sequence[Line]] = field(default_factory=dict[str, Sequence[Line]])  # by kind
    dead_lettered: Mapping[str, int] = field(default_factory=dict[str, int])  # by reason
    logins_refused: Mapping[str, int] = field(default_factory=dict[str, int])  # by door
    memory: Mapping[str, int] = field(default_factory=dict[str, int])  # bytes of `server.memory` by account
    gave_way: Mapping[str, int] = field(default_factory=dict[str, int])  # who was cut while memory was short
    certificates: Mapping[str, float] = field(default_factory=dict[str, float])  # seconds left, by whose it is
    alarms: Mapping[str, int] = field(default_factory=dict[str, int])  # those that are set
    strangers: Mapping[str, int] = field(default_factory=dict[str, int])  # connections without a login, by door
    strangers_closed: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    message_sizes: tuple[int, Sequence[tuple[float, int]]] = (0, ())  # bytes published; (upper end, bodies up to it)
    pause_total: float = 0.0  # seconds of all turns
    pause_counts: Sequence[tuple[float, int]] = ()  # (upper end in seconds, turns up to it); the last one is all

    def of(self, kind: str) -> Sequence[Line]:
        return self.lines.get(kind, ())

    def __getitem__(self, name: str) -> Any:
        """A figure of the whole by its metric's name."""
        return self.figures.get(name, 0)
