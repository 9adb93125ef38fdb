"""Reading rows back: by LSNs for the queues, by LSN range for replay, SQL and Spark.

Batches come by `pread`, never through a map; the CRC of each is checked once a process before a row of it is believed,
and a few decoded ones are kept.  While somebody follows the log the newest need not be read back: what was written is
kept, up to a bound, and whoever is further behind reads the file.  Thread-safe.  It sees only batches that the catalog
lists.
"""

from __future__ import annotations

import errno
import logging
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from penstock.errors import LogDamaged
from penstock.log.catalog import Catalog, Chosen, Segment, after
from penstock.log.frame import FrameReader, NotAFrame, header_of, sound
from penstock.log.record_batches import (
    BATCH_COST,
    Joining,
    Outliner,
    cells,
    column,
    lengths,
    micros,
    nulls,
    one_value,
    rows_of,
    span,
    take,
)  # fmt: skip
from penstock.records.chunks import Chunk
from penstock.records.entries import Rows, Topic
from penstock.records.kinds import NO_VIA, Kind
from penstock.records.remembered import Memo

logger = logging.getLogger("penstock.log")

KEPT = 1000
"""Sentences that are kept; of more damage only the number."""

UNREADABLE = frozenset({errno.EIO, errno.ENOENT})
"""What the disk says of bytes that are not there any more, whoever asks again."""


class Damage:
    """The damaged batches of one log that this process has met: each is told once with file, batch and LSN.

    A flipped bit must cost its own batch and nothing else.  Who reads `around` damage gets all other rows:

    * a delivery goes on without them, and they are set aside: they stay in their queues, leased to nobody, in nobody's
      backlog, until somebody settles them or a restart finds them readable (`core.queue.dispatching.attendance`); what
      is delivered at most once, or to who never acknowledges, was settled before it was read, and is lost;
    * a filter that looks through a queue does not match them;
    * compaction leaves the file alone, replay and `verify` say what is wrong and end.

    A batch that the disk cannot read, and a file that is gone, count as damage.
    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._met = dict[tuple[str, int], str]()  # by file and number of the batch

    def met(self, name: str, number: int, error: LogDamaged) -> None:
        """Somebody wanted rows of this batch."""
        with self._lock:
            known = (name, number) in self._met
            self._met[name, number] = str(error) if len(self._met) < KEPT else ""
        if not known:
            logger.error("%s; what is stored there is not delivered", error)

    def forget(self, name: str) -> None:
        """The file is going away."""
        with self._lock:
            self._met = {key: said for key, said in self._met.items() if key[0] != name}

    @property
    def batches(self) -> int:
        """How many batches the segment has."""
        return len(self._met)

    def sentences(self, most: int) -> list[str]:
        """What is wrong, in the order in which it was met."""
        with self._lock:
            return [said for said in self._met.values() if said][:most]


_LAST_PUBLISH = int(Kind.PUBLISH_TRANSIENT)
_TOPICS_KEPT = 1 << 16
_NO_LIMIT = 1 << 62
_ROW_COST = 90  # bytes of memory that a row takes beside its header and body, about


WRITTEN_MOST = 2 << 20
"""Bytes of batches that were written and that nobody has read yet, while somebody follows the log."""


class _Decoded:
    """A batch in memory."""

    __slots__ = ("_messages", "batch", "dense", "first", "lsns", "size")

    def __init__(self, batch: pa.RecordBatch, size: int) -> None:
        self.batch = batch
        self.size = size
        self.lsns = column(batch, "lsn", "<i8")
        self.first = int(self.lsns[0])
        self.dense = int(self.lsns[-1]) - self.first == len(self.lsns) - 1
        self._messages: bool | None = None

    @property
    def messages(self) -> bool:
        """Whether it has messages alone, and no control records."""
        if self._messages is None:
            self._messages = bool((column(self.batch, "kind", "<i1") <= _LAST_PUBLISH).all())
        return self._messages

    def span(self, a: int, b: int) -> tuple[int, int]:
        """Rows of the LSNs in [a, b)."""
        if self.dense:
            n = len(self.lsns)
            return min(max(a - self.first, 0), n), min(max(b - self.first, 0), n)
        low, high = np.searchsorted(self.lsns, (a, b))
        return int(low), int(high)


def _topic_of(known: Mapping[int, tuple[str, str]], key: tuple[int, str]) -> Topic:
    """Of a via and a routing key."""
    via, name = key
    vhost, exchange = known[via]
    return Topic(vhost, exchange, name, via)


class Vias:
    """What each via id stands for, and topics made from it; fed by VIA records, checkpoints and bases."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[str, str]] = {NO_VIA: ("/", "")}
        self._plain = Memo[str, Topic](_TOPICS_KEPT, partial(Topic, "/", ""))
        self._topics = Memo[tuple[int, str], Topic](_TOPICS_KEPT, partial(_topic_of, self.known))

    def learn(self, via: int, header: bytes) -> None:
        """A VIA record."""
        said = cast("dict[str, str]", orjson.loads(header))
        self._put(via, said["vhost"], said["exchange"])

    def load(self, table: dict[str, list[str]]) -> None:
        """What `table` gave."""
        for via, (vhost, exchange) in table.items():
            self._put(int(via), vhost, exchange)

    def _put(self, via: int, vhost: str, exchange: str) -> None:
        if self.known.get(via, (vhost, exchange)) != (vhost, exchange):  # its vhost is gone: topics were made of it
            self._topics = Memo(_TOPICS_KEPT, partial(_topic_of, self.known))
        self.known[via] = (vhost, exchange)

    def table(self) -> dict[str, list[str]]:
        """All ids but the default one, for JSON."""
        return {str(via): list(names) for via, names in self.known.items() if via != NO_VIA}

    def topics(self, vias: list[int | None] | None, names: list[str]) -> list[Topic]:
        """The topics of rows; `vias` None: all of the default exchange.  KeyError for an id no record explained."""
        plain = self._plain
        if vias is None:
            return [plain[name] for name in names]
        other = self._topics
        return [plain[name] if via is None else other[via, name] for via, name in zip(vias, names, strict=True)]


class Reader:
    """Reads what a catalog lists."""

    def __init__(self, catalog: Catalog, vias: Vias, cache: int) -> None:
        """`cache`: bytes of decoded batches to keep; the last one stays whatever its size."""
        self._catalog = catalog
        self._vias = vias
        self._budget = cache
        self._kept = OrderedDict[tuple[Segment, int], _Decoded]()
        self._written = OrderedDict[tuple[Segment, int], bytearray]()  # the newest, as they lie in the file
        self._written_bytes = 0
        self.bytes = 0  # of memory that both take
        self._lock = threading.Lock()
        self.damage = Damage()

    def keep(self, segment: Segment, number: int, data: bytearray) -> None:
        """A batch that the catalog lists since now, as it was written: it is read from here, if that is soon."""
        with self._lock:
            self._written[segment, number] = data
            self._count_written(len(data))
            self._let_go(WRITTEN_MOST)

    def keep_none(self) -> None:
        """Nobody follows the log any more."""
        with self._lock:
            self._let_go(0)

    def _let_go(self, most: int) -> None:
        while self._written_bytes > most:
            self._count_written(-len(self._written.popitem(last=False)[1]))

    def _count_written(self, size: int) -> None:
        self._written_bytes += size
        self.bytes += size

    def at_hand(self, lsns: Sequence[int] | Chunk) -> bool:
        """Whether `read` would find everything decoded, and so not touch the disk."""
        at, n, segments = 0, len(lsns), self._catalog.segments
        while at < n:
            place = self._catalog.find(lsns[at], segments)
            if place is None or (place not in self._kept and place not in self._written):
                return False
            at = max(bisect_left(lsns, after(segments, *place), at), at + 1)
        return True

    def read(self, lsns: Sequence[int] | Chunk, ahead: int = 0, most: int = 0, *, around: bool = False) -> Rows:
        """The messages at ascending LSNs.  LSNs that are no durable message are left out.

        `ahead`: decode about so many bytes of the batches that follow, for the reads that follow.
        `most`: bytes after which the answer ends, whatever else was asked for; at least one message.  0: no limit.
        `around`: what lies in damaged batches is left out too, instead of LogDamaged.
        LogDamaged when a batch is not what was written or cannot be read; OSError when the disk fails otherwise.
        """
        found = Joining()
        at, n, segments = 0, len(lsns), self._catalog.segments
        place: tuple[Segment, int] | None = None
        solid = isinstance(lsns, range) and lsns.step == 1
        left = most or _NO_LIMIT
        while at < n and left > 0:
            place = self._catalog.find(lsns[at], segments)
            if place is None:
                at += 1
                continue
            stop = bisect_left(lsns, after(segments, *place), at)
            try:
                decoded = self._decode(*place)
            except LogDamaged:
                if not around:
                    raise
                at = max(stop, at + 1)
                continue
            if solid:
                low, high = decoded.span(lsns[at], lsns[-1] + 1)
                if high > low:
                    left = self._slice(decoded, low, high, found, left)
            else:
                left = self._pick(decoded, lsns[at:stop], found, left)
            at = max(stop, at + 1)
        if ahead and place is not None:
            self._read_ahead(*place, ahead)
        return self._rows(found.whole()) if found else Rows([], [], [], [], [], [], [])

    def give(self, need: int) -> int:
        """Let go about so many bytes of decoded batches, but the last one; how many."""
        with self._lock:
            before = self.bytes
            self._let_go(max(self._written_bytes - need, 0))
            self._trim(before - need - self._written_bytes)
            return before - self.bytes

    def _trim(self, most: int) -> None:
        while self.bytes - self._written_bytes > most and len(self._kept) > 1:
            self.bytes -= self._kept.popitem(last=False)[1].size

    def _read_ahead(self, segment: Segment, number: int, size: int) -> None:
        room = self._budget // 2
        while size > 0 and room > 0 and number + 1 < len(segment.lsns):
            number += 1
            size -= segment.lengths[number]
            room -= segment.lengths[number] + BATCH_COST
            try:
                self._decode(segment, number)
            except LogDamaged:
                return  # nobody has asked for it

    def batches(
        self,
        a: int,
        b: int,
        columns: Sequence[str] | None = None,
        chosen: Chosen | None = None,
        *,
        around: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """The durable rows with LSNs in [a, b), control records too, as slices of the batches they were written in.

        `chosen`: which batches of a segment are worth reading.  `around`, and errors: as `read`.
        """
        for segment, number in self._catalog.batches(a, b, chosen):
            try:
                decoded = self._decode(segment, number)
            except LogDamaged:
                if not around:
                    raise
                continue
            low, high = decoded.span(a, b)
            if high > low:
                batch = decoded.batch if columns is None else decoded.batch.select(list(columns))
                yield batch if high - low == len(decoded.lsns) else batch.slice(low, high - low)

    def outlines(self, a: int, b: int, chosen: Chosen | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of `batches` for who counts and weighs them: `body` has its lengths, its bytes mean nothing.

        Each is good until the next is asked for.  Damage among what was read raises LogDamaged; damage of a body is
        left to who reads it.
        """
        outliner = Outliner(_frames)
        for segment, number in self._catalog.batches(a, b, chosen):
            batch = None
            if (segment, number) not in self._kept and not segment.header.codec:
                offset, length = segment.offsets[number], segment.lengths[number]
                batch = outliner.outline(segment.file, offset, length, segment.lsns[number])
            decoded = self._decode(segment, number) if batch is None else _Decoded(batch, 0)
            low, high = decoded.span(a, b)
            if high > low:
                yield decoded.batch if high - low == len(decoded.lsns) else decoded.batch.slice(low, high - low)

    def forget(self, segment: Segment) -> None:
        """The segment is going away: nothing that is read of it from now on is kept, for that would keep its file."""
        self.damage.forget(segment.name)
        with self._lock:
            segment.gone = True
            for key in [key for key in self._kept if key[0] is segment]:
                self.bytes -= self._kept.pop(key).size
            for key in [key for key in self._written if key[0] is segment]:
                self._count_written(-len(self._written.pop(key)))

    def _decode(self, segment: Segment, number: int) -> _Decoded:
        key = (segment, number)
        with self._lock:
            decoded = self._kept.get(key)
            if decoded is not None:
                self._kept.move_to_end(key)
                return decoded
            written = self._written.pop(key, None)
            if written is not None:
                self._count_written(-len(written))
        try:
            if written is None:
                data = segment.read(number)
                batch = decode(segment, number, data)
            else:
                batch = rows_of(memoryview(written), compressed=False)
        except LogDamaged as error:
            self.damage.met(segment.name, number, error)
            raise
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            where = (segment.name, number, segment.offsets[number], segment.lsns[number])
            failure = damaged(*where, f"cannot be read: {error.strerror}")
            self.damage.met(segment.name, number, failure)
            raise failure from error
        length = segment.lengths[number]
        size = max(length, batch.nbytes) if segment.header.codec else length
        decoded = _Decoded(batch, size + BATCH_COST)
        with self._lock:
            if key not in self._kept and not segment.gone:
                self._kept[key] = decoded
                self.bytes += decoded.size
                self._trim(self._budget)
        return decoded

    def _slice(self, decoded: _Decoded, low: int, high: int, found: Joining, left: int) -> int:
        if not decoded.messages and not (column(decoded.batch, "kind", "<i1")[low:high] <= _LAST_PUBLISH).all():
            return self._pick(decoded, cast("list[int]", decoded.lsns[low:high].tolist()), found, left)
        whole = low == 0 and high == len(decoded.lsns)
        if whole:
            return _add(decoded.batch, found, left)
        return _add(decoded.batch.slice(low, high - low), found, left, decoded.size)

    def _pick(self, decoded: _Decoded, wanted: Sequence[int], found: Joining, left: int) -> int:
        """Scattered rows of one batch."""
        asked = np.asarray(wanted, np.int64)
        rows = asked - decoded.first if decoded.dense else np.searchsorted(decoded.lsns, asked)
        inside = (rows >= 0) & (rows < len(decoded.lsns))
        rows, asked = rows[inside], asked[inside]
        rows = rows[decoded.lsns[rows] == asked]
        if not decoded.messages:
            rows = rows[column(decoded.batch, "kind", "<i1")[rows] <= _LAST_PUBLISH]
        n = len(rows)
        if not n:
            return left
        if int(rows[-1]) - int(rows[0]) == n - 1:
            return _add(decoded.batch.slice(int(rows[0]), n), found, left, decoded.size)
        return _add(take(decoded.batch, rows), found, left)

    def _rows(self, batch: pa.RecordBatch) -> Rows:
        """Rows as Python values.  All batches of a read come at once: a column's fixed cost is paid once."""
        count = batch.num_rows
        alike = one_value(batch, "properties")
        never = nulls(batch, "expires_at") == count
        return Rows(
            lsns=column(batch, "lsn", "<i8").tolist(),
            topics=self._topics_of(batch, count),
            properties=cells(batch.slice(0, 1), "properties") * count if alike else cells(batch, "properties"),
            bodies=cells(batch, "body"),
            times=_values(column(batch, "time", "<i8")),
            expires_at=[0] * count if never else micros(batch, "expires_at"),
            priority=_values(column(batch, "priority", "<i2")),
        )

    def _topics_of(self, batch: pa.RecordBatch, count: int) -> list[Topic]:
        """The topic of each row; most reads have one for all."""
        plain = nulls(batch, "via") == count
        if plain and one_value(batch, "name"):
            return self._vias.topics(None, cells(batch.slice(0, 1), "name")) * count
        return self._vias.topics(None if plain else cells(batch, "via"), cells(batch, "name"))


def _add(batch: pa.RecordBatch, found: Joining, left: int, holds: int = 0) -> int:
    """Rows of messages, appended as far as `left` bytes reach; the bytes that are left then.

    holds: bytes of the batch that they are a part of; 0 when they are all of it.
    """
    if left < _NO_LIMIT:
        size = span(batch, "body") + span(batch, "properties") + _ROW_COST * batch.num_rows
        if size > left:
            ends = np.cumsum(lengths(batch, "body") + lengths(batch, "properties") + _ROW_COST)
            fit = max(int(np.searchsorted(ends, left, "right")), 0 if found else 1)
            if not fit:
                return 0
            batch, size, holds = batch.slice(0, fit), left, holds or size
        left -= size
    found.append(batch, holds)
    return left


def _values(numbers: npt.NDArray[Any]) -> list[int]:
    """A column as Python's numbers; the same one again where all are alike."""
    first = int(numbers[0])
    return [first] * len(numbers) if (numbers == first).all() else numbers.tolist()


def check(segment: Segment, number: int, data: bytes | memoryview) -> None:
    """Believe a batch's bytes: length, and the CRC unless this process has checked it.  LogDamaged when wrong."""
    where = (segment.name, number, segment.offsets[number], segment.lsns[number])
    if len(data) != segment.lengths[number]:
        raise damaged(*where, "has been cut off")
    if segment.checked[number]:
        return
    try:
        frame = _frames.header(header_of(data), segment.offsets[number])
        good = sound(frame, data) and frame.lsn == segment.lsns[number]
    except NotAFrame:
        good = False
    if not good:
        raise damaged(*where, "is not what was written")
    segment.checked[number] = 1


def decode(segment: Segment, number: int, data: bytes | memoryview) -> pa.RecordBatch:
    """One batch from its bytes, after `check`."""
    check(segment, number, data)
    return rows_of(data, compressed=bool(segment.header.codec))


def damaged(name: str, number: int, offset: int, lsn: int, what: str) -> LogDamaged:
    """The one sentence of all damage."""
    return LogDamaged(f"{name}: batch {number} at byte {offset}, from LSN {lsn} on, {what}")


_frames = FrameReader()
