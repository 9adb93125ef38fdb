"""Rows of the log into new files of an archive: one a topic and day, and one a day for what are no messages.

Memory is bounded: rows are taken a window of the log at a time, parted by numpy and written as one row group or more a
file.  Files are synced and lie under `.new/`; who has the lock makes them count (`manifest`).

Small files of a folder are joined in the same way: LSNs and rows stay, and the manifest changes the files at once.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import LogDamaged
from penstock.log.archive.manifest import NEW, RECORDS, Manifest, Part, folder_of, has_folder
from penstock.log.archive.parquet import (
    SCHEMA,
    Claim,
    Footer,
    Sink,
    Source,
    foot_sum,
    pair_texts,
    put_into,
    reader,
    told_in,
    told_together,
    writer,
)
from penstock.log.record_batches import column, joined
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
                told = Footer(self.origin, one.part.path, (self._claim(one.day),), pair_texts(self.vias))
                self.done.append(finished(one.part, one.file, one.sink, one.writer, told))
                del self._open[key]

    def _claim(self, day: int) -> Claim:
        """The LSNs of a day that is over, and how many rows have them."""
        following = [first for later, (first, _) in self._days.items() if later > day]
        first, rows = self._days[day]
        a, b = self.span
        return Claim(a if day == min(self._days) else first, min(following, default=b), rows)


def finished(part: Part, file: File, sink: Sink, made: Any, told: Footer) -> Part:
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
            yield plainly_joined(held), _groups(held)
            held, size = [], 0
        held.append(batch)
        size += batch.nbytes
    if held:
        yield plainly_joined(held), _groups(held)


def _groups(held: list[pa.RecordBatch]) -> Ints:
    return np.repeat([int(column(one, "lsn", "<i8")[0]) for one in held], [one.num_rows for one in held])


def plainly_joined(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Several batches as one, whatever the metadata of their schemas."""
    return held[0] if len(held) == 1 else joined([one.replace_schema_metadata(None) for one in held])


def column_or(batch: pa.RecordBatch, name: str, absent: int) -> Ints:
    """A column of numbers, with a number for null."""
    filled = batch.column(name).fill_null(absent).to_numpy(zero_copy_only=False)
    return np.asarray(filled, dtype=np.int64)


LIKE = 4
"""So many neighbours of about a size are merged; sizes are alike that differ by less than this."""

SMALL = 64 << 10
"""Files below it are of a size."""


def plan(manifest: Manifest, most: int) -> list[Part] | None:
    """The files to merge next, neighbours of one folder, into one of `most` bytes about; None: nothing is worth it.

    Files of a folder are merged by fours of about a size, so that each row is written again a few times only; files of
    a day that is over are merged whatever their sizes.
    """
    folders: dict[str, list[Part]] = {}
    for part in manifest.files:  # by first LSN, and those of one folder do not overlap
        folders.setdefault(part.folder, []).append(part)
    newest = max((folder.rpartition("=")[2] for folder in folders), default="")
    for folder, parts in sorted(folders.items()):
        over = folder.rpartition("=")[2] < newest
        found = _neighbours(parts, most, over)
        if found:
            return found
    return None


def _neighbours(parts: Sequence[Part], most: int, over: bool) -> list[Part] | None:
    run, size = list[Part](), 0
    for part in parts:
        if part.bytes >= most // 2 or (run and (size + part.bytes > most or not (over or _alike(run[-1], part)))):
            if len(run) >= (2 if over else LIKE):
                return run
            run, size = [], 0
            if part.bytes >= most // 2:
                continue
        run.append(part)
        size += part.bytes
    return run if len(run) >= (2 if over else LIKE) else None


def _alike(a: Part, b: Part) -> bool:
    low, high = sorted((max(a.bytes, SMALL), max(b.bytes, SMALL)))
    return high < low * LIKE


def merge(
    disk: Disk, parts: Sequence[Part], form: Form, token: str, progress: Callable[[int], object] | None = None
) -> Part:
    """One new file with all rows of these, under `.new/`, synced.  LogDamaged names a file that is not as it was.

    progress: told rows that are done.
    """
    disk.mkdir(NEW)
    folder = parts[0].folder
    part = Part(
        f"{folder}/{parts[0].first:020d}-{token}.parquet", parts[0].topic, parts[0].first, parts[-1].last, 0, 0, 0, 0
    )
    out = disk.open(part.fresh, create=True)
    sink = Sink(out)
    made = writer(sink, form.compression)
    try:
        held, size, rows = list[pa.Table](), 0, 0
        said = list[Footer]()
        for one in parts:
            for table in _row_groups(disk, one, said):
                if held and size + table.nbytes > ROW_GROUP:
                    write_groups(made, pa.concat_tables(held))
                    held, size = [], 0
                held.append(table)
                size += table.nbytes
                rows += table.num_rows
                if progress is not None:
                    progress(rows)
        if held:
            write_groups(made, pa.concat_tables(held))
        part = finished(part._replace(rows=rows), out, sink, made, told_together(said)._replace(path=part.path))
    except BaseException:
        sink.abandon(made)
        out.close()
        raise
    if rows != sum(one.rows for one in parts):
        raise LogDamaged(f"the archive's folder {folder} lacks rows from LSN {part.first} on")
    disk.sync_folder(NEW)
    return part


def _row_groups(disk: Disk, part: Part, said: list[Footer]) -> Any:
    """Its rows; what it says of them goes to `said`."""
    try:
        try:
            file = disk.open(part.path, readonly=True)
        except FileNotFoundError:
            file = disk.open(part.fresh, readonly=True)
        try:
            if file.size() != part.bytes or foot_sum(file, part.bytes) != part.foot:
                raise LogDamaged(f"the archive's file {part.path} is not what was written")
            source: Any = reader(Source(file))
            said.append(told_in(source.metadata, part.path))
            for number in range(source.metadata.num_row_groups):
                yield source.read_row_group(number, use_threads=False).cast(SCHEMA)
        finally:
            file.close()
    except FileNotFoundError:
        raise LogDamaged(f"the archive's file {part.path} is missing; put back a copy of it") from None
    except (pa.ArrowException, ValueError) as error:
        raise LogDamaged(f"the archive's file {part.path} cannot be read: {error}") from error
