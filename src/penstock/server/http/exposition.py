"""The text of a scrape, Prometheus format 0.0.4, made of what the loop has taken and, on a member, of its cluster.

`/metrics` sums over queues and whatever else has a name, or takes the greatest; `/metrics/per-object` has a line for
each.  `/metrics/detailed` has the families that a scraper names, a line for each thing, of all vhosts or of those it
names, as RabbitMQ has it: `?family=queue_coarse_metrics&family=queue_consumer_count&vhost=/`.  There names begin with
`rabbitmq_detailed_`, so that nothing is counted twice beside `/metrics`; a family that nobody knows has no lines.

It is made in pieces, each when it is taken: of many things with long names there are hundreds of megabytes.
Source: https://prometheus.io/docs/instrumenting/exposition_formats
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import inf
from typing import Any, NamedTuple, TypeAlias, cast

from prometheus_client import utils

from penstock.records.remembered import Memo
from penstock.replication.election import Role
from penstock.server.cluster.log_sending import BOUNDS
from penstock.server.http.metrics import (
    KINDS,
    MESSAGES,
    NAMED,
    QUEUES,
    WHOLE,
    Family,
    Histogram,
    Line,
    Metrics,
    Things,
    Values,
)  # fmt: skip
from penstock.server.http.routes import RABBITMQ_VERSION

_number: Callable[[float], str] = cast("Any", utils).floatToGoString  # which has no types

PIECE = 256 << 10
"""Letters after which a piece ends."""

WRITTEN = 1 << 14
"""Labels, and numbers, that one text remembers how they are written: each queue's name stands in forty of its lines."""


class _Writing:
    """What one text has written so far."""

    def __init__(self) -> None:
        self.labels = Memo[str, str](WRITTEN, _quoted)
        self.numbers = Memo[float, str](WRITTEN, _number)


def pieces(metrics: Iterable[Family | Histogram]) -> Iterator[bytes]:
    """All of them, UTF-8; none is empty."""
    some, size, written = list[str](), 0, _Writing()
    for one in metrics:
        for line in _lines(one, written):
            some.append(line)
            size += len(line)
            if size >= PIECE:
                yield "".join(some).encode()
                some, size = [], 0
    if some:
        yield "".join(some).encode()


def _lines(one: Family | Histogram, written: _Writing) -> Iterator[str]:
    """What it is, and its values."""
    if isinstance(one, Histogram):
        yield _head(one.name, one.text, "histogram")
        named = [[*one.named, "+Inf" if end == inf else f"{end:{one.form}}"] for end, _ in one.buckets]
        counts = [float(count) for _, count in one.buckets]
        yield from _values(f"{one.name}_bucket", (*one.labels, "le"), zip(named, counts, strict=True), written)
        yield from _values(f"{one.name}_count", one.labels, [(one.named, counts[-1])], written)
        yield from _values(f"{one.name}_sum", one.labels, [(one.named, one.total)], written)
    else:
        name = f"{one.name}_total" if one.counter else one.name
        yield _head(name, one.text, "counter" if one.counter else "summary" if one.summary else "gauge")
        yield from _values(name, one.labels, one.values, written)


def _head(name: str, text: str, kind: str) -> str:
    return f"# HELP {name} {_escaped(text)}\n# TYPE {name} {kind}\n"


def _values(name: str, labels: Sequence[str], values: Values, written: _Writing) -> Iterator[str]:
    """A line each, with its labels in the order of their names."""
    order = sorted(range(len(labels)), key=labels.__getitem__)
    pairs = ",".join(f'{labels[at]}="%s"' for at in order)
    form = f"{name}{{{pairs}}} %s\n" if order else f"{name} %s\n"
    quoted, numbers = written.labels, written.numbers
    for named, value in values:
        yield form % (*[quoted[named[at]] for at in order], numbers[value])


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")


_DEATHS = ("maxlen", "expired", "rejected", "delivery_limit")


def exposition(
    metrics: Metrics, *, per_object: bool = False, membership: Mapping[str, object] | None = None,
    links: Sequence[Mapping[str, Any]] = (),
) -> Iterator[bytes]:  # fmt: skip
    """The text of a scrape, UTF-8, in pieces.  membership: what a member knows of its cluster of servers."""
    known = membership or {}
    families = _families(metrics, per_object=per_object), _terms(known), _of_cluster(known), _of_links(links)
    return pieces(chain(*families, _histograms(metrics, known)))


def _histograms(metrics: Metrics, known: Mapping[str, Any]) -> Iterator[Histogram]:
    """Of whatever was counted at all."""
    if metrics.message_sizes[1]:
        total, sizes = metrics.message_sizes
        text = "Sizes of the bodies of messages received from publishers"
        yield Histogram("rabbitmq_message_size_bytes", text, sizes, total, ["protocol"], ["amqp091"], ".0f")
    if metrics.pause_counts:
        text = "Turns of the event loop: how long a client had to wait for its next look"
        yield Histogram("penstock_loop_pause_seconds", text, metrics.pause_counts, metrics.pause_total)
    if told := known.get("ack_seconds"):
        text = "From the sending of a piece of the log until a follower said that it is on its disk"
        counts = list(zip((*BOUNDS, inf), told["counts"], strict=True))
        yield Histogram("penstock_cluster_ack_seconds", text, counts, told["sum"])


def _families(metrics: Metrics, *, per_object: bool) -> Iterator[Family]:
    yield from WHOLE.families([_whole(metrics)], per_object=False)
    for name, _, text in MESSAGES:
        name = f"rabbitmq_global_messages_{name}"
        yield Family(name, text, ["protocol"], [(["amqp091"], metrics[name])], counter=True)
    yield from _as_older_dashboards_ask(metrics)
    yield from _dead_letters(metrics.dead_lettered)
    if metrics.certificates:
        text = "Time until a certificate ends that this server shows: at its doors, to its cluster, by a link"
        yield _of_each("penstock_tls_certificate_seconds_left", text, "of", metrics.certificates)
    yield _of_each("penstock_memory_bytes", "What server.memory is used for", "account", metrics.memory)
    text = "Holders of memory that were cut while it was short"
    yield _of_each("penstock_memory_gave_way", text, "account", metrics.gave_way, counter=True)
    logins = {door: metrics.logins_refused.get(door, 0) for door in ("amqp", "http", "flight")}
    yield _of_each("penstock_logins_refused", "Logins that were refused", "door", logins, counter=True)
    yield _of_each("penstock_alarms", "1 while this is wrong: what /healthz and events name", "alarm", metrics.alarms)
    yield _of_each("penstock_strangers", "Connections that have not logged in", "door", metrics.strangers)
    text, closed = "Connections closed for what they did before a login", metrics.strangers_closed.items()
    yield Family("penstock_strangers_closed", text, ["door", "reason"], closed, counter=True)
    product = [(["Penstock", metrics.version, RABBITMQ_VERSION, "none"], 1)]
    labels = ["product_name", "product_version", "rabbitmq_version", "erlang_version"]
    yield Family("rabbitmq_build_info", "What runs here", labels, product)
    yield _identity(metrics, "per-object" if per_object else "aggregated")
    for name, text, figure in (
        ("consumers", "Consumers", metrics["rabbitmq_consumers"]),
        ("publishers", "Channels that have published with confirms", metrics["penstock_confirming_channels"]),
    ):
        yield Family(f"rabbitmq_global_{name}", text, ["protocol"], [(["amqp091"], figure)])
    for name, text, kind in (
        ("rabbitmq_queues", "Queues", "queues"),
        ("penstock_views", "Views and conflated topics of the settings", "views"),
        ("penstock_pipelines", "Spark pipelines", "pipelines"),
    ):
        yield Family(name, text, (), [((), len(metrics.of(kind)))])
    for kind, things in KINDS.items():
        yield from things.families(metrics.of(kind), per_object=per_object or kind in NAMED)


def _identity(metrics: Metrics, endpoint: str) -> Family:
    """By which dashboards join the other series.  endpoint: which of the pages this is."""
    node = [([metrics.node, metrics.cluster or metrics.node, endpoint], 1)]
    return Family(
        "rabbitmq_identity_info", "Who runs here", ["rabbitmq_node", "rabbitmq_cluster", "rabbitmq_endpoint"], node
    )


def _of_each(name: str, text: str, label: str, figures: Mapping[str, float], *, counter: bool = False) -> Family:
    return Family(name, text, [label], [([key], value) for key, value in figures.items()], counter=counter)


def _dead_letters(dead: Mapping[str, int]) -> Iterator[Family]:
    counts = [(f"_{reason}", "Messages dead-lettered for this reason", dead.get(reason, 0)) for reason in _DEATHS]
    counts.append(("_confirmed", "Dead letters that are in their targets, for whatever reason", sum(dead.values())))
    for name, text, count in counts:
        values = [(["rabbit_classic_queue", "at_least_once"], count)]
        labels = ("queue_type", "dead_letter_strategy")
        yield Family(f"rabbitmq_global_messages_dead_lettered{name}", text, labels, values, counter=True)


_OF_CHANNELS = (
    ("messages_published", "received"),
    ("messages_confirmed", "confirmed"),
    ("messages_unroutable_dropped", "unroutable_dropped"),
    ("messages_unroutable_returned", "unroutable_returned"),
    ("messages_delivered", "delivered_consume_auto_ack"),
    ("messages_delivered_ack", "delivered_consume_manual_ack"),
    ("messages_redelivered", "redelivered"),
    ("messages_acked", "acknowledged"),
    ("get", "delivered_get_auto_ack"),
    ("get_ack", "delivered_get_manual_ack"),
    ("get_empty", "get_empty"),
)
"""Ends of names that dashboards from before RabbitMQ 3.9 ask for, and of those that came after them."""


_OF_RAFT = (
    (("log_commit_index", "commit_index"), "Last record that is on disk", "penstock_durable_lsn"),
    (("log_last_written_index", "last_written_index"), "Last record given out", "penstock_last_lsn"),
    (("log_snapshot_index", "snapshot_index"), "Last record that the last checkpoint has: a start reads from here on",
     "penstock_checkpoint_lsn"),
    (("entry_commit_latency_seconds", "commit_latency_seconds"), "Time that the last commit to the log took",
     "penstock_log_last_commit_seconds"),
)  # fmt: skip
"""What is asked of the logs of quorum queues, by the names before RabbitMQ 4.2 and since, is said of the one log."""


def _as_older_dashboards_ask(metrics: Metrics) -> Iterator[Family]:
    """Figures by other names: those of channels, and of the one log what is asked of the logs of quorum queues."""
    texts = {name: text for name, _, text in MESSAGES}
    figures = {name: metrics[f"rabbitmq_global_messages_{name}"] for name in texts}
    for older, name in _OF_CHANNELS:
        yield Family(f"rabbitmq_channel_{older}", texts[name], (), [((), figures[name])], counter=True)
    unconfirmed = figures["received_confirm"] - figures["confirmed"] - metrics["penstock_messages_refused"]
    came = QUEUES.total(metrics.of("queues"), "penstock_queue_published")
    yield Family("rabbitmq_queue_messages_published", "Messages that came into queues", (), [((), came)], counter=True)
    for name, text, figure in (
        ("channel_consumers", "Consumers", metrics["rabbitmq_consumers"]),
        ("channel_messages_unconfirmed", "Messages that wait for their confirm", max(unconfirmed, 0)),
        ("process_max_tcp_sockets", "Descriptors that connections may have", metrics["rabbitmq_process_max_fds"]),
        ("process_open_tcp_sockets", "Open connections", metrics["rabbitmq_connections"]),
    ):
        yield Family(f"rabbitmq_{name}", text, (), [((), figure)])
    yield from _of_raft(metrics)


def _of_raft(metrics: Metrics) -> Iterator[Family]:
    for names, text, of in _OF_RAFT:
        yield from (Family(f"rabbitmq_raft_{name}", text, (), [((), metrics[of])]) for name in names)


_COARSE = ("rabbitmq_queue_messages", "rabbitmq_queue_messages_ready", "rabbitmq_queue_messages_unacked")

OF_QUEUES: Mapping[str, Collection[str]] = {
    "queue_coarse_metrics": _COARSE,
    "queue_consumer_count": ("rabbitmq_queue_consumers",),
    "queue_metrics": (
        "rabbitmq_queue_consumers", "rabbitmq_queue_messages_bytes", "rabbitmq_queue_messages_ready_bytes",
    ),
    "queue_delivery_metrics": ("penstock_queue_delivered", "penstock_queue_acked", "penstock_queue_redelivered"),
    "penstock_queue_metrics": tuple(one.name for one in QUEUES.figures if one.name.startswith("penstock_")),
}  # fmt: skip
"""Families of queues: metrics of `/metrics/per-object`."""

OF_ALL: Mapping[str, Collection[str]] = {
    "connection_churn_metrics": (
        "rabbitmq_connections_opened", "rabbitmq_connections_closed", "rabbitmq_channels_opened",
        "rabbitmq_channels_closed", "rabbitmq_queues_declared", "rabbitmq_queues_created", "rabbitmq_queues_deleted",
    ),
    "node_coarse_metrics": (
        "rabbitmq_process_max_fds", "rabbitmq_process_open_fds", "rabbitmq_process_resident_memory_bytes",
        "rabbitmq_disk_space_available_bytes", "rabbitmq_resident_memory_limit_bytes",
    ),
    "node_metrics": (
        "rabbitmq_process_max_fds", "rabbitmq_resident_memory_limit_bytes",
        "rabbitmq_disk_space_available_limit_bytes", "rabbitmq_erlang_uptime_seconds",
    ),
    "connection_metrics": ("rabbitmq_connections",),
    "channel_metrics": ("rabbitmq_channels", "rabbitmq_consumers"),
}  # fmt: skip
"""Families that no vhost has a part of."""

DETAILED = "rabbitmq_detailed_"


class There(NamedTuple):
    """What has a name and is no queue."""

    vhosts: Sequence[str]
    exchanges: Sequence[tuple[str, str, str, int]]  # vhost, name, type, and how many bindings begin there
    membership: Mapping[str, object]  # as in `exposition`


def detailed(metrics: Metrics, families: Sequence[str], vhosts: Collection[str], there: There) -> Iterator[bytes]:
    """The text of the families that are asked for, in pieces; vhosts: none is all."""
    found = _detailed(metrics, families, vhosts, there)
    return pieces(chain(found, [_identity(metrics, "detailed")]))


def _detailed(metrics: Metrics, families: Sequence[str], vhosts: Collection[str], there: There) -> Iterator[Family]:
    """What is asked for, each metric once."""

    def wanted(vhost: str) -> bool:
        return not vhosts or vhost in vhosts

    lines = [line for line in metrics.of("queues") if wanted(line.labels[0])]
    yield from _chosen(QUEUES, lines, families, OF_QUEUES, per_object=True)
    yield from _chosen(WHOLE, [_whole(metrics)], families, OF_ALL, per_object=False)
    if "ra_metrics" in families:
        for one in (*_of_raft(metrics), *_terms(there.membership)):
            yield one._replace(name=DETAILED + one.name.removeprefix("rabbitmq_"))
    for family, look in _OF_THERE.items():
        if family in families:
            yield look(there, wanted)


_Look: TypeAlias = "Callable[[There, Callable[[str], bool]], Family]"

_LABELS = ["vhost", "exchange", "type"]
_OF_THERE: Mapping[str, _Look] = {
    "vhost_status": lambda there, wanted: Family(
        "rabbitmq_cluster_vhost_status", "1 for a vhost that is there", ["vhost"],
        [([one], 1.0) for one in there.vhosts if wanted(one)],
    ),
    "exchange_names": lambda there, wanted: Family(
        "rabbitmq_cluster_exchange_name", "1 for an exchange that is there", _LABELS,
        [(one[:3], 1.0) for one in there.exchanges if wanted(one[0])],
    ),
    "exchange_bindings": lambda there, wanted: Family(
        "rabbitmq_cluster_exchange_bindings", "Bindings that begin at an exchange", _LABELS,
        [(one[:3], float(one[3])) for one in there.exchanges if wanted(one[0])],
    ),
}  # fmt: skip
"""Of what is there: of the vhosts that are wanted, each only where it is asked for."""


def _whole(metrics: Metrics) -> Line:
    """The figures of the server as a whole, as one line."""
    return Line((), [metrics[figure.name] for figure in WHOLE.figures])


def _chosen(
    things: Things, lines: Sequence[Line], families: Sequence[str], known: Mapping[str, Collection[str]], *,
    per_object: bool,
) -> Iterator[Family]:  # fmt: skip
    wanted = {name for family in families for name in known.get(family, ())}
    if wanted:
        for one in things.families(lines, per_object=per_object):
            if one.name in wanted:
                yield one._replace(name=DETAILED + one.name.removeprefix("rabbitmq_").removeprefix("penstock_"))


ANOTHER_TERM = 1 << 32
"""Between LSNs of two terms there are more than these: such a difference counts no records."""


def _of_links(links: Sequence[Mapping[str, Any]]) -> Iterator[Family]:
    """Of the links to other sites and from them; none of a server without any."""
    for name, text, counter in (
        ("up", "1 while the other site hears, or tells", False),
        ("paused", "1 while an operator has it wait", False),
        ("refused", "1 while the two sites do not agree", False),
        ("awaited", "1 while queues here wait for what the other site has to tell after a start", False),
        ("state_seconds", "For how long it is up, down, refused or paused", False),
        ("downgraded", "1 while confirms do not wait for a synchronous link", False),
        ("lag_seconds", "Age of the oldest that the other site does not have", False),
        ("messages", "Messages that went over it", True),
        ("bytes", "Bytes of them", True),
        ("asks", "Asks for messages that another site owns", True),
    ):
        if links:
            values = [([one["link"], one["direction"]], float(one[name])) for one in links]
            yield Family(f"penstock_link_{name}", text, ["link", "direction"], values, counter=counter)


def _terms(known: Mapping[str, Any]) -> Iterator[Family]:
    """As RabbitMQ's dashboards ask for the elections of a cluster; 0 without one."""
    for counter in (False, True):  # by the name since RabbitMQ 4.2 and before
        text = "Number of the present leader's time"
        yield Family("rabbitmq_raft_term", text, (), [((), known.get("term", 0))], counter=counter)


def _of_cluster(known: Mapping[str, Any]) -> Iterator[Family]:
    """All of them; none of a server that is in no cluster."""
    if not known:
        return
    roles = [([role.value], known["role"] == role.value) for role in Role if role is not Role.ENDED]
    yield Family("penstock_cluster_role", "What this member is: 1 for its role", ["role"], roles)
    counts = [
        ("term", "Number of the present leader's time; it grows with each takeover", known.get("term", 0)),
        ("members", "Members that the register lists", len(known.get("members", ()))),
        ("in_sync", "Members that hold everything that was confirmed", len(known.get("in_sync", ()))),
        ("min_in_sync", "With fewer in sync nothing is confirmed", known.get("min_in_sync", 0)),
        ("counts", "1: this member is in sync", known.get("member") in known.get("in_sync", ())),
        ("lsn", "Of the last record that this member has", known.get("lsn", 0)),
        ("committed_lsn", "Up to here all members in sync have the log on their disks", known.get("committed_lsn", 0)),
        ("trouble", "1: this member cannot take part, or could not the last time", bool(known.get("trouble"))),
    ]
    if "lease_left_seconds" in known:
        text = "How long the leader may go on without another word of the register or of its followers"
        counts.append(("lease_left_seconds", text, known["lease_left_seconds"]))
    if "waited_for" in known:
        text = "Members in sync that do not answer, and that confirms wait for"
        counts.append(("waited_for", text, len(known["waited_for"])))
    if "sent_bytes" in known:
        text = "Bytes of the log that this leader has sent to followers"
        yield Family("penstock_cluster_sent_bytes", text, (), [((), known["sent_bytes"])], counter=True)
    if known.get("term"):
        text = "Times that somebody began to lead, the first one and those who led before among them"
        yield Family("penstock_cluster_takeovers", text, (), [((), known["term"])], counter=True)
    if "cut_records" in known:
        text = "Records that were cut off this member's log, and kept in cut/, since another leader's goes on without"
        yield Family("penstock_cluster_cut_records", text, (), [((), known["cut_records"])], counter=True)
    if "connected" in known:
        counts.append(("connected", "1: this follower's stream from the leader is there", known["connected"]))
    if "clock_ahead_seconds" in known:
        text = "By how much this follower's clock is ahead of the leader's; negative: behind"
        counts.append(("clock_ahead_seconds", text, known["clock_ahead_seconds"]))
    if known.get("manual"):
        text = "1: two lead, as far as this member has heard, and a person is to say which is set aside"
        counts.append(("two_leaders", text, known.get("rival") is not None))
        claims = [([name], term) for name, term in known.get("claims", ())]
        text = "Of each member that leads, as this one has heard: its term"
        yield Family("penstock_cluster_claimed_term", text, ["member"], claims)
    for name, text, value in counts:
        yield Family(f"penstock_cluster_{name}", text, (), [((), value)])
    yield from _of_followers(known)


def _of_followers(known: Mapping[str, Any]) -> Iterator[Family]:
    """What the leader knows of each, and a follower of itself."""
    lags, records, silences, behind_for = list[Any](), list[Any](), list[Any](), list[Any]()
    names = {key: one["name"] for key, one in known.get("members", {}).items()}
    for key, one in known.get("followers", {}).items():
        label = [names.get(key, key)]
        lags.append((label, one["lag_bytes"]))
        silences.append((label, one["silent_seconds"]))
        if one.get("lag_seconds") is not None:
            behind_for.append((label, one["lag_seconds"]))
        if (behind := known["lsn"] - one["acked_lsn"]) < ANOTHER_TERM:
            records.append((label, max(0, behind)))
    if 0 <= (behind := known.get("leader_lsn", -1) - known.get("lsn", 0)) < ANOTHER_TERM:
        records.append(([known["name"]], behind))
    text = "Bytes that the leader has sent to a follower and that are not on its disk yet"
    for name, what, values in (
        ("lag_bytes", text, lags),
        ("lag_records", "LSNs by which a follower's disk is behind the leader", records),
        ("ack_age_seconds", "Since a follower last said something", silences),
        ("lag_seconds", "Since a follower's disk last had all that there was", behind_for),
    ):
        found: Values = values
        if found:
            yield Family(f"penstock_cluster_{name}", what, ["member"], found)
