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
    "direct", "fanout", "topic", "headers", "x-consistent-hash", "x-modulus-hash", "x-delayed-message"
]
"""How each routes: `core.topology.exchange_types`."""

EXCHANGE_TYPES: tuple[ExchangeType, ...] = get_args(ExchangeType)

TypeName = Literal["classic", "quorum"]

Operation = Literal["basic.get", "global qos", "if-unused", "if-empty"]
"""What not every type can do: a get where one consumer gets all, one prefetch for a whole channel, careful deletes."""


@dataclass(frozen=True, slots=True)
class QueueType:
    """One type.  `policies` is the word of `apply-to` for policies that are for this type alone."""

    name: TypeName
    policies: Literal["classic_queues", "quorum_queues"]
    persists: bool = False  # what enters outlives the server, whatever delivery mode it was published with
    counts: bool = False  # what comes back tells how often it was delivered before, in the header x-delivery-count
    lasting: bool = False  # such a queue is durable, not exclusive, not auto-delete, and its name is the client's
    rests: Mapping[str, object] = field(default_factory=dict[str, object])  # settings of who says none
    idle: frozenset[str] = frozenset()  # arguments that ask for nothing that is not done anyway
    refused: frozenset[str] = frozenset()  # arguments that are none of its
    unsupported: frozenset[Operation] = frozenset()


_CLUSTER = frozenset(
    {
        "x-quorum-initial-group-size",
        "x-quorum-target-group-size",
        "x-initial-cluster-size",
        "x-member-placement-tag",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
    }
)
"""Where copies of a queue are, and what of it is in memory: bodies live under one budget, and a copy is the log's."""

QUEUE_TYPES: Mapping[str, QueueType] = {
    one.name: one
    for one in (
        QueueType("classic", "classic_queues"),
        QueueType(
            "quorum",
            "quorum_queues",
            persists=True,
            counts=True,
            lasting=True,
            rests={"delivery_limit": 20},  # as in RabbitMQ since 4.0
            idle=_CLUSTER | {"x-dead-letter-strategy"},  # a dead letter moves in one step, so at least once
            refused=frozenset({"x-max-priority", "x-queue-mode", "x-queue-version"}),
            unsupported=frozenset({"basic.get", "global qos", "if-unused", "if-empty"}),
        ),
    )
}
