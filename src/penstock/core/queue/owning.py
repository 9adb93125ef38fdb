"""How messages of a queue change their owner, between sites that share it.

Whatever settles a message settles it wherever it stands, so nothing of this asks who owns it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from penstock.core.effects import Sink
from penstock.core.links.ownership import Claim, Claims, Span
from penstock.core.links.sharing import HERE, Peers
from penstock.core.queue.foreign import Foreign, as_pairs
from penstock.core.queue.order.runs import Run, holds, packed, pairs_body, sift, sorted_chunk, view, without
from penstock.core.queue.settling.settle import from_holders
from penstock.core.queue.stages import Newcomers, Stage, marked, put_back
from penstock.core.queue.whole import DISPATCH, OWNED, State
from penstock.core.state.lsns import Ints, flat, stretches, within
from penstock.records.causes import CANCELLED, TWIN
from penstock.records.chunks import LSN_LIMIT, Chunk, Now, as_chunk, merged_spans, pack_pairs, pairs_of
from penstock.records.kinds import Kind
from penstock.records.queue_settings import QueueSettings

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents

PAIRS_MOST = 65_536
"""A record that tells of all of a queue has so many pairs at most: links tell it record by record."""

SORTED_AT_ONCE = 16_384
"""Messages of other sites that are put in order at once, as they would be served."""


class _Elsewhere(Stage):
    """What comes back and is another site's by now stays away from consumers."""

    def present(self, queue: Contents) -> bool:
        return queue.foreign is not None

    def admit(self, queue: Contents, now: Now, new: Newcomers, sink: Sink) -> None:
        foreign = queue.foreign
        if foreign is None or foreign.coming is None:
            return
        first, stop = new.chunk[0], new.chunk[-1] + 1  # between them are no others of the queue
        foreign.claims.put(first, stop, foreign.coming)
        _tell(queue, foreign.coming, [(first, stop)], foreign.peers, sink)
        new.elsewhere = new.left()[0]
        if new.barriers:
            new.elsewhere = without(new.elsewhere, as_chunk(new.barriers))
        foreign.main.append(new.elsewhere, solid=False)

    def readmit(self, queue: Contents, run: Run) -> list[Run]:
        if queue.foreign is None:
            return [run]
        due = sift(run.chunk, as_chunk(sorted(queue.barriers.due)))[0] if queue.barriers.due else None
        if due is None:
            return queue.foreign.keep(run)
        out = [run.part(due, False)]  # each site lets its barriers go itself
        if len(due) < len(run.chunk):
            out += queue.foreign.keep(run.part(without(run.chunk, due), False))
        return out


ELSEWHERE = _Elsewhere()

NOT_SHARED: dict[str, str] = {
    "group_key": "groups", "last_value_key": "last values", "non_destructive": "messages that stay for everybody",
}  # fmt: skip
"""What a queue whose messages other sites may own does not have.

Each would be a promise over all sites that no site can keep alone: that a group is one consumer's at a time, which of
two values is the last, that everybody is given everything.  All else is each site's own: its limits, tenants,
priorities, barriers and depth are of the messages that are its own.
"""


def why_not_shared(settings: QueueSettings) -> str | None:
    """What of these settings keeps a queue from having messages of other sites; None: nothing."""
    return next((NOT_SHARED[name] for name in not_shared(settings)), None)


def not_shared(settings: QueueSettings) -> tuple[str, ...]:
    """Which of these settings do."""
    return tuple(name for name in NOT_SHARED if getattr(settings, name))


def own(
    queue: Contents, now: Now, claimed: Sequence[tuple[Sequence[Span], Claim]], peers: Peers, sink: Sink
) -> list[int]:
    """Hear claims to messages of the queue, ascending each; how many each holds for.

    What holds is a record.  What waits here and is another's now nobody is given any more, what is ours now is ready;
    what is leased stays with its holder, whose ack counts.  Nothing is given out before all are heard.
    """
    queue.catch_up(now, sink)
    counts = [_own(queue, now, spans, claim, peers, sink) for spans, claim in claimed]
    if (foreign := queue.foreign) is None or not any(counts):
        return counts
    if any(count and claim.owner == peers.here for count, (_, claim) in zip(counts, claimed, strict=True)):
        queue.give_out(now, sink)  # before anything gives way to it
        while queue.agenda & DISPATCH and queue.limits is not None:
            queue.give_out(now, sink)
    _forget_claims(queue, foreign)
    queue.carry_on(now, sink)
    return counts


CLAIMS_FEW = 256
"""Claims to messages that are gone are looked for behind as many new ones, or as many as there are, or a sixteenth of
the queue's messages."""


def _forget_claims(queue: Contents, foreign: Foreign) -> None:
    """Claims go with their messages: one that stays, for its time has not come, holds none of what came after it."""
    new = len(foreign.claims) - foreign.needed
    if new > max(CLAIMS_FEW, foreign.needed) and 16 * new > queue.total():
        foreign.claims.forget_but(np.sort(_living(queue, 0, LSN_LIMIT)))
        foreign.needed = len(foreign.claims)


def _own(queue: Contents, now: Now, spans: Sequence[Span], claim: Claim, peers: Peers, sink: Sink) -> int:
    lsns = _living_among(queue, spans)
    if not len(lsns):
        return 0
    foreign = queue.ensure_foreign(peers)
    changed, ceded = list[Span](), foreign.claims.ceded
    for first, stop in _spans(lsns):
        changed += foreign.claims.put(first, stop, claim)
    if not changed:
        return 0
    _tell(queue, claim, changed, peers, sink)
    foreign.changed.append((now.wall, as_pairs(changed)))
    count, wanted = sum(stop - first for first, stop in changed), packed(flat([range(*span) for span in changed]))
    if claim.owner == foreign.claims.here.owner:
        for run in foreign.extract(wanted):
            put_back(queue, run)
        foreign.taken += count
        return count
    for chunk in _apart(queue, wanted):
        for run in queue.extract_ours(chunk):
            foreign.keep(run)
    if claim.serial:
        foreign.given += foreign.claims.ceded - ceded
    return count


def _tell(queue: Contents, claim: Claim, spans: Sequence[Span], peers: Peers, sink: Sink) -> None:
    header: dict[str, object] = {
        "owner": peers.number(claim.owner) or HERE, "site": claim.owner, "serial": claim.serial, "why": claim.why,
    }  # fmt: skip
    sink.record(Kind.OWN, queue.name, header, pack_pairs(queue.id, [end for span in spans for end in span]))


def settled_elsewhere(
    queue: Contents, now: Now, wanted: Chunk, site: str, sink: Sink, twins: list[int] | None = None
) -> int:
    """Another site says that these are done; how many that were here, whoever held them.

    twins: they went because others are the same messages; takes those that were here.

    What a stream has planned stays with its batch, which must be the same whenever it is asked for.  Barriers are of
    each site, and go when all before them is done there.
    """
    queue.catch_up(now, sink)
    runs, _, _ = from_holders(queue, wanted, [one for one in queue.holders() if not one.fenced])
    for chunk in _apart(queue, wanted):
        runs += queue.extract(chunk)
    if runs:
        queue.left(runs)
        if twins is None:
            sink.record(Kind.SETTLE, queue.name, {"site": site}, pairs_body(queue.id, runs))
        else:
            sink.record(Kind.DROP, queue.name, {"reason": TWIN, "site": site}, pairs_body(queue.id, runs))
            twins += flat([run.chunk for run in runs]).tolist()
    queue.carry_on(now, sink)
    return sum(len(run.chunk) for run in runs)


def _apart(queue: Contents, wanted: Chunk) -> list[Chunk]:
    """The wanted without barriers, in parts; mostly one."""
    return sift(wanted, marked(queue))[1] if len(wanted) else []


def let_go(queue: Contents, sink: Sink) -> None:
    """Say that all that is this site's is gone, in whatever state: the queue itself goes with the next record."""
    if len(lsns := ours_among(queue, packed(flat(list(queue.chunks(*OWNED, "leased", "dying")))))):
        pairs = within(lsns)
        for at in range(0, len(pairs), PAIRS_MOST):
            body = pack_pairs(queue.id, ()) + pairs[at : at + PAIRS_MOST].astype("<i8").tobytes()
            sink.record(Kind.DROP, queue.name, {"reason": CANCELLED}, body)


def ours_among(queue: Contents, wanted: Chunk) -> Chunk:
    """Of some messages, ascending, in whatever state, those that no other site owns."""
    if queue.foreign is None or not len(wanted):
        return wanted
    return sorted_chunk([run.chunk for run in queue.foreign.parted([Run(wanted, False)])[1]])


def theirs_counted(queue: Contents) -> int:
    """Other sites' that stand among this one's: for their time, as barriers, or with who holds them."""
    if queue.foreign is None:
        return 0
    some = packed(flat(list(queue.chunks("held", "delayed", "leased", "dying"))))
    return len(some) - len(ours_among(queue, some))


def sort_out(queue: Contents) -> None:
    """What would be ready here and is another site's stands where that belongs."""
    foreign = queue.foreign
    for low, high, claim in [] if foreign is None else list(foreign.claims.spans()):
        if foreign is not None and claim.owner != foreign.claims.here.owner:
            for run in queue.extract_ours(range(low, high)):
                foreign.keep(run)


def claims(queue: Contents, peers: Peers) -> Claims:
    """Whose the messages of this queue are."""
    return Claims(peers.here) if queue.foreign is None else queue.foreign.claims


def newcomers_of(queue: Contents, claim: Claim | None, peers: Peers) -> Claim | None:
    """Whose messages are that come from now on, None: this site's; what was said before."""
    if claim is not None and claim.owner == peers.here:
        claim = None
    if queue.foreign is None and claim is None:
        return None
    foreign = queue.ensure_foreign(peers)
    before, foreign.coming = foreign.coming, claim
    if claim is None:
        _forget_claims(queue, foreign)
    return before


def open_to_all(queue: Contents, always: bool, peers: Peers) -> None:
    """Whether what comes now has found room at another site: then it is not refused here."""
    if queue.limits is not None:
        queue.ensure_foreign(peers).open = always


def asked(queue: Contents, wall: int, spans: Sequence[Span]) -> None:
    """Their owner is asked for these, at this time; people may want to know."""
    if queue.foreign is not None:
        queue.foreign.asked.append((wall, as_pairs(spans)))


def in_turn(queue: Contents, below: int, may: Callable[[str], bool]) -> Iterator[tuple[int, int, Claim]]:
    """What waits and is another's with the claim to it, of these sites, as it would be served here.

    Only what begins below that LSN.  Whoever needs some may stop there: no more of a deep queue is sorted than that.
    Where none of these sites has any nothing is looked at.
    """
    foreign = queue.foreign
    if foreign is None or not (owners := [one for one in foreign.claims.others() if may(one)]):
        return
    placed = [run for run in foreign.returned.runs() if run.place] if foreign.returned.count else []
    if queue.ranks is None and not placed and len(owners) == len(foreign.claims.others()):
        for first, stop, claim in foreign_spans(queue):
            if first >= below:
                return
            yield first, stop, claim
        return
    lsns = flat(queue.chunks("foreign"))
    places = lsns.copy()
    for run in placed:
        places[np.searchsorted(lsns, view(run.chunk))] = run.where
    some = np.zeros(len(lsns), dtype=np.bool_)
    for low, high in np.searchsorted(lsns, as_pairs(foreign.claims.of_these(owners, below))).tolist():
        some[low:high] = True
    lsns, places = lsns[some], places[some]
    if not len(lsns):
        return
    for first, stop in _sorted_spans(lsns, places, places if queue.ranks is None else queue.ranks.each(packed(lsns))):
        yield from foreign.claims.spans(first, stop)


def _sorted_spans(lsns: Ints, places: Ints, ranks: Ints) -> Iterator[Span]:
    """Ascending messages by rank, then by place, as spans in that order."""
    while len(lsns):
        last = len(lsns) - 1
        first = ranks <= np.partition(ranks, min(SORTED_AT_ONCE, last))[min(SORTED_AT_ONCE, last)]
        chosen = np.lexsort((lsns[first], places[first], ranks[first]))
        yield from _spans(lsns[first][chosen])
        lsns, places, ranks = (column[~first] for column in (lsns, places, ranks))


def by_rank(queue: Contents, lsns: list[int]) -> list[int]:
    """Ascending messages of the queue as its priorities order them; as they are without any."""
    if queue.ranks is None or len(lsns) < 2:
        return lsns
    each = np.array(lsns, dtype=np.int64)
    return cast("list[int]", each[np.argsort(queue.ranks.each(packed(each)), kind="stable")].tolist())


def renamed(queue: Contents) -> None:
    """This site is called otherwise now."""
    if queue.foreign is not None:
        queue.foreign.renamed()


def living(queue: Contents, first: int, stop: int) -> list[Span]:
    """What is in the queue of [first, stop), in whatever state, ascending."""
    return _spans(np.sort(_living(queue, first, stop)))


def all_living(queue: Contents) -> Ints:
    """What is in the queue, in whatever state."""
    return _living(queue, 0, LSN_LIMIT)


FEW_SPANS = 16
"""Of more it is looked at once over all that lies between them."""


def _living_among(queue: Contents, spans: Sequence[Span], *states: State) -> Ints:
    """What is in the queue of these, which ascend, in these states or in whatever state, ascending."""
    if len(spans) <= FEW_SPANS:
        return np.concatenate([flat([]), *(_living(queue, *span, *states) for span in spans)])
    lsns = np.sort(_living(queue, spans[0][0], spans[-1][1], *states))
    cuts = np.searchsorted(lsns, np.array(spans, dtype=np.int64)).tolist()
    return np.concatenate([lsns[low:high] for low, high in cuts])


def _living(queue: Contents, first: int, stop: int, *states: State) -> Ints:
    """What is in the queue of [first, stop), in these states or in whatever state."""
    pieces = list[Chunk]()
    for place in queue.places(*states):
        if place.between is not None:
            pieces.append(place.between(first, stop))
        else:
            some = [chunk for chunk in place.chunks() if chunk[0] < stop and chunk[-1] >= first]
            pieces += [chunk[bisect_left(chunk, first) : bisect_left(chunk, stop)] for chunk in some]
    return flat([piece for piece in pieces if len(piece)])


def ready_spans(queue: Contents, spans: Iterable[Span], most: int | None = None) -> list[Span]:
    """What of these is ready and this site's, ascending; of more than so many those that would be served first.

    And what a barrier holds back: nobody here can be given that, and at another site it may stand before one.
    """
    lsns = _living_among(queue, merged_spans(spans), "ready", "held")
    if most is not None and len(lsns) > most:
        lsns = np.sort(np.array(by_rank(queue, lsns.tolist())[:most], dtype=np.int64))
    return _spans(lsns)


def _spans(lsns: Ints) -> list[Span]:
    """Each stretch of neighbours in this order."""
    return [(first, stop) for first, stop in stretches(lsns).tolist()]


def foreign_spans(queue: Contents) -> Iterator[tuple[int, int, Claim]]:
    """What waits and is another's, ascending, with the claim to it.  Whoever needs the first alone may stop there."""
    foreign = queue.foreign
    if foreign is None:
        return
    chunks = [packed(flat(foreign.pieces()))] if foreign.returned.count else foreign.chunks()
    for chunk in chunks:
        pairs = pairs_of(chunk, False)
        for first, stop in zip(pairs[::2], pairs[1::2], strict=True):
            yield from foreign.claims.spans(first, stop)


def foreign_after(queue: Contents, lsn: int, most: int) -> Chunk:
    """Up to so many of other sites' that wait behind an LSN, ascending."""
    foreign = queue.foreign
    if foreign is None:
        return range(0)
    if not foreign.returned.count:
        return foreign.main.after(lsn, most)
    lsns = flat(foreign.pieces())
    return packed(lsns[lsns > lsn][:most])


def waits_elsewhere(queue: Contents, lsn: int) -> bool:
    """Whether a message waits and is another site's."""
    foreign = queue.foreign
    return foreign is not None and (foreign.main.has(lsn) or any(holds(run.chunk, lsn) for run in foreign.runs()))


def expire_foreign(queue: Contents, chunk: Chunk, sink: Sink) -> None:
    """These are over: another site's go without a dead letter, which is its owner's affair."""
    foreign = queue.foreign
    if foreign is not None:
        queue.expire_elsewhere(foreign.extract(chunk), sink)
