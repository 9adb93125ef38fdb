"""All places of a queue (`whole`): whoever looks at a queue goes over these; and the bytes of what stands there.

Looking changes nothing that anybody could see (an order may be put together again on the way), and the chunks will not
change either.  Body bytes alone count: no header, no key.  A range of
messages costs two searches, scattered ones a look at each.  Where a limit asks for the bytes of what is ready they are
counted along the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.core.arena import Move
from penstock.core.queue.held import unbarred
from penstock.core.queue.order.priority import PriorityOrder
from penstock.core.queue.order.run_heap import RunHeap
from penstock.core.queue.order.runs import NEVER, Run, in_fewer, packed, view
from penstock.core.queue.order.scattered import Told
from penstock.core.queue.settling.leases import SLOT
from penstock.core.queue.whole import AVAILABLE, OWNED, STATES, WAITING, Part, Place, State
from penstock.core.state.lsns import Ints, least
from penstock.records.chunks import Chunk

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents
    from penstock.core.queue.dispatching.consumers import Consumer
    from penstock.core.queue.shares import Shares


def places(queue: Contents, *states: State) -> Iterator[Place]:
    """The places in these states, or in all, that hold something."""
    return (place for place in _places(queue) if not states or place.state in states)


def _places(queue: Contents) -> Iterator[Place]:
    main, returned, tail = queue.main, queue.returned, queue.tail
    if main.count:
        loose = main.copies if isinstance(main, PriorityOrder) and main.in_rows else None
        yield Place(
            "ready", "main", main.count, main.chunks, loose=loose, lowest=main.lowest, extract=main.extract,
            page=main.page, solid=main.solid, between=None if isinstance(main, PriorityOrder) else main.between,
            after=None if isinstance(main, PriorityOrder) else main.after,
        )  # fmt: skip
    if returned.count:
        yield _in_heap("ready", "returned", returned, lambda wanted: _noted(queue, returned.extract(wanted)))
    if queue.shares is not None:
        yield from _of_shares(queue, queue.shares)
    if tail.count:
        yield Place(
            "inactive", "tail", tail.count, tail.chunks, lowest=tail.lowest, extract=tail.extract, page=tail.page,
            between=tail.between, after=tail.after,
        )  # fmt: skip
    if queue.held:
        yield from _held(queue)
    yield from _delayed(queue)
    if queue.leased:
        yield Place(
            "leased", "leases", queue.leased, back=lambda: (run for run, _ in leased(queue)),
            lowest=lambda: min([one.leases.lowest() for one in queue.holders()], default=NEVER),
            page=lambda move: _page_leases(queue, move), kept=_Leased(queue),
        )  # fmt: skip
    if queue.foreign is not None and queue.foreign.count:
        theirs = queue.foreign
        yield Place(
            "foreign", "theirs", theirs.count, theirs.chunks, theirs.runs, None, theirs.floor, theirs.extract,
            theirs.page, between=theirs.between,
        )  # fmt: skip
    if queue.letters.count:
        yield Place("dying", "letters", queue.letters.count, back=queue.letters.runs)


def _in_heap(state: State, part: Part, heap: RunHeap, extract: Callable[[Chunk], list[Run]]) -> Place:
    return Place(
        state, part, heap.count, back=heap.runs, lowest=heap.lowest, extract=extract, page=heap.page, kept=heap
    )


def _delayed(queue: Contents) -> Iterator[Place]:
    delays = queue.delays
    late, scheduled = delays.retries, delays.scheduled
    if late.count:
        yield _in_heap("delayed", "retries", late, lambda wanted: _undelayed(queue, late.extract(wanted)))
    if scheduled.count:
        yield Place(
            "delayed", "scheduled", scheduled.count, scheduled.chunks, page=scheduled.page,
            extract=lambda wanted: _undelayed(queue, delays.unschedule(wanted)), between=scheduled.within,
        )  # fmt: skip


def _of_shares(queue: Contents, shares: Shares) -> Iterator[Place]:
    tenants, groups, staging = shares.tenants, shares.groups, shares.staging
    foreseen = queue.targets.foreseen

    def forgotten(runs: list[Run]) -> list[Run]:
        if len(foreseen):
            foreseen.forget(run.chunk for run in runs)
        return runs

    if groups is not None and groups.count:
        yield Place(
            "ready", "lines", groups.count, groups.chunks, groups.apart.values, groups.waiting, groups.floor,
            lambda wanted: forgotten(groups.extract(wanted)), between=groups.between, kept=groups,
        )  # fmt: skip
    if tenants is not None and tenants.count:
        yield Place(
            "ready", "tenants", tenants.count, tenants.chunks, tenants.runs, None, tenants.floor, tenants.extract,
            between=tenants.between, kept=tenants,
        )  # fmt: skip
    if staging.count:
        yield Place(
            "ready", "unkeyed", staging.count, staging.chunks, staging.runs, None, staging.floor,
            lambda wanted: forgotten(staging.extract(wanted)), staging.page, between=staging.between, kept=staging,
        )  # fmt: skip


def _held(queue: Contents) -> Iterator[Place]:
    barriers, older = queue.barriers, queue.older
    if barriers.held:
        yield Place(
            "held", "barriers", barriers.held, barriers.chunks, barriers.runs, lowest=barriers.floor,
            extract=lambda wanted: unbarred(queue, wanted), page=barriers.page, solid=barriers.solid,
            between=barriers.between,
        )  # fmt: skip
    if older is not None and older.count:
        yield Place("held", "found", older.count, lambda: older.chunks, extract=older.extract, page=older.page)


def _page_leases(queue: Contents, move: Move) -> None:
    for consumer in queue.holders():
        consumer.leases.page(move)


def _noted(queue: Contents, runs: list[Run]) -> list[Run]:
    """Filters may have these in mind."""
    if queue.targets.lists:
        for run in runs:
            queue.targets.left(run.chunk)
    return runs


def _undelayed(queue: Contents, runs: list[Run]) -> list[Run]:
    """Barriers count what is delayed before them."""
    queue.barriers.forget_delayed(runs)
    return runs


def leased(queue: Contents, wanted: Chunk | None = None) -> Iterator[tuple[Run, Consumer]]:
    """What is leased, or what of the wanted is, with who holds it; each one's oldest grants first."""
    for consumer in queue.all_consumers:
        leases = consumer.leases
        if leases.count:
            held = leases.held() if wanted is None else leases.among(wanted)
            yield from ((run, consumer) for run in held if run.place != SLOT)


class _Leased(NamedTuple):
    """What all consumers of a queue hold."""

    queue: Contents

    def pieces(self) -> Iterator[Chunk]:
        return (chunk for one in self.queue.all_consumers if one.leases.count for chunk in one.leases.pieces())

    def among(self, wanted: Chunk) -> Iterator[Run]:
        return (run for run, _ in leased(self.queue, wanted))

    def copies(self) -> tuple[list[Run], list[Told]]:
        return [run.copy() for run, _ in leased(self.queue)], []


def standing(queue: Contents, *states: State, most: int = NEVER) -> Iterator[tuple[State, Run, Consumer | None]]:
    """Everything in these states, or in all: of each run its state and who holds it, in no order.

    most: so many of the oldest of each place do, where that costs less.
    """
    for place in places(queue, *states):
        state: State = place.state
        wanted = packed(least(place.chunks(), 0, most)) if place.kept is not None and most < place.count else None
        if place.part == "leases":
            for run, consumer in leased(queue, wanted):
                yield state, run, consumer
        else:
            for run in place.runs() if wanted is None else place.among(wanted):
                yield state, run, None


def first(queue: Contents, most: int, *states: State) -> list[tuple[State, Run, Consumer | None]]:
    """The same of the `most` oldest messages by LSN, and of some more."""
    out: list[tuple[State, Run, Consumer | None]] = []
    count, bound = 0, NEVER
    for state, run, consumer in sorted(standing(queue, *states, most=most) if most else (), key=_first_lsn):
        if run.chunk[0] > bound:
            break
        out.append((state, run if len(run.chunk) <= most else run.part(run.chunk[:most], True), consumer))
        count += min(len(run.chunk), most)
        if count >= most and bound == NEVER:
            lsns = np.concatenate([view(part.chunk) for _, part, _ in out])
            bound = int(np.partition(lsns, most - 1)[most - 1])
    return out


def _first_lsn(one: tuple[State, Run, Consumer | None]) -> int:
    return one[1].chunk[0]


def chunks(queue: Contents, *states: State) -> Iterator[Chunk]:
    """Everything in these states, or in all, in no order."""
    return (chunk for place in places(queue, *states) for chunk in place.chunks())


def after(queue: Contents, lsn: int, most: int, *states: State) -> Ints:
    """The `most` lowest LSNs above this one in these states, or in all, ascending."""
    every = list[Chunk]()
    for place in places(queue, *states):
        every += place.chunks() if place.after is None else (place.after(lsn, most),)
    return least(every, lsn, most)


def lives(queue: Contents, lsn: int, *states: State) -> bool:
    """Whether a message is in one of these states, or in any."""
    if (not states or "ready" in states) and queue.main.has(lsn):
        return True
    others = (place for place in places(queue, *states) if place.part != "main")
    return any(len(run.chunk) for place in others for run in place.among(range(lsn, lsn + 1)))


def oldest(queue: Contents, most: int = NEVER) -> int:
    """No message in the queue is older; looked for, where it is not known, among so many chunks of each place."""
    return min((place.oldest(most) for place in places(queue)), default=NEVER)


def gone(queue: Contents) -> int:
    """Messages that have left it since the start, whatever for."""
    return queue.loaded + queue.arrived - queue.total()


__all__ = [
    "AVAILABLE", "OWNED", "STATES", "WAITING", "Part", "Place", "State", "after", "chunks", "first", "gone", "leased",
    "lives", "oldest", "places", "standing",
]  # fmt: skip


class Weight(NamedTuple):
    """Bytes of a queue's messages."""

    ready: int
    leased: int
    held: int
    delayed: int
    total: int  # in whatever state: also beyond the target depth, of other sites, and dying

    @property
    def messages(self) -> int:
        """Of those that RabbitMQ's clients are told of: ready, held back by a barrier, leased or delayed."""
        return self.ready + self.held + self.leased + self.delayed


def weighed(queue: Contents) -> Weight:
    """Of all that it holds, by state."""
    by_state = dict[State, int]()
    for place in places(queue):
        by_state[place.state] = by_state.get(place.state, 0) + sum(map(queue.sizes.total, in_fewer(place.chunks())))
    told, total = by_state.get, sum(by_state.values())
    return Weight(told("ready", 0), told("leased", 0), told("held", 0), told("delayed", 0), total)
