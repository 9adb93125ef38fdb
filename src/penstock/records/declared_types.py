"""Types that a declare names: of exchanges their names, of queues what `x-queue-type` asks for, as a table.

A type of queue is what an application's declare says of it, and no policy changes it.  All types are kept in the same
way; a type says what is promised beside that, which settings a queue has that names none, and what its clients are
refused, so that programs written for RabbitMQ's types find what they rely on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal, get_args

from penstock.records.dataclass import dataclass

ExchangeType = Literal[
    "direct",
    "fanout",
    "topic",
    "headers",
    "x-consistent-hash",
    "x-modulus-hash",
    "x-super-stream",
    "x-random",
    "x-recent-history",
    "x-message-deduplication",
    "x-delayed-message",
]
"""How each routes: `core.topology.exchange_types`."""

EXCHANGE_TYPES: tuple[ExchangeType, ...] = get_args(ExchangeType)

TypeName = Literal["classic", "quorum", "stream"]

Operation = Literal[
    "basic.get", "queue.purge", "single get", "global qos", "no prefetch", "no ack", "if-unused", "if-empty"
]
"""What clients of not every type may do.  A single get: of a queue of which one consumer gets all."""


@dataclass(frozen=True, slots=True)
class QueueType:
    """One type.  `policies` is the word of `apply-to` for policies that are for this type alone."""

    name: TypeName
    policies: Literal["classic_queues", "quorum_queues", "streams"]
    persists: bool = False  # what enters outlives the server, whatever delivery mode it was published with
    counts: bool = False  # what comes back tells how often it was delivered before, in the header x-delivery-count
    offsets: bool = False  # each delivery tells its place in the header x-stream-offset, and a consumer may name one
    levels: bool = False  # a message of a high priority goes before others, two for each of them
    lasting: bool = False  # such a queue is durable, not exclusive, not auto-delete, and its name is the client's
    rests: Mapping[str, object] = field(default_factory=dict[str, object])  # settings of who says none
    idle: frozenset[str] = frozenset()  # arguments that ask for nothing that is not done anyway
    refused: frozenset[str] = frozenset()  # arguments that are none of its
    unheard: frozenset[str] = frozenset()  # arguments of consumers that are none of its
    unsupported: Mapping[Operation, tuple[int, str]] = field(default_factory=dict[Operation, tuple[int, str]])
    """Reply code and RabbitMQ's words for what its clients are refused; {} is which queue of which vhost."""


MAX_AGE = "x-max-age"

HIGH_PRIORITY = 5
"""From here on a priority is high where there are two levels."""

LEVELS_KEY = f"/@properties/priority IS NOT NULL AND /@properties/priority >= {HIGH_PRIORITY}"
LEVELS_WEIGHTS = (("true", 2.0),)
"""Settings that make two levels of priorities, once a message of the high one has come: so many of it for one other."""

_PLACES = frozenset(
    {
        "x-quorum-initial-group-size",
        "x-quorum-target-group-size",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
    }
)
"""Where copies of a quorum queue are, and what is in memory: bodies live under one budget, and a copy is the log's."""

_SEGMENTS = frozenset({"x-stream-max-segment-size-bytes", "x-stream-filter-size-bytes", "x-initial-cluster-size"})
"""How the files of a stream are cut, and where copies are: there is one log."""

_OF_STREAMS = _SEGMENTS | {MAX_AGE}
_READING = frozenset({"x-stream-offset", "x-stream-filter", "x-stream-match-unfiltered"})
_MIRRORED = "x-cancel-on-ha-failover"
_MASTER = "x-queue-master-locator"

_SINGLE_GET = (
    "cannot obtain access to locked {}. basic.get operations are not supported by quorum queues with single active "
    "consumer"
)

_DELETE = "cannot delete {{}}. queue.delete operations with {} flag set are not supported by quorum queues"

QUEUE_TYPES: Mapping[str, QueueType] = {
    one.name: one
    for one in (
        QueueType(
            "classic",
            "classic_queues",
            refused=_OF_STREAMS | _PLACES | {"x-dead-letter-strategy"},
            unheard=_READING,
        ),
        QueueType(
            "quorum",
            "quorum_queues",
            persists=True,
            counts=True,
            levels=True,
            lasting=True,
            rests={"delivery_limit": 20},  # as in RabbitMQ since 4.0
            # a dead letter moves in one step, so at least once
            idle=_PLACES | {"x-dead-letter-strategy", "x-member-placement-tag"},
            refused=_OF_STREAMS | {_MASTER, "x-max-priority", "x-queue-mode", "x-queue-version"},
            unheard=_READING | {_MIRRORED},
            unsupported={
                "single get": (405, _SINGLE_GET),
                "global qos": (540, "{} does not support global qos"),
                "if-unused": (540, _DELETE.format("if-unused")),
                "if-empty": (540, _DELETE.format("if-empty")),
            },
        ),
        QueueType(
            "stream",
            "streams",
            persists=True,
            offsets=True,
            lasting=True,
            rests={"non_destructive": True, "expiration_model": "queue"},  # what a message says of its end is not asked
            idle=_SEGMENTS,
            refused=_PLACES
            | frozenset(
                {_MASTER, "x-max-priority", "x-queue-mode", "x-queue-version", "x-message-ttl", "x-expires",
                 "x-max-length", "x-overflow", "x-dead-letter-exchange", "x-dead-letter-routing-key",
                 "x-dead-letter-strategy", "x-single-active-consumer", "x-delivery-limit"}
            ),
            unheard=frozenset({"x-priority", _MIRRORED}),
            unsupported={
                "basic.get": (540, "basic.get not supported by stream queues {}"),
                "queue.purge": (540, "queue.purge not supported by stream queues {}"),
                "no ack": (540, "automatic acknowledgement not supported by stream queues {}"),
                "no prefetch": (406, "consumer prefetch count is not set for '{}'"),
            },
        ),
    )
}  # fmt: skip
