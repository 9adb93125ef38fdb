"""What a Flight consumer says: settles by verb and queue, heartbeats, and other terms for its subscription."""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from array import array
from typing import Any, cast

import numpy as np
import pyarrow as pa

from penstock.core.commands.subscription import Subscription
from penstock.core.effects import Verb
from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass
from penstock.wire.fields import Fields, nearest, read_json
from penstock.wire.flight.received import Received, columns_of
from penstock.wire.flight.tickets import BACKLOG_MOST, TEXT_LIMIT

EXTEND = "extend"
UNSEEN = "unseen"

VERBS = {
    "ack": Verb.ACK,
    "release": Verb.RELEASE,
    UNSEEN: Verb.UNSEEN,
    "retry": Verb.CANCEL,
    "cancel": Verb.CANCEL,
    "reject": Verb.EXPIRE,
    "expire": Verb.EXPIRE,
}

Settle = tuple[str, int | None, str | None, str | None]  # verb, delay in microseconds, reason, queue
Attempts = dict[tuple[str | None, int], int]  # by queue and LSN


@dataclass(frozen=True, slots=True)
class Terms:
    """Other terms for a subscription; what is None stays as it is."""

    filter: str | None = None  # empty: none any more
    max_backlog: int | None = None
    queue: str | None = None


NAMES_TOLD = 1000
"""Names of queues in what a consumer is told of its subscription."""


def terms_of(wish: Subscription) -> dict[str, object]:
    """On which terms a client consumes, as it is told."""
    limit, asked = wish.effective_backlog, wish.max_backlog
    names = sorted(consumer.queue.name for consumer in wish.consumers.values())
    leases = [consumer.queue.settings.lease_period for consumer in wish.consumers.values()]
    told: dict[str, object] = {
        "consumer": wish.tag,
        "effective_backlog": limit,
        "queues": names[:NAMES_TOLD],
        "lease_period": min(filter(None, leases), default=None),  # microseconds, the shortest of them; null: no end
    }
    if limit is not None and asked is not None and limit < asked:
        told["warning"] = f"max_per_subscription_backlog of a queue limits the backlog of {asked} to {limit}"
    return told


@dataclass(frozen=True, slots=True)
class Said:
    """What came as the metadata of one message."""

    number: int | None = None  # asks to be answered under it
    replace: Terms | None = None


def read_said(metadata: bytes) -> Said:
    """The metadata of one message of a client."""
    fields = Fields("consume metadata", read_json(metadata, "consume metadata"))
    fields.flag("heartbeat")
    number = fields.optional_count("number")
    replaces, table = fields.has("replace"), fields.table("replace")
    fields.finish()
    if not replaces:
        return Said(number)
    inner = Fields("replace", table)
    terms = Terms(
        inner.optional_text("filter", TEXT_LIMIT),
        inner.optional_count("max_backlog", low=0, high=BACKLOG_MOST),
        inner.optional_text("queue", TEXT_LIMIT),
    )
    inner.finish()
    return Said(number, terms)


def read_settles(received: Received) -> tuple[dict[Settle, array[int]], Attempts]:
    """LSNs by (verb, delay, reason, queue), ascending, and the attempts that are named; InvalidArgument otherwise."""
    columns = columns_of(received)
    lsns = columns["lsn"]
    if lsns.null_count:
        raise InvalidArgument("settle: column 'lsn' has nulls")
    rows = len(lsns)
    told = [
        cast("list[Any]", columns["verb"].to_pylist()),
        *(_values(columns.get(name), rows) for name in ("delay", "reason", "queue")),
    ]
    numbers = cast("list[int]", lsns.to_pylist())
    groups: dict[Settle, array[int]] = {}
    if all(values.count(values[0]) == rows for values in told):
        key = _settle(*(values[0] for values in told))
        groups[key] = array("q", np.unique(np.asarray(numbers, np.int64)).tolist())
    else:
        for key, lsn in zip(zip(*told, strict=True), numbers, strict=True):
            groups.setdefault(_settle(*key), array("q")).append(lsn)
        groups = {key: array("q", sorted(set(some))) for key, some in groups.items()}
    attempts: Attempts = {}
    if "attempt" in columns and columns["attempt"].null_count < rows:
        for queue, lsn, attempt in zip(told[3], numbers, columns["attempt"].to_pylist(), strict=True):
            if attempt is not None and attempt > 1:
                attempts[queue, lsn] = attempt
    return groups, attempts


def _values(column: pa.Array[Any] | None, rows: int) -> list[Any]:
    return [None] * rows if column is None else column.to_pylist()


def _settle(verb: str | None, delay: int | None, reason: str | None, queue: str | None) -> Settle:
    if verb is None or (verb not in VERBS and verb != EXTEND):
        hint = nearest(verb, [*VERBS, EXTEND]) if verb is not None else ""
        raise InvalidArgument(f"settle: verb {verb!r} is unknown{hint}")
    if delay is not None and delay < 0:
        raise InvalidArgument(f"settle: delay {delay} is negative")
    if verb == EXTEND and delay is None:
        raise InvalidArgument("settle: extend needs a delay: how long from now the lease lasts")
    return verb, delay, reason, queue
