"""Writing closed segments anew: without rows that nobody needs, in larger batches, compressed if wanted.

The work has plain values for its order and its result, bytes for what is long, so that a thread, another process and a
command can all do it.
It reads the old files batch by batch, checks each sum, and writes `log/<first>.rewrite`: batches of about a thousand
rows, made from at most a thousand old ones at a time, since a larger join holds the interpreter for too long.  When it
returns, that file is whole and synced; no other file was touched.  A crash leaves a file that the next start removes.

LSNs stay.  A batch is never parted, so groups stay together; batches of bases stay by themselves and uncompressed,
since recovery finds them by their first row.

The new segment takes the place of the old ones so that a crash and a reader at any moment see one of both:

    prepare   any thread: old files pinned, the new one opened
    enter     the loop: one new list of segments; readers with the old list read the old files to their end
    finish    any thread: the new file renamed over the first old one, the others removed, the folder synced
    undo      the loop: instead of `enter`, or after a rename that failed: the old list, which lacks nothing

`enter` is the one moment from which on rows are missing: whoever asks about holds does so in the same step of the loop.
That is why the rename, which nobody can take back, comes after it.  After a crash before the rename the old files are
all there is, after it the new one covers the rest of them.  Between `enter` and the rename the file has another
generation than the list says, and who opens it by its name lists again.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import LogDamaged, Unavailable
from penstock.log.catalog import Catalog, Segment
from penstock.log.encode import Encoder
from penstock.log.frame import (
    END_OF_STREAM,
    KEY_CRC,
    KEY_DURABLE,
    KEY_LAST,
    KEY_LSN,
    SEALED,
    ZERO_CRC,
    Layout,
    header_of,
    stamp,
)
from penstock.log.mending import Recovery
from penstock.log.name_index import RawBatch, Source, build
from penstock.log.reader import Reader
from penstock.log.record_batches import Joining, chosen, column, message_with
from penstock.log.segment import FOLDER, REWRITTEN, SegmentHeader, pin, rewrite_name, segment_name, unpin
from penstock.ports import Disk, File
from penstock.records.dataclass import dataclass

ROWS, BYTES, BATCHES = 1_000, 1 << 20, 1_000
"""A new batch is written when this much was gathered, whichever comes first."""

Ints = npt.NDArray[np.int64]
Between = Callable[[int], bool]
"""Called between groups of batches with the bytes read so far; True: give up."""


@dataclass(frozen=True, slots=True)
class Old:
    """A file to be replaced, as the catalog knows it."""

    first: int
    last: int
    generation: int
    rows: int


@dataclass(frozen=True, slots=True)
class Order:
    """What to write."""

    olds: tuple[Old, ...]  # adjacent, oldest first
    keep: bytes | None = None  # int64 pairs [a, b) of LSNs whose rows are kept; None: all rows
    floor: int = 0  # of the base that stands for what is left out; 0 when nothing is
    compress: bool = False

    @property
    def first(self) -> int:
        """First LSN of the new file."""
        return self.olds[0].first

    @property
    def last(self) -> int:
        """The last LSN that it answers for."""
        return self.olds[-1].last


class Made(NamedTuple):
    """The new file: where its batches are, and what came of it.  Plain values, for it may come from another process."""

    first: int
    previous: int
    generation: int
    last: int
    rows: int
    floor: int
    codec: int
    origin: int
    start: int
    end: int  # of the seal, which follows the last batch
    lsns: bytes  # int64, a batch each
    offsets: bytes
    lengths: bytes
    rows_before: int
    bytes_before: int

    def header(self) -> SegmentHeader:
        """The header as it was written."""
        return SegmentHeader(
            self.origin, self.first, self.previous, self.generation, REWRITTEN,
            self.last, self.rows, self.floor, self.codec,
        )  # fmt: skip


def never(done: int) -> bool:
    """Nobody stops it."""
    return False


def rewrite(disk: Disk, order: Order, between: Between = never) -> Made:
    """Write the new file and sync it.

    LogDamaged when an old file is not what was written or not what the order says, OSError when the disk fails or is
    full, Unavailable when `between` says so: whatever happens, the old files are as they were, and the new one is gone
    if it is not whole.
    """
    name = rewrite_name(order.first)
    if name.rpartition("/")[2] in disk.list("log"):
        disk.remove(name)
    file = disk.open(name, create=True)
    try:
        made = _Rewriting(disk, order, file, between).run()
    except BaseException:
        file.close()
        with suppress(OSError):
            disk.remove(name)
        raise
    file.give_back()
    file.close()
    return made


class _Rewriting:
    """One order being carried out."""

    def __init__(self, disk: Disk, order: Order, file: File, between: Between) -> None:
        self.disk, self.order, self.file, self.between = disk, order, file, between
        self.keep = None if order.keep is None else np.frombuffer(order.keep, "<i8").reshape(-1, 2)
        self.lsns, self.offsets, self.lengths = list[int](), list[int](), list[int]()
        self.rows = 0
        self.done = 0  # bytes read
        self.rows_before = 0
        self.held = Joining()
        self.held_batches = self.held_rows = self.held_bytes = 0

    def run(self) -> Made:
        """Read the old, write the new."""
        order, header = self.order, self._header()
        start = header.encode()
        self.at = len(start)
        self.file.pwrite(start, 0)
        group = 0
        for raw in self._old():
            self._take(raw)
            group += 1
            if group >= BATCHES or self.held_bytes >= BYTES:
                group = 0
                if self.between(self.done):
                    raise Unavailable(f"the rewriting of {segment_name(order.first)} was stopped")
        self._write_held()
        seal = bytes(Encoder().mark(SEALED, order.last, self.at) or b"")
        self.file.pwrite(seal + END_OF_STREAM, self.at)
        header = replace(header, rows=self.rows)
        self.file.pwrite(header.encode(), 0)
        self.file.sync()
        lsns, offsets, lengths = (np.array(v, "<i8").tobytes() for v in (self.lsns, self.offsets, self.lengths))
        return Made(
            header.first, header.previous, header.generation, header.last, header.rows, header.floor, header.codec,
            header.origin, len(start), self.at + len(seal), lsns, offsets, lengths, self.rows_before, self.done,
        )  # fmt: skip

    def _header(self) -> SegmentHeader:
        order = self.order
        source = Source(self.disk, segment_name(order.first))
        source.close()
        old = source.header
        generation = max(one.generation for one in order.olds) + 1
        return SegmentHeader(
            old.origin, order.first, old.previous, generation, REWRITTEN,
            order.last, 0, max(order.floor, self._old_floor()), int(order.compress),
        )  # fmt: skip

    def _old_floor(self) -> int:
        """What was left out of an old file is left out of the new one too."""
        floor = 0
        for one in self.order.olds:
            source = Source(self.disk, segment_name(one.first))
            source.close()
            if source.header.generation != one.generation or source.header.first != one.first:
                raise LogDamaged(f"{source.name} is not the file that was to be replaced")
            floor = max(floor, source.header.floor)
        return floor

    def _old(self) -> Iterator[RawBatch]:
        for one in self.order.olds:
            with closing(Source(self.disk, segment_name(one.first))) as source:
                for raw in source.batches():
                    self.done += raw.frame.length
                    yield raw
            if source.rows != one.rows:
                raise LogDamaged(f"{source.name} has {source.rows} rows, not {one.rows}")
            self.rows_before += source.rows

    def _take(self, raw: RawBatch) -> None:
        """Gather what is kept of an old batch."""
        keep = self.keep
        if keep is not None and not _touches(keep, raw.frame.lsn, raw.last):
            return  # it need not be decoded
        batch, base = raw.decode(), raw.base
        if keep is not None:
            mask = kept(keep, column(batch, "lsn", "<i8"))
            if not mask.any():
                return
            if not mask.all():
                batch = chosen(batch, mask)
        if base or self.held_rows + batch.num_rows > 2 * ROWS or self.held_batches >= BATCHES:
            self._write_held()
        self.held.append(batch)
        self.held_batches += 1
        self.held_rows += batch.num_rows
        self.held_bytes += raw.frame.length * batch.num_rows // raw.frame.rows
        if base:
            self._write_held(compress=False)
        elif self.held_rows >= ROWS or self.held_bytes >= BYTES:
            self._write_held()

    def _write_held(self, *, compress: bool = True) -> None:
        """Join what is held into one batch and write it."""
        if not self.held:
            return
        batch = self.held.whole()
        self.held, self.held_batches, self.held_rows, self.held_bytes = Joining(), 0, 0, 0
        lsns = column(batch, "lsn", "<i8")
        first, last = int(lsns[0]), int(lsns[-1])
        said = {
            KEY_LSN: f"{first:016x}", KEY_CRC: ZERO_CRC.decode(), KEY_DURABLE: f"{self.order.last:016x}",
            KEY_LAST: f"{last:016x}",
        }  # fmt: skip
        message = message_with(batch, said, "zstd" if compress and self.order.compress else None)
        header = header_of(message)
        stamp(message, Layout(header).crc, self.at)
        self.file.pwrite(message, self.at)
        self.lsns.append(first)
        self.offsets.append(self.at)
        self.lengths.append(len(message))
        self.at += len(message)
        self.rows += batch.num_rows


def kept(pairs: Ints, lsns: Ints) -> npt.NDArray[np.bool_]:
    """Which LSNs lie in one of the ascending, disjoint pairs."""
    if not len(pairs):
        return np.zeros(len(lsns), dtype=bool)
    at = np.searchsorted(pairs[:, 0], lsns, side="right") - 1
    inside: npt.NDArray[np.bool_] = (at >= 0) & (lsns < pairs[np.maximum(at, 0), 1])
    return inside


def _touches(pairs: Ints, first: int, last: int) -> bool:
    """Whether a pair has an LSN in [first, last]."""
    at = int(np.searchsorted(pairs[:, 0], last, side="right")) - 1
    return at >= 0 and int(pairs[at, 1]) > first


def plain_order(order: Order) -> dict[str, Any]:
    """The values of `run` for an order."""
    return {
        "olds": [[one.first, one.last, one.generation, one.rows] for one in order.olds],
        "keep": order.keep if order.keep is not None else b"",
        "drops": order.keep is not None,
        "floor": order.floor,
        "compress": order.compress,
    }


def run(
    disk: Disk,
    *,
    olds: Sequence[Sequence[int]],
    keep: bytes,
    drops: bool,
    floor: int,
    compress: bool,
    progress: Callable[[int, int], object],
) -> dict[str, Any]:
    """Write the new file.  `progress` is called with bytes read and rows to be read, and may raise to give up."""
    order = Order(tuple(Old(*one) for one in olds), bytes(keep) if drops else None, floor, compress)
    total = sum(one.rows for one in order.olds)

    def between(done: int) -> bool:
        progress(done, total)
        return False

    return rewrite(disk, order, between)._asdict()


def index(disk: Disk, *, first: int, progress: Callable[[int, int], object]) -> dict[str, Any]:
    """Make the index of a segment.  `progress` is called with bytes read and 0, and may raise to give up."""

    def between(done: int) -> bool:
        progress(done, 0)
        return False

    return {"size": build(disk, first, between)}


def made_of(values: Mapping[str, Any]) -> Made:
    """The result of `run`, back from its plain values."""
    plain = {name: values[name] for name in Made._fields}
    for name in ("lsns", "offsets", "lengths"):
        plain[name] = bytes(plain[name])  # a view of the answer, which is larger
    return Made(**plain)


class Swap:
    """One exchange.  Call the steps in order; each once."""

    def __init__(self, disk: Disk, catalog: Catalog, reader: Reader, recovery: Recovery, made: Made) -> None:
        """ValueError when what `made` replaces is no longer what the catalog lists."""
        self._disk, self._catalog, self._reader, self._recovery = disk, catalog, reader, recovery
        self._made = made
        self.olds = replaced(catalog.segments, made)
        self._new: Segment | None = None
        self._entered = False
        self.renamed = False  # from then on there is no way back

    def prepare(self) -> None:
        """OSError: nothing has changed, and the new file is removed."""
        disk, made = self._disk, self._made
        try:
            for old in self.olds:
                pin(old.file)
            opened = disk.open(rewrite_name(made.first), readonly=True)
        except OSError:
            drop(disk, made)
            raise
        new = Segment(segment_name(made.first), made.header(), made.start, opened)
        new.lsns.frombytes(made.lsns)
        new.offsets.frombytes(made.offsets)
        lengths = memoryview(made.lengths).cast("q")
        new.lengths = array("I" if max(lengths, default=0) < 1 << 32 else "q", lengths)
        new.checked = bytearray(len(new.lsns))
        new.rows, new.end, new.last = made.rows, made.end, made.last
        self._new = new

    def enter(self) -> None:
        """On the loop."""
        new = self._new
        assert new is not None, "prepare first"
        self._catalog.replace(self.olds, [new])
        self._entered = True

    def undo(self) -> None:
        """On the loop, before there was a rename.  The new file can be removed then, see `drop`."""
        assert not self.renamed, "the old file is gone"
        if self._entered and self._new is not None:
            self._catalog.replace([self._new], self.olds)
        for old in self.olds:
            unpin(old.file)

    def finish(self) -> None:
        """OSError before the rename: see `undo`.  OSError after it: an old file stays for a while, see `remove_left`.

        When the folder cannot be synced all old files stay, with a warning.
        """
        disk, made, new, shelf = self._disk, self._made, self._new, self._catalog.shelf
        assert new is not None, "prepare first"
        disk.rename(rewrite_name(made.first), new.name)
        self.renamed = True
        if shelf is not None:  # now its name can be opened again
            new.file = shelf.put(new.name, new.file)
        new.left = [name for old in self.olds for name in (*old.left, old.name) if name != new.name]
        self._recovery.forget(self.olds)
        for old in self.olds:
            self._reader.forget(old)
        try:
            disk.sync_folder(FOLDER)
        except OSError as error:
            self._recovery.warnings.append(f"{new.name}: the folder could not be synced after a rewriting: {error}")
            return
        remove_left(disk, new)


def remove_left(disk: Disk, segment: Segment) -> None:
    """Remove what a segment stands for, once its own name is on the disk; else a start does.  OSError."""
    while segment.left:
        disk.remove(segment.left[0])
        segment.left = segment.left[1:]
        if not segment.left:
            disk.sync_folder(FOLDER)


def replaced(segments: Sequence[Segment], made: Made) -> list[Segment]:
    """The segments that a new file stands for.  ValueError when they are not all there, or the open one is among them.

    The last segment is the open one.
    """
    olds = [segment for segment in segments[:-1] if made.first <= segment.first <= made.last]
    if not olds or olds[0].first != made.first or olds[-1].last != made.last:
        raise ValueError(f"{segment_name(made.first)} up to LSN {made.last} is not what the catalog lists")
    if max(old.header.generation for old in olds) >= made.generation:
        raise ValueError(f"{segment_name(made.first)} was rewritten meanwhile")
    return olds


def drop(disk: Disk, made: Made) -> None:
    """Remove a new file that will not be used; if that fails too, the next start does it."""
    name = rewrite_name(made.first)
    if name.rpartition("/")[2] in disk.list(FOLDER):
        disk.remove(name)
