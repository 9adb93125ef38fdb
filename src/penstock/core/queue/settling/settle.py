"""How deliveries end: acknowledged, given back, refused for good, or taken from whoever holds them; or last longer.

A return is the one moment at which limits are judged: a message past its deadline or its limits does not go back but
expires, with all the reasons that hold.  A longer lease is session state alone: nothing of it is logged.

Acks of several consumers at once are in `several`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from penstock.core.acted import exact
from penstock.core.effects import Gone, Sink, Verb
from penstock.core.queue.order.runs import Run, pairs_body, sift, sorted_chunk
from penstock.core.queue.settling.attempts import Tally, back_off, spent
from penstock.core.queue.settling.leases import SLOT
from penstock.core.state.encoding import dump
from penstock.records.causes import FORCED, TIME_LIMIT
from penstock.records.chunks import Chunk, Now, pack_pairs
from penstock.records.event_actions import OnDelete
from penstock.records.kinds import Kind
from penstock.records.remembered import Memo
from penstock.units import LATEST

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents
    from penstock.core.queue.dispatching.consumers import Consumer
    from penstock.core.queue.settling.letters import Letter


MANY_RETRIES = 1024
"""Beyond so many messages in back-off of one queue times are rounded up."""

RETRY_GRAIN_US = 10_000
"""To what they are rounded."""


def settle(
    queue: Contents,
    now: Now,
    chunks: Sequence[Chunk],
    verb: Verb,
    sink: Sink,
    by: Consumer | None,
    client: str,
    delay: int | None,
    reason: str | None,
    dying: list[Letter] | None = None,
    cause: str = FORCED,
) -> int:
    """End deliveries as `verb` says; returns how many messages it affected.

    What `by` holds comes first.  What it does not hold: ACK and EXPIRE reach the message wherever it waits, unless the
    queue's leasing is `strict` and somebody else holds it; CANCEL, RELEASE and UNSEEN from a former holder do nothing.
    Without `by` the deliveries of the `client` are its own.  What was delivered at most once is no longer in the queue:
    whatever its receiver says frees a place in its backlog, and nothing but an ack reaches what was not delivered yet.
    """
    runs, stale, affected = _held(queue, by, chunks)
    if by is not None:
        client = client or by.client
        if by.silent:
            queue.roster.rank(by, silent=False)
    if stale:
        elsewhere = 0
        if verb in (Verb.ACK, Verb.EXPIRE) or by is None:
            found, freed = _elsewhere(queue, stale, verb, by, client)
            runs += found
            elsewhere = sum(len(run.chunk) for run in found) + freed
            affected += elsewhere
        if verb is not Verb.UNSEEN:  # whom it was for cannot know what became of it meanwhile
            queue.counted(now.mono).stale += sum(map(len, stale)) - elsewhere
    if not runs:
        return affected
    named = client or (by.tag if by is not None else "")
    if verb is Verb.ACK:
        _done(queue, now, runs, affected, named, sink)
    elif verb is Verb.EXPIRE:
        queue.expire(runs, cause, sink, by=named, why=reason or "", dying=dying)
    else:
        cancelled = verb is Verb.CANCEL
        give_back(
            queue, now, runs, sink, cause=verb.value, failed=cancelled, cancelled=cancelled,
            unseen=verb is Verb.UNSEEN, delay=delay, why=reason,
        )  # fmt: skip
    return affected


def _held(queue: Contents, by: Consumer | None, chunks: Sequence[Chunk]) -> tuple[list[Run], list[Chunk], int]:
    """Take what this consumer holds of the chunks: what is in the queue, what it does not hold, how many it held."""
    if by is None:
        return [], [chunk for chunk in chunks if len(chunk)], 0
    runs, stale = taken(by, [chunk for chunk in chunks if len(chunk)])
    if not runs:
        return runs, stale, 0
    count, slots = queue.freed(by, runs)
    return [run for run in runs if run.place != SLOT] if slots else runs, stale, count


def _done(queue: Contents, now: Now, runs: list[Run], count: int, named: str, sink: Sink) -> None:
    """These were acknowledged: so many, with what was in the queue no more."""
    queue.left(runs)
    body = exact_body(queue, runs) if queue.actions else pairs_body(queue.id, runs)
    settled = sink.record(Kind.SETTLE, queue.name, by_one(named), body)
    if queue.actions:
        gone(queue, runs, settled, sink)
    count_acked(queue, now, runs[0], count)


def count_acked(queue: Contents, now: Now, run: Run, count: int) -> None:
    """So many were acknowledged, among them this run."""
    figures = queue.figures
    if figures is None:  # nothing of it was delivered yet
        figures = queue.counted(now.mono)
    figures.acked += count
    figures.unsampled += count
    if figures.unsampled >= figures.step:
        figures.sample(now.mono, run)


def _elsewhere(
    queue: Contents, chunks: list[Chunk], verb: Verb, by: Consumer | None, client: str
) -> tuple[list[Run], int]:
    """Take these from other holders if that is allowed, and from ready and delayed; and how many slots that freed."""
    out: list[Run] = []
    slots = 0
    kept = queue.settings.non_destructive  # only slots are freed
    once = kept or queue.settings.semantics == "at-most-once"
    own = client if once and by is None else ""  # whose slots are meant, too
    extracts = not kept and (verb is Verb.ACK or (verb is Verb.EXPIRE and not once))
    for chunk in chunks:
        held, freed, left = from_holders(queue, chunk, _others(queue, by, client), own)
        out += held
        slots += freed
        for part in left if extracts else ():
            out += queue.extract(part)
    return out, slots


def from_holders(
    queue: Contents, chunk: Chunk, holders: Sequence[Consumer], own: str = ""
) -> tuple[list[Run], int, Sequence[Chunk]]:
    """Take from these what they lease of a chunk, and how many slots that freed; what they do not.

    own: whose slots are meant, too.
    """
    out: list[Run] = []
    slots = 0
    left: Sequence[Chunk] = [chunk]
    for holder in holders:
        held, left = taken(holder, left) if own and holder.client == own else _leased(holder, left)
        if held:
            slots += sum([len(run.chunk) for run in held if run.place == SLOT])
            out += [run for run in held if run.place != SLOT]
            queue.freed(holder, held)
    return out, slots, left


def _others(queue: Contents, by: Consumer | None, client: str) -> list[Consumer]:
    """Those from whom `by`, or this client, may take what they hold."""
    others = [one for one in queue.holders() if one is not by and not one.fenced]
    if queue.settings.leasing != "strict":
        return others
    return [one for one in others if one.client == client] if by is None and client else []


def _leased(holder: Consumer, chunks: Sequence[Chunk]) -> tuple[list[Run], list[Chunk]]:
    """Take of the chunks what another consumer leases; slots of what was delivered at most once are its own affair."""
    runs: list[Run] = []
    rest: list[Chunk] = []
    for chunk in chunks:
        taken = holder.leases.take_leased(chunk)
        runs += taken
        rest += sift(chunk, sorted_chunk([run.chunk for run in taken]))[1] if taken else [chunk]
    return runs, rest


def time_out(queue: Contents, now: Now, consumer: Consumer, runs: list[Run], cause: str, sink: Sink) -> None:
    """Deliveries to this consumer ended by time; from now on it is served behind all others."""
    queue.counted(now.mono).expired_leases += sum(len(run.chunk) for run in runs)
    queue.freed(consumer, runs)
    queue.roster.rank(consumer, silent=True)
    give_back(queue, now, runs, sink, cause=cause, failed=True)


def give_back(
    queue: Contents,
    now: Now,
    runs: Iterable[Run],
    sink: Sink,
    *,
    cause: str,
    failed: bool,
    cancelled: bool = False,
    unseen: bool = False,
    delay: int | None = None,
    why: str | None = None,
) -> None:
    """Deliveries that end without success: back to ready or into back-off, or out where a limit is reached.

    The runs are no longer leased.  `delay`: microseconds to stay away, instead of the queue's back-off.
    """
    header: dict[str, object] = {"cause": cause, "failed": failed, "cancelled": cancelled}
    if unseen:
        header["unseen"] = True
    if why:
        header["why"] = why
    runs = sorted(runs, key=_first)
    if failed or cancelled or unseen:
        for run in runs:
            old = run.tally
            run.tally = Tally(old.deliveries, old.failures + failed, old.cancels + cancelled, old.unseen + unseen)
    back, dead = _judged(queue, now, runs, failed, delay)
    for reason, lost in dead.items():
        if queue.wants_letter(reason):
            # the counts outlive a crash before the letter is written
            sink.record(Kind.RETURN, queue.name, header, pairs_body(queue.id, lost))
        queue.expire(lost, reason, sink, why="" if reason == TIME_LIMIT else why or "")
    for due, kept in back.items():
        told = {**header, "not_before": due} if due else header
        sink.record(Kind.RETURN, queue.name, told, pairs_body(queue.id, kept))
        if due:
            for part in kept:
                queue.keep_away(part, due)
        else:
            queue.come_back(kept, sink)


def _judged(
    queue: Contents, now: Now, runs: Sequence[Run], failed: bool, delay: int | None
) -> tuple[dict[int, list[Run]], dict[str, list[Run]]]:
    """What goes back, by the moment at which it is ready again (0: at once), and what does not, by the reasons."""
    back: dict[int, list[Run]] = {}
    dead: dict[str, list[Run]] = {}
    retry = queue.settings.retry
    expiry = queue.expiry
    late = None if expiry.empty else expiry.overdue(sorted_chunk([run.chunk for run in runs]), now.wall)
    for run in runs:
        reasons = spent(run.tally, queue.settings)
        rest = [run]
        inside, outside, slices = (None, [], False) if late is None else sift(run.chunk, late)
        if inside is not None:
            dead.setdefault(",".join((TIME_LIMIT, *reasons)), []).append(run.part(inside, slices))
            rest = [run.part(part, slices) for part in outside]
        if reasons:
            if rest:
                dead.setdefault(",".join(reasons), []).extend(rest)
            continue
        for part in rest:
            wait = delay
            if wait is None:
                again = retry if failed else None
                wait = 0 if again is None else back_off(again, run.tally.failures, queue.id, part.chunk[0])
            back.setdefault(_due(queue, min(now.wall + wait, LATEST)) if wait > 0 else 0, []).append(part)
    return back, dead


def _due(queue: Contents, due: int) -> int:
    """When a delay ends.  Of many in back-off those of one moment end together, so that they cost little."""
    if queue.delays.retries.count < MANY_RETRIES:
        return due
    return -(-due // RETRY_GRAIN_US) * RETRY_GRAIN_US


def _first(run: Run) -> int:
    return run.chunk[0]


def extend(queue: Contents, consumer: Consumer, chunk: Chunk, deadline: int) -> int:
    """Let what the consumer holds of the chunk end at `deadline` (monotonic microseconds) at the earliest.

    Returns how many messages it holds of them; a lease that does not end by time stays so.
    """
    count = consumer.leases.extend(chunk, deadline)
    if count:
        queue.roster.rank(consumer, silent=False)
        queue.leases_in_order = False
    return count


def taken(consumer: Consumer, chunks: Sequence[Chunk]) -> tuple[list[Run], list[Chunk]]:
    """Take of the chunks what the consumer holds; and what it does not."""
    held: list[Run] = []
    stale: list[Chunk] = []
    for chunk in chunks:
        found, missing = consumer.leases.take(chunk)
        held += found
        stale += missing
    return held, stale


NAMES_MOST = 4096

_headers = Memo[str, bytes](NAMES_MOST, lambda named: dump({"by": named}))
"""Of records that say who has done something: the same few say so again and again."""


def by_one(named: str) -> bytes | None:
    """The header of such a record."""
    return _headers[named] if named else None


# -- what actions want to know; a queue that none watches pays one test of an empty tuple


def exact_body(queue: Contents, runs: Sequence[Run]) -> bytes:
    """The body of a record about these messages and nothing else: a start reads there what an action has to do."""
    return pack_pairs(queue.id, exact([run.chunk for run in runs]))


def gone(queue: Contents, runs: Sequence[Run], after: int, sink: Sink) -> None:
    """These are acknowledged, or were removed as they were sent: tell whoever wants to know."""
    if any(isinstance(on, OnDelete) for on in queue.actions):
        chunks = [run.chunk for run in runs if run.place != SLOT]
        if chunks:
            sink.effect(Gone(queue, chunks, after))
