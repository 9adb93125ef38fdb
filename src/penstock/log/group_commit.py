"""Group commit without a window: what is gathered, what the writer has, and how far things are durable.

The loop gathers entries; whenever the writer is idle it gets all of them as one commit, and when that is on the disk
`on_durable(lsn)` follows on the loop.  What gathered meanwhile is the next commit.  Entries that nobody waits for
(`urgent=False`: acks, grants) wait up to `ack_sync` for company.

    append -> gathered -> Commit -> written, synced -> catalog, durable -> on_durable
                             \\-> first failure -> broken, for good -> on_broken

Three positions: `durable` is how far effects may go (what `sync` promises), `written` is how far commits have ended
here, and `synced` how far this disk was told to be; under `sync = commit` they are one.  In a cluster `durable` is what
`committed` says: what every disk has that counts.  A batch claims no more than that, for the same bytes lie on all of
them: of what a start found here, nothing, before `committed` speaks of it.  Until `start_thread` commits happen in
`flush()` and `tick()`, synchronously.
All belongs to one thread, the loop's.  What is written is not read here, and nothing is deleted.

What gathers also says what the commit must be: some kinds are synced whatever the setting says, a base is remembered
until it is durable, and the table of (vhost, exchange) ids learns from what passes by.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, cast

import orjson

from penstock.errors import InvalidArgument, LogBroken, PenstockError
from penstock.log.catalog import Catalog, Segment
from penstock.log.committers import CommitHere, Committer, CommitThread, KernelSync, Readers
from penstock.log.frame import STOPPED
from penstock.log.reader import Vias
from penstock.log.room import Room
from penstock.log.writer import Appender, Commit, LogSettings, TellCopies, last_of, size_of
from penstock.ports import Clock, Disk
from penstock.records.entries import Control, Entry, Group, Publishes
from penstock.records.kinds import SYNCED, Kind
from penstock.records.message_bodies import lengths
from penstock.records.schema import GROUP_BYTES_MAX


def _check(entry: Entry, weight: int) -> None:
    """Messages that came together may be parted; a group and a single message may not."""
    what = "a group of records"
    if isinstance(entry, Publishes):
        what, weight = "a message", int(lengths(entry.bodies).max())
    if weight > GROUP_BYTES_MAX:
        raise InvalidArgument(f"{what} has {weight} bytes; the log holds at most {GROUP_BYTES_MAX} in one piece")


_NOTICED = SYNCED | {Kind.VIA}
"""Kinds that say what their commit must be, or whose table is kept here."""


class Gathering:
    """Entries in LSN order, with their sum.  Empty after `take`."""

    def __init__(self, vias: Vias) -> None:
        self.entries: list[Entry] = []
        self.bytes = 0
        self.rows = 0
        self.urgent = False  # somebody waits
        self.must_sync = False
        self.must_roll = False  # the next commit begins a new segment
        self.lazy_since = 0  # mono microseconds when the oldest entry that nobody waits for came; 0: there is none
        self._base = False  # there is a base among the entries
        self.bases: deque[tuple[int, int]] = deque()  # (last LSN, floor) of bases not yet durable
        self._vias = vias

    def add(self, entries: Sequence[Entry]) -> int:
        """More entries, with higher LSNs; their bytes.

        InvalidArgument for one that no batch can hold; nothing of them is taken then.  Whoever decides keeps its groups
        below that, so this is the last look before it would be too late.
        """
        size = rows = 0
        for entry in entries:
            weight = size_of(entry)
            if weight > GROUP_BYTES_MAX:
                _check(entry, weight)
            size += weight
            if isinstance(entry, Control):
                rows += 1
                if entry.kind in _NOTICED:
                    self._notice(entry)
                continue
            if isinstance(entry, Publishes):
                rows += len(entry.bodies)
                continue
            rows += len(entry)
            if isinstance(entry, Group):
                for part in entry.entries:
                    if isinstance(part, Control) and part.kind in _NOTICED:
                        self._notice(part)
        self.entries += entries
        self.bytes += size
        self.rows += rows
        return size

    def _notice(self, control: Control) -> None:
        kind = control.kind
        if kind in SYNCED:
            self.must_sync = True
            if kind == Kind.BASE:
                self._base = True
                header = cast("dict[str, int]", orjson.loads(control.header))
                if header["part"] == header["parts"] - 1:
                    self.bases.append((control.lsn, header["floor"]))
        else:
            self._vias.learn(control.via, control.header)

    def take(self, claim: int, sync: bool) -> Commit:
        """All of it as a commit.  claim: as of `Commit`."""
        commit = Commit(
            self.entries, claim, sync, size=self.bytes, rows=self.rows, base=self._base, roll=self.must_roll
        )
        self.entries, self.bytes, self.rows = [], 0, 0
        self.urgent = self.must_sync = self.must_roll = self._base = False
        self.lazy_since = 0
        return commit

    def base_floor(self, synced: int) -> int:
        """Floor of the newest base that has become durable with this LSN; 0: none has."""
        floor = 0
        while self.bases and self.bases[0][0] <= synced:
            floor = max(floor, self.bases.popleft()[1])
        return floor


class Pending:
    """What is gathered and in the running commit: the memory budget counts it."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


logger = logging.getLogger("penstock.log")

_RECHECK = 1_000_000  # microseconds between looks at a full disk


class CallLater(Protocol):
    """`asyncio.AbstractEventLoop.call_later`."""

    def __call__(self, delay: float, callback: Callable[[], object], /) -> object:
        """Call back on the loop after `delay` seconds."""
        ...


def _nothing(*_: object) -> None:
    """No listener."""


class Committing:
    """The end of an open log, where it grows."""

    def __init__(self, disk: Disk, clock: Clock, settings: LogSettings, catalog: Catalog, *, unmarked: bool) -> None:
        """unmarked: there are rows that no mark covers."""
        self.settings = settings
        self.vias = Vias()
        self.on_durable: Callable[[int], object] = _nothing  # called on the loop with the new `durable`
        self.on_broken: Callable[[PenstockError], object] = _nothing
        self.broken: str = ""  # why nothing is confirmed any more; empty: all is well
        self.on_synced: Callable[[int], object] | None = None  # the same with a new `synced`; where others copy the log
        self.durable = catalog.segments[-1].last
        self.written = self.durable
        self.synced = self.durable
        self.appended = self.durable  # LSN of the last row gathered
        self.pending = Pending()
        self.waiting_since = 0  # mono microseconds when the running commit was handed over; 0: none runs
        self.thread_since = 0  # the same where a thread was given it, for which it needs the interpreter
        self.commits = self.bytes_written = 0
        self.commit_us = 0  # how long the last commit of rows took
        self._disk = disk
        self._clock = clock
        self._catalog = catalog
        self.room = Room(disk, ahead=settings.ahead, reserve=settings.reserve, low_space=settings.low_space)
        self.room.prepare()
        self._appender = Appender(
            disk,
            catalog.segments[-1],
            self.room,
            segment_bytes=settings.segment,
            batch_rows=settings.batch_rows,
            batch_bytes=settings.batch_bytes,
        )
        self._gathered = Gathering(self.vias)
        self._running: Commit | None = None
        self._idle_since = clock.mono()
        self._last_sync = self._idle_since
        self._unmarked = unmarked
        self._agreed = 0  # LSN up to which every disk has all that counts, where others copy the log
        self._last_look = self._idle_since
        self.base_floor = 0  # floor of the newest base that is durable; 0: none
        self._committer: Committer | None = None  # None: commits happen where they are asked for
        self._call_soon: Callable[[Callable[[], object]], object] | None = None
        self._call_later: CallLater | None = None
        self._timer_at = 0
        self._closed = False
        self._keep: Callable[[Segment, int, bytearray], object] = _nothing  # a batch, by its number, for who follows

    def start_thread(
        self,
        call_soon: Callable[[Callable[[], object]], object],
        call_later: CallLater,
        readers: Readers | None = None,
        syncer: KernelSync | None = None,
    ) -> None:
        """Commit beside the loop from now on.

        `call_soon` must be safe from other threads (`loop.call_soon_threadsafe`); `call_later` and `readers` are the
        loop's.  With a syncer, which is closed at the end, short commits need no thread.
        """
        self.flush()
        self._call_soon, self._call_later = call_soon, call_later
        self.room.start_thread()
        thread = CommitThread(self._appender, self._finished)
        if readers is None or syncer is None:
            self._committer = thread
        else:
            self._committer = CommitHere(self._appender, syncer, readers, thread, self._done, call_soon)
        self._arm()

    def wait_for_copies(self, told: TellCopies, on_synced: Callable[[int], object]) -> None:
        """From now on nothing is durable before `committed` says so.

        told: how far the open file may be copied, whenever a commit is written and not yet synced; in any thread
        on_synced: called on the loop with what this disk has
        """
        self._appender.told, self.on_synced = told, on_synced
        self._unmarked = False  # what was found here others may lack
        self._appender.tell()
        on_synced(self.synced)

    def committed(self, lsn: int) -> None:
        """Every disk that counts, this one among them, has all up to this LSN."""
        self._agreed = max(self._agreed, lsn)
        if lsn > self.durable and not self.broken:
            self.durable = lsn
            self.base_floor = max(self.base_floor, self._gathered.base_floor(lsn))
            self._arm()
            self.on_durable(lsn)

    @property
    def _claim(self) -> int:
        """The LSN up to which a batch may say that all is on the disk, whoever has a copy of it."""
        return self.synced if self.on_synced is None else min(self.synced, self._agreed)

    def append(self, entries: Sequence[Entry], *, urgent: bool = True, sync: bool = False) -> None:
        """Gather entries, in LSN order, for the next commit.

        `urgent` False: nobody waits; they may take `ack_sync`.  `sync` True: their commit is synced whatever the
        setting.  On a broken log they are dropped: nothing of them will ever be reported durable.
        """
        if self.broken or not entries:
            return
        if self._closed:
            raise LogBroken("the log is closed")
        gathered = self._gathered
        self.pending.bytes += gathered.add(entries)
        self.appended = last_of(entries[-1])
        if sync:
            gathered.must_sync = True
        if urgent:
            gathered.urgent = True
            if self._committer is not None and self._running is None:
                self._hand_over()
        elif not gathered.lazy_since:
            gathered.lazy_since = self._clock.mono()
            self._arm()

    def roll(self) -> None:
        """Go on in a new segment, soon: the present one, if it has rows, is closed as it is."""
        if self.broken or self._closed or not self._catalog.segments[-1].rows:
            return
        self._gathered.must_roll = self._gathered.must_sync = self._gathered.urgent = True
        if self._running is None:
            self._hand_over()

    def flush(self) -> None:
        """Commit all that is gathered and wait until it is durable, or the log is broken."""
        while self._running is not None or ((self._gathered.entries or self._gathered.must_sync) and not self.broken):
            running = self._running
            if running is None:
                self._hand_over()
            elif self._committer is not None:
                self._committer.wait(running)
                self._done(running)

    def hurry(self) -> None:
        """Somebody waits for what is gathered after all."""
        if self._gathered.entries and not self.broken:
            self._gathered.urgent = True
            if self._committer is not None and self._running is None:
                self._hand_over()

    def request_sync(self) -> None:
        """Have all that was appended up to now synced soon, whatever the setting; `synced` tells when."""
        if self.broken or self._closed or self.synced >= self.appended:
            return
        self._gathered.must_sync = self._gathered.urgent = True
        if self._committer is not None and self._running is None:
            self._hand_over()

    def tick(self) -> None:
        """Do what is due by time: acks that waited long enough, an interval's sync, a mark, a look at a full disk."""
        now = self._clock.mono()
        if self._running is not None or self.broken or self._closed:
            return
        gathered = self._gathered
        waited = gathered.urgent or now - gathered.lazy_since >= self.settings.ack_sync
        if gathered.must_sync or (gathered.entries and waited):
            self._hand_over()
        elif self.settings.sync == "interval" and self.synced < self.durable and now >= self._sync_due():
            self._run(Commit([], self._claim, True))
        elif self._may_mark and now - self._idle_since >= self.settings.idle_mark:
            self._run(Commit([], self._claim, self.settings.sync == "commit", mark=self.written + 1))
        if self.room.full and now - self._last_look >= _RECHECK:
            self._last_look = now
            self.check_space()

    def next_deadline(self) -> int | None:
        """Mono microseconds at which `tick` has something to do; None: nothing ahead."""
        if self._running is not None or self.broken or self._closed:
            return None
        due: list[int] = []
        if self._gathered.entries:
            lazy = self._gathered.lazy_since
            due.append(lazy + self.settings.ack_sync if lazy else self._clock.mono())
        elif self._may_mark:
            due.append(self._idle_since + self.settings.idle_mark)
        if self.settings.sync == "interval" and self.synced < self.durable:
            due.append(self._sync_due())
        if self.room.full:
            due.append(self._last_look + _RECHECK)
        return min(due, default=None)

    @property
    def _may_mark(self) -> bool:
        """Whether there are rows that no mark claims, and that one may claim; on a full disk acks need all the room."""
        return self._unmarked and not (self._gathered.entries or self.room.full) and self.durable >= self.written

    def check_space(self) -> None:
        """Look at once whether the disk is full, or no longer."""
        try:
            self.room.recheck()
        except OSError as error:
            self._break(error)

    def _sync_due(self) -> int:
        return self._last_sync + self.settings.sync_interval

    def _hand_over(self) -> None:
        """All that is gathered becomes a commit."""
        policy = self.settings.sync
        sync = self._gathered.must_sync or policy == "commit"
        if policy == "interval" and not sync:
            sync = self._clock.mono() >= self._sync_due()
        self._run(self._gathered.take(self._claim, sync))

    def _run(self, commit: Commit) -> None:
        self._running = commit
        self.waiting_since = self._clock.mono()
        if self._committer is not None:
            if self._committer.post(commit):
                self.thread_since = self.waiting_since
        else:
            self._appender.run(commit)
            self._done(commit)

    def _finished(self, commit: Commit) -> None:
        """A commit has ended; in the writer's thread."""
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
        self.pending.bytes -= commit.size
        began, self.waiting_since, self.thread_since = self.waiting_since, 0, 0
        if commit.error is not None:
            self._break(commit.error)
            return
        present = self._catalog.segments[-1]
        for segment, first, last, offset, length, rows, data in commit.placed:
            if segment is not present:
                present = segment
                self._catalog.add(segment)
            segment.add(first, last, offset, length, rows, checked=False)
            self.bytes_written += length
            if data is not None and self._appender.followed:
                self._keep(segment, len(segment.lsns) - 1, data)
        if self._appender.segment is not present:  # begun, and nothing is in it yet
            self._catalog.add(self._appender.segment)
        now = self._clock.mono()
        self._idle_since = now
        if commit.sync:
            self._last_sync = now
        if commit.mark >= 0:
            self._unmarked = False
        if commit.placed:
            self.commits += 1
            self.commit_us = now - began
            self.written = commit.placed[-1][2]
            self._unmarked = True
            if self.on_synced is None:
                self.durable = self.written
        if commit.sync:
            self.synced = self.written
            if not (self._gathered.entries or self._gathered.must_roll):  # a sync that was asked for came with this
                self._gathered.urgent = self._gathered.must_sync = False
        if self._gathered.bases:
            self.base_floor = max(self.base_floor, self._gathered.base_floor(min(self.synced, self.durable)))
        if self._committer is not None:
            if self._gathered.urgent:
                self._hand_over()
            else:
                self._arm()
        if self.on_synced is not None:
            self.on_synced(self.synced)
        elif commit.placed:
            self.on_durable(self.durable)

    def _break(self, error: BaseException) -> None:
        """The first failure is the last word: what is not durable now is never confirmed by this process."""
        if self.broken:
            return
        self.broken = f"the log cannot be written: {error}"
        self.pending.bytes -= self._gathered.take(self._claim, False).size
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

    def _end(self, *, clean: bool) -> None:
        """Commit what is gathered and mark a clean stop, if it is one; then the writer stops."""
        if clean:
            self.flush()
            if not self.broken:
                self._run(Commit([], self._claim, True))
                self.flush()
                self._run(Commit([], self._claim, True, mark=STOPPED))
                self.flush()
        self._closed = True
        if self._committer is not None:
            committer, self._committer = self._committer, None
            committer.stop()
        self.room.stop()
