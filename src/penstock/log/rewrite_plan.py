"""Which closed segments to rewrite, and why.  Pure: facts in, tasks out, the most useful first.

    sparse       past retention and covered by a base, and few of its rows are still needed: keep those
    small        written in small batches: join them, which makes recovery and reading faster
    many         a row of small files, left over from earlier compactions: make one of them
    cold         not compressed, old, delivered: compress it, where the settings ask for that

A row may go when it is past retention, needed by nobody (the caller counts who needs what) and not above any hold.
Neighbours that shrink go into one file, up to the usual size of a segment, so that a thousand stuck messages do not
leave a thousand files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias

from penstock.records.dataclass import dataclass

Why = Literal["sparse", "small", "many", "cold"]

UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Facts:
    """One closed segment."""

    first: int
    last: int
    rows: int
    batches: int
    bytes: int
    generation: int = 0
    compressed: bool = False
    past: bool = False  # past retention: what nobody needs may go
    needed: int = UNKNOWN  # rows that somebody still needs, when it is past retention; UNKNOWN: nobody counted


@dataclass(frozen=True, slots=True)
class Aims:
    """When a rewriting is worth its reading and writing."""

    segment: int = 256 << 20  # bytes of a new file at most, about
    sparse: float = 0.5  # rewritten when at most this part of its rows is needed
    rows: int = 400  # batches with fewer rows on average, and fewer bytes than `batch_bytes`, are small
    batch_bytes: int = 64 << 10
    batches: int = 16  # fewer small batches than this are left alone
    many: int = 8  # this many files, each below an eighth of `segment`, become one
    cold: int = 4  # closed segments, the newest ones, that are never compressed
    compress: bool = False

    @property
    def gain(self) -> int:
        """Bytes that leaving rows out must free."""
        return self.segment // 16


@dataclass(frozen=True, slots=True)
class Task:
    """One rewriting."""

    why: Why
    segments: tuple[Facts, ...]  # adjacent, oldest first
    rows: int  # of the new file, as far as known
    bytes: int  # the same, an estimate
    drops: bool  # rows are left out

    @property
    def rows_before(self) -> int:
        """Rows of the old files."""
        return sum(one.rows for one in self.segments)

    @property
    def bytes_before(self) -> int:
        """Bytes of the old files."""
        return sum(one.bytes for one in self.segments)

    @property
    def gain(self) -> int:
        """Bytes that it frees, about."""
        return self.bytes_before - self.bytes

    def plain(self) -> dict[str, object]:
        return {
            "why": self.why, "first": self.segments[0].first, "last": self.segments[-1].last,
            "segments": len(self.segments), "rows": self.rows_before, "rows_after": self.rows,
            "bytes": self.bytes_before, "bytes_after": self.bytes,
        }  # fmt: skip


def plan(closed: Sequence[Facts], hold: int, room: int, aims: Aims) -> list[Task]:
    """What is worth doing, the largest gain first.

    `closed`: all closed segments, oldest first.  `hold`: no row at or above it may go.  `room`: bytes that may be
    written beside the log; tasks that need more are left out.
    """
    tasks = list[Task]()
    taken = set[int]()
    for task in (*_sparse(closed, hold, aims), *_small(closed, aims), *_many(closed, aims), *_cold(closed, hold, aims)):
        if task.bytes <= room and not any(one.first in taken for one in task.segments):
            taken.update(one.first for one in task.segments)
            tasks.append(task)
    return sorted(tasks, key=lambda task: (task.why != "sparse", -task.gain))


_Fits: TypeAlias = Callable[[Facts], bool]
_Size: TypeAlias = Callable[[Facts], int]


def _kept_bytes(one: Facts) -> int:
    return one.bytes * one.needed // one.rows if one.rows else 0


def _freed_bytes(one: Facts) -> int:
    return one.bytes - _kept_bytes(one) if one.rows else 0  # a file without rows is as small as it gets


def may_drop(one: Facts, hold: int) -> bool:
    """Whether rows of it may be left out at all."""
    return one.past and one.needed != UNKNOWN and one.last < hold


def _sparse(closed: Sequence[Facts], hold: int, aims: Aims) -> Iterable[Task]:
    for run in _runs(closed, lambda one: may_drop(one, hold) and one.needed <= one.rows * aims.sparse):
        for part in _parts(run, _kept_bytes, aims.segment):
            rows, size = sum(one.needed for one in part), sum(map(_kept_bytes, part))
            if sum(map(_freed_bytes, part)) >= aims.gain:
                yield Task("sparse", part, rows, size, True)


def _is_small(one: Facts, aims: Aims) -> bool:
    few = one.rows < one.batches * aims.rows and one.bytes < one.batches * aims.batch_bytes
    return one.generation == 0 and one.batches >= aims.batches and few


def _joined_bytes(one: Facts) -> int:
    """What is left when a thousand rows share a header of about a kilobyte."""
    return max(one.bytes - 900 * one.batches, one.bytes // 8) + one.rows


def _small(closed: Sequence[Facts], aims: Aims) -> Iterable[Task]:
    for one in closed:
        if _is_small(one, aims):
            yield Task("small", (one,), one.rows, _joined_bytes(one), False)


def _many(closed: Sequence[Facts], aims: Aims) -> Iterable[Task]:
    for run in _runs(closed, lambda one: one.generation > 0 and one.bytes < aims.segment // 8):
        for part in _parts(run, lambda one: one.bytes, aims.segment):
            if len(part) >= aims.many:
                yield Task("many", part, sum(one.rows for one in part), sum(one.bytes for one in part), False)


def _cold(closed: Sequence[Facts], hold: int, aims: Aims) -> Iterable[Task]:
    if aims.compress:
        for one in closed[: max(0, len(closed) - aims.cold)]:
            if not one.compressed and one.last < hold:
                yield Task("cold", (one,), one.rows, one.bytes // 3, False)


def _runs(closed: Sequence[Facts], fits: _Fits) -> list[list[Facts]]:
    """Stretches of neighbours that fit."""
    runs, run = list[list[Facts]](), list[Facts]()
    for one in closed:
        if fits(one):
            run.append(one)
        elif run:
            runs.append(run)
            run = []
    return [*runs, run] if run else runs


def _parts(run: Sequence[Facts], size: _Size, limit: int) -> list[tuple[Facts, ...]]:
    """A run cut where it would make too large a file."""
    parts, part, have = list[tuple[Facts, ...]](), list[Facts](), 0
    for one in run:
        if part and have + size(one) > limit:
            parts.append(tuple(part))
            part, have = [], 0
        part.append(one)
        have += size(one)
    return [*parts, tuple(part)] if part else parts
