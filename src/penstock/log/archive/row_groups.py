"""Rows of an archive by LSN, in the columns and the order of the log; and where a reader changes from one to the other.

Files of one folder follow one another, those of several lie side by side.  Their row groups are read in the order of
their first LSNs, and what lies below the first LSN of the next one is sorted and given.  So memory is a row group a
file at most, however large the archive is.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from penstock.errors import LogDamaged, NotFound
from penstock.log.archive.file_writer import plainly_joined
from penstock.log.archive.manifest import Manifest, Part, read
from penstock.log.archive.parquet import LOG_COLUMNS, READ, Source, foot_sum, reader
from penstock.log.record_batches import column

if TYPE_CHECKING:
    from penstock.log.name_index import Wanted
    from penstock.ports import Disk, File


GIVEN = 4 << 20
"""Bytes that are read before rows are given, where files lie side by side."""

OPEN_MAX = 64
"""Files that stay open."""

CACHE = 48 << 20
"""Bytes of row groups that are kept: readers come back for what follows."""


class Piece(NamedTuple):
    """A part of a range of LSNs, and who has it."""

    start: int
    end: int
    archived: bool


def pieces(start: int, end: int, seam: int, spans: Sequence[tuple[int, int]]) -> list[Piece]:
    """The range [start, end) in order: from the archive what lies below `seam` and is archived, else from the log.

    seam: from here on the log has every row; below, rows may be left out of it.
    """
    out = list[Piece]()
    at, border = start, min(seam, end)
    for a, b in spans:
        low, high = max(a, at), min(b, border)
        if low < high:
            if at < low:
                out.append(Piece(at, low, False))
            out.append(Piece(low, high, True))
            at = high
    if at < end:
        out.append(Piece(at, end, False))
    return out


class Archive:
    """A reader of an archive's folder.  Thread-safe; it follows the manifest as it is replaced."""

    def __init__(self, disk: Disk, manifest: Manifest | None = None) -> None:
        """LogDamaged for a manifest that cannot be read."""
        self.disk = disk
        self._manifest = manifest
        self._open = OrderedDict[str, _Opened]()
        self._kept = OrderedDict[tuple[str, int], pa.RecordBatch]()
        self._kept_bytes = 0
        self._lock = threading.Lock()

    @property
    def manifest(self) -> Manifest:
        """The present one; an empty one when there is none."""
        if self._manifest is None:
            self._manifest = read(self.disk) or Manifest(0)
        return self._manifest

    def follow(self, number: int) -> None:
        """Whoever writes says which manifest there is now: read it if it is newer."""
        if number > self.manifest.number:
            self._manifest = read(self.disk) or Manifest(0)

    def batches(
        self, a: int, b: int, columns: Sequence[str] | None = None, names: Wanted | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Archived rows with LSNs in [a, b), ascending, in the log's columns.

        columns: `batch` is one more of them, see `files.GROUP`.
        names: only messages of such topics matter, so files without any are left out.
        LogDamaged names the file that is missing or not what was written; NotFound when the archive's retention has
        passed what is asked for.
        """
        cursor = a
        while cursor < b:
            manifest = self.manifest
            if cursor < manifest.pruned:
                raise NotFound(
                    f"LSNs {cursor} to {min(b, manifest.pruned) - 1} are archived no longer: retention of the archive "
                    f"has come to LSN {manifest.pruned}"
                )
            try:
                for batch in self._batches(manifest, cursor, b, names):
                    cursor = int(column(batch, "lsn", "<i8")[-1]) + 1
                    yield batch.select(LOG_COLUMNS if columns is None else list(columns))
                return
            except Gone as gone:
                fresh = read(self.disk) or Manifest(0)
                if fresh.number == manifest.number:
                    raise LogDamaged(f"the archive's file {gone} is missing; put back a copy of it") from None
                self._manifest = fresh  # merged into another meanwhile

    def _batches(self, manifest: Manifest, a: int, b: int, names: Wanted | None) -> Iterator[pa.RecordBatch]:
        held, size = list[pa.RecordBatch](), 0
        for border, group in self._groups(manifest, a, b, names):
            if held and size >= GIVEN and border > _first(held):
                give, held = _parted(held, border)
                size = sum(batch.nbytes for batch in held)
                yield from give
            batch = _cut(group(), a, b)
            if batch.num_rows:
                held.append(batch)
                size += batch.nbytes
        yield from _parted(held, b)[0] if held else ()

    def _groups(
        self, manifest: Manifest, a: int, b: int, names: Wanted | None
    ) -> Iterator[tuple[int, Callable[[], pa.RecordBatch]]]:
        """Row groups with LSNs in [a, b) by the first that each may have of these: that, and how it is read."""
        parts = [part for part in manifest.files if part.last >= a and part.first < b and may_have(part, names)]
        # (first LSN, serial, file, row group or -1 for a file that is not open yet)
        ahead = [(max(part.first, a), at, part, -1) for at, part in enumerate(parts)]
        heapify(ahead)
        serial = count(len(ahead))
        while ahead:
            border, _, part, number = heappop(ahead)
            opened = self._opened(part)
            if number >= 0:
                yield border, partial(self._group, opened, part, number)
                continue
            for at, (first, last) in enumerate(opened.groups):
                if last >= a and first < b:
                    heappush(ahead, (max(first, a), next(serial), part, at))

    def _group(self, opened: _Opened, part: Part, number: int) -> pa.RecordBatch:
        key = (part.path, number)
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                return kept
        batch = opened.read(number)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = batch
                self._kept_bytes += batch.nbytes
                while self._kept_bytes > CACHE and len(self._kept) > 1:
                    self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes
        return batch

    def _opened(self, part: Part) -> _Opened:
        with self._lock:
            opened = self._open.get(part.path)
            if opened is not None:
                self._open.move_to_end(part.path)
                return opened
        opened = _Opened(self.file(part), part)
        with self._lock:
            self._open[part.path] = opened
            while len(self._open) > OPEN_MAX:
                self._open.popitem(last=False)  # a reader that still has it keeps it open
        return opened

    def file(self, part: Part) -> File:
        """The file, open; raises `Gone` where it is not there."""
        for path in (part.path, part.fresh, part.path):  # it may move between two looks
            try:
                return self.disk.open(path, readonly=True)
            except FileNotFoundError:
                continue
        raise Gone(part.path)


class Gone(Exception):
    """A file that the manifest names is not there."""


class _Opened:
    """An open file.  Thread-safe."""

    def __init__(self, file: File, part: Part) -> None:
        self._part = part
        self._lock = threading.Lock()
        try:
            size = file.size()
            if size != part.bytes:
                raise _damaged(part, f"has {size} bytes, and {part.bytes} were written")
            if foot_sum(file, size) != part.foot:
                raise _damaged(part, "is not what was written")
            self._reader: Any = reader(Source(file))
            meta = self._reader.metadata
            if meta.num_rows != part.rows:
                raise _damaged(part, f"has {meta.num_rows} rows, and {part.rows} were written")
            self.groups = [_ends(meta.row_group(at)) for at in range(meta.num_row_groups)]
        except (pa.ArrowException, OSError, ValueError) as error:
            file.close()
            raise _damaged(part, f"cannot be read: {error}") from error
        except LogDamaged:
            file.close()
            raise

    def read(self, number: int) -> pa.RecordBatch:
        """The rows of a row group, in the log's columns."""
        try:
            with self._lock:
                table = self._reader.read_row_group(number, columns=READ.names, use_threads=False)
            whole = table.select(READ.names).cast(READ).combine_chunks()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _damaged(self._part, f"cannot be read: {error}") from error
        batches = whole.to_batches()
        return plainly_joined(batches) if batches else pa.RecordBatch.from_pylist([], schema=READ)


def _ends(group: Any) -> tuple[int, int]:
    """First and last LSN of a row group."""
    said = group.column(0).statistics
    if said is None or not said.has_min_max:
        raise ValueError("a row group does not say which LSNs it has")
    return int(said.min), int(said.max)


def _damaged(part: Part, what: str) -> LogDamaged:
    return LogDamaged(f"the archive's file {part.path} (LSN {part.first} to {part.last}) {what}")


def may_have(part: Part, names: Wanted | None) -> bool:
    """Whether a file can have messages of such names."""
    if names is None:
        return True
    if not part.messages:
        return False
    if part.topic is None:
        return True
    return part.topic == names if isinstance(names, str) else names(part.topic)


def _first(held: list[pa.RecordBatch]) -> int:
    return min(int(column(batch, "lsn", "<i8")[0]) for batch in held)


def _cut(batch: pa.RecordBatch, a: int, b: int) -> pa.RecordBatch:
    """Its rows with LSNs in [a, b)."""
    low, high = np.searchsorted(column(batch, "lsn", "<i8"), (a, b))
    return batch.slice(int(low), int(high) - int(low))


def _parted(held: list[pa.RecordBatch], border: int) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """What lies below an LSN, in order, and the rest."""
    give, rest = list[pa.RecordBatch](), list[pa.RecordBatch]()
    for batch in held:
        at = int(np.searchsorted(column(batch, "lsn", "<i8"), border))
        if at:
            give.append(batch.slice(0, at))
        if at < batch.num_rows:
            rest.append(batch.slice(at))
    if len(give) > 1:
        whole = plainly_joined(give)
        lsns = column(whole, "lsn", "<i8")
        if (np.diff(lsns) < 0).any():
            whole = cast("Any", whole).take(pa.array(np.argsort(lsns, kind="stable")))
        give = [whole]
    return give, rest
