"""The outbox of a turn: gives LSNs, and keeps what the turn decided until the engine takes it.

Two lists: `journal` (entries for the log, in LSN order) and `effects` (what to do in the world).  It knows neither a
queue nor a disk.  Entries written between `begin` and `end` form one `Group`, which a crash keeps or loses whole.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from traceback import walk_tb
from types import FrameType
from typing import Generic, TypeVar

from penstock.core.state.encoding import dump
from penstock.errors import PenstockError, PreconditionFailed
from penstock.records.chunks import LSN_LIMIT, Now
from penstock.records.entries import Control, Entry, Group, Moves, Publishes, singly
from penstock.records.kinds import FORMAT, MEANINGS, NO_ROUTE, NO_VIA, Kind, withheld

E = TypeVar("E")

RUNS = frozenset((Kind.GRANT, Kind.SETTLE))
"""Kinds that come by the hundred in a turn, one for each queue."""

SHORT = 4096
"""Bytes of header and body of a record up to which it may be one of a run."""

RUN_MOST = 1024
"""Records of a run."""

TABLES = frozenset((Kind.VIA, Kind.ROUTE))
"""Kinds of what others may name by its number as soon as it is recorded."""


def calls_left(error: BaseException) -> list[FrameType]:
    """The calls of the core that an exception has left, outermost first."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return [one for one in frames if str(one.f_globals.get("__name__", "")).startswith("penstock.core.")]


def _span(entry: Entry) -> range:
    """The LSNs of an entry."""
    if isinstance(entry, Group):
        return range(_span(entry.entries[0]).start, _span(entry.entries[-1]).stop)
    first = entry.lsn if isinstance(entry, Control) else entry.first
    return range(first, first + len(entry))


class Outbox(Generic[E]):
    """Journal, effects and the next LSN.  `E` is the union of effects."""

    __slots__ = (
        "_asked", "_at", "_before", "_began", "_group", "_left_half", "_nesting", "_opened", "_run", "effects",
        "format", "journal", "last_message", "next_lsn", "time", "weighs", "withheld",
    )  # fmt: skip

    def __init__(self, next_lsn: int) -> None:
        self.next_lsn = next_lsn
        self.time = 0  # of the last record, microseconds since the epoch; never decreases
        self.journal: list[Entry] = []
        self.effects: list[E] = []
        self.last_message = 0  # the highest LSN that a message was given; 0: none since the start
        self.write_as(FORMAT)
        self._group: Group | None = None
        self._nesting = 0
        self._opened = next_lsn, 0  # the first LSN of the open group, and how many effects there were before it
        self._run: Moves | None = None  # in the journal, outside of groups: the next record is added if its LSN is next
        self._asked: Now = Now(0, 0)  # when the last command was to decide
        self._at: Now = self._asked  # when it did
        self._began = next_lsn  # what it would have given out first
        self._before = 0  # effects that there were before it
        self.weighs = False  # it changes nothing before that
        self._left_half = False  # an exception has left a command that may have changed something

    def write_as(self, format: int) -> None:
        """Other members read this log: write nothing that needs a newer format than this."""
        self.format, self.withheld = format, withheld(format)

    def check_format(self, *kinds: Kind) -> None:
        """PreconditionFailed where a member of the cluster cannot read one of these; nothing is written then."""
        for kind in kinds:
            if kind in self.withheld:
                raise PreconditionFailed(
                    f"a {kind.name} record is of format {MEANINGS[kind].since}, and the cluster's log of "
                    f"{self.format}: upgrade all members, and then: penstock cluster finalize"
                )

    @property
    def last_lsn(self) -> int:
        """The last LSN given out; the one before the first when none was."""
        return self.next_lsn - 1

    def at(self, now: Now, weighs: bool = False) -> Now:
        """Start of a command: the instant to decide at.  Record times never decrease, and decisions follow them.

        What the command does by other commands it does at the same instant, which is the same object.
        weighs: it changes nothing before it has written its first record, and is no part of another command.
        """
        if weighs or (now is not self._asked and now is not self._at):
            if (error := sys.exception()) is not None and not isinstance(error, PenstockError):
                self._left_half = self._left_half or not self.whole_after(error)
            self._asked, self._began, self.weighs = now, self.next_lsn, weighs
            self._before = len(self.effects)
        if now.wall >= self.time:
            self.time = now.wall
        else:
            now = Now(self.time, now.mono)
        self._at = now
        return now

    @property
    def whole(self) -> bool:
        """Whether no group is open: each record that was written counts by itself."""
        return self._nesting == 0

    def whole_after(self, error: BaseException) -> bool:
        """Whether what failed with it has changed nothing; a group that a command had begun is forgotten then.

        The last command was among the failed calls if one of them was handed its instant; it had changed nothing if it
        has written nothing, and is one that weighs first.  Where a command before it was left so by an exception on
        whose way out others were begun, that was judged as the first of these began.
        """
        if self._left_half:
            return False
        if not self.within(error):
            return self._nesting == 0
        if not self.weighs or self.next_lsn != self._began or (self._group is not None and self._group.entries):
            return False
        self._nesting, self._group = 0, None
        return True

    def within(self, error: BaseException) -> bool:
        """Whether the last command is what failed, and none before it has been left half done."""
        instants = [one.f_locals.get("now") for one in calls_left(error)]
        return not self._left_half and any(one is self._asked or one is self._at for one in instants)

    @contextmanager
    def group(self) -> Generator[None]:
        """What is recorded inside is one group.  A fault leaves it open: half of it is nothing that may be logged."""
        self.begin()
        try:
            yield
        except PenstockError:
            self.end()
            raise
        self.end()

    def begin(self) -> None:
        """Open a group; nested calls join the outermost."""
        if self._nesting == 0:
            self._group, self._run = Group(), None
            self._opened = self.next_lsn, len(self.effects)
        self._nesting += 1

    def end(self) -> None:
        """Close what `begin` opened; a group of one entry is written as that entry."""
        self._nesting -= 1
        group = self._group
        if self._nesting == 0 and group is not None:
            self._group = None
            if len(group.entries) == 1:
                self.journal.append(group.entries[0])
            elif group.entries:
                self.journal.append(group)

    def undo(self, *, whole: bool) -> list[Publishes | Control] | None:
        """Take back what a fault has left, which nobody has seen: what was recorded, whose effects are gone, too.

        whole: of a command that weighs first that is all that it recorded; else, and of any other, the open group: what
        stands by itself stays.  LSNs are not given out again, for what was done in memory may still have them: marks
        stand there.  None, and nothing is undone, where not all of it is here.
        """
        first, effects = self.next_lsn, len(self.effects)
        if self._group is not None:
            first, effects = self._opened
        if whole and self.weighs:
            first, effects = min(first, self._began), min(effects, self._before)
        there: list[Entry] = [*self.journal, *([] if self._group is None else self._group.entries)]
        tail = list[Entry]()
        while there and _span(there[-1]).stop > first:
            tail.append(there.pop())
        if tail and _span(tail[-1]).start < first and not isinstance(tail[-1], Moves):
            return None
        kept, undone = list[Control](), list[Publishes | Control]()
        for one in singly(reversed(tail)):
            if isinstance(one, Control) and (one.lsn < first or one.kind in TABLES):
                kept.append(one)
            else:
                undone.append(one)
                kept += [Control(Kind.MARK, "", lsn=lsn, time=one.time) for lsn in _span(one)]
        if [one.lsn for one in kept if one.lsn >= first] != list(range(first, self.next_lsn)):
            return None
        self.journal = [*there, *kept]
        del self.effects[effects:]
        self._nesting, self._group, self._run = 0, None, None
        self._began, self.weighs = self.next_lsn, True
        return undone

    def record(
        self,
        kind: Kind,
        name: str = "",
        header: Mapping[str, object] | bytes | None = None,
        body: bytes = b"",
        *,
        via: int = NO_VIA,
        route: int = NO_ROUTE,
    ) -> int:
        """Write one control record; returns its LSN.  header: bytes are what `dump` has made of one."""
        assert kind not in self.withheld, f"{kind.name} is newer than the log's format {self.format}"
        told = header if isinstance(header, bytes) else dump(header) if header is not None else b""
        group, journal = self._group, self.journal
        if kind in RUNS and len(told) + len(body) <= SHORT:
            lsn, run = self.next_lsn, self._run
            if run is None or lsn - run.first != len(run.kinds):
                run = self._begun()
            if run is not None and run.time == self.time and lsn < run.stop:
                self.next_lsn = lsn + 1
                run.kinds.append(kind)
                run.names.append(name)
                run.headers.append(told)
                run.bodies.append(body)
                return lsn
        lsn = self.next_lsn
        self.next_lsn = lsn + 1
        assert lsn + 1 < LSN_LIMIT, "the log is out of LSNs"
        entry = Control(kind, name, told, body, lsn, self.time, via, route)
        if group is not None:
            group.entries.append(entry)
        else:
            journal.append(entry)
        return lsn

    def _begun(self) -> Moves | None:
        """The last record, made the first of a run where it can be one."""
        journal = self.journal
        if self._group is not None or not journal:
            return None
        last = journal[-1]
        if not isinstance(last, Control) or last.kind not in RUNS or len(last.header) + len(last.body) > SHORT:
            return None
        if last.lsn + 1 != self.next_lsn:
            return None
        run = self._run = Moves(last.lsn, last.time, [last.kind], [last.name], [last.header], [last.body])
        run.stop = min(last.lsn + RUN_MOST, LSN_LIMIT - 1)
        journal[-1] = run
        return run

    def publish(self, batch: Publishes) -> int:
        """Write messages; sets `batch.first` and `batch.time`, returns the first LSN."""
        batch.first = first = self.next_lsn
        self.next_lsn = following = first + len(batch.bodies)
        assert following < LSN_LIMIT, "the log is out of LSNs"
        batch.time = self.time
        self.last_message = following - 1
        if self._group is not None:
            self._group.entries.append(batch)
        else:
            self.journal.append(batch)
        return first

    def effect(self, effect: E) -> None:
        """Ask for something to be done in the world once the journal allows it."""
        self.effects.append(effect)

    def take_journal(self) -> list[Entry]:
        """The entries since the last call, in LSN order; the outbox starts a new list."""
        assert self._nesting == 0, "a group is still open"
        taken, self.journal = self.journal, []
        self._run = None
        return taken

    def take_effects(self) -> list[E]:
        """The effects since the last call, in order; the outbox starts a new list."""
        taken, self.effects = self.effects, []
        return taken
