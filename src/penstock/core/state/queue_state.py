"""One queue in the durable state, what is remembered of each of its messages, and both as bytes.

A queue holds positions; of a message it remembers what stands in a column of `COLUMNS`, by LSN.  A column is written
where some message has a value in it.  `core.state.durable` has the layout around this.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import cast

import numpy as np
import orjson

from penstock.core.state import pending
from penstock.core.state.encoding import as_table, load_settings, pack, pack_chunks, unpack, unpack_chunk, wrap
from penstock.core.state.lsns import (
    LONG_RUN,
    Ints,
    chunked,
    empty,
    flat,
    merged,
    runs_among,
    runs_of,
    same_chunked,
    within,
)
from penstock.core.state.pending import Passing, Spans
from penstock.core.topology.ruling import dump_ruling, load_ruling
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.dataclass import dataclass
from penstock.records.queue_settings import QueueSettings, Ruling

COLUMNS = (
    "deliveries", "failures", "cancels", "not_before", "place", "expires_at", "transient", "letter", "barrier", "rank",
    "unseen", "key", "dedup", "owner", "claim",
)  # fmt: skip
"""What a queue may remember of a waiting message besides its position; 0 is the rest value of each.

deliveries, failures, cancels   how often it was granted, failed, was cancelled
unseen                          how many of the deliveries were given back before anybody saw the message
not_before                      microseconds: delayed until then
place                           the LSN whose place in the queue it took when it became due
expires_at                      microseconds: its deadline in this queue
transient                       1: the next start of the server drops it
letter                          1: the server wrote it as a dead letter, so the history in its header counts
barrier                         1: it waits for all before it and holds back all after it
key                             by what a newer message replaces it (`core.queue.last_values`)
dedup                           its key, while no other message with it may enter (`core.queue.dedup`)
owner                           the number of the site that may lease it; 0: this one (`core.links.identity`)
claim                           how that came about (`core.queue.foreign`); 0: it was published there
rank                            its priority (`core.queue.order.ranks`); 0: not known, worked out before it is delivered
"""


@dataclass(slots=True)
class QueueState:
    """One queue: what was declared, and what waits in it (ready, leased, delayed or dying alike)."""

    id: int  # the LSN of its declare
    vhost: str
    name: str
    settings: QueueSettings = field(default_factory=QueueSettings)
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    arguments: dict[str, object] = field(default_factory=dict[str, object])
    waiting: list[Chunk] = field(default_factory=list["Chunk"])  # ascending
    columns: dict[str, array[int]] = field(
        default_factory=dict[str, "array[int]"]
    )  # name of COLUMNS -> runs; none empty
    since: int = 0  # it knows what the log says of it up to this LSN, where that is beyond the state's `last_lsn`
    reviewed: Spans = ()  # passes have been over these rows
    passing: Passing | None = None  # a pass that is under way
    ruling: Ruling | None = None  # None: nothing but its own settings, of which `told` were given
    paused: int = 0  # microseconds since the epoch: nothing is delivered before; 0: not paused
    taken: array[int] = field(default_factory=empty)  # keys that it took of late, flat (key, time), by key

    @property
    def count(self) -> int:
        return sum(map(len, self.waiting))

    @classmethod
    def fill(cls, blank: QueueState, lsns: Ints, columns: Mapping[str, Ints]) -> QueueState:
        """`blank` with these messages, in canonical form."""
        runs = {name: runs_of(lsns, columns[name]) for name in COLUMNS if name in columns}
        blank.waiting = chunked(lsns)
        blank.columns = {name: values for name, values in runs.items() if len(values)}
        return blank


def living_pairs(queues: Iterable[QueueState]) -> Ints:
    """What waits in these queues, as ascending disjoint LSN pairs [a, b), shape (n, 2)."""
    return merged([within(chunk) for queue in queues for chunk in queue.waiting if len(chunk)])


def canonical_queue(queue: QueueState) -> QueueState:
    """One queue in canonical form: ascending chunks, and columns only where something waits."""
    if not queue.columns:
        columns = dict[str, "array[int]"]()
        if len(queue.waiting) == 1 and len(queue.waiting[0]) < LONG_RUN:
            waiting = [as_chunk(queue.waiting[0])]
        else:
            waiting = same_chunked(queue.waiting)
    else:
        lsns = flat(queue.waiting)
        waiting = chunked(lsns)
        columns = {name: runs_among(lsns, queue.columns[name]) for name in COLUMNS if name in queue.columns}
    return replace(queue, waiting=waiting, columns={name: runs for name, runs in columns.items() if len(runs)})


TOGETHER = 256
"""Queues that are made JSON at once."""


def dump_queues(plain: Iterable[QueueState], settings: dict[QueueSettings, int], blobs: list[bytes]) -> list[bytes]:
    """The queues as pieces of JSON, one after the other; settings that are new get the next number, and what is no JSON
    is appended to `blobs`.

    There may be very many: no more than `TOGETHER` are objects at a time.
    """
    out, few = list[bytes](), list[dict[str, object]]()

    def put() -> None:
        if few:
            out.append((b"," if out else b"") + orjson.dumps(few)[1:-1])
            few.clear()

    for one in plain:
        queue = canonical_queue(one)
        few.append(_queue(queue, settings.setdefault(queue.settings, len(settings)), blobs))
        if len(few) == TOGETHER:
            put()
    put()
    return out


def _queue(queue: QueueState, settings: int, blobs: list[bytes]) -> dict[str, object]:
    """One in canonical form.  settings: their number."""
    packed = list(pack_chunks(queue.waiting))
    blobs += packed
    forms = dict[str, object]()
    if queue.columns:
        lsns = flat(queue.waiting)
        for name, runs in queue.columns.items():
            forms[name], blob = pack(runs, lsns)
            blobs.append(blob)
    if queue.taken:
        blobs.append(queue.taken.tobytes())
    return {
        "id": queue.id,
        "vhost": queue.vhost,
        "name": queue.name,
        "settings": settings,
        "durable": queue.durable,
        **filled(
            exclusive=queue.exclusive, auto_delete=queue.auto_delete, arguments=wrap(queue.arguments),
            chunks=len(packed), columns=forms, since=queue.since,
            ruling=dump_ruling(queue.ruling, queue.settings),
            paused=queue.paused, taken=len(queue.taken),
        ),
        **pending.dump(queue.reviewed, queue.passing),
    }  # fmt: skip


def filled(**parts: object) -> dict[str, object]:
    """What is there of these; nothing that is false, zero or empty."""
    return {name: value for name, value in parts.items() if value}


def load_queue(
    told: dict[str, object], settings: list[QueueSettings], data: bytes, place: int
) -> tuple[QueueState, int]:
    """One queue, whose chunks and columns are from `place` on; where they end."""
    which = told["settings"]  # a number, or before version 4 the settings
    queue = QueueState(
        cast(int, told["id"]), str(told["vhost"]), str(told["name"]),
        settings[which] if isinstance(which, int) else load_settings(which), bool(told["durable"]),
        bool(told.get("exclusive")), bool(told.get("auto_delete")), as_table(told.get("arguments")),
        since=cast(int, told.get("since", 0)), paused=cast(int, told.get("paused", 0)),
    )  # fmt: skip
    queue.reviewed, queue.passing = pending.read(told)
    queue.ruling = load_ruling(told.get("ruling"), queue.settings)
    for _ in range(cast(int, told.get("chunks", 0))):
        chunk, place = unpack_chunk(data, place)
        queue.waiting.append(chunk)
    forms = cast("dict[str, object]", told.get("columns", {}))
    lsns = flat(queue.waiting) if forms else np.zeros(0, dtype=np.int64)
    for column, form in forms.items():
        if column not in COLUMNS:
            raise ValueError(f"the encoded state has the unknown column {column!r} of queue {queue.name!r}")
        try:
            queue.columns[column], place = unpack(form, lsns, data, place)
        except ValueError as error:
            where = f"column {column!r} of queue {queue.name!r}"
            raise ValueError(f"the encoded state is cut or damaged: {where}: {error}") from error
    end = place + 8 * cast(int, told.get("taken", 0))
    if end > len(data):
        raise ValueError(f"the encoded state is cut in the keys of queue {queue.name!r}")
    queue.taken.frombytes(data[place:end])
    return queue, end
