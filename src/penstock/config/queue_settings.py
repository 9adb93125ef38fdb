"""The settings of a queue as a table: each key with its type, range and sentence.

From this one table come the reading of AMQP arguments (`x-lease-period = 30000`), of the settings file
(`lease_period = "30s"`), of Python calls (`lease_period=30`), the nearest-name hints and the reference page.
How a value is read is in `queue_values`, which ones exclude each other in `exclusions`; what a queue does with them is
the core's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
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


def _duration(low: int = 0, *, rabbitmq: bool = False) -> QueueKey:
    return QueueKey(Kind.DURATION, low=low, high=TEN_YEARS_US, rabbitmq=rabbitmq)


def _choice(*choices: str) -> QueueKey:
    return QueueKey(Kind.CHOICE, choices=choices)


class Keys:
    """Each setting that has an effect in this version, in the order of `records.queue_settings.QueueSettings`.

    Below each stands what `docs/settings.md` says of it: a sentence, what a crash and the start after it do to what it
    counts, holds back or orders, and what stands in the way of a change while the server runs.
    """

    underlying_topic = QueueKey(Kind.TEXT)
    r"""The topic this queue shows; a pattern when it holds one of ^ $ * + ? ( ) [ ] { } | \.  Without it: the queue's
    own name, literally."""
    exchange = QueueKey(Kind.TEXT, high=NAME_MOST)
    """The exchange whose keys `underlying_topic` matches; empty: the default one.  It may be declared later."""
    default_publish_target = QueueKey(Kind.TEXT, high=NAME_MOST)
    """Where a publish to the queue's own name goes when it shows another topic."""
    filter = QueueKey(Kind.TEXT)
    """An expression: only matching messages enter the queue.

    Change: for what comes from then on.
    """
    semantics = _choice(*get_args(Semantics))
    """Whether a message comes back until it is acknowledged, or is removed before it is sent.

    Crash: At-least-once: what was delivered and not acknowledged is ready again, as redelivered. At-most-once: what
    was sent is gone; what was granted and not sent is gone or there, never sent twice.
    """
    lease_period = _duration()
    """How long a consumer may hold a message; 0 means until it settles or disconnects.

    Crash: Leases end with the server: what was leased is ready again, at its own place, as redelivered.
    """
    leasing = _choice(*get_args(Leasing))
    """Whether others than the holder may settle a leased message."""
    max_backlog = QueueKey(Kind.COUNT)
    """Messages leased at once, whole queue; 0 means no limit."""
    max_per_subscription_backlog = QueueKey(Kind.COUNT)
    """Messages leased at once to one consumer; 0 means no limit."""
    fairness_model = _choice(*get_args(FairnessModel))
    """Which consumer with room gets the next message.  at-most-once allows round-robin only."""
    max_deliveries = QueueKey(Kind.COUNT)
    """Deliveries in all before a message is expired; 0 means no limit.

    Crash: Deliveries are counted in the log: as before, or short by those of the last `log.ack_sync`.
    """
    max_cancels = QueueKey(Kind.COUNT)
    """The n-th cancel expires a message; 0 means no limit.

    Crash: Counted in the log, as deliveries are.
    """
    delivery_limit = QueueKey(Kind.COUNT, low=-1, rabbitmq=True)
    """Returns allowed, so one delivery more than that; -1 means no limit.

    Crash: Counted in the log, as deliveries are.
    """
    retry = QueueKey(Kind.RETRY)
    """Back-off of failed messages: initial, factor, max, jitter, attempts.  Survives a crash.

    Crash: What waits for its back-off waits until the same time; a delay that was not yet on disk is lost, and its
    message is ready.
    """
    expiration = _duration()
    """How long a message may wait in the queue.

    Crash: Deadlines stay what they were, and pass while the server is down too.

    Change: for what comes from then on.
    """
    expiration_model = _choice(*get_args(ExpirationModel))
    """How the queue's expiration and the message's own combine."""
    message_ttl = _duration(rabbitmq=True)
    """The same under RabbitMQ's name; the smaller of the two rules.

    Crash: As `expiration`.

    Change: for what comes from then on.
    """
    dead_letter_exchange = QueueKey(Kind.TEXT, rabbitmq=True, high=NAME_MOST)
    """Where expired and rejected messages go.

    Crash: A message is in its queue or a dead letter: never both, never neither.
    """
    dead_letter_routing_key = QueueKey(Kind.TEXT, rabbitmq=True, high=NAME_MOST)
    """Their routing key; without it they keep their own.  Needs dead_letter_exchange."""
    expiry_address = QueueKey(Kind.TEXT, high=NAME_MOST)
    """Where expired messages go instead, a key of the default exchange; empty: nowhere, and rejected ones still go to
    dead_letter_exchange."""
    deliver = _choice(*get_args(Deliver))
    """Whether a lease may go out before the message is on disk.  at-most-once is always durable, and so is what is read
    and not leased, of a stream or with non_destructive.

    Crash: `early`: a message may have been delivered whose publisher was never told that it arrived; it is there, as
    redelivered, or absent.
    """
    deferred_ack_expiration = _duration()
    """How long an ack of a message that is not in the queue and may still come is remembered; 0: not at all.

    Crash: An ack that was answered takes effect when its message comes.
    """
    barrier_expression = QueueKey(Kind.TEXT)
    """An expression: a matching message waits until all before it are acknowledged, holds back all after it, then goes
    to every subscription at once and needs no acknowledgement.

    Crash: What waits as a barrier or behind one is there in the same order. A barrier that was sent less than
    `log.ack_sync` ago may go again.

    Change: for what comes from then on.
    """
    barrier_without_subscribers = _choice(*get_args(WithoutSubscribers))
    """What a barrier does that could go while nobody subscribes: wait for somebody, or go unseen."""
    priority_expression = QueueKey(Kind.TEXT)
    """An expression whose value, an unsigned whole number, says how soon a message is served: higher first, older first
    on ties; NULL, negative and no number last.  Worked out once, as the message enters.

    Crash: All are at the same place; values that no checkpoint knows are worked out again first.

    Change: all that waits is put in its new order, and nothing is delivered before that is done.
    """
    max_priority = QueueKey(Kind.COUNT, high=255, rabbitmq=True)
    """Levels of the property `priority`: higher is served first, older first within one; what is above counts as this,
    what has none as 0.  0: the property orders nothing.

    Crash: All are at the same place.
    """
    priority_ageing = _duration()
    """How much longer a message must have waited than another to make up for one level of priority; 0: it never
    does.  Needs max_priority."""
    target_queue_depth = QueueKey(Kind.COUNT, low=1000)
    """Active messages: what arrives beyond them is not delivered, queried or filtered until others are done.

    Crash: All are there; which are active is drawn anew, the oldest first.

    Change: a larger depth holds at once; a smaller one takes nothing back.
    """
    group_key = QueueKey(Kind.TEXT)
    """An expression: of the messages with one key one is leased at a time, the oldest; a key in use is skipped and not
    waited for.  NULL is no key.

    Crash: Keys are worked out again, oldest message first.
    """
    fairness_key = QueueKey(Kind.TEXT)
    """An expression whose values are tenants: those with something to deliver take turns, by their weights.

    Crash: Keys are worked out again; the turns begin anew.
    """
    weights = QueueKey(Kind.WEIGHTS)
    """Messages that a tenant may have in a round, by its key; others have 1."""
    max_leased = QueueKey(Kind.LEASED)
    """Messages leased at once: of the queue, or { queue, key } with key for each tenant; 0 means no limit."""
    rate_limit = QueueKey(Kind.RATE)
    """Messages delivered in a time, as '100/s': of the whole queue, or { queue, key } with key for each tenant.

    Crash: The bucket is full again.
    """
    dedup_key = QueueKey(Kind.TEXT)
    """An expression, such as /id or /@headers/id: a message with a key that the queue knows is confirmed and does not
    enter; NULL is no key.  Needs dedup_window or unique.

    Crash: A key of what was confirmed is known; of what was not, it is if the message is there.

    Change: beside `unique` only while the queue is empty; else a new window begins.
    """
    dedup_window = _duration()
    """How long the queue knows the key of what it took, by dedup_key or the header x-dedup-key, over restarts too; 0:
    no window.

    Crash: The window goes on, by the times in the log.
    """
    unique = QueueKey(Kind.FLAG)
    """Whether a message stays out while one with its key is in the queue, waiting or delivered.

    Crash: Holds: the keys of what is there are known.

    Change: only while the queue is empty.
    """
    file_backed_metadata = QueueKey(Kind.FILE)
    """Whether what the queue keeps of each message may leave memory for a file: true, or in the settings file the path
    of a file of its own.  The file saves memory and is made anew at each start.

    Crash: As without it: the file is scratch, and a start does not read it.
    """
    recovery_point = QueueKey(Kind.TEXT)
    """From where a new queue takes what the log still has of its topics: epoch, now, creation (as now), a bookmark or a
    timestamp such as 20260131T235959Z.

    Crash: A pass over the log goes on from its last durable step: no message twice, none left out.

    Change: a later point takes out of the queue what comes before it, waiting or leased.
    """
    single_active_consumer = QueueKey(Kind.FLAG, rabbitmq=True)
    """Whether one consumer gets everything, and the next in order of arrival takes over when it goes.

    Crash: The first to come after the start is the active one.
    """
    max_consumers = QueueKey(Kind.COUNT, low=-1)
    """Consumers at once; -1 means no limit."""
    consumers_before_dispatch = QueueKey(Kind.COUNT)
    """Consumers that must be there before the first of them gets anything, anew when all have left.

    Crash: The start has no consumers: it waits for so many anew.
    """
    delay_before_dispatch = _duration()
    """How long after the first consumer it begins without the others.  Needs consumers_before_dispatch."""
    purge_on_no_consumers = QueueKey(Kind.FLAG)
    """Whether what is ready is removed when the last consumer goes, and what comes while there is none.

    Crash: The start has no consumers: what is ready is removed.
    """
    non_destructive = QueueKey(Kind.FLAG)
    """Whether consumers read it as browsers do: each sees all there is and all that comes, and acknowledging removes
    nothing.  Bound it by a ring, a last value or an expiry.

    Crash: Messages stay; consumers read from the head again.

    Change: not while messages are out for delivery.
    """
    last_value_key = QueueKey(Kind.TEXT)
    """An expression, such as /id or /@headers/symbol: a message replaces the waiting one with the same value, and
    stands at the end; without a value it replaces none.

    Crash: Holds: each key is in the log beside its message.

    Change: only while the queue is empty.
    """
    queue_expires = _duration(1000, rabbitmq=True)
    """The queue is deleted when for so long nobody consumed, got or declared; also known as `expires`.

    Crash: The time begins anew with the start.
    """
    consumer_timeout = _duration(rabbitmq=True)
    """How long a delivery may stay unsettled: then it goes back, and an AMQP client's channel is closed; 0: any
    time.

    Crash: What was out is ready again, as redelivered.
    """
    queue_type = _choice(*QUEUE_TYPES)
    """RabbitMQ's type.  `quorum`: durable, each message outlives the server whatever its delivery mode,
    `delivery_limit` is 20 where none is given, and what comes back tells how often in `x-delivery-count`.  `stream`:
    durable, nobody takes from it, and each consumer reads from a place of its own.

    Crash: `quorum` and `stream`: messages that were published as transient are kept too.
    """
    message_type = QueueKey(Kind.BODIES, choices=(*MESSAGE_TYPES, *SCHEMA_TYPES))
    """What its filters, priorities and keys read bodies as ([message types](message-types.md)); the topic that it shows
    has the same."""
    kind = _choice(*get_args(Sharing))
    """Which sites share the queue, where a `[[link]]` leads to others; without links this owns all messages."""
    initial_owner = QueueKey(Kind.TEXT)
    """The instance that owns the messages of a group-local queue at first; it needs one, others have none."""
    group_local_queue_domain = QueueKey(Kind.TEXT)
    """What a group-local queue is known by beside its name; without it the group of the instance."""
    max_length = QueueKey(Kind.COUNT, high=LIMIT_MOST, rabbitmq=True)
    """Ready messages at most; leased and delayed ones do not count.  `overflow` says what gives way.

    Crash: The start applies it to what it finds: what was leased is ready again and may push the oldest out. With a
    mode that refuses, nothing is trimmed.

    Change: a smaller limit trims at once where `overflow` drops.
    """
    max_length_bytes = QueueKey(Kind.SIZE, high=LIMIT_MOST, rabbitmq=True)
    """Bytes of the bodies of ready messages at most; of two limits the one that is hit first holds.

    Crash: As `max_length`.
    """
    overflow = _choice(*MODES)
    """What gives way at a limit: {victims}.

    Crash: What was refused, and answered so, is not there. What `block` held up is stored or nowhere; its publisher
    was told nothing.
    """
    ring_size = QueueKey(Kind.COUNT, low=-1)
    """Ready messages of a ring: an arrival beyond them replaces the oldest, and what comes back to a full ring is
    replaced itself; -1 means no ring.

    Crash: The start removes nothing: what was leased is ready again, and the next arrivals replace one each.

    Change: a smaller ring removes nothing by itself.
    """


QUEUE_KEYS: Mapping[str, QueueKey] = {
    name: replace(key, name=name) for name, key in vars(Keys).items() if isinstance(key, QueueKey)
}
"""The same by name."""

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
