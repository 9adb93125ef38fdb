"""How far a start has come: written by the thread that recovers, read by the loop for HTTP and for who looks on.

A start has stages, each with a fixed part of the whole and a count of its own: segments that are checked, records that
are folded.  The share never falls and is 1 when the doors are open.  There is one writer at a time and the values are
single numbers, so no lock is needed.  It counts; it knows neither the log nor the core.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

STAGES: Final[Mapping[str, tuple[str, float]]] = {
    "checking": ("checking segments", 0.2),
    "checkpoint": ("loading the checkpoint", 0.25),
    "room": ("waiting for room on the disk", 0.25),
    "folding": ("folding records", 0.85),
    "queues": ("building queues", 0.95),
    "finishing": ("finishing decided batches", 0.99),
    "opening": ("opening the doors", 1.0),
    "ready": ("ready", 1.0),
}
"""Name of a stage -> what it is called for people, and the share of the whole that is done at its end."""

EARLY = 0.02
"""Below this share nothing is said about the time that is left."""

Mono = Callable[[], int]
"""A clock that never goes back, in microseconds: `Clock.mono`."""


class Stopped(Exception):
    """The start was called off; raised in the thread that recovers, at its next step."""


class Progress:
    """What a start is doing.  `watch` is what the log and the fold are given to tell it."""

    def __init__(self, mono: Mono) -> None:
        self._mono = mono
        self._started = mono()
        self._stage_started = self._started
        self.share = 0.0  # from 0 to 1; never less than it was
        self._stopped = False
        self.stage = "checking"
        self.over = False  # well or not
        self.segments = 0  # checked
        self.segments_total = 0
        self.records = 0  # folded
        self.records_total = 0  # to be folded; known to a few thousand until the last one is

    def begin(self) -> None:
        """The time counts from now on: who follows a leader may have waited for days."""
        self._started = self._stage_started = self._mono()

    def watch(self, stage: str, done: int, total: int) -> None:
        """A step of a stage: `done` of `total`, in what the stage counts.  Raises Stopped after `stop`.

        A stage that is not begun in its turn is a mistake of ours: KeyError for a name that is none.
        """
        if self._stopped:
            raise Stopped
        end = STAGES[stage][1]
        if stage != self.stage:
            self.stage, self._stage_started = stage, self._mono()
        if stage == "checking":
            self.segments, self.segments_total = done, total
        elif stage == "folding":
            self.records, self.records_total = done, total
        start = _start_of(stage)
        inside = min(done / total, 1.0) if total > 0 else 0.0
        self.share = max(self.share, start + (end - start) * inside)

    def ready(self) -> None:
        self.stage, self.share, self.records_total, self.over = "ready", 1.0, self.records, True

    def stop(self) -> None:
        """Have the thread that recovers end at its next step: there will be no server."""
        self._stopped = self.over = True

    @property
    def done(self) -> bool:
        """Whether the doors are open."""
        return self.stage == "ready"

    @property
    def seconds(self) -> float:
        return (self._mono() - self._started) / 1e6

    @property
    def rate(self) -> float:
        """Records folded in a second; 0 outside of folding."""
        spent = (self._mono() - self._stage_started) / 1e6
        return self.records / spent if self.stage == "folding" and spent > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """An estimate from the share and the time it took; None while there is nothing to go by, or others decide."""
        if self.stage == "room":
            return None
        if self.done:
            return 0.0
        share = self.share
        return self.seconds * (1 - share) / share if share >= EARLY else None

    @property
    def doing(self) -> str:
        return STAGES[self.stage][0]

    def line(self) -> str:
        """One line for a log."""
        words = [f"recovering, {self.share:.0%}: {self.doing}"]
        if self.segments_total:
            words.append(f"{self.segments} of {self.segments_total} segments checked")
        if self.records_total:
            words.append(f"{self.records:,} of about {self.records_total:,} records folded")
        if rate := self.rate:
            words.append(f"{rate:,.0f} a second")
        if (left := self.seconds_left) is not None:
            words.append(f"about {left:.0f} s left")
        return ", ".join(words)

    def plain(self) -> dict[str, object]:
        """The same for a program."""
        left = self.seconds_left
        return {
            "doing": self.doing,
            "share": round(self.share, 4),
            "seconds": round(self.seconds, 3),
            "seconds_left": None if left is None else round(left, 1),
            "segments_checked": self.segments,
            "segments": self.segments_total,
            "records_folded": self.records,
            "records": self.records_total,
            "records_per_second": round(self.rate),
        }


def _start_of(stage: str) -> float:
    """The share that is done when a stage begins: the end of the one before."""
    names = list(STAGES)
    at = names.index(stage)
    return STAGES[names[at - 1]][1] if at else 0.0


Show = Callable[[Progress], object]
"""Called on the loop several times a second during a start, and once when it has ended, well or not."""

LINE_S = 1.0


class Lines:
    """A line a second, for logs."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._next = LINE_S

    def __call__(self, progress: Progress) -> None:
        if not progress.over and progress.seconds >= self._next:
            self._next = progress.seconds + LINE_S
            self._say(f"penstock is {progress.line()}")
