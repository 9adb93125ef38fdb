"""What the HTTP door asks of the server, and the numbers that become metrics.

Every method answers from what is at hand, in well under a millisecond for a page of queues: the handlers run on the
loop that serves messages.  While the server recovers, `overview`, `queues` and `queue` raise Unavailable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from typing import Protocol

from penstock.records.dataclass import dataclass
from penstock.records.rights import Level, Right


@dataclass(frozen=True, slots=True)
class QueueMetrics:
    """Numbers of one queue at one moment."""

    vhost: str
    name: str
    ready: int = 0
    leased: int = 0
    delayed: int = 0
    ready_bytes: int = 0  # bodies of what is ready
    bytes: int = 0  # bodies of all it holds
    consumers: int = 0
    inactive: int = 0  # beyond the target depth
    barriers: int = 0  # that wait
    backlog: int = 0  # delivered and not settled
    deferred_acks: int = 0
    oldest_lease: float = 0.0  # seconds
    behind: float = 0.0  # seconds since the oldest message that is not settled was published
    published: int = 0  # counters, from the start of the process
    delivered: int = 0
    acked: int = 0
    cancelled: int = 0
    expired_leases: int = 0
    redelivered: int = 0
    dropped: int = 0  # gave way to a limit at the head
    replaced: int = 0  # gave way to a newer one of a ring
    refused: int = 0  # did not come in, for a limit was met
    duplicates: int = 0  # did not come in, for their key was taken
    letters_refused: int = 0  # its dead letters that a target refused, each time tried
    expirations: Mapping[str, int] = field(default_factory=dict[str, int])  # by reason
    ack_rate: float = 0.0  # messages a second
    lease_to_ack: Mapping[float, float] = field(default_factory=dict[float, float])  # share -> seconds


@dataclass(frozen=True, slots=True)
class StreamMetrics:
    name: str
    mode: str  # queue or log
    lag: int = 0  # messages in mode queue, LSNs in mode log
    messages: int | None = 0  # that it has not read; None: not counted yet
    age: float = 0.0  # seconds by which it is behind
    held_bytes: int = 0  # of the log
    idle: float = 0.0  # seconds since somebody read it


@dataclass(frozen=True, slots=True)
class ReplayMetrics:
    """Numbers of all subscriptions to topics together: they come and go with their clients, so none has a line."""

    open: int = 0
    paused: int = 0
    live: int = 0  # level with the log
    sent: int = 0  # messages, from the start of the process
    lag: int = 0  # records of the log between what is durable and the one that is furthest behind


@dataclass(frozen=True, slots=True)
class ViewMetrics:
    """Numbers of one view or conflated topic that the settings name."""

    vhost: str
    name: str
    records: int = 0
    lag: int = 0  # durable records of the log that it has not taken in
    rebuilds: int = 0  # times that it began anew, from the start of the process
    stopped: bool = False  # its source ended with an error, and nothing more comes


@dataclass(frozen=True, slots=True)
class TopicMetrics:
    """Numbers of one topic with a key."""

    vhost: str
    exchange: str
    name: str
    records: int = 0
    index_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ActionMetrics:
    """Counters of one action, from the start of the process."""

    runs: int = 0
    failures: Mapping[str, int] = field(default_factory=dict[str, int])  # by reason; `metrics.FAILURES` lists them


@dataclass(frozen=True, slots=True)
class PipelineMetrics:
    """Numbers of one Spark pipeline, as its driver told them last; counters count from the start of the driver."""

    name: str
    state: str = ""
    rows: int = 0  # of input
    rows_per_second: float = 0.0
    batches: int = 0
    lag: int = 0  # messages that wait in its queues, records of the log after its place in topics
    batch_seconds: float = 0.0  # of the last batch
    state_rows: int = 0
    state_bytes: int = 0
    late_rows: int = 0  # left out by a watermark
    failures: int = 0
    unmet: Sequence[tuple[str, str, str, int]] = ()  # input, rule, what becomes of rows that it is not true of, rows


@dataclass(frozen=True, slots=True)
class ShareMetrics:
    """One thing that logins may take some of."""

    taken: int = 0
    whole: int = 0
    of_user: int = 0  # that one user may have
    largest: int = 0  # that one user has
    refused: int = 0  # times that a user or all had enough, from the start of the process


@dataclass(frozen=True, slots=True)
class Metrics:
    """Numbers of the whole server at one moment; counters count from the start of the process."""

    node: str = ""  # name of the instance
    cluster: str = ""  # what tools call it, if not so
    version: str = ""
    connections: int = 0
    channels: int = 0
    consumers: int = 0
    queues_declared: int = 0  # also those that were there
    queues_created: int = 0
    queues_deleted: int = 0
    connections_opened: int = 0
    connections_closed: int = 0
    channels_opened: int = 0
    channels_closed: int = 0
    published: int = 0  # messages received from publishers
    published_confirm: int = 0  # of them, those that want a confirm
    confirmed: int = 0
    routed: int = 0
    unroutable_dropped: int = 0
    unroutable_returned: int = 0
    refused: int = 0
    transactions: int = 0  # committed
    dead_letters_refused: int = 0  # each time one was tried
    delivered: int = 0  # to consumers and by get
    delivered_consume_auto_ack: int = 0
    delivered_consume_manual_ack: int = 0
    delivered_get_auto_ack: int = 0
    delivered_get_manual_ack: int = 0
    get_empty: int = 0
    redelivered: int = 0
    acknowledged: int = 0
    dead_lettered: Mapping[str, int] = field(
        default_factory=dict[str, int]
    )  # maxlen, expired, rejected, delivery_limit
    actions: Mapping[str, ActionMetrics] = field(default_factory=dict[str, "ActionMetrics"])  # by name
    actions_waiting: int = 0  # messages whose actions have not begun
    replays: ReplayMetrics = field(default_factory=ReplayMetrics)
    streams: Sequence[StreamMetrics] = ()
    views: Sequence[ViewMetrics] = ()
    views_unnamed: int = 0  # aggregated subscriptions
    topics: Sequence[TopicMetrics] = ()
    pipelines: Sequence[PipelineMetrics] = ()
    durable_lsn: int = 0
    last_lsn: int = 0
    logins_refused: Mapping[str, int] = field(default_factory=dict[str, int])  # by door
    bulk_running: int = 0  # requests that the bulk process works on
    bulk_requests: int = 0
    bulk_starts: int = 0
    bulk_deaths: int = 0  # that nobody asked for
    log_bytes: int = 0
    log_segments: int = 0
    log_index_bytes: int = 0  # of memory: where each batch is
    log_commits: int = 0
    archive_bytes: int = 0
    archive_files: int = 0
    archive_rows: int = 0
    archive_behind: int = 0  # closed segments that are not archived
    archive_failures: int = 0  # since the start
    log_damaged_batches: int = 0  # that somebody wanted to read since the start
    upkeep_delay_seconds: float = 0.0  # of a batch of publishes, while upkeep of the log is behind
    upkeep_delayed_seconds: float = 0.0  # in all, since the start
    recovery_records: int = 0
    recovery_seconds: float = 0.0
    recovery_share: float = 1.0  # of the start; 1: the doors are open
    recovery_records_expected: int = 0  # that are to be read at this start
    recovering: bool = False
    file_backed_bytes: int = 0  # state of queues and topics that lies in files
    file_backed_file_bytes: int = 0  # of these files
    file_backed_refused: int = 0  # times that one could not grow
    body_cache_bytes: int = 0
    body_cache_limit_bytes: int = 0
    memory: Mapping[str, int] = field(default_factory=dict[str, int])  # bytes of `server.memory` by account
    resident_bytes: int = 0
    disk_free_bytes: int = 0  # of the data folder's disk
    disk_alarm: bool = False
    memory_alarm: bool = False  # publishers wait until something of `server.memory` is given back
    certificate_seconds_left: float | None = None  # None: no door has TLS
    strangers: Mapping[str, int] = field(default_factory=dict[str, int])  # connections without a login, by door
    strangers_closed: Mapping[tuple[str, str], int] = field(
        default_factory=dict[tuple[str, str], int]
    )  # by door, and by what they went beyond
    shares: Mapping[str, ShareMetrics] = field(default_factory=dict[str, "ShareMetrics"])  # by what is counted
    descriptors_limit: int = 0
    descriptors_short: int = 0  # times that none was left for a connection
    broken: bool = False  # a sync failed: nothing is confirmed any more
    pause_longest: float = 0.0  # seconds; the longest turn of the loop since the last scrape
    pause_longest_cpu: float = 0.0  # seconds of CPU, of the turn that took most of it since then
    pause_total: float = 0.0  # seconds of all turns
    pause_counts: Sequence[tuple[float, int]] = ()  # (upper end in seconds, turns up to it); the last one is all
    queues: Sequence[QueueMetrics] = ()


class ServerFacts(Protocol):
    """The server as the HTTP door sees it."""

    def health(self) -> Mapping[str, object]:
        """What `/healthz` shows.  Its `status` is `ok`, `recovering`, or `broken` when a restart is needed."""
        ...

    def ready(self) -> bool:
        """Whether the doors are open and publishes are taken."""
        ...

    def overview(self) -> Mapping[str, object]:
        """Facts for `/api/overview` beside those that follow from the metrics: settings and where they came from."""
        ...

    def queues(self, user: str) -> Iterable[Mapping[str, object]]:
        """Every queue that the user may see, each looked at when it is asked for.

        `queues.queue_item` says which keys it reads.
        """
        ...

    def short_queues(self, user: str, vhost: str | None, sort: str) -> Iterable[dict[str, object]]:
        """The same, of one vhost or of all, with the keys of `queues.SHORT` alone, and `make`, which makes all of it.

        sort: what is sorted by; `message_stats` are there only if it is of them.
        """
        ...

    def queue(self, vhost: str, name: str, user: str) -> Mapping[str, object] | None:
        """One queue, or None; None also where the user may not see it."""
        ...

    def consumers(self, user: str, vhost: str | None, queue: str | None = None) -> Iterable[Mapping[str, object]]:
        """Every consumer, of one vhost or queue or of all, that the user may see, each looked at when it is asked for.

        Those that replay (`kind` is `replay`) are with the queue that they named.  `consumers.consumer_item` says which
        keys it reads.
        """
        ...

    def vhosts(self) -> Sequence[str]: ...

    def metrics(self) -> Metrics:
        """The numbers now, without those of queues."""
        ...

    def queue_metrics(self) -> Iterable[QueueMetrics]:
        """The numbers of every queue, each looked at when it is asked for."""
        ...

    def open_metrics(self) -> bool:
        """Whether the metrics of each object, with their names, are for everybody."""
        ...

    def scraped(self) -> None:
        """The metrics were read: what they say since the last scrape begins anew."""
        ...

    async def login(self, user: str, password: str, host: str) -> float | None:
        """None: this user may log in with this password from this address.

        Else, late, the seconds before which another try is refused unseen; 0.0 for none.
        """
        ...

    def working(self, user: str) -> AbstractContextManager[None]:
        """A request of this user is in work for as long as this lasts.  Raises Unavailable: he has too many."""
        ...

    def judge(self, user: str, right: Right, names: Mapping[str, str], what: str) -> None:
        """AccessRefused unless the user may; NotFound for a vhost that is not there, if he may know.

        names: what the request names.  what: is asked for, for a person.
        """
        ...

    def has(self, user: str, vhost: str, everywhere: Level | None) -> bool:
        """Whether a vhost is the user's to use or, with that level, to see."""
        ...

    def tags(self, user: str) -> Sequence[str]:
        """What else a user may do, as RabbitMQ names it: `administrator`, `monitoring`."""
        ...

    def segments(self) -> Mapping[str, object]:
        """The files of the log, and how far it is: for `/api/log`."""
        ...

    def topics(self, user: str) -> Sequence[Mapping[str, object]]:
        """Topics with a key that the user may read: `vhost exchange name records index_bytes`."""
        ...

    def views(self) -> Sequence[Mapping[str, object]]:
        """Views and conflated topics that the settings name: `vhost name records lag rebuilds stopped`."""
        ...

    def streams(self) -> Sequence[Mapping[str, object]]:
        """Durable readers, what they hold and what they have not read yet."""
        ...

    def process(self) -> Mapping[str, object]:
        """Facts of the process for `/api/nodes`: `uptime` in milliseconds, `processors`, `os_pid`, descriptors."""
        ...

    def listeners(self) -> Sequence[Mapping[str, object]]:
        """Open doors: `node protocol ip_address port`."""
        ...

    def certificate_left(self) -> float | None:
        """Seconds until the certificate of the doors with TLS ends; None where there are none."""
        ...

    def exchange_types(self) -> Sequence[str]:
        """Types that an exchange may have."""
        ...

    def exchange_count(self) -> int: ...


def node_of(facts: ServerFacts) -> str:
    """The name of the instance."""
    return str(facts.health().get("name", ""))
