"""What a consumer says over Flight, as it is read: settles by verb and queue, heartbeats, other terms."""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from penstock.core.effects import Verb
from penstock.errors import InvalidArgument
from penstock.records.compute import distinct_numbers
from penstock.records.dataclass import dataclass
from penstock.units import LONGEST
from penstock.wire.fields import Fields, nearest, read_json
from penstock.wire.flight.received import Received, columns_of
from penstock.wire.flight.tickets import BACKLOG_MOST, TEXT_LIMIT

if TYPE_CHECKING:
    import pyarrow as pa

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


def read_settles(received: Received) -> tuple[dict[Settle, array[int]], Attempts | None]:
    """LSNs by (verb, delay, reason, queue), ascending, and the attempts that are named, those above 1; None where no
    row names one.  InvalidArgument otherwise.
    """
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
        groups[key] = array("q", distinct_numbers(np.asarray(numbers, np.int64)).tolist())
    else:
        for key, lsn in zip(zip(*told, strict=True), numbers, strict=True):
            groups.setdefault(_settle(*key), array("q")).append(lsn)
        groups = {key: array("q", sorted(set(some))) for key, some in groups.items()}
    attempts: Attempts = {}
    if "attempt" in columns and columns["attempt"].null_count < rows:
        for queue, lsn, attempt in zip(told[3], numbers, columns["attempt"].to_pylist(), strict=True):
            if attempt is not None and attempt > 1:
                attempts[queue, lsn] = attempt
        if attempts or not columns["attempt"].null_count:
            return groups, attempts
    return groups, None


def _values(column: pa.Array[Any] | None, rows: int) -> list[Any]:
    return [None] * rows if column is None else column.to_pylist()


def _settle(verb: str | None, delay: int | None, reason: str | None, queue: str | None) -> Settle:
    if verb is None or (verb not in VERBS and verb != EXTEND):
        hint = nearest(verb, [*VERBS, EXTEND]) if verb is not None else ""
        raise InvalidArgument(f"settle: verb {verb!r} is unknown{hint}")
    if delay is not None and not 0 <= delay <= LONGEST:
        raise InvalidArgument(f"settle: delay is {delay} us, which is not between 0 and 1,000 years")
    if verb == EXTEND and delay is None:
        raise InvalidArgument("settle: extend needs a delay: how long from now the lease lasts")
    return verb, delay, reason, queue
