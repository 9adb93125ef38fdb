"""Redriving and moving: what waits in a queue, picked by a filter, goes back to its origin or to another queue.

Rows are read and filtered off the loop, the loop takes a few hundred messages a step.  One call does a bounded part and
says where it ended, so that who asks sets the pace; a step is atomic, and what comes between is harmless.

The origin of a dead letter is read from its header (`x-death`), which a publisher may write as well: it is believed of
what this server wrote, moved, or heard from another site that wrote it.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import struct
from collections.abc import Container, Iterator, Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import orjson
import pyarrow as pa

from penstock.core.queue.places import OWNED, after
from penstock.core.state.encoding import unwrap
from penstock.core.state.lsns import blobs, numbers, pick, texts, whole
from penstock.errors import InvalidArgument, NotFound, ProtocolError
from penstock.history.history import History
from penstock.operations.story import Kept
from penstock.records import properties as header_codec
from penstock.records.causes import MOVED, REDRIVEN
from penstock.records.compute import distinct_numbers
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes
from penstock.records.field_tables import Table, Written
from penstock.records.kinds import NO_VIA, PUBLISHES, Kind
from penstock.records.message_types import typed
from penstock.records.remembered import Memo

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.log.log import Log
    from penstock.operations.operation import Reading


_DEATHS = ("x-first-death-", "x-last-death-")


class Origin(NamedTuple):
    """Where a message was before it died for the first time."""

    queue: str
    exchange: str
    key: str


def of_header(properties: bytes) -> tuple[Origin | None, bytes]:
    """The origin that a header tells, and the header without the history of its deaths."""
    written: Written = {}
    try:
        header = header_codec.decode(properties, written)
    except ProtocolError:
        return None, properties
    headers: Table = dict(header.headers or {})
    deaths = headers.pop("x-death", None)
    entries = [entry for entry in deaths if isinstance(entry, dict)] if isinstance(deaths, list) else []
    if not entries:
        return None, properties
    header.headers = {name: one for name, one in headers.items() if not name.startswith(_DEATHS)} or None
    first = headers.get("x-first-death-queue"), headers.get("x-first-death-reason")
    oldest = next((one for one in entries if (one.get("queue"), one.get("reason")) == first), entries[-1])
    keys = oldest.get("routing-keys")
    key = _text(keys[0]) if isinstance(keys, list) and keys else ""
    origin = Origin(_text(oldest.get("queue")), _text(oldest.get("exchange")), key)
    return origin, header_codec.encode(header, written)


def of_record(log: Kept, lsn: int) -> Origin | None:
    """The origin that the record tells which ended the cause of this message; None when it is no dead letter."""
    for name, told in _ends(log, lsn):
        for cause, new in cast("list[tuple[int, int]]", told.get("dead") or ()):
            if new == lsn:
                return _of_cause(log, cause, name)
    return None


def is_vouched(log: Kept, lsn: int) -> bool:
    """Whether a message has its header from others than a publisher here.

    A site of a link wrote it as a dead letter, or it was moved: what it was before is a dead letter, or is forgotten.
    """
    known = _group(log, lsn)
    if known is None:
        return False
    carried = pick(known, numbers(known, "kind") == int(Kind.CARRIED), ["properties", "body"])
    for header, body in zip(blobs(carried, "properties"), blobs(carried, "body"), strict=True):
        runs = struct.iter_unpack("<3q", body) if orjson.loads(header).get("letters") else ()
        if any(here <= lsn < here + count for here, _, count in runs):
            return True
    for _, told in _ends(log, lsn):
        if any(new == lsn for _, new in cast("list[tuple[int, int]]", told.get("dead") or ())):
            return True
        for cause, new in cast("list[tuple[int, int]]", told.get("sent") or ()):
            if new == lsn:
                return cause < log.first_lsn or is_vouched(log, cause)
    return False


def _group(log: Kept, lsn: int) -> Any:
    """The records that were written with this message, as `whole` gives them."""
    batch = next(log.batches(lsn, log.durable + 1), None)
    return None if batch is None else whole(batch)


def _ends(log: Kept, lsn: int) -> Iterator[tuple[str, dict[str, object]]]:
    """Queue and header of those of them that say what messages became."""
    if (table := _group(log, lsn)) is not None:
        some = pick(table, numbers(table, "kind") == int(Kind.EXPIRE), ["name", "properties"])
        for name, header in zip(texts(some, "name"), blobs(some, "properties"), strict=True):
            yield name, cast("dict[str, object]", unwrap(orjson.loads(header))) if header else {}


def _of_cause(log: Kept, cause: int, queue: str) -> Origin | None:
    batch = next(log.batches(cause, cause + 1), None)
    if batch is None:
        return Origin(queue, "", queue)  # retention has passed it: its queue is known
    table = whole(batch)
    if Kind(int(numbers(table, "kind")[0])) not in PUBLISHES:
        return None
    via = int(numbers(table, "via", NO_VIA)[0])
    exchange = log.vias.known.get(via, ("", ""))[1] if via != NO_VIA else ""
    return Origin(queue, exchange, texts(table, "name")[0])


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


STEP_ROWS = 256
STEP_BYTES = 1 << 20
"""What the loop takes in one step, about; a larger message goes alone."""
CALL_MOST = 10_000
"""Messages of one call."""
LOOKED_MOST = 200_000
"""Messages that one call looks at."""
LOOK = 16_384
"""Of so many the loop says at once where they stand."""


@dataclass(slots=True)
class Wanted:
    """Which messages of which queue shall be moved, and where to."""

    queue: str
    vhost: str = "/"
    to: str | None = None  # None: each to its origin
    filter: str | None = None
    count: int = CALL_MOST
    after: int = 0  # only messages above this LSN
    dry: bool = False
    by: str = ""
    lsns: tuple[int, ...] | None = None  # these alone, ascending, as far as they wait; `after` is not looked at


@dataclass(slots=True)
class Done:
    """What one call did, or would do."""

    moved: int = 0
    matched: int = 0
    targets: dict[str, int] = field(default_factory=dict[str, int])  # by queue
    strays: dict[str, int] = field(default_factory=dict[str, int])  # that stay, by why
    next: int | None = None  # where to go on; None: all was looked at

    def told(self) -> dict[str, object]:
        return {
            "moved": self.moved, "matched": self.matched, "targets": self.targets, "strays": self.strays,
            "next": self.next,
        }  # fmt: skip


def move(house: Reading, wanted: Wanted) -> Done:
    """Move, or with `dry` count, what is wanted.

    Errors: NotFound for a queue that is not there, InvalidArgument for one that is its own target, ExpressionError.
    """
    if not 1 <= wanted.count <= CALL_MOST:
        raise InvalidArgument(f"count is {wanted.count}; one call moves 1 to {CALL_MOST} messages")
    if wanted.to == wanted.queue:
        raise InvalidArgument(f"queue '{wanted.queue}' cannot give its messages to itself")
    done, core = Done(), house.core
    history, matcher = History(house.log, house.gone), None
    known = house.call(lambda: {one.name for one in core.queues() if one.vhost == wanted.vhost}, durable=False)
    for looked in _looked_at(house, wanted):
        rows: Iterator[pa.RecordBatch] = history.rows_at(looked.lsns)
        if wanted.filter is not None:
            matcher = matcher or typed(wanted.filter, looked.message_type)
            rows = history.matching(rows, matcher, wanted.vhost)
        for part in _parts(rows, wanted, done):
            if house.gone():
                return done
            for target, some in _by_target(house.log, wanted, part, known, looked.letters, done).items():
                done.matched += len(some.lsns)
                if wanted.dry:
                    done.targets[target] = done.targets.get(target, 0) + len(some.lsns)
                else:
                    _give(house, wanted, target, some, done)
            if done.matched >= wanted.count:
                done.next = int(part.column("lsn")[-1].as_py())
                return done
        done.next = int(looked.lsns[-1]) if looked.more else None
    return done


class _Looked(NamedTuple):
    """Some of what waits in the queue."""

    lsns: np.ndarray[Any, np.dtype[np.int64]]  # ascending
    more: bool  # whether others stand behind these
    letters: set[int]  # those of them that this server wrote as dead letters; none where nobody asks
    message_type: str


def _looked_at(house: Reading, wanted: Wanted) -> Iterator[_Looked]:
    """What waits above `after`, or what was named; which of that waits is looked at when it is moved."""
    above, left = wanted.after, LOOKED_MOST
    while left > 0:
        looked = house.call(partial(_waiting, house.core, wanted, above, min(left, LOOK)), durable=not wanted.dry)
        yield looked
        if not looked.more:
            return
        left -= LOOK
        above = int(looked.lsns[-1])


def _waiting(core: Core, wanted: Wanted, above: int, most: int) -> _Looked:
    queue = core.queue(wanted.vhost, wanted.queue)
    if wanted.to is not None:
        core.queue(wanted.vhost, wanted.to)
    if wanted.lsns is not None:
        lsns, more = distinct_numbers(np.asarray(wanted.lsns, dtype=np.int64)), False
    else:
        lsns = after(queue, above, most + 1, *OWNED)
        lsns, more = lsns[:most], len(lsns) > most
    letters = set[int](core.letters_among(lsns).tolist()) if wanted.to is None else set[int]()
    return _Looked(lsns, more, letters, queue.settings.message_type)


def _parts(rows: Iterator[pa.RecordBatch], wanted: Wanted, done: Done) -> Iterator[pa.RecordBatch]:
    """Steps of rows; no more than are still wanted."""
    for batch in rows:
        for start in range(0, batch.num_rows, STEP_ROWS):
            yield batch.slice(start, min(STEP_ROWS, wanted.count - done.matched))


@dataclass(slots=True)
class _Some:
    lsns: list[int] = field(default_factory=list[int])
    topics: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])  # exchange, key
    properties: list[bytes] = field(default_factory=list[bytes])
    bodies: list[bytes] = field(default_factory=list[bytes])
    priority: list[int] = field(default_factory=list[int])
    expires_at: list[int] = field(default_factory=list[int])
    transient: list[bool] = field(default_factory=list[bool])


def _by_target(
    log: Log, wanted: Wanted, rows: pa.RecordBatch, known: set[str], letters: set[int], done: Done
) -> dict[str, _Some]:
    out = dict[str, _Some]()
    origins = Memo(STEP_ROWS, of_header)  # what died together says the same
    columns = [rows.column(name).to_pylist() for name in ("lsn", "kind", "name", "via", "properties", "body")]
    ends = rows.column("expires_at").cast(pa.int64()).to_pylist()
    ranks = rows.column("priority").to_pylist()
    for lsn, kind, name, via, properties, body, end, rank in zip(*columns, ends, ranks, strict=True):
        exchange = "" if via in (None, NO_VIA) else log.vias.known[via][1]
        header, origin, why = properties or b"\0\0", Origin(wanted.to or "", exchange, name or ""), ""
        if wanted.to is None:
            found, header = _died(log, lsn, header, letters, origins)
            why, origin = _stray(found, wanted.queue, known), found or origin
        if why:
            done.strays[why] = done.strays.get(why, 0) + 1
            continue
        some = out.setdefault(origin.queue, _Some())
        some.lsns.append(lsn)
        some.topics.append((origin.exchange, origin.key))
        some.properties.append(header)
        some.bodies.append(body or b"")
        some.priority.append(rank or 0)
        some.expires_at.append(end or 0)
        some.transient.append(kind == int(Kind.PUBLISH_TRANSIENT))
    return out


def _died(
    log: Log, lsn: int, header: bytes, letters: Container[int], origins: Memo[bytes, tuple[Origin | None, bytes]]
) -> tuple[Origin | None, bytes]:
    """Where a message died first, and its header without that; None: nothing says so that is believed."""
    found, clean = origins[header]
    if found is not None and (lsn in letters or is_vouched(log, lsn)):
        return found, clean
    return of_record(log, lsn), header


def _stray(origin: Origin | None, queue: str, known: set[str]) -> str:
    """Why a message of a queue cannot go to its origin; nothing: it can."""
    if origin is None:
        return "nothing says where it came from"
    if origin.queue not in known:
        return f"its queue '{origin.queue}' is not there any more"
    return "it came from this very queue" if origin.queue == queue else ""


def _give(house: Reading, wanted: Wanted, target: str, some: _Some, done: Done) -> None:
    """Hand rows to the loop, in steps."""
    reason = MOVED if wanted.to is not None else REDRIVEN
    for start, stop in _steps(some.bodies):

        def step(start: int = start, stop: int = stop) -> int:
            core = house.core
            source, into = core.find_queue(wanted.vhost, wanted.queue), core.find_queue(wanted.vhost, target)
            if source is None or into is None:
                raise NotFound(f"queue '{wanted.queue if source is None else target}' was deleted meanwhile")
            topics = [core.interned(wanted.vhost, exchange, key) for exchange, key in some.topics[start:stop]]
            bodies, headers = some.bodies[start:stop], some.properties[start:stop]
            batch = Publishes(
                topics, headers, bodies, size=sum(map(len, bodies)) + sum(map(len, headers)),
                transient=some.transient[start:stop],
            )  # fmt: skip
            if any(some.priority[start:stop]):
                batch.priority = some.priority[start:stop]
            if any(some.expires_at[start:stop]):
                batch.expires_at = some.expires_at[start:stop]
            return core.move_messages(house.now(), source, into, some.lsns[start:stop], batch, reason, by=wanted.by)

        moved = house.call(step)
        done.moved += moved
        if moved:
            done.targets[target] = done.targets.get(target, 0) + moved


def _steps(bodies: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    start = size = 0
    for at, body in enumerate(bodies):
        if at > start and size + len(body) > STEP_BYTES:
            yield start, at
            start, size = at, 0
        size += len(body)
    if start < len(bodies):
        yield start, len(bodies)
