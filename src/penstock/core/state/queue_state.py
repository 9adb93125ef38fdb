"""One queue in the durable state: what is remembered of each of its messages, as it is folded, and all of it as bytes.

A queue holds positions; of a message it remembers what stands in a column of `COLUMNS`, by LSN.  A column is written
where some message has a value in it.  `core.state.durable` has the layout around this.

While a table of the log is folded its events are gathered, and brought to the messages at its end, with numpy, a queue
at a time.  No kind of record is known here; the fold tells what was removed, counted and delayed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from operator import itemgetter
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt
import orjson

from penstock.core.queue.dedup import Window, altered
from penstock.core.queue.expiry import deadlines
from penstock.core.state import pending
from penstock.core.state.encoding import as_table, load_settings, pack, pack_chunks, unpack, unpack_chunk, wrap
from penstock.core.state.lsns import (
    LONG_RUN,
    Ints,
    chunked,
    empty,
    expand,
    flat,
    merged,
    runs_among,
    runs_of,
    same_chunked,
    spread,
    within,
)
from penstock.core.state.pending import Passing, Spans
from penstock.core.topology.ruling import dump_ruling, load_ruling
from penstock.records.chunks import LSN_LIMIT, Chunk, as_chunk
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
owner                           the number of the site that may lease it; 0: this one (`core.links.sharing`)
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


Part: TypeAlias = "dict[str, Ints]"
"""Messages of one table: "lsn" ascending, and the columns of COLUMNS that are not all at rest."""


class FoldedQueue:
    """The messages of each table as one part, and the events of the present table."""

    __slots__ = ("counted", "delayed", "keyed", "mixed", "parts", "removed", "settings", "since", "state", "window")

    def __init__(self, state: QueueState) -> None:
        """state: what was folded before; it is not changed."""
        self.state = replace(state, waiting=[], columns={}, since=0, taken=empty())
        self.since = state.since  # what the log says up to this LSN is in it already
        self.parts: list[Part] = []
        self.mixed = False  # they do not follow each other by LSN
        self.removed: list[Ints] = []  # pairs, shape (n, 2)
        self.counted: list[tuple[str, int, Ints]] = []  # column, value, pairs
        self.delayed: list[tuple[str, int, Ints]] = []  # column, value, pairs; in order, the last wins
        self.keyed: list[tuple[str, Ints]] = []  # column; (LSN, key), shape (n, 2)
        self.window = Window.loaded(state.taken) if state.settings.dedup_window else None
        self.settings: list[tuple[int, QueueSettings]] = [(0, state.settings)]  # from an LSN on
        if state.waiting:
            lsns = flat(state.waiting)
            self.parts.append({"lsn": lsns, **{name: spread(lsns, runs) for name, runs in state.columns.items()}})

    def alter(self, lsn: int, settings: QueueSettings) -> None:
        """Other settings in force, from this LSN on."""
        if settings.rank_text != self.state.settings.rank_text:
            for part in self.parts:
                part.pop("rank", None)
        if settings == self.state.settings:
            return
        if lsn > self.since:
            self.window = altered(self.window, self.state.settings, settings)
        self.state.settings = settings
        self.settings.append((lsn, settings))
        if settings.barrier_expression is None and lsn > self.since:
            self.delayed.append(("barrier", 0, np.array([[0, LSN_LIMIT]])))

    def drop_transient(self) -> None:
        """A start of the server: transient messages end."""
        for part in self.parts:
            if "transient" in part:
                keep(part, part["transient"] == 0)
        self.parts = [part for part in self.parts if len(part["lsn"])]

    @property
    def has_deadline(self) -> bool:
        """Whether its settings give messages a deadline of their own."""
        return any(s.expiration is not None or s.message_ttl is not None for _, s in self.settings)

    def deadlines(self, lsns: Ints, times: Ints, expires: Ints | None) -> Ints:
        """Deadlines by the settings that held when each row was written."""
        own = np.zeros(len(lsns), dtype=np.int64) if expires is None else expires
        if len(self.settings) == 1:
            return deadlines(self.settings[0][1], times, own)
        out = np.zeros(len(lsns), dtype=np.int64)
        for i, (since, settings) in enumerate(self.settings):
            start = int(np.searchsorted(lsns, since))
            until = self.settings[i + 1][0] if i + 1 < len(self.settings) else None
            end = len(lsns) if until is None else int(np.searchsorted(lsns, until))
            if start < end:
                out[start:end] = deadlines(settings, times[start:end], own[start:end])
        return out

    def apply(self) -> None:
        """Bring this table's events to the parts they touch.  Removals first: what is gone needs no counting."""
        if self.removed:
            self._remove(np.concatenate(self.removed))
            self.removed.clear()
        if self.keyed:
            self._keys()
        if self.counted:
            self._count()
        if self.delayed:
            self._delay()
        if len(self.settings) > 1:
            self.settings = [(0, self.state.settings)]

    def _remove(self, pairs: Ints) -> None:
        if not len(pairs):
            return
        low, high = int(pairs[:, 0].min()), int(pairs[:, 1].max())
        for part in self.parts:
            lsns = part["lsn"]
            if int(lsns[-1]) >= low and int(lsns[0]) < high:
                covered = _cover(lsns, pairs)
                if covered is not None:
                    keep(part, covered == 0)
        self.parts = [part for part in self.parts if len(part["lsn"])]

    def finished(self, last_lsn: int) -> QueueState:
        """Its durable state after every table so far, which ended at `last_lsn`."""
        taken = empty() if self.window is None else self.window.dump(self.state.settings.dedup_window)
        since = self.since if self.since > last_lsn else 0
        blank = replace(self.state, waiting=[], columns={}, since=since, taken=taken)
        parts = [part for part in self.parts if len(part["lsn"])]
        if not parts:
            return blank
        columns = _together(parts)
        if self.mixed:
            order = np.argsort(columns["lsn"], kind="stable")
            columns = {name: values[order] for name, values in columns.items()}
        return QueueState.fill(blank, columns["lsn"], columns)

    def begin_pass(self, lsn: int, header: dict[str, object]) -> None:
        """A pass over older rows begins."""
        state = self.state
        state.reviewed, state.passing = pending.begin(state.reviewed, state.passing, header, lsn)

    def recovered(self, lsn: int, pairs: Ints, header: dict[str, object]) -> None:
        """What a pass over older rows found."""
        if lsn <= self.since:
            return
        state = self.state
        if "upto" in header:
            first = int(pairs[0, 0]) if len(pairs) else 0
            upto = cast(int, header["upto"])
            state.reviewed, state.passing = pending.go_on(state.reviewed, state.passing, upto, first)
        if len(pairs):
            lsns = expand(pairs[:, 0], pairs[:, 1])
            columns = cast("dict[str, list[int]]", header.get("columns") or {})
            self.parts.append({"lsn": lsns, **{name: spread(lsns, runs) for name, runs in columns.items()}})
            self.mixed = True

    def took_keys(self, pairs: Ints, time: int) -> None:
        """It took messages with these keys: (LSN, key), shape (n, 2)."""
        settings = self.state.settings
        if self.window is not None:
            self.window.take(pairs[:, 1].tolist(), time, settings.dedup_window)
        if settings.unique:
            self.keyed.append(("dedup", pairs))

    def _keys(self) -> None:
        """Each key to the message of its LSN, if that still waits."""
        for column in ("key", "dedup"):
            told = [pairs for name, pairs in self.keyed if name == column]
            if told:
                self._keys_of(column, np.concatenate(told))
        self.keyed.clear()

    def _keys_of(self, column: str, told: Ints) -> None:
        for part in self.parts:
            lsns = part["lsn"]
            at = np.minimum(np.searchsorted(lsns, told[:, 0]), len(lsns) - 1)
            here = lsns[at] == told[:, 0]
            if here.any():
                keys = part.get(column)
                keys = np.zeros(len(lsns), dtype=np.int64) if keys is None else keys.copy()
                keys[at[here]] = told[here, 1]
                part[column] = keys

    def _count(self) -> None:
        grouped: dict[tuple[str, int], list[Ints]] = {}
        for column, value, pairs in self.counted:
            grouped.setdefault((column, value), []).append(pairs)
        self.counted.clear()
        for (column, value), pieces in sorted(grouped.items(), key=itemgetter(0)):
            pairs = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
            for part in self.parts:
                covered = _cover(part["lsn"], pairs)
                if covered is None:
                    continue
                before = part.get(column)
                if before is None:
                    before = np.zeros(len(covered), dtype=np.int64)
                if column == "deliveries":  # the attempt of a grant; a later one is higher
                    part[column] = np.where(covered > 0, np.maximum(before, value), before)
                else:
                    part[column] = before + covered * value

    def _delay(self) -> None:
        """What messages have from now on; where it is told of one more than once, the last of it."""
        of_column: dict[str, list[tuple[int, Ints]]] = {}
        for column, value, pairs in self.delayed:
            of_column.setdefault(column, []).append((value, pairs))
        self.delayed.clear()
        for column, told in of_column.items():
            values = np.repeat(np.array([value for value, _ in told], np.int64), [len(pairs) for _, pairs in told])
            pairs = np.concatenate([pairs for _, pairs in told])
            for part in self.parts:
                _set(part, column, pairs, values)


SET_AT_ONCE = 1 << 20
"""Rows that are given a value in one step, about."""


def _set(part: Part, column: str, pairs: Ints, values: Ints) -> None:
    """Give the rows of each pair a value, one pair after the other."""
    starts, ends = np.searchsorted(part["lsn"], pairs[:, 0]), np.searchsorted(part["lsn"], pairs[:, 1])
    hit = np.flatnonzero(ends > starts)
    if not len(hit):
        return
    starts, ends, values = starts[hit], ends[hit], values[hit]
    before = part.get(column)
    part[column] = out = np.zeros(len(part["lsn"]), dtype=np.int64) if before is None else before.copy()
    steps = np.cumsum(ends - starts) // SET_AT_ONCE
    for some in np.split(np.arange(len(hit)), np.flatnonzero(np.diff(steps)) + 1):
        out[expand(starts[some], ends[some])] = np.repeat(values[some], ends[some] - starts[some])


def _together(parts: Sequence[Part]) -> Part:
    """Parts one behind the other; what one of them has no value of is at rest there."""
    if len(parts) == 1:
        return dict(parts[0])
    return {
        name: np.concatenate([part.get(name, np.zeros(len(part["lsn"]), dtype=np.int64)) for part in parts])
        for name in {name for part in parts for name in part}
    }


def keep(part: Part, kept: npt.NDArray[np.bool_]) -> None:
    """Leave only these rows in a part."""
    if not kept.all():
        for name in part:
            part[name] = part[name][kept]


def _cover(lsns: Ints, pairs: Ints) -> Ints | None:
    """How many of the pairs each LSN lies in; None if none holds any."""
    starts = np.searchsorted(lsns, pairs[:, 0])
    ends = np.searchsorted(lsns, pairs[:, 1])
    hit = ends > starts
    if not hit.any():
        return None
    size = len(lsns) + 1
    marks = np.bincount(starts[hit], minlength=size) - np.bincount(ends[hit], minlength=size)
    return np.cumsum(marks[:-1])
