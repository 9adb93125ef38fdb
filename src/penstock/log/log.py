"""The log as the server uses it: open, replay, append, read, checkpoint, retire, close.

Appending is group commit without a window.  The loop gathers entries; whenever the writer is idle it gets all of them
as one commit, and when that is on the disk `on_durable(lsn)` follows on the loop.  What gathered meanwhile is the next
commit.  Entries that nobody waits for (`urgent=False`: acks, grants) wait up to `ack_sync` for company.

    append -> gathered -> Commit -> written, synced -> catalog, durable -> on_durable
                             \\-> first failure -> broken, for good -> on_broken

Two positions: `durable` is how far effects may go (what `sync` promises), `synced` is how far the disk was told to be;
under `sync = commit` they are one.  Until `start_thread` commits happen in `flush()` and `tick()`, synchronously.
All but `read` and `batches` belongs to one thread, the loop's.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import NamedTuple, Protocol, cast

import orjson
import pyarrow as pa

from penstock.errors import LogBroken, PenstockError
from penstock.log import checkpoints
from penstock.log.frame import STOPPED
from penstock.log.index import Catalog, Segment
from penstock.log.reader import Reader, Vias
from penstock.log.recover import Recovery, newest_base, open_segments
from penstock.log.replay import Start, choose_start, tables
from penstock.log.retention import base_group, base_parts
from penstock.log.room import Room
from penstock.log.segment import FOLDER
from penstock.log.settings import LogSettings
from penstock.log.writer import Appender, Commit, CommitThread, last_of, size_of
from penstock.ports import Clock, Disk
from penstock.records.chunks import Chunk
from penstock.records.entries import Control, Entry, Group, Rows
from penstock.records.kinds import Kind

logger = logging.getLogger("penstock.log")

_RECHECK = 1_000_000  # microseconds between looks at a full disk

MUST_SYNC = frozenset(
    {
        Kind.BOOT, Kind.BASE, Kind.EXCHANGE_DECLARE, Kind.EXCHANGE_DELETE, Kind.QUEUE_DECLARE, Kind.QUEUE_ALTER,
        Kind.QUEUE_DELETE, Kind.BIND, Kind.UNBIND, Kind.TOPIC_DECLARE, Kind.TOPIC_DELETE, Kind.STREAM, Kind.PLAN,
        Kind.PLAN_SETTLE, Kind.SINK_COMMIT, Kind.DECIDED,
    }
)  # fmt: skip
"""Kinds whose commit is synced whatever `sync` says."""


class CallLater(Protocol):
    """`asyncio.AbstractEventLoop.call_later`."""

    def __call__(self, delay: float, callback: Callable[[], object], /) -> object:
        """Call back on the loop after `delay` seconds."""
        ...


class SegmentInfo(NamedTuple):
    """One line of `penstock log ls`."""

    name: str
    first: int
    last: int
    rows: int
    batches: int
    bytes: int
    closed: bool


def _nothing(*_: object) -> None:
    """No listener."""


class Log:
    """An open log.  Make it with `Log.open`."""

    def __init__(self, disk: Disk, clock: Clock, settings: LogSettings, catalog: Catalog, recovery: Recovery) -> None:
        """For `open` alone."""
        self.settings = settings
        self.recovery = recovery
        self.origin = recovery.origin
        self.vias = Vias()
        self.on_durable: Callable[[int], object] = _nothing  # called on the loop with the new `durable`
        self.on_broken: Callable[[PenstockError], object] = _nothing
        self.broken: str = ""  # why nothing is confirmed any more; empty: all is well
        self.durable = catalog.segments[-1].last
        self.synced = self.durable
        self.appended = self.durable  # LSN of the last row gathered
        self.waiting_since = 0  # mono microseconds when the running commit was handed over; 0: none runs
        self.commits = 0
        self.bytes_written = 0
        self._disk = disk
        self._clock = clock
        self._catalog = catalog
        self._reader = Reader(catalog, self.vias, settings.cache)
        self._room = Room(disk, ahead=settings.ahead, reserve=settings.reserve, low_space=settings.low_space)
        self._room.prepare()
        self._appender = Appender(
            disk,
            catalog.segments[-1],
            self._room,
            segment_bytes=settings.segment,
            batch_rows=settings.batch_rows,
            batch_bytes=settings.batch_bytes,
        )
        self._gathered = list[Entry]()
        self._gathered_bytes = 0
        self._gathered_rows = 0
        self._gathered_base = False
        self._urgent = False
        self._must_sync = False
        self._lazy_since = 0  # mono microseconds when the oldest entry that nobody waits for came
        self._running: Commit | None = None
        self._idle_since = clock.mono()
        self._last_sync = self._idle_since
        self._unmarked = recovery.records > 0  # rows that no mark covers
        self._last_look = self._idle_since
        self._bases: deque[tuple[int, int]] = deque()  # (last LSN, floor) of bases not yet durable
        self._base_floor = 0
        self._start: Start | None = None
        self._thread: CommitThread | None = None
        self._call_soon: Callable[[Callable[[], object]], object] | None = None
        self._call_later: CallLater | None = None
        self._timer_at = 0
        self._closed = False

    @classmethod
    def open(cls, disk: Disk, clock: Clock, settings: LogSettings | None = None) -> Log:
        """Lock the folder, check what is in it, cut a torn tail, and stand ready to replay and append.

        Raises DataFolderInUse, LogDamaged, or OSError for a disk that does not work.
        """
        settings = settings or LogSettings()
        disk.lock()
        try:
            started = perf_counter()
            disk.mkdir(FOLDER)
            catalog = Catalog()
            recovery = open_segments(disk, catalog, origin=settings.origin, new_first=settings.first_lsn)
            log = cls(disk, clock, settings, catalog, recovery)
            log._start = choose_start(disk, catalog, recovery, log.vias)
            log._base_floor = recovery.base
        except BaseException:
            unlock = getattr(disk, "unlock", None)
            if unlock is not None:
                unlock()
            raise
        recovery.seconds = perf_counter() - started
        for warning in recovery.warnings:
            logger.warning("%s", warning)
        return log

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
        start = self._start
        after = 0 if start is None else start[1] if start[0] == "checkpoint" else start[1] - 1
        return tables(self._catalog, self.vias, after)

    # --- appending -----------------------------------------------------------------------------------------------

    def start_thread(self, call_soon: Callable[[Callable[[], object]], object], call_later: CallLater) -> None:
        """Commit in a thread from now on.

        `call_soon` must be safe from other threads (`loop.call_soon_threadsafe`); `call_later` is the loop's.
        """
        self.flush()
        self._call_soon, self._call_later = call_soon, call_later
        self._room.start_thread()
        self._thread = CommitThread(self._appender, self._finished)
        self._arm()

    def append(self, entries: Sequence[Entry], *, urgent: bool = True, sync: bool = False) -> None:
        """Gather entries, in LSN order, for the next commit.

        `urgent` False: nobody waits; they may take `ack_sync`.  `sync` True: their commit is synced whatever the
        setting.  On a broken log they are dropped: nothing of them will ever be reported durable.
        """
        if self.broken or not entries:
            return
        if self._closed:
            raise LogBroken("the log is closed")
        size = rows = 0
        for entry in entries:
            size += size_of(entry)
            rows += len(entry)
            if isinstance(entry, Control):
                self._notice(entry)
            elif isinstance(entry, Group):
                for part in entry.entries:
                    if isinstance(part, Control):
                        self._notice(part)
        self._gathered += entries
        self._gathered_bytes += size
        self._gathered_rows += rows
        self.appended = last_of(entries[-1])
        if sync:
            self._must_sync = True
        if urgent:
            self._urgent = True
            if self._thread is not None and self._running is None:
                self._hand_over()
        elif not self._lazy_since:
            self._lazy_since = self._clock.mono()
            self._arm()

    @property
    def pending_bytes(self) -> int:
        """Bytes gathered and in the running commit: what the memory budget counts."""
        running = self._running
        return self._gathered_bytes + (running.size if running is not None else 0)

    @property
    def full(self) -> bool:
        """Whether publishes must be refused because the disk is full.  Acks still have room."""
        return self._room.full

    def flush(self) -> None:
        """Commit all that is gathered and wait until it is durable, or the log is broken."""
        while self._running is not None or ((self._gathered or self._must_sync) and not self.broken):
            running = self._running
            if running is None:
                self._hand_over()
            elif running.done is not None:
                running.done.acquire()  # taken for good: nobody else waits for it
                self._done(running)

    def hurry(self) -> None:
        """Somebody waits for what is gathered after all."""
        if self._gathered and not self.broken:
            self._urgent = True
            if self._thread is not None and self._running is None:
                self._hand_over()

    def request_sync(self) -> None:
        """Have all that was appended up to now synced soon, whatever the setting; `synced` tells when."""
        if self.broken or self._closed or self.synced >= self.appended:
            return
        self._must_sync = self._urgent = True
        if self._thread is not None and self._running is None:
            self._hand_over()

    def tick(self) -> None:
        """Do what is due by time: acks that waited long enough, an interval's sync, a mark, a look at a full disk."""
        now = self._clock.mono()
        if self._running is not None or self.broken or self._closed:
            return
        if self._must_sync or (self._gathered and (self._urgent or now - self._lazy_since >= self.settings.ack_sync)):
            self._hand_over()
        elif self.settings.sync == "interval" and self.synced < self.durable and now >= self._sync_due():
            self._run(Commit([], self.synced, True))
        elif self._unmarked and not self._gathered and now - self._idle_since >= self.settings.idle_mark:
            self._unmarked = False
            self._run(Commit([], self.synced, self.settings.sync == "commit", mark=self.durable + 1))
        if self._room.full and now - self._last_look >= _RECHECK:
            self._last_look = now
            self._look()

    def next_deadline(self) -> int | None:
        """Mono microseconds at which `tick` has something to do; None: nothing ahead."""
        if self._running is not None or self.broken or self._closed:
            return None
        due = list[int]()
        if self._gathered:
            due.append(self._lazy_since + self.settings.ack_sync if self._lazy_since else self._clock.mono())
        elif self._unmarked:
            due.append(self._idle_since + self.settings.idle_mark)
        if self.settings.sync == "interval" and self.synced < self.durable:
            due.append(self._sync_due())
        if self._room.full:
            due.append(self._last_look + _RECHECK)
        return min(due, default=None)

    def check_space(self) -> None:
        """Look at once whether the disk is full, or no longer."""
        self._look()

    def _look(self) -> None:
        try:
            self._room.recheck()
        except OSError as error:
            self._break(error)

    def _sync_due(self) -> int:
        return self._last_sync + self.settings.sync_interval

    def _notice(self, control: Control) -> None:
        kind = control.kind
        if kind in MUST_SYNC:
            self._must_sync = True
            if kind == Kind.BASE:
                self._gathered_base = True
                header = cast("dict[str, int]", orjson.loads(control.header))
                if header["part"] == header["parts"] - 1:
                    self._bases.append((control.lsn, header["floor"]))
        elif kind == Kind.VIA:
            self.vias.learn(control.via, control.header)

    def _hand_over(self) -> None:
        """All that is gathered becomes a commit."""
        policy = self.settings.sync
        sync = self._must_sync or policy == "commit"
        if policy == "interval" and not sync:
            sync = self._clock.mono() >= self._sync_due()
        commit = Commit(self._gathered, self.synced, sync, size=self._gathered_bytes)
        commit.rows, commit.base = self._gathered_rows, self._gathered_base
        self._gathered, self._gathered_bytes, self._gathered_rows = [], 0, 0
        self._urgent = self._must_sync = self._gathered_base = False
        self._lazy_since = 0
        self._run(commit)

    def _run(self, commit: Commit) -> None:
        self._running = commit
        self.waiting_since = self._clock.mono()
        if self._thread is not None:
            self._thread.post(commit)
        else:
            self._appender.run(commit)
            self._done(commit)

    def _finished(self, commit: Commit) -> None:
        """In the writer's thread."""
        if self._call_soon is not None:
            try:
                self._call_soon(lambda: self._done(commit))
            except RuntimeError:  # the loop is closed; whoever closes the log waits in flush()
                logger.debug("a commit ended after its loop")

    def _done(self, commit: Commit) -> None:
        """A commit has ended: list its batches, start the next, tell who waits."""
        if self._running is not commit:
            return  # flush() was faster than the loop
        self._running = None
        self.waiting_since = 0
        if commit.error is not None:
            self._break(commit.error)
            return
        for segment, first, last, offset, length, rows in commit.placed:
            if segment is not self._catalog.segments[-1]:
                self._catalog.add(segment)
            segment.add(first, last, offset, length, rows, checked=False)
            self.bytes_written += length
        now = self._clock.mono()
        self._idle_since = now
        if commit.sync:
            self._last_sync = now
        if commit.placed:
            self.commits += 1
            self.durable = commit.placed[-1][2]
            self._unmarked = True
        if commit.sync:
            self.synced = self.durable
            if not self._gathered:  # a sync that was asked for has come with this commit
                self._urgent = self._must_sync = False
        while self._bases and self._bases[0][0] <= self.synced:
            self._base_floor = max(self._base_floor, self._bases.popleft()[1])
        if self._thread is not None and self._urgent:
            self._hand_over()
        else:
            self._arm()
        if commit.placed:
            self.on_durable(self.durable)

    def _break(self, error: BaseException) -> None:
        """The first failure is the last word: what is not durable now is never confirmed by this process."""
        if self.broken:
            return
        self.broken = f"the log cannot be written: {error}"
        self._gathered, self._gathered_bytes, self._gathered_rows = [], 0, 0
        self._urgent = self._must_sync = False
        logger.error("%s; nothing is confirmed until the server is restarted", self.broken)
        failure = LogBroken(self.broken)
        failure.__cause__ = error
        self.on_broken(failure)

    def _arm(self) -> None:
        """Have `tick` called in time, if there is a loop."""
        if self._call_later is None:
            return
        due = self.next_deadline()
        if due is not None and (not self._timer_at or due < self._timer_at):
            self._timer_at = due
            self._call_later(max(0, due - self._clock.mono()) / 1e6, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_at = 0
        self.tick()
        self._arm()

    # --- reading -------------------------------------------------------------------------------------------------

    def read(self, lsns: Sequence[int] | Chunk, ahead: int = 0) -> Rows:
        """The messages at ascending LSNs; those that are no durable message are left out.  Any thread.

        `ahead`: bytes of what follows to have at hand for later reads.
        """
        return self._reader.read(lsns, ahead)

    def at_hand(self, lsns: Sequence[int] | Chunk) -> bool:
        """Whether `read` would not touch the disk."""
        return self._reader.at_hand(lsns)

    def batches(self, a: int, b: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Durable rows of all kinds with LSNs in [a, b).  Any thread."""
        return self._reader.batches(a, b, columns)

    def segments(self) -> list[SegmentInfo]:
        """The files, oldest first."""
        return [describe(segment, segment is not self._catalog.segments[-1]) for segment in self._catalog.segments]

    @property
    def first_lsn(self) -> int:
        """No row with a lower LSN is kept."""
        return self._catalog.segments[0].header.first

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

    def _sync_here(self) -> None:
        """Sync the open segment in this thread; those before it were synced when they were closed."""
        try:
            self._catalog.segments[-1].file.sync()
        except OSError as error:
            failure = error
            if self._call_soon is None:
                self._break(failure)
            else:
                self._call_soon(lambda: self._break(failure))
            raise

    def base_parts(self, state: bytes) -> int:
        """How many LSNs the base of this state takes."""
        return base_parts(state)

    def base_group(self, first_lsn: int, time: int, floor: int, state: bytes) -> Group:
        """The group to append, so that segments below `floor` can go; `state` holds all records below `floor`."""
        return base_group(first_lsn, time, floor, state, self.vias.table())

    @property
    def base_floor(self) -> int:
        """Floor of the newest base that is durable; 0: none."""
        return self._base_floor

    def retire(self, floor: int) -> list[str]:
        """Delete segments whose rows all lie below `floor` and below the durable base's floor; their names."""
        floor = min(floor, self._base_floor)
        gone = list[str]()
        while len(self._catalog.segments) > 1 and self._catalog.segments[0].last < floor and not self.broken:
            segment = self._catalog.drop_front()
            self._disk.remove(segment.name)
            self._disk.sync_folder(FOLDER)
            self._reader.forget(segment)
            gone.append(segment.name)
        return gone

    # --- end -----------------------------------------------------------------------------------------------------

    def close(self, *, clean: bool = True) -> None:
        """Commit what is gathered, mark a clean stop, let the folder go.

        `clean` False leaves things as a kill does.
        """
        if self._closed:
            return
        if clean:
            self.flush()
            if not self.broken:
                self._run(Commit([], self.synced, True))
                self.flush()
                self._run(Commit([], self.synced, True, mark=STOPPED))
                self.flush()
        self._closed = True
        if self._thread is not None:
            thread, self._thread = self._thread, None
            thread.stop()
        self._room.stop()
        for segment in self._catalog.segments:
            segment.file.close()
        unlock = getattr(self._disk, "unlock", None)
        if unlock is not None:
            unlock()


def describe(segment: Segment, closed: bool) -> SegmentInfo:
    """The line of one segment."""
    return SegmentInfo(
        segment.name, segment.header.first, segment.last, segment.rows, len(segment.lsns), segment.end, closed
    )
