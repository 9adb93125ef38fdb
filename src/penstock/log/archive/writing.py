"""Rows of the log into new files of an archive: one a topic and day, and one a day for what are no messages.

Memory is bounded: rows are taken a window of the log at a time, parted by numpy and written as one row group or more a
file.  Files are synced and lie under `.new/`; who has the lock makes them count (`manifest`).
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.log.archive.files import SCHEMA, Sink, foot_sum, writer
from penstock.log.archive.manifest import NEW, RECORDS, Part, folder_of, has_folder
from penstock.log.archive.origins import Claim, Told, pair_texts, put_into
from penstock.log.arrow import column
from penstock.ports import Disk, File
from penstock.records.compute import compute
from penstock.records.dataclass import dataclass
from penstock.records.kinds import NO_VIA, Kind

WINDOW = 32 << 20
"""Bytes of rows that are parted in one go."""

ROW_GROUP = 4 << 20
"""Bytes of rows in a row group, before compression: a reader of several files holds one of each."""

_LAST_PUBLISH = int(Kind.PUBLISH_TRANSIENT)
_DAY_US = 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Form:
    """How files are written."""

    compression: str = "zstd"
    topics: int = 64  # so many topics of one run have files of their own
    file: int = 128 << 20  # bytes up to which files are merged


@dataclass(slots=True)
class _File:
    """A file on its way."""

    part: Part
    file: File
    sink: Sink
    writer: Any
    day: int


@dataclass(slots=True)
class Writing:
    """One run: rows in ascending order in, synced files out."""

    disk: Disk
    form: Form
    token: str  # makes the names of this run's files its own
    vias: Mapping[int, tuple[str, str]]  # what each `via` id stands for
    origin: int = 0  # of the log
    span: tuple[int, int] = (0, 0)  # LSNs [a, b) that the rows are all of
    done: list[Part] = field(default_factory=list[Part])
    _open: dict[tuple[str, int], _File] = field(default_factory=dict[tuple[str, int], _File])
    _own: set[str] = field(default_factory=set[str])  # topics with files of their own
    _days: dict[int, list[int]] = field(
        default_factory=dict[int, list[int]]
    )  # first LSN and rows of each, as they come
    _count: int = 0

    def run(self, rows: Iterable[pa.RecordBatch], progress: Callable[[int], object]) -> list[Part]:
        """All rows; the files.  OSError, and what `rows` raises; then files may be left under `.new/`.

        progress: told the last LSN of what is written.
        """
        self.disk.mkdir(NEW)
        try:
            for window, groups in _windows(rows):
                self._write(window, groups)
                progress(int(column(window, "lsn", "<i8")[-1]))
            self._close()
        finally:
            for one in self._open.values():  # after a failure
                one.sink.abandon(one.writer)
                one.file.close()
        self.disk.sync_folder(NEW)
        return sorted(self.done, key=lambda part: (part.first, part.path))

    def _write(self, window: pa.RecordBatch, groups: Ints) -> None:
        lsns, kinds = column(window, "lsn", "<i8"), column(window, "kind", "<i1")
        days = column(window, "time", "<i8") // _DAY_US
        encoded: Any = compute.dictionary_encode(window.column("name"))
        names = cast("list[str | None]", encoded.dictionary.to_pylist())
        messages = kinds <= _LAST_PUBLISH
        codes = np.asarray(encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)
        topics = [*self._topics(names, codes[messages]), None]
        # -2: a record; -1: a message of a topic without files of its own; else the number of the topic
        own = np.array([at if name is not None else -1 for at, name in enumerate(topics)], dtype=np.int64)
        place = np.where(messages, own[codes], -2)
        whole = self._explained(window, groups)
        low = int(days.min())
        for day, at, count in np.stack(np.unique(days, return_index=True, return_counts=True), axis=1).tolist():
            self._days.setdefault(day, [int(lsns[at]), 0])[1] += count
        keys = (place + 2) * (int(days.max()) - low + 1) + (days - low)
        found, which = np.unique(keys, return_inverse=True)
        order = np.argsort(which, kind="stable")
        at = 0
        for number in range(len(found)):
            count = int((which == number).sum()) if len(found) > 1 else len(order)
            some = order[at : at + count]
            at += count
            rows = whole if len(found) == 1 else cast("Any", whole).take(pa.array(some))
            where, day = int(place[some[0]]), int(days[some[0]])
            self._add(None if where == -2 else topics[where] or "", day, rows, int(lsns[some[0]]), int(lsns[some[-1]]))
        self._close(before=int(days[-1]))

    def _topics(self, names: list[str | None], codes: Ints) -> list[str | None]:
        """Each name, or None where it has no files of its own; the most frequent ones are first to get some."""
        counts = np.bincount(codes[codes >= 0], minlength=len(names))
        for at in np.argsort(-counts, kind="stable").tolist():
            name = names[at]
            if len(self._own) >= self.form.topics:
                break
            if counts[at] and name is not None and has_folder(name):
                self._own.add(name)
        return [name if name in self._own else None for name in names]

    def _explained(self, window: pa.RecordBatch, groups: Ints) -> pa.Table:
        """With the batch of each row, and what `via` stands for."""
        vias = column_or(window, "via", NO_VIA)
        known, which = np.unique(vias, return_inverse=True)
        pairs = [self.vias.get(int(via), ("", "")) if via != NO_VIA else ("/", "") for via in known.tolist()]
        texts: list[Any] = []
        for at in (0, 1):
            texts.append(cast("Any", pa.array([pair[at] for pair in pairs], pa.string())).take(pa.array(which)))
        return pa.Table.from_arrays([*window.columns, pa.array(groups), *texts], schema=SCHEMA)

    def _add(self, topic: str | None, day: int, rows: pa.Table, first: int, last: int) -> None:
        """Rows of one file.  topic: None for records, "" for those who share."""
        date = (_EPOCH + timedelta(days=day)).strftime("%Y-%m-%d")
        folder = f"{RECORDS}/day={date}" if topic is None else folder_of(topic or None, date)
        one = self._open.get((folder, day))
        if one is None:
            name = f"{first:020d}-{self.token}-{self._count:04d}.parquet"
            self._count += 1
            part = Part(f"{folder}/{name}", topic or None, first, last, 0, 0, 0, 0)
            file = self.disk.open(part.fresh, create=True)
            sink = Sink(file)
            one = self._open[folder, day] = _File(part, file, sink, writer(sink, self.form.compression), day)
        write_groups(one.writer, rows)
        one.part = one.part._replace(last=last, rows=one.part.rows + rows.num_rows)

    def _close(self, before: int | None = None) -> None:
        """Finish files, of days before one, or all."""
        for key, one in list(self._open.items()):
            if before is None or one.day < before:
                told = Told(self.origin, one.part.path, (self._claim(one.day),), pair_texts(self.vias))
                self.done.append(finished(one.part, one.file, one.sink, one.writer, told))
                del self._open[key]

    def _claim(self, day: int) -> Claim:
        """The LSNs of a day that is over, and how many rows have them."""
        following = [first for later, (first, _) in self._days.items() if later > day]
        first, rows = self._days[day]
        a, b = self.span
        return Claim(a if day == min(self._days) else first, min(following, default=b), rows)


def finished(part: Part, file: File, sink: Sink, made: Any, told: Told) -> Part:
    """The end of a file: its foot, synced."""
    put_into(made, told)
    made.close()
    file.sync()
    foot = foot_sum(file, sink.size)
    file.close()
    return part._replace(bytes=sink.size, foot=foot, sum=sink.sum)


def write_groups(made: Any, rows: pa.Table) -> None:
    """Rows as row groups of about ROW_GROUP bytes."""
    made.write_table(rows, row_group_size=max(1, ROW_GROUP * rows.num_rows // max(1, rows.nbytes)))


def _windows(rows: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, Ints]]:
    """Batches joined to about WINDOW bytes, and for each row the first LSN of the one it was in."""
    held, size = list[pa.RecordBatch](), 0
    for batch in rows:
        if held and size + batch.nbytes > WINDOW:
            yield joined(held), _groups(held)
            held, size = [], 0
        held.append(batch)
        size += batch.nbytes
    if held:
        yield joined(held), _groups(held)


def _groups(held: list[pa.RecordBatch]) -> Ints:
    return np.repeat([int(column(one, "lsn", "<i8")[0]) for one in held], [one.num_rows for one in held])


def joined(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Several batches as one."""
    concat: Any = getattr(pa, "concat_batches")  # noqa: B009 - the stubs do not know it
    return held[0] if len(held) == 1 else concat([one.replace_schema_metadata(None) for one in held])


def column_or(batch: pa.RecordBatch, name: str, absent: int) -> Ints:
    """A column of numbers, with a number for null."""
    filled = batch.column(name).fill_null(absent).to_numpy(zero_copy_only=False)
    return np.asarray(filled, dtype=np.int64)
