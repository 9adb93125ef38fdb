"""The settings of a queue as a table: one row a key, with its type, range, default and sentence.

From this one table come the reading of AMQP arguments (`x-lease-period = 30000`), of the settings file
(`lease_period = "30s"`), of Python calls (`lease_period=30`), the nearest-name hints and the reference page.
How a value is read is in `queue_values`, which ones exclude each other in `exclusions`; what a queue does with them is
the core's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import cast, get_args

from penstock.config.exclusions import refuse_impossible
from penstock.config.queue_values import LIMIT_MOST, NAME_MOST, TEN_YEARS_US, Kind, QueueKey, Style, read_value
from penstock.records.declared_types import QUEUE_TYPES
from penstock.records.message_types import MESSAGE_TYPES, SCHEMA_TYPES
from penstock.records.queue_settings import (
    MODES,
    Deliver,
    ExpirationModel,
    FairnessModel,
    Leasing,
    QueueSettings,
    Semantics,
    Sharing,
    WithoutSubscribers,
    following,
    plain_point,
)

_VICTIMS = [mode.victim for mode in MODES.values()]


def _duration(
    name: str, sentence: str, low: int = 0, *, rabbitmq: bool = False, crash: str = "", change: str = ""
) -> QueueKey:
    return QueueKey(
        name, Kind.DURATION, sentence, low=low, high=TEN_YEARS_US, rabbitmq=rabbitmq, crash=crash, change=change
    )


def _choice(name: str, sentence: str, *choices: str, crash: str = "") -> QueueKey:
    return QueueKey(name, Kind.CHOICE, sentence, choices=choices, crash=crash)


QUEUE_KEYS: Mapping[str, QueueKey] = {
    key.name: key
    for key in (
        QueueKey(
            "underlying_topic",
            Kind.TEXT,
            "The topic this queue shows; a pattern when it holds one of ^ $ * + ? ( ) [ ] { } | \\.  "
            "Without it: the queue's own name, literally.",
        ),
        QueueKey(
            "exchange",
            Kind.TEXT,
            "The exchange whose keys `underlying_topic` matches; empty: the default one.  It may be declared later.",
            high=NAME_MOST,
        ),
        QueueKey(
            "default_publish_target",
            Kind.TEXT,
            "Where a publish to the queue's own name goes when it shows another topic.",
            high=NAME_MOST,
        ),
        QueueKey(
            "filter",
            Kind.TEXT,
            "An expression: only matching messages enter the queue.",
            change="for what comes from then on.",
        ),
        _choice(
            "semantics",
            "Whether a message comes back until it is acknowledged, or is removed before it is sent.",
            *get_args(Semantics),
            crash=(
                "At-least-once: what was delivered and not acknowledged is ready again, as redelivered. At-most-once: "
                "what was sent is gone; what was granted and not sent is gone or there, never sent twice."
            ),
        ),
        _duration(
            "lease_period",
            "How long a consumer may hold a message; 0 means until it settles or disconnects.",
            crash="Leases end with the server: what was leased is ready again, at its own place, as redelivered.",
        ),
        _choice("leasing", "Whether others than the holder may settle a leased message.", *get_args(Leasing)),
        QueueKey("max_backlog", Kind.COUNT, "Messages leased at once, whole queue; 0 means no limit."),
        QueueKey(
            "max_per_subscription_backlog", Kind.COUNT, "Messages leased at once to one consumer; 0 means no limit."
        ),
        _choice(
            "fairness_model",
            "Which consumer with room gets the next message.  at-most-once allows round-robin only.",
            *get_args(FairnessModel),
        ),
        QueueKey(
            "max_deliveries",
            Kind.COUNT,
            "Deliveries in all before a message is expired; 0 means no limit.",
            crash="Deliveries are counted in the log: as before, or short by those of the last `log.ack_sync`.",
        ),
        QueueKey(
            "max_cancels",
            Kind.COUNT,
            "The n-th cancel expires a message; 0 means no limit.",
            crash="Counted in the log, as deliveries are.",
        ),
        QueueKey(
            "delivery_limit",
            Kind.COUNT,
            "Returns allowed, so one delivery more than that; -1 means no limit.",
            low=-1,
            rabbitmq=True,
            crash="Counted in the log, as deliveries are.",
        ),
        QueueKey(
            "retry",
            Kind.RETRY,
            "Back-off of failed messages: initial, factor, max, jitter, attempts.  Survives a crash.",
            crash=(
                "What waits for its back-off waits until the same time; a delay that was not yet on disk is lost, and "
                "its message is ready."
            ),
        ),
        _duration(
            "expiration",
            "How long a message may wait in the queue.",
            crash="Deadlines stay what they were, and pass while the server is down too.",
            change="for what comes from then on.",
        ),
        _choice(
            "expiration_model",
            "How the queue's expiration and the message's own combine.",
            *get_args(ExpirationModel),
        ),
        _duration(
            "message_ttl",
            "The same under RabbitMQ's name; the smaller of the two rules.",
            rabbitmq=True,
            crash="As `expiration`.",
            change="for what comes from then on.",
        ),
        QueueKey(
            "dead_letter_exchange",
            Kind.TEXT,
            "Where expired and rejected messages go.",
            rabbitmq=True,
            crash="A message is in its queue or a dead letter: never both, never neither.",
            high=NAME_MOST,
        ),
        QueueKey(
            "dead_letter_routing_key",
            Kind.TEXT,
            "Their routing key; without it they keep their own.  Needs dead_letter_exchange.",
            rabbitmq=True,
            high=NAME_MOST,
        ),
        QueueKey(
            "expiry_address",
            Kind.TEXT,
            "Where expired messages go instead, a key of the default exchange; empty: nowhere, and rejected ones still "
            "go to dead_letter_exchange.",
            high=NAME_MOST,
        ),
        _choice(
            "deliver",
            "Whether a lease may go out before the message is on disk.  at-most-once is always durable, and so is what "
            "is read and not leased, of a stream or with non_destructive.",
            *get_args(Deliver),
            crash=(
                "`early`: a message may have been delivered whose publisher was never told that it arrived; it is "
                "there, as redelivered, or absent."
            ),
        ),
        _duration(
            "deferred_ack_expiration",
            "How long an ack of a message that is not in the queue and may still come is remembered; 0: not at all.",
            crash="An ack that was answered takes effect when its message comes.",
        ),
        QueueKey(
            "barrier_expression",
            Kind.TEXT,
            "An expression: a matching message waits until all before it are acknowledged, holds back all after it, "
            "then goes to every subscription at once and needs no acknowledgement.",
            crash=(
                "What waits as a barrier or behind one is there in the same order. A barrier that was sent less than "
                "`log.ack_sync` ago may go again."
            ),
            change="for what comes from then on.",
        ),
        _choice(
            "barrier_without_subscribers",
            "What a barrier does that could go while nobody subscribes: wait for somebody, or go unseen.",
            *get_args(WithoutSubscribers),
        ),
        QueueKey(
            "priority_expression",
            Kind.TEXT,
            "An expression whose value, an unsigned whole number, says how soon a message is served: higher first, "
            "older first on ties; NULL, negative and no number last.  Worked out once, as the message enters.",
            crash="All are at the same place; values that no checkpoint knows are worked out again first.",
            change="all that waits is put in its new order, and nothing is delivered before that is done.",
        ),
        QueueKey(
            "max_priority",
            Kind.COUNT,
            "Levels of the property `priority`: higher is served first, older first within one; what is above counts "
            "as this, what has none as 0.  0: the property orders nothing.",
            high=255,
            rabbitmq=True,
            crash="All are at the same place.",
        ),
        _duration(
            "priority_ageing",
            "How much longer a message must have waited than another to make up for one level of priority; 0: it "
            "never does.  Needs max_priority.",
        ),
        QueueKey(
            "target_queue_depth",
            Kind.COUNT,
            "Active messages: what arrives beyond them is not delivered, queried or filtered until others are done.",
            low=1000,
            crash="All are there; which are active is drawn anew, the oldest first.",
            change="a larger depth holds at once; a smaller one takes nothing back.",
        ),
        QueueKey(
            "group_key",
            Kind.TEXT,
            "An expression: of the messages with one key one is leased at a time, the oldest; a key in use is skipped "
            "and not waited for.  NULL is no key.",
            crash="Keys are worked out again, oldest message first.",
        ),
        QueueKey(
            "fairness_key",
            Kind.TEXT,
            "An expression whose values are tenants: those with something to deliver take turns, by their weights.",
            crash="Keys are worked out again; the turns begin anew.",
        ),
        QueueKey("weights", Kind.WEIGHTS, "Messages that a tenant may have in a round, by its key; others have 1."),
        QueueKey(
            "max_leased",
            Kind.LEASED,
            "Messages leased at once: of the queue, or { queue, key } with key for each tenant; 0 means no limit.",
        ),
        QueueKey(
            "rate_limit",
            Kind.RATE,
            "Messages delivered in a time, as '100/s': of the whole queue, or { queue, key } with key for each tenant.",
            crash="The bucket is full again.",
        ),
        QueueKey(
            "dedup_key",
            Kind.TEXT,
            "An expression, such as /id or /@headers/id: a message with a key that the queue knows is confirmed and "
            "does not enter; NULL is no key.  Needs dedup_window or unique.",
            crash="A key of what was confirmed is known; of what was not, it is if the message is there.",
            change="beside `unique` only while the queue is empty; else a new window begins.",
        ),
        _duration(
            "dedup_window",
            "How long the queue knows the key of what it took, by dedup_key or the header x-dedup-key, over restarts "
            "too; 0: no window.",
            crash="The window goes on, by the times in the log.",
        ),
        QueueKey(
            "unique",
            Kind.FLAG,
            "Whether a message stays out while one with its key is in the queue, waiting or delivered.",
            crash="Holds: the keys of what is there are known.",
            change="only while the queue is empty.",
        ),
        QueueKey(
            "file_backed_metadata",
            Kind.FILE,
            "Whether what the queue keeps of each message may leave memory for a file: true, or in the settings file "
            "the path of a file of its own.  The file saves memory and is made anew at each start.",
            crash="As without it: the file is scratch, and a start does not read it.",
        ),
        QueueKey(
            "recovery_point",
            Kind.TEXT,
            "From where a new queue takes what the log still has of its topics: epoch, now, creation (as now), "
            "a bookmark or a timestamp such as 20260131T235959Z.",
            crash="A pass over the log goes on from its last durable step: no message twice, none left out.",
            change="a later point takes out of the queue what comes before it, waiting or leased.",
        ),
        QueueKey(
            "single_active_consumer",
            Kind.FLAG,
            "Whether one consumer gets everything, and the next in order of arrival takes over when it goes.",
            rabbitmq=True,
            crash="The first to come after the start is the active one.",
        ),
        QueueKey("max_consumers", Kind.COUNT, "Consumers at once; -1 means no limit.", low=-1),
        QueueKey(
            "consumers_before_dispatch",
            Kind.COUNT,
            "Consumers that must be there before the first of them gets anything, anew when all have left.",
            crash="The start has no consumers: it waits for so many anew.",
        ),
        _duration(
            "delay_before_dispatch",
            "How long after the first consumer it begins without the others.  Needs consumers_before_dispatch.",
        ),
        QueueKey(
            "purge_on_no_consumers",
            Kind.FLAG,
            "Whether what is ready is removed when the last consumer goes, and what comes while there is none.",
            crash="The start has no consumers: what is ready is removed.",
        ),
        QueueKey(
            "non_destructive",
            Kind.FLAG,
            "Whether consumers read it as browsers do: each sees all there is and all that comes, and acknowledging "
            "removes nothing.  Bound it by a ring, a last value or an expiry.",
            crash="Messages stay; consumers read from the head again.",
            change="not while messages are out for delivery.",
        ),
        QueueKey(
            "last_value_key",
            Kind.TEXT,
            "An expression, such as /id or /@headers/symbol: a message replaces the waiting one with the same value, "
            "and stands at the end; without a value it replaces none.",
            crash="Holds: each key is in the log beside its message.",
            change="only while the queue is empty.",
        ),
        _duration(
            "queue_expires",
            "The queue is deleted when for so long nobody consumed, got or declared; also known as `expires`.",
            1000,
            rabbitmq=True,
            crash="The time begins anew with the start.",
        ),
        _duration(
            "consumer_timeout",
            "How long a delivery may stay unsettled: then it goes back, and an AMQP client's channel is closed; 0: any "
            "time.",
            rabbitmq=True,
            crash="What was out is ready again, as redelivered.",
        ),
        _choice(
            "queue_type",
            "RabbitMQ's type.  `quorum`: durable, each message outlives the server whatever its delivery mode, "
            "`delivery_limit` is 20 where none is given, and what comes back tells how often in `x-delivery-count`.  "
            "`stream`: durable, nobody takes from it, and each consumer reads from a place of its own.",
            *QUEUE_TYPES,
            crash="`quorum` and `stream`: messages that were published as transient are kept too.",
        ),
        QueueKey(
            "message_type",
            Kind.BODIES,
            "What its filters, priorities and keys read bodies as ([message types](message-types.md)); the topic that "
            "it shows has the same.",
            choices=(*MESSAGE_TYPES, *SCHEMA_TYPES),
        ),
        _choice(
            "kind",
            "Which sites share the queue, where a `[[link]]` leads to others; without links this owns all messages.",
            *get_args(Sharing),
        ),
        QueueKey(
            "initial_owner",
            Kind.TEXT,
            "The instance that owns the messages of a group-local queue at first; it needs one, others have none.",
        ),
        QueueKey(
            "group_local_queue_domain",
            Kind.TEXT,
            "What a group-local queue is known by beside its name; without it the group of the instance.",
        ),
        QueueKey(
            "max_length",
            Kind.COUNT,
            "Ready messages at most; leased and delayed ones do not count.  `overflow` says what gives way.",
            high=LIMIT_MOST,
            rabbitmq=True,
            crash=(
                "The start applies it to what it finds: what was leased is ready again and may push the oldest out. "
                "With a mode that refuses, nothing is trimmed."
            ),
            change="a smaller limit trims at once where `overflow` drops.",
        ),
        QueueKey(
            "max_length_bytes",
            Kind.SIZE,
            "Bytes of the bodies of ready messages at most; of two limits the one that is hit first holds.",
            high=LIMIT_MOST,
            rabbitmq=True,
            crash="As `max_length`.",
        ),
        _choice(
            "overflow",
            f"What gives way at a limit: {', '.join(_VICTIMS[:-1])}, or {_VICTIMS[-1]}.",
            *MODES,
            crash=(
                "What was refused, and answered so, is not there. What `block` held up is stored or nowhere; its "
                "publisher was told nothing."
            ),
        ),
        QueueKey(
            "ring_size",
            Kind.COUNT,
            "Ready messages of a ring: an arrival beyond them replaces the oldest, and what comes back to a full ring "
            "is replaced itself; -1 means no ring.",
            low=-1,
            crash="The start removes nothing: what was leased is ready again, and the next arrivals replace one each.",
            change="a smaller ring removes nothing by itself.",
        ),
    )
}
"""Every setting that has an effect in this version, in the order of `records.queue_settings.QueueSettings`."""

FILTERS = ("filter", "barrier_expression")
"""Those of which an empty text means none, as of the filter of a consumer; other expressions are refused."""

KEY_ALIASES: Mapping[str, str] = {"expires": "queue_expires"}
"""Other names of settings, in the file, in Python and (in kebab case) as AMQP arguments."""


def read_queue_settings(
    values: Mapping[str, object],
    style: Style,
    spell: Callable[[str], str] = str,
    base: QueueSettings | None = None,
    given: frozenset[str] = frozenset(),
) -> QueueSettings:
    """Settings from known keys in snake case.

    `values` holds keys of `QUEUE_KEYS` alone; `spell` says how the writer names a key, for the messages; `base` gives
    what is not named, of which somebody has said what `given` names.  Durations are read as `style` says.  Raises
    BadValue.
    """
    read: dict[str, object] = {}
    for name, value in values.items():
        told = read_value(QUEUE_KEYS[name], value, style, spell(name))
        read[name] = None if told == "" and name in FILTERS else told
        if name == "recovery_point" and isinstance(told, str):
            read[name] = plain_point(told)
    if base is None:
        read = {**QUEUE_TYPES[str(read.get("queue_type", "classic"))].rests, **read}
        settings = _settings(read)
    else:
        kept: dict[str, object] = {field.name: getattr(base, field.name) for field in fields(QueueSettings)}
        settings = _settings(kept | read)
    said = {name for name, value in values.items() if value is not None}
    settings = following(base or QueueSettings(), settings, said | (given - values.keys()))
    refuse_impossible(settings, spell)
    return settings


def _settings(read: Mapping[str, object]) -> QueueSettings:
    """The one place where values of checked type meet the typed record."""
    return QueueSettings(**cast("dict[str, object]", dict(read)))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - each value was read by the row of its own key
