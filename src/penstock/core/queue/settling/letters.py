"""Messages that leave without success and whose bodies somebody still wants: a dead-letter exchange or an action.

They are `dying`: no consumer gets them and no ack reaches them, but they count as waiting until the letter is written.
Bodies are asked for in bounded pieces, one at a time, so that a million expired messages do not fill the memory, and of
a piece that is answered in part the rest comes before all others.

When a target refuses a letter, it and all that died after it wait, and it is tried again after a while: first a second,
in the end half a minute.  What waited at an exchange goes to queues of anybody, so there only what is refused waits.
They are only in memory as dying; a start finds them where they were before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import field, replace

from penstock.core.effects import Dying, Fetch, Purpose, Sink, Token
from penstock.core.queue.order.runs import NEVER, Run, sift_runs, sorted_chunk
from penstock.records.causes import WHY_MOST
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.dataclass import dataclass
from penstock.records.entries import Rows
from penstock.records.event_actions import OnDelete, OnExpire

LETTER = 64
"""Messages in one fetch at most: a turn of the server looks at the time after each, and each may go to many queues."""
PORTION = 64 << 20
"""Bytes of bodies whose removal and dead letters are one group."""
FIRST_PAUSE_US = 1_000_000
LONGEST_PAUSE_US = 30_000_000
"""How long letters wait that a target refuses, doubled each time."""


@dataclass(slots=True, eq=False)
class Letter:
    """Messages that leave without success and whose bodies were asked for."""

    runs: list[Run]
    reason: str  # AMPS_REASON: one or several of forced_expire, time_limit, max_deliveries, max_cancels
    by: str = ""  # who forced it
    why: str = ""  # in whose words
    again: int = 0  # a target refused them, others went on, and they have waited so long since
    chunk: Chunk = field(default_factory=lambda: range(0))

    def of(self, runs: list[Run]) -> Letter:
        """Other messages that die alike."""
        return Letter(runs, self.reason, self.by, self.why, self.again)

    def is_like(self, other: Letter) -> bool:
        """Whether both say the same of their messages."""
        return (self.reason, self.by, self.why, self.again) == (other.reason, other.by, other.why, other.again)

    def header(self) -> dict[str, object]:
        """What the EXPIRE record says beside the LSNs."""
        told = {"reason": self.reason, "by": self.by, "why": self.why[:WHY_MOST]}
        return {name: text for name, text in told.items() if text}

    @property
    def pairs(self) -> list[int]:
        """For the body of the EXPIRE record."""
        return [end for run in self.runs for end in run.pairs()]


def split(letter: Letter, lsns: Collection[int], *, onward: bool) -> tuple[Letter | None, list[Run]]:
    """What died before the first of these, and the rest; None: nothing did.  onward: all but these, and these."""
    if onward:
        these, others = sift_runs(letter.runs, as_chunk(sorted(lsns)))
        return letter.of(others) if others else None, these
    before: list[Run] = []
    for i, run in enumerate(letter.runs):
        at = next((at for at, lsn in enumerate(run.chunk) if lsn in lsns), None)
        if at is not None:
            if at:
                before.append(run.part(run.chunk[:at], True))
            rest = [run.part(run.chunk[at:], True), *letter.runs[i + 1 :]]
            return letter.of(before) if before else None, rest
        before.append(run)
    return letter, []


def portions(letter: Letter, rows: Rows, most: int = PORTION) -> Iterator[Letter]:
    """A letter in parts whose messages have at most `most` bytes together, or one message: each is a group of its own.

    `rows`: what was fetched; a message that is not there weighs nothing.
    """
    weights = {lsn: len(body) for lsn, body in zip(rows.lsns, rows.bodies, strict=True)}
    if sum(weights.values()) <= most:
        yield letter
        return
    runs: list[Run] = []
    size = 0
    for run in letter.runs:
        start = 0
        for at, lsn in enumerate(run.chunk):
            weight = weights.get(lsn, 0)
            if size and size + weight > most:
                if at > start:
                    runs.append(run.part(run.chunk[start:at], True))
                yield letter.of(runs)
                runs, size, start = [], 0, at
            size += weight
        runs.append(run.part(run.chunk[start:], True))
    yield letter.of(runs)


class Letters:
    """The dying messages of a queue."""

    __slots__ = ("_aside", "_moved", "_pause", "_queue", "_serial", "_waiting", "begun", "count", "due", "open")

    def __init__(self, queue: int) -> None:
        self._queue = queue  # id
        self._serial = 0
        self._waiting: deque[Letter] = deque()
        self._aside: list[Letter] = []  # refused, and what died after them goes on meanwhile
        self._moved = False  # some of those found room since they were asked for again
        self.open: dict[int, Letter] = {}  # by serial, one at most: bodies asked for
        self.count = 0
        self.begun = 0  # messages that ever began to die
        self.due = NEVER  # what a target refused is tried again then (mono); nothing is asked for before
        self._pause = 0

    def add(self, letter: Letter, sink: Sink) -> None:
        """These die: their bodies are asked for in turn."""
        sink.effect(Dying(self._queue, [run.chunk for run in letter.runs]))
        for run in letter.runs:
            self.count += len(run.chunk)
            self.begun += len(run.chunk)
            for start in range(0, len(run.chunk), LETTER):
                self._waiting.append(letter.of([run.part(run.chunk[start : start + LETTER], True)]))
        self._ask(sink)

    def cut(self, serial: int, upto: int) -> Letter | None:
        """An open letter, without its messages above `upto`: they wait at the front again, to be asked for."""
        letter = self.open.get(serial)
        if letter is None or letter.chunk[-1] <= upto:
            return letter
        kept, later = list[Run](), list[Run]()
        for run in letter.runs:
            at = bisect_right(run.chunk, upto)
            if at:
                kept.append(run.part(run.chunk[:at], True) if at < len(run.chunk) else run)
            if at < len(run.chunk):
                later.append(run.part(run.chunk[at:], True))
        letter.runs, letter.chunk = kept, letter.chunk[: bisect_right(letter.chunk, upto)]
        self._waiting.extendleft(letter.of([run]) for run in reversed(later))
        return letter

    def close(self, serial: int, sink: Sink) -> None:
        """The letter is written: its messages are gone."""
        letter = self.open.pop(serial, None)
        if letter is not None:
            self.count -= len(letter.chunk)
            self._pause = 0
            self._moved |= letter.again > 0
        self._ask(sink)

    def hold(self, serial: int, rest: Sequence[Run], mono: int) -> None:
        """A target refuses the rest of an open letter: it is asked for again later, before what died after it."""
        letter = self.open.pop(serial)
        written = len(letter.chunk) - sum(len(run.chunk) for run in rest)
        self.count -= written
        self._waiting.extendleft(letter.of([run]) for run in reversed(rest))
        self._pause = FIRST_PAUSE_US if written else min(max(2 * self._pause, FIRST_PAUSE_US), LONGEST_PAUSE_US)
        self.due = mono + self._pause

    def put_aside(self, serial: int, rest: Sequence[Run], mono: int, sink: Sink) -> None:
        """Targets refuse these of an open letter: they are asked for again later, and all others go on."""
        letter = self.open.pop(serial)
        written = len(letter.chunk) - sum(len(run.chunk) for run in rest)
        self.count -= written
        self._moved |= letter.again > 0 and written > 0
        pause = FIRST_PAUSE_US if self._moved else min(max(2 * letter.again, FIRST_PAUSE_US), LONGEST_PAUSE_US)
        self._aside += [replace(letter, runs=[run], again=pause) for run in rest]
        if self.due == NEVER:
            self.due = mono + pause
        self._ask(sink)

    def wake(self, mono: int, sink: Sink) -> None:
        """Try again what a target refused, if it is time."""
        if self.due <= mono:
            self.due = NEVER
            self._waiting += self._aside
            self._aside.clear()
            self._moved = False
            self._ask(sink)

    def _ask(self, sink: Sink) -> None:
        waiting = self._waiting
        if self.due < NEVER and not self._aside:
            return
        if waiting and not self.open:
            letter = waiting.popleft()
            size = len(letter.runs[0].chunk)
            while waiting and waiting[0].is_like(letter):
                size += len(waiting[0].runs[0].chunk)
                if size > LETTER:
                    break
                letter.runs += waiting.popleft().runs
            letter.chunk = sorted_chunk([run.chunk for run in letter.runs])
            self._serial += 1
            self.open[self._serial] = letter
            sink.effect(Fetch(Token(self._queue, self._serial, Purpose.LETTER), letter.chunk))

    def runs(self) -> Iterator[Run]:
        """Everything that is dying, asked for or not."""
        for letter in (*self.open.values(), *self._waiting, *self._aside):
            yield from letter.runs


def wants(watched: Sequence[OnExpire | OnDelete], reasons: Sequence[str]) -> bool:
    """Whether an action is for messages that expire for these reasons."""
    return any(
        isinstance(on, OnExpire) and (not on.reasons or any(reason in on.reasons for reason in reasons))
        for on in watched
    )


def names(watched: Sequence[OnExpire | OnDelete], reason: str) -> bool:
    """Whether an action asks by name for messages that leave for this reason."""
    return any(isinstance(on, OnExpire) and reason in on.reasons for on in watched)
