"""What is kept from being ready, as two stages: behind a barrier, and beyond the target depth.

A barrier goes to every subscription of the moment whose filter lets it in, whatever its backlog, and its removal is a
SETTLE record of the same turn.  In an at-least-once queue it is sent before that record is durable: a crash in between
repeats it, to the subscriptions of then, and does not lose it.  In an at-most-once queue the removal is durable first.

The target depth says how many messages are active: ready, leased, or in back-off after a failure.  What arrives beyond
is inactive, in a main order of its own behind the active one.  Nobody is given any of these, no filter and no query
looks at them; they expire, may be acknowledged and are purged as others.  As active ones leave, the oldest move up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.core.effects import Deliver, Purpose, Scan, Sink, Token
from penstock.core.queue.barrier import Barrier, Barriers
from penstock.core.queue.dispatching.dispatch import dispatch
from penstock.core.queue.order.main_order import Main
from penstock.core.queue.order.runs import NEVER, Run, holds, sift, sorted_chunk, without
from penstock.core.queue.parts import NO_BARRIERS, NO_TAIL
from penstock.core.queue.stages import Newcomers, Stage, append_around, append_rest
from penstock.core.queue.whole import DISPATCH
from penstock.records.chunks import Chunk, Now, as_chunk, pack_pairs
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents


RELEASE_MOST = 256
"""Barriers that go in one step; the queue asks to be called again for the rest."""


def release(queue: Contents, now: Now, sink: Sink) -> None:
    """Let go what is free to go, and serve what it held back."""
    barriers = queue.barriers
    for _ in range(RELEASE_MOST):
        first = barriers.first
        if first is None or not _free(queue, first):
            return
        if any(not one.standby for one in queue.roster.all):
            if not _answered(queue, barriers, first, sink):
                return
        elif queue.settings.barrier_without_subscribers == "hold":
            return
        _let_go(queue, first, sink)
        if queue.ready and queue.roster.all:
            dispatch(queue, now, sink)
    queue.agenda |= DISPATCH


def _free(queue: Contents, first: Barrier) -> bool:
    """Whether all before it is done."""
    if queue.older is not None or queue.ready or queue.halted:
        return False
    if queue.foreign is not None and queue.foreign.before(first.place):
        return False  # what other sites have is done when it is done there
    some = queue.leased or queue.outstanding
    if some and any(holder.leases.reach_before(first.place) for holder in queue.holders()):
        return False
    if queue.expiry.busy:  # it may be overdue itself
        return False
    if queue.letters.count and any(run.chunk[0] < first.place for run in queue.letters.runs()):
        return False
    return not queue.delays.any_before(first.place, queue.barriers.dormant)


def _answered(queue: Contents, barriers: Barriers, first: Barrier, sink: Sink) -> bool:
    """Whether all filters have looked at it; if not they are asked, unless they are at it."""
    if not queue.targets.lists:
        return True
    filters = {
        one.targets.filter.text: one.targets.filter
        for one in queue.roster.all
        if one.targets is not None and not one.standby
    }
    unknown = [one for text, one in filters.items() if text not in barriers.answers]
    if unknown and not barriers.asked:
        barriers.serial += 1
        barriers.asked = barriers.serial
        barriers.asking = tuple([one.text for one in unknown])
        lsn = first.lsn
        sink.effect(Scan(Token(queue.id, barriers.serial, Purpose.BARRIER), tuple(unknown), range(lsn, lsn + 1)))
    return not unknown


def looked(queue: Contents, token: Token, found: Sequence[Sequence[int]], upto: int) -> None:
    """The answer to the scan: which of the filters asked want the first barrier."""
    barriers = queue.barriers
    first = barriers.first
    if first is None or barriers.asked != token.serial:
        return
    barriers.asked = 0
    if upto >= first.lsn:
        for text, lsns in zip(barriers.asking, found, strict=True):
            barriers.answers[text] = len(lsns) > 0


def _let_go(queue: Contents, first: Barrier, sink: Sink) -> None:
    barriers = queue.barriers
    answers = barriers.answers
    takers = [one for one in queue.roster.all if not one.standby]
    takers = [one for one in takers if one.targets is None or answers[one.targets.filter.text]]
    barriers.pop()
    lsn = first.lsn
    removed = sink.record(Kind.SETTLE, queue.name, {"barrier": len(takers)}, pack_pairs(queue.id, (lsn, lsn + 1)))
    settings = queue.settings
    once = settings.semantics == "at-most-once"
    after = removed if once else 0 if settings.deliver == "early" else first.place
    again = lsn < queue.redelivered_below
    others = len(takers) - 1
    for consumer in takers:
        one = range(lsn, lsn + 1)
        sink.effect(Deliver(consumer, queue, one, 1, again, after, barrier=True, others=others))
        others = 0
    queue.counted().delivered += len(takers)
    join_front(queue, (first,))


class _BehindBarriers(Stage):
    """Newcomers stand behind the last barrier, and each barrier among them behind what came before it."""

    def present(self, queue: Contents) -> bool:
        return queue.barriers is not NO_BARRIERS

    def wanted(self, new: Newcomers) -> bool:
        return new.barriers is not None

    def admit(self, queue: Contents, now: Now, new: Newcomers, sink: Sink) -> None:
        if new.barriers is None and not queue.barriers.held:
            return
        barriers, chunk, marked = queue.ensure_barriers(), new.chunk, new.barriers or ()
        gone = sorted_chunk(new.gone)
        start = 0
        for lsn in marked:
            if holds(gone, lsn):
                continue
            at = bisect_left(chunk, lsn, start)
            _append(queue, new, start, at, gone)
            barriers.add(lsn, lsn)
            start = at + 1
        _append(queue, new, start, len(chunk), gone)
        if new.delayed is not None:
            barriers.dormant.update(lsn for lsn in marked if holds(new.delayed, lsn))
        new.placed = True

    def readmit(self, queue: Contents, run: Run) -> list[Run]:
        return list(hold_back(queue, run))

    def release(self, queue: Contents, now: Now, sink: Sink) -> None:
        if queue.barriers.held:
            release(queue, now, sink)


BEHIND_BARRIERS = _BehindBarriers()


def _append(queue: Contents, new: Newcomers, start: int, stop: int, gone: Chunk) -> None:
    """Add those of a stretch that did not go elsewhere to the last part of the queue."""
    if start == stop:
        return
    part = new.part(start, stop)
    out = sift(gone, part.chunk)[0] if len(gone) else None
    last = queue.barriers.last
    if last is not None:
        _hold(queue, last, part.chunk, out)
    else:
        part.taken = out
        append_rest(queue, part)


def _hold(queue: Contents, last: Barrier, chunk: Chunk, out: Chunk | None) -> None:
    main = last.order()
    before = main.count
    if out is None:
        main.append(chunk)
    else:
        append_around(main, without(chunk, out), out)
    queue.barriers.held += main.count - before


# -- parts of the queue behind barriers


def join_front(queue: Contents, freed: Iterable[Barrier]) -> None:
    """Parts that no barrier holds back any more are ready."""
    for barrier in freed:
        if barrier.main.count:
            if queue.targets.lists:
                queue.targets.rewind(barrier.main.head() - 1)
            if queue.main.count:
                queue.main.absorb(barrier.main)
            else:
                queue.main = barrier.main
        elif barrier.main.sealed:
            queue.ensure_main().seal(barrier.main.sealed)
        for run in barrier.runs():
            queue.offer(run)


def mixed(queue: Contents, last: int) -> None:
    """Messages of the queue up to `last` may lie between those of any array from now on."""
    for main in (queue.ensure_main(), *(barrier.order() for barrier in queue.barriers.waiting())):
        main.loosen()
        main.seal(last)


def unbarred(queue: Contents, wanted: Chunk) -> list[Run]:
    """Take those of the wanted that are held; what only a barrier among them held back is ready."""
    held, freed = queue.barriers.extract(wanted)
    if freed:
        join_front(queue, freed)
        queue.agenda |= DISPATCH
    return held


def hold_back(queue: Contents, run: Run) -> Iterator[Run]:
    """Sort a run that is ready again, or due, by barriers; what stands before the first is given back.

    A barrier that became due waits behind everything from now on.
    """
    barriers = queue.barriers
    chunk = run.chunk
    if run.place and barriers.due:
        due = [lsn for lsn in chunk if lsn in barriers.due]
        if due:
            barriers.due.difference_update(due)
            chunk = without(chunk, as_chunk(due))
            for lsn in due:
                barriers.add(lsn, run.place)
    for barrier, part in barriers.cut(chunk):
        mine = run if len(part) == len(run.chunk) else run.part(part, True)
        if barrier is None:
            yield mine
        else:
            mine.by = None  # filters look at what it holds back when it goes
            barrier.push(mine)
            barriers.held += len(part)


def dissolve(queue: Contents) -> None:
    """Make ordinary messages of all barriers: the queue has no expression for them any more."""
    barriers = queue.barriers
    parts = list(barriers.waiting())
    barriers.dormant.clear()
    barriers.clear()
    for barrier in parts:
        if barrier.place == barrier.lsn:
            own = Main()
            own.append(range(barrier.lsn, barrier.lsn + 1))
            own.absorb(barrier.main)
            barrier.main = own
        else:
            barrier.push(Run(range(barrier.lsn, barrier.lsn + 1), True, place=barrier.place))
    join_front(queue, parts)


def split(queue: Contents, keys: Iterable[tuple[int, int]]) -> None:
    """Put barriers, (place, LSN) ascending, where they belong among what is ready and held already."""
    barriers = queue.barriers
    merged = sorted({*keys, *((barrier.place, barrier.lsn) for barrier in barriers.waiting())})
    if not merged:
        return
    freed = list(barriers.waiting())
    barriers.clear()
    join_front(queue, freed)
    main, back = queue.main, list(queue.returned.runs())
    queue.clear_returned()
    if queue.targets.lists:
        queue.targets.rewind(0)
        for run in back:
            queue.targets.left(run.chunk)
    edges = [place for place, _ in merged[1:]]
    queue.main = _taken(main, merged[0][0])
    queue.main.seal(main.sealed)
    for (place, lsn), edge in zip(merged, [*edges, NEVER], strict=True):
        barrier = barriers.add(lsn, place)
        part = _taken(main, edge)
        if part.count:
            part.seal(main.sealed)
            barrier.main = part
            barriers.held += part.count
    for run in back:
        queue.put_back(run)


def _taken(main: Main, limit: int) -> Main:
    """What stands before `limit`, as an order of its own."""
    out = Main()
    for run in main.take(NEVER, limit) if main.count else ():
        out.seal(run.chunk[0] - 1)
        out.append(run.chunk, run.solid)
    return out


def free(queue: Contents) -> int:
    """How many more may be active."""
    active = queue.ready + queue.leased + queue.delays.retries.count
    depth = queue.settings.target_queue_depth
    return max(depth - active, 0) if depth else queue.tail.count


def reach(queue: Contents, lsn: int) -> None:
    """Inactive messages up to this one are active, whatever the depth: another site asks for it."""
    if queue.tail.count and queue.tail.head() <= lsn:
        _activated(queue, queue.tail.take(NEVER, lsn + 1))


class _BehindDepth(Stage):
    """As many newcomers as the depth allows are active."""

    def present(self, queue: Contents) -> bool:
        return queue.settings.target_queue_depth > 0 or queue.tail is not NO_TAIL

    def admit(self, queue: Contents, now: Now, new: Newcomers, sink: Sink) -> None:
        if new.placed or not (queue.settings.target_queue_depth or queue.tail.count):
            return
        chunk, rows = new.left()
        if gone := new.gone:
            queue.ensure_main().seal(max(part[-1] for part in gone))
        room = 0 if queue.tail.count else min(free(queue), len(chunk))
        if room:
            first = chunk[:room]
            if queue.targets.lists:
                queue.targets.arrive(first, new.batch, new.rows_of(rows, 0, room), queue.main)
            queue.ensure_main().append(first, solid=False)
        if room < len(chunk):
            queue.ensure_tail().append(chunk[room:], solid=False)
        new.placed = True

    def release(self, queue: Contents, now: Now, sink: Sink) -> None:
        if queue.tail.count:
            activate(queue, now, sink)


BEHIND_DEPTH = _BehindDepth()


def activate(queue: Contents, now: Now, sink: Sink) -> None:
    """Let inactive messages move up, and be dispatched, until the depth is reached; of very many the first.

    A dispatch that stopped at its bound comes first: what moves up may stand before what it had still to give.
    """
    most = queue.dispatch_most
    while queue.tail.count and not queue.agenda & DISPATCH and (moved := move_up(queue)):
        if queue.roster.all:
            dispatch(queue, now, sink)
        most -= moved
        if most <= 0 and queue.tail.count:
            queue.agenda |= DISPATCH
            return


def move_up(queue: Contents) -> int:
    """Make the oldest inactive messages active; how many there were."""
    return _activated(queue, queue.tail.take(free(queue)))


def _activated(queue: Contents, runs: Sequence[Run]) -> int:
    for run in runs:
        if queue.targets.lists:
            queue.targets.arrive(run.chunk, None, None, queue.main)
        queue.ensure_main().append(run.chunk, solid=False)
    return sum(len(run.chunk) for run in runs)


__all__ = ["BEHIND_DEPTH", "activate", "free", "move_up", "reach"]
