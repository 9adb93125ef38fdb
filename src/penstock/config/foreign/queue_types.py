"""Queues of other types among RabbitMQ's definitions: what of a quorum queue or a stream there can be here.

A quorum queue is taken as a durable queue of this one instance, and a stream as a topic, which keeps what is published
to its name; what either loses by that is said.  The queue keeps its arguments, that of its type too, so that its
applications' own declares find an equal queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

QUEUE_TYPE = "x-queue-type"

OTHER_TYPES = ("quorum", "stream")
"""Types that a vhost may name for queues that name none: here they are as all others."""

DELIVERY_LIMIT = 20
"""Of a quorum queue that says none, since RabbitMQ 4.0."""

_NOTHING_TO_DO = frozenset(
    {
        QUEUE_TYPE,
        "x-quorum-initial-group-size",
        "x-quorum-target-group-size",
        "x-initial-cluster-size",
        "x-queue-leader-locator",
        "x-member-placement-tag",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
        "x-dead-letter-strategy",
    }
)
"""Arguments of quorum queues that ask for nothing: there is one instance, bodies live under one budget, and a dead
letter moves in one step, so at least once.
"""

QUORUM_LOSES = (
    "a quorum queue is taken as a durable queue of this one instance. Lost are its copies on other nodes, its two "
    "levels of priority, the header x-delivery-count for consumers that do not ask by x-info, and that messages "
    "published with another delivery mode than 2 last: here they end with the server"
)

STREAM_LOSES = (
    "a stream is taken as a topic: what is published to its name is kept by the log, and can be read by x-bookmark "
    "from any place. Lost are consuming it as a queue (x-stream-offset), its bindings, its filters, and its own limits "
    "of size and age, for which the log's retention stands"
)


class StandIn(Enum):
    """What stands for a queue."""

    QUEUE = "queue"
    TOPIC = "topic"


def stand_in(arguments: Mapping[str, object]) -> tuple[StandIn, Mapping[str, object], str]:
    """What stands for a queue with these arguments, the arguments that hold for it, and what is lost, if anything.

    Of a type that nobody knows all arguments are handed back: whoever reads them refuses it.
    """
    match arguments.get(QUEUE_TYPE):
        case "stream":
            return StandIn.TOPIC, {}, STREAM_LOSES
        case "quorum":
            held = {name: value for name, value in arguments.items() if name not in _NOTHING_TO_DO}
            if "x-delivery-limit" in held:
                return StandIn.QUEUE, held, QUORUM_LOSES
            more = f"; x-delivery-limit is {DELIVERY_LIMIT}, as there"
            return StandIn.QUEUE, {**held, "x-delivery-limit": DELIVERY_LIMIT}, QUORUM_LOSES + more
        case _:
            return StandIn.QUEUE, arguments, ""
