"""The log as the server uses it: open, replay, append, read, checkpoint, retire, close.

How it grows is `log.group_commit`'s.  `read`, `batches` and what says so may be called in any thread; all else belongs
to one, the loop's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from time import perf_counter

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidArgument
from penstock.log import checkpoints
from penstock.log.catalog import Catalog, Segment, SegmentInfo, Span, describe, has_every, span, whole_from
from penstock.log.checkpoints import base_group, base_parts
from penstock.log.group_commit import Committing
from penstock.log.mending import Recovery, Watch, mend, nobody
from penstock.log.name_index import Indexes, Wanted
from penstock.log.reader import Damage, Reader, Vias
from penstock.log.recover import Start, choose_start, newest_base, open_segments, replayed_after, rows_after, tables
from penstock.log.rewrite import Made, Swap, remove_left
from penstock.log.room import out_of_space
from penstock.log.segment import FOLDER, pin
from penstock.log.writer import LogSettings
from penstock.ports import Clock, Disk
from penstock.records.chunks import Chunk
from penstock.records.entries import Group, Rows
from penstock.records.schema import GROUP_BYTES_MAX, UNCLEAN_GAP

logger = logging.getLogger("penstock.log")


class Log(Committing):
    """An open log.  Make it with `Log.open`."""

    def __init__(self, disk: Disk, clock: Clock, settings: LogSettings, catalog: Catalog, recovery: Recovery) -> None:
        """For `open` alone."""
        super().__init__(disk, clock, settings, catalog, unmarked=recovery.records > 0)
        self.recovery = recovery
        self.origin = recovery.origin
        self._reader = Reader(catalog, self.vias, settings.cache)
        self._keep = self._reader.keep
        self._indexes = Indexes(disk)
        self._start: Start | None = None
        self._said = 0  # warnings of the recovery that were logged

    @classmethod
    def open(
        cls,
        disk: Disk,
        clock: Clock,
        settings: LogSettings | None = None,
        watch: Watch = nobody,
        *,
        mends: bool = True,
    ) -> Log:
        """Lock the folder, check what is in it, cut a torn tail, and stand ready to replay and append.

        First everything is decided, then something is changed: what is refused leaves all files as they were.  Who
        decides more, from what replay gives, says `mends=False` and calls `mend` before the first append.
        `watch` is told of each segment that was checked.
        Raises DataFolderInUse, LogDamaged, or OSError for a disk that does not work.
        """
        settings = settings or LogSettings()
        disk.lock()
        try:
            started = perf_counter()
            catalog, vias = Catalog(), Vias()
            recovery = open_segments(disk, catalog, origin=settings.origin, new_first=settings.first_lsn, watch=watch)
            watch("checkpoint", 0, 1)
            start = choose_start(disk, catalog, recovery, vias)
            if mends:
                mend(recovery)
            log = cls(disk, clock, settings, catalog, recovery)
            log.vias.load(vias.table())
            log._start = start
            log.base_floor = recovery.base
        except BaseException:
            unlock = getattr(disk, "unlock", None)
            if unlock is not None:
                unlock()
            raise
        recovery.seconds = perf_counter() - started
        log._warn()
        return log

    @property
    def kept_free(self) -> int:
        """Bytes of the disk that no other work of the server may take; 0: it is not asked."""
        return 2 * self.settings.low_space + self.settings.reserve if self.settings.low_space else 0

    def mend(self) -> None:
        """Cut what is to be cut, where `open` has left it; before the first append.  OSError.

        On a full disk the reserve is given for it: what is cut is kept in a file of its own.
        """
        try:
            mend(self.recovery)
        except OSError as error:
            if not (out_of_space(error) and self.room.give_reserve(error)):
                raise
            mend(self.recovery)
        self._warn()

    def _warn(self) -> None:
        """Say what has not been said yet."""
        for warning in self.recovery.warnings[self._said :]:
            logger.warning("%s", warning)
        self._said = len(self.recovery.warnings)

    # --- start ---------------------------------------------------------------------------------------------------

    def start_state(self) -> Start | None:
        """Where replay starts: ("checkpoint" or "base", LSN, state), or None for the beginning of the log.

        A checkpoint's state holds all records up to its LSN; a base's all records below its floor, which is given.
        """
        return self._start

    def replay(self) -> Iterator[pa.Table]:
        """The records after `start_state`, in order, as tables of about 500,000 rows.

        Reads ids of (vhost, exchange) on the way, so it must be run to its end before rows are read by LSN.
        Raises LogDamaged at the first batch that is not what was written.
        """
        return tables(self._catalog, self.vias, replayed_after(self._start))

    def rows_to_replay(self) -> int:
        """About how many rows `replay` will give: exact but for the batches of one segment."""
        return rows_after(self._catalog, replayed_after(self._start))

    # --- reading -------------------------------------------------------------------------------------------------

    def read(self, lsns: Sequence[int] | Chunk, ahead: int = 0, most: int = 0, *, around: bool = False) -> Rows:
        """The messages at ascending LSNs; those that are no durable message are left out.  Any thread.

        `ahead`: bytes of what follows to have at hand for later reads.  `most`: bytes after which the answer ends.
        `around`: what lies in damaged batches is left out too (see `log.reader`), instead of LogDamaged.
        """
        return self._reader.read(lsns, ahead, most, around=around)

    @property
    def damage(self) -> Damage:
        """The damaged batches that somebody has met."""
        return self._reader.damage

    @property
    def decoded(self) -> Reader:
        """What keeps decoded batches for reading: its `bytes` are what the memory budget counts."""
        return self._reader

    @property
    def index_bytes(self) -> int:
        """Bytes of memory that the places of all batches take; not in the budget, but small: upkeep joins batches."""
        return sum(segment.index_bytes for segment in self._catalog.segments)

    def follow(self, followed: bool) -> None:
        """Somebody reads what is written as soon as it is durable, or nobody does any more: then keep it for them."""
        self._appender.followed = followed
        if not followed:
            self._reader.keep_none()

    def at_hand(self, lsns: Sequence[int] | Chunk) -> bool:
        """Whether `read` would not touch the disk."""
        return self._reader.at_hand(lsns)

    def batches(
        self,
        a: int,
        b: int,
        columns: Sequence[str] | None = None,
        names: Wanted | None = None,
        *,
        around: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Durable rows of all kinds with LSNs in [a, b).  Any thread.

        `names`: only messages of such topics matter, so batches without any may be left out.  `around`: as `read`.
        """
        chosen = self._indexes.finder(names)
        return self._reader.batches(a, min(b, self.durable + 1), columns, chosen, around=around)

    def outlines(self, a: int, b: int, names: Wanted | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of `batches`, with the lengths of the bodies in the place of them (`Outliner`).  Any thread."""
        chosen = self._indexes.finder(names)
        return self._reader.outlines(a, min(b, self.durable + 1), chosen)

    def spans(self, a: int, b: int, names: Wanted | None = None) -> Iterator[Span]:
        """Where `batches` would find rows, and about how many, in order; nothing is read but indexes.  Any thread."""
        chosen = self._indexes.finder(names)
        high = min(b, self.durable + 1)
        for segment, number in self._catalog.batches(a, b, chosen):
            lsns = segment.lsns
            end = lsns[number + 1] if number + 1 < len(lsns) else segment.last + 1
            yield span(lsns[number], end, a, high, segment.lengths[number])

    def weight(self, a: int, b: int) -> int:
        """Bytes of the batches in which rows with LSNs in [a, b) lie, as they were written.  Any thread."""
        return sum(segment.lengths[number] for segment, number in self._catalog.batches(a, min(b, self.durable + 1)))

    def segments(self) -> list[SegmentInfo]:
        """The files, oldest first."""
        return [describe(segment, segment is not self._catalog.segments[-1]) for segment in self._catalog.segments]

    def records_between(self, a: int, b: int) -> int:
        """About how many records have LSNs in [a, b), without those that a start after a crash, or a term, leaves."""
        leap = UNCLEAN_GAP - 1  # from the LSN behind the last record of a run
        if b - a < leap:
            return max(0, b - a)
        firsts = [np.frombuffer(one.lsns[:], np.int64) for one in self._catalog.segments if one.last >= a]
        steps = np.diff(np.concatenate(([a], *firsts, [b])).clip(a, b))
        return int(steps[steps < leap].sum())

    def last_time(self) -> int:
        """Of the last durable record, microseconds since the epoch; 0 without one.  Reads it."""
        for segment in reversed(self._catalog.segments):
            if not segment.rows:
                continue
            for batch in self.batches(segment.lsns[-1], segment.last + 1, ["time"], around=True):
                return int(batch.column("time").cast(pa.int64())[-1].as_py())
        return 0

    @property
    def size(self) -> int:
        """Bytes of all segments, as far as they are written."""
        return sum(segment.end for segment in self._catalog.segments)

    @property
    def first_lsn(self) -> int:
        """No row with a lower LSN is kept."""
        return self._catalog.segments[0].header.first

    @property
    def whole_from(self) -> int:
        """From this LSN on the log has every row that was written; below, some may be left out.  Any thread."""
        return whole_from(self._catalog.segments)

    def has_every(self, a: int, b: int) -> bool:
        """Whether the log has every row that was written with an LSN in [a, b).  Any thread."""
        return has_every(self._catalog.segments, a, b)

    # --- checkpoints, bases, retention ---------------------------------------------------------------------------

    def write_checkpoint(self, state: bytes, lsn: int) -> str:
        """Keep the core's durable state as of `lsn`; the file's name.  Any thread.

        What the log has not yet synced of it is synced first.  ValueError for an LSN above `durable`; OSError when the
        checkpoint cannot be written, which harms nothing, or the log cannot be synced, which breaks it.
        """
        if lsn > self.durable:
            raise ValueError(f"a checkpoint at LSN {lsn} would be ahead of the log (LSN {self.durable})")
        if lsn > self.synced:
            self._sync_here()
        return checkpoints.write(self._disk, self.origin, lsn, state, self.vias.table())

    def base_state(self) -> tuple[int, bytes] | None:
        """Floor and state of the newest complete base in the log at start, or None.  Any thread."""
        base = newest_base(self._catalog.segments[0], self.recovery)
        return None if base is None else (base.floor, base.state)

    def base_parts(self, state: bytes) -> int:
        """How many LSNs the base of this state takes.  InvalidArgument when it is too large for one group."""
        if len(state) > GROUP_BYTES_MAX:
            raise InvalidArgument(f"a base of {len(state)} bytes is more than the {GROUP_BYTES_MAX} of a group")
        return base_parts(state)

    def base_group(self, first_lsn: int, time: int, floor: int, state: bytes) -> Group:
        """The group to append, so that segments below `floor` can go; `state` holds all records below `floor`."""
        return base_group(first_lsn, time, floor, state, self.vias.table())

    def retire(self, floor: int) -> list[str]:
        """Delete segments whose rows all lie below `floor` and below the durable base's floor; their names."""
        return self.remove(self.detach(floor))

    def detach(self, floor: int) -> list[Segment]:
        """Take out of the catalog what `retire` would delete; nothing is read of it from now on."""
        floor = min(floor, self.base_floor)
        gone = list[Segment]()
        while len(self._catalog.segments) > 1 and self._catalog.segments[0].last < floor and not self.broken:
            gone.append(self._catalog.drop_front())
        self.recovery.forget(gone)
        return gone

    def remove(self, gone: Sequence[Segment]) -> list[str]:
        """Delete detached segments, oldest first, so that a crash leaves an unbroken rest; their names.  Any thread."""
        for segment in gone:
            if segment.left:  # a rewriting that could not be ended
                self._disk.sync_folder(FOLDER)
                remove_left(self._disk, segment)
            pin(segment.file)
            self._disk.remove(segment.name)
            self._disk.sync_folder(FOLDER)
            self._reader.forget(segment)
        return [segment.name for segment in gone]

    @property
    def disk(self) -> Disk:
        """The data folder, for upkeep in other threads."""
        return self._disk

    def swap(self, made: Made) -> Swap:
        """The exchange of segments for the one that was made of them.  ValueError when they are not as they were."""
        return Swap(self._disk, self._catalog, self._reader, self.recovery, made)

    def unindexed(self) -> list[int]:
        """First LSNs of closed segments without a sound index of names.  Any thread; OSError."""
        return self._indexes.missing(self._catalog.segments[:-1])

    def give_back(self, floor: int) -> int:
        """Let the system forget closed segments below `floor`, once each; how many.  Any thread."""
        count = 0
        for segment in self._catalog.segments[:-1]:
            if segment.last < floor and not segment.given_back:
                segment.given_back = True
                segment.file.give_back()
                count += 1
        return count

    # --- end -----------------------------------------------------------------------------------------------------

    def close(self, *, clean: bool = True) -> None:
        """Commit what is gathered, mark a clean stop, let the folder go.

        `clean` False leaves things as a kill does.
        """
        if self._closed:
            return
        self._end(clean=clean)
        for segment in self._catalog.segments:
            segment.file.close()
        unlock = getattr(self._disk, "unlock", None)
        if unlock is not None:
            unlock()
