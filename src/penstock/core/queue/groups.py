"""Groups: of the messages with one key one is out at a time, and always the oldest.

The oldest living message of a key stands for it: it is offered to consumers as any other message, or leased, or in
back-off.  The others wait in a line behind it, ready and offered to nobody, so a key in use is skipped and not waited
for.  When the one in front leaves for good, the next of the line is offered; when it comes back, it is in front still.

A line is one array: the place of its first message in the array, then LSNs in the order of the queue.

Into a ring what is due enters at the head: it may come before the one that stands for its group.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np

from penstock.core.queue.order.runs import NEVER, Key, Run, all_within, view
from penstock.core.queue.order.scattered import Told
from penstock.core.queue.settling.attempts import FRESH
from penstock.core.queue.staging import NO_KEY, Keys
from penstock.core.state.lsns import chunked, flat
from penstock.records.chunks import Chunk, as_chunk

CUT = 64
"""Numbers of a line that are behind its first message before they are cut off."""


class Groups:
    """Who stands in front of each key, and who waits behind."""

    __slots__ = ("_beside", "_front", "_last", "_lines", "_older", "apart", "count", "keys")

    def __init__(self) -> None:
        self.keys = Keys()
        self.count = 0  # messages that wait in lines
        self._front = array("q", (0,))  # LSN by key; 0: there is none
        self._lines: dict[int, array[int]] = {}  # by key; none empty
        self._beside: dict[int, set[int]] = {}  # others that are out, by key: leased before they had keys
        self.apart: dict[int, Run] = {}  # of those in lines what was delivered before, or has a place of its own
        self._older = False  # one that waits in line may have a lower LSN than whoever stands before it
        self._last: Key = (0, 0)  # none that was let in stands behind this place

    # -- in

    def follows(self, lsn: int) -> bool:
        """Whether a message at its own place comes behind all that were let in: nobody need look for its place."""
        return (lsn, lsn) > self._last

    def enter(self, lsn: int, key: int) -> bool:
        """A message that is ready comes behind all others; whether it may be offered."""
        if key == NO_KEY:
            return True
        self._last = max(self._last, (lsn, lsn))
        if key >= len(self._front):
            self._front.extend([0] * (key + 1 - len(self._front)))
        if not self._front[key]:
            self._front[key] = lsn
            return True
        if lsn < self._front[key]:
            self._older = True
        line = self._lines.get(key)
        if line is None:
            self._lines[key] = array("q", (1, lsn))
        else:
            line.append(lsn)
        self.count += 1
        return False

    def hold(self, lsn: int, key: int) -> None:
        """A message that is out, leased or in back-off, has this key."""
        if key == NO_KEY:
            return
        if key >= len(self._front):
            self._front.extend([0] * (key + 1 - len(self._front)))
        if not self._front[key]:
            self._front[key] = lsn
        else:
            self._beside.setdefault(key, set()).add(lsn)

    def hold_before(self, lsn: int, front: Run) -> None:
        """A message of a line is in back-off: its key is in use, so the one that stood for it, ready, waits behind."""
        key = self.keys.of(lsn)
        self._front[key] = lsn
        self._insert(front, front.chunk[0], key)

    def come_back(self, run: Run, lsn: int, key: int) -> int:
        """A message is ready again; which one may be offered now, 0: none."""
        if key == NO_KEY:
            return lsn
        own = (run.where if run.place else lsn), lsn
        self._last = max(self._last, own)
        if self.front(key) == lsn:
            if (beside := self._beside.get(key)) is not None:  # one that was out when the key was set still has it
                self._front[key] = other = min(beside)
                self._unbeside(key, beside, other)
                self._insert(run, lsn, key)
                return 0
            line = self._lines.get(key)
            if line is None or self._place(line[line[0]]) > own:
                return lsn
            self._front[key] = line[line[0]]  # an older one was found meanwhile
            self._older = True
            self._insert(run, lsn, key)
            first = line[line[0]]
            self._cut(key, line, line[0] + 1)
            self.count -= 1
            return first
        beside = self._beside.get(key)
        if beside is not None and lsn in beside:
            self._unbeside(key, beside, lsn)
        if not self.front(key):
            self.enter(lsn, key)
            return lsn
        self._insert(run, lsn, key)
        return 0

    def change_places(self, run: Run, lsn: int, front: Run) -> bool:
        """The first in line stands for its key, and the one that did waits, if that has the later place; whether so."""
        key, other = self.keys.of(lsn), front.chunk[0]
        line = self._lines[key]
        own = (run.where if run.place else lsn), lsn
        if line[line[0]] != lsn or own > ((front.where if front.place else other), other):
            return False
        self._cut(key, line, line[0] + 1)
        self.apart.pop(lsn, None)
        self._front[key] = lsn
        self._older = True
        self.count -= 1
        self._insert(front, other, key)
        return True

    def _insert(self, run: Run, lsn: int, key: int) -> None:
        """Put a message at its place in the line of its key, which somebody stands before."""
        self.enter(lsn, key)
        line = self._lines[key]
        own = run.where if run.place else lsn, lsn
        at = len(line) - 1  # where it stands; those before it have lower places
        while at > line[0] and self._place(line[at - 1]) > own:
            line[at] = line[at - 1]
            at -= 1
        line[at] = lsn
        if run.tally != FRESH or run.place:
            self.apart[lsn] = run.part(range(lsn, lsn + 1), True)

    def _place(self, lsn: int) -> Key:
        run = self.apart.get(lsn)
        return (lsn if run is None else run.where if run.place else lsn), lsn

    # -- out

    def leave(self, lsn: int) -> int:
        """A message that was not in a line is gone; who is to be offered in its stead, or 0."""
        successor = self.step_aside(lsn)
        self.keys.drop(lsn, self.keys.of(lsn))
        return successor

    def keep(self, stay: Chunk) -> None:
        """Nobody waits in a line any more, and none but these stands for a key, or beside who does; ascending."""
        self._lines, self.apart, self.count, self._older = {}, {}, 0, False
        front = view(self._front)
        front[~np.isin(front, view(stay))] = 0
        for key in [key for key in self._beside if not self._front[key]]:
            self._next(key)
        self.keys.keep(stay)

    def step_aside(self, lsn: int) -> int:
        """A message that was not in a line does not stand for its key any more; who does so instead, if it is ready."""
        key = self.keys.of(lsn)
        if key != NO_KEY:
            if self.front(key) == lsn:
                return self._next(key)
            if key in self._beside:
                self._unbeside(key, self._beside[key], lsn)
        return 0

    def _unbeside(self, key: int, beside: set[int], lsn: int) -> None:
        beside.discard(lsn)
        if not beside:
            del self._beside[key]

    def _next(self, key: int) -> int:
        """Let the next of a key stand for it; its LSN if it was in line, else 0."""
        beside = self._beside.get(key)
        if beside is not None:
            self._front[key] = lsn = min(beside)
            self._unbeside(key, beside, lsn)
            return 0
        line = self._lines.get(key)
        if line is None:
            self._front[key] = 0
            return 0
        at = line[0]
        self._front[key] = lsn = line[at]
        if lsn in self.apart:
            self._older = True  # at a place of its own it may stand before older ones
        self._cut(key, line, at + 1)
        self.count -= 1
        return lsn

    def _cut(self, key: int, line: array[int], first: int) -> None:
        if first == len(line):
            del self._lines[key]
        elif first > CUT and 2 * first > len(line):
            del line[1:first]
            line[0] = 1
        else:
            line[0] = first

    def extract(self, wanted: Chunk) -> list[Run]:
        """Take those of the wanted that wait in lines; they are still known as living."""
        if not self.count:
            return []
        out = list[Run]()
        for lsn in self.keys.among(wanted):
            key = self.keys.of(lsn)
            if key == NO_KEY or (line := self._lines.get(key)) is None:
                continue
            at = self._find(line, lsn)
            if not at:
                continue
            if at == line[0]:
                self._cut(key, line, at + 1)
            else:
                del line[at]
            self.count -= 1
            out.append(self.run_of(lsn))
        return out

    def _find(self, line: array[int], lsn: int) -> int:
        """Where a message is in a line; 0: it is not."""
        if not self.apart:
            at = bisect_left(line, lsn, line[0])
        else:
            at = bisect_left(line, self._place(lsn), line[0], key=self._place)
        return at if at < len(line) and line[at] == lsn else 0

    def run_of(self, lsn: int) -> Run:
        """A message that was in a line, as a run."""
        run = self.apart.pop(lsn, None) if self.apart else None
        return Run(range(lsn, lsn + 1), True) if run is None else run

    # -- asked

    def floor(self) -> int:
        """None in line is older than this, or than whoever stands before it."""
        floor = min(self.apart, default=NEVER)
        if not self._older:
            return floor
        self._older = False
        for key, line in self._lines.items():
            lowest = min(line[line[0] :])
            if lowest < self._front[key]:
                floor = min(floor, lowest)
                self._older = True
        return floor

    def front(self, key: int) -> int:
        """The message that stands for a key; 0: there is none."""
        return self._front[key] if key < len(self._front) else 0

    def stands(self, lsn: int) -> bool:
        """Whether this message stands for its key, which is known."""
        key = self.keys.of(lsn)
        return key != NO_KEY and self.front(key) == lsn

    def leads(self, lsn: int) -> bool:
        """Whether this message, whose key is known, is the first in its line."""
        line = self._lines.get(self.keys.of(lsn))
        return line is not None and line[line[0]] == lsn

    def waits(self, lsn: int) -> bool:
        """Whether this message waits in line."""
        if not self.keys.knows(lsn) or (line := self._lines.get(self.keys.of(lsn))) is None:
            return False
        return self._find(line, lsn) > 0

    def waiting(self) -> Iterator[array[int]]:
        """The LSNs in lines, but those in `apart`; copies."""
        for line in self._lines.values():
            part = line[line[0] :]
            if self.apart:
                part = array("q", [lsn for lsn in part if lsn not in self.apart])
            if len(part):
                yield part

    def chunks(self) -> Iterator[Chunk]:
        """The same, in ascending chunks."""
        return iter(chunked(flat(self.waiting())))

    def pieces(self) -> Iterator[Chunk]:
        """All that wait in lines, in ascending chunks."""
        return iter(chunked(flat(line[line[0] :] for line in self._lines.values())))

    def among(self, wanted: Chunk) -> list[Run]:
        """Those of the wanted that wait in lines, as runs; they stay."""
        here = [lsn for lsn in self.keys.among(wanted) if self.waits(lsn)] if self.count else []
        return [self.apart.get(lsn) or Run(range(lsn, lsn + 1), True) for lsn in here]

    def copies(self) -> tuple[list[Run], list[Told]]:
        """Those in `apart`, as runs and as columns that will not change."""
        return [run.copy() for run in self.apart.values()], []

    def between(self, first: int, stop: int) -> Chunk:
        """All that wait in lines with LSNs in [first, stop), ascending; they stay."""
        if stop - first <= self.count:
            found = {lsn for lsn in self.keys.known(first, stop) if self.waits(lsn)}
            return as_chunk(array("q", sorted(found)))
        every = (*self.chunks(), *(run.chunk for run in self.apart.values()))
        return all_within(every, first, stop)

    def check(self, living: Sequence[int], ready: Sequence[int]) -> None:
        """Recount; `living`: all messages whose keys are known, `ready` those of them that are offered."""
        counted: dict[int, int] = {}
        for lsn in living:
            key = self.keys.of(lsn)
            counted[key] = counted.get(key, 0) + 1
        counted.pop(NO_KEY, None)
        told = {key: count for key, count in enumerate(self.keys.living) if count}
        assert counted == told, f"keys of {counted} messages, counted {told}"
        self._check_lines()
        offered = [self.keys.of(lsn) for lsn in ready]
        for lsn, key in zip(ready, offered, strict=True):
            assert key == NO_KEY or self._front[key] == lsn, f"{lsn} is offered and does not stand for its key"

    def _check_lines(self) -> None:
        """Somebody stands before each line, and it is in order."""
        assert self.count == sum(len(line) - line[0] for line in self._lines.values())
        for key, line in self._lines.items():
            assert self._front[key], f"nobody stands before {line}"
            places = [self._place(lsn) for lsn in line[line[0] :]]
            assert places == sorted(places), f"{line} is in disorder"
            assert len(places), "a line is empty"
