"""How deliveries end: acknowledged, given back, refused for good, or taken from whoever holds them; or last longer.

A return is the one moment at which limits are judged: a message past its deadline or its limits does not go back but
expires, with all the reasons that hold.  A longer lease is session state alone: nothing of it is logged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from penstock.core.effects import Sink, Verb
from penstock.core.queue.heeding import exact_body, gone
from penstock.core.queue.limits.ring import returning
from penstock.core.queue.order.runs import NEVER, Run, pairs_body, sift, sorted_chunk
from penstock.core.queue.settling.attempts import Tally, back_off, spent
from penstock.core.queue.settling.leases import SLOT
from penstock.records.causes import FORCED, TIME_LIMIT
from penstock.records.chunks import Chunk, Now
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from penstock.core.queue.dispatching.consumers import Consumer
    from penstock.core.queue.settling.letters import Letter
    from penstock.core.queue.view import Queue


MANY_RETRIES = 1024
"""Beyond so many messages in back-off of one queue times are rounded up."""

RETRY_GRAIN_US = 10_000
"""To what they are rounded."""


def settle(
    queue: Queue,
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
    runs: list[Run] = []
    stale: list[Chunk] = []
    affected = 0
    if by is not None:
        for chunk in chunks:
            if len(chunk):
                held, missing = by.leases.take(chunk)
                runs += held
                stale += missing
        if runs:
            affected, slots = queue.freed(by, runs)
            if slots:
                runs = [run for run in runs if run.place != SLOT]
        client = client or by.client
    else:
        stale = [chunk for chunk in chunks if len(chunk)]
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
        if queue.shares is not None:
            queue.shares.left(queue, runs)
        header = {"by": named} if named else None
        body = exact_body(queue, runs) if queue.actions else pairs_body(queue.id, runs)
        settled = sink.record(Kind.SETTLE, queue.name, header, body)
        if queue.actions:
            gone(queue, runs, settled, sink)
        figures = queue.figures
        if figures is None:  # nothing of it was delivered yet
            figures = queue.counted(now.mono)
        figures.acked += affected
        figures.unsampled += affected
        if figures.unsampled >= figures.step:
            figures.sample(now.mono, runs[0])
    elif verb is Verb.EXPIRE:
        queue.expire(runs, cause, sink, by=named, why=reason or "", dying=dying)
    else:
        cancelled = verb is Verb.CANCEL
        give_back(
            queue, now, runs, sink, cause=verb.value, failed=cancelled, cancelled=cancelled,
            unseen=verb is Verb.UNSEEN, delay=delay, why=reason,
        )  # fmt: skip
    return affected


def _elsewhere(
    queue: Queue, chunks: list[Chunk], verb: Verb, by: Consumer | None, client: str
) -> tuple[list[Run], int]:
    """Take these from other holders if that is allowed, and from ready and delayed; and how many slots that freed."""
    out: list[Run] = []
    slots = 0
    strict = queue.settings.leasing == "strict"
    kept = queue.settings.non_destructive  # only slots are freed
    once = kept or queue.settings.semantics == "at-most-once"
    for chunk in chunks:
        left = [chunk]
        for holder in list(queue.holders()):
            if holder is by or holder.fenced or (strict and (by is not None or not client or holder.client != client)):
                continue
            rest: list[Chunk] = []
            for part in left:
                if once and by is None and client and holder.client == client:
                    held, missing = holder.leases.take(part)
                    slots += sum(len(run.chunk) for run in held if run.place == SLOT)
                    out += [run for run in held if run.place != SLOT]
                else:
                    held, missing = _unless_slots(holder, part)
                    out += held
                rest += missing
                if held:
                    queue.freed(holder, held)
            left = rest
        if kept:
            continue
        if verb is Verb.ACK or (verb is Verb.EXPIRE and not once):
            for part in left:
                out += queue.extract(part)
    return out, slots


def _unless_slots(holder: Consumer, chunk: Chunk) -> tuple[list[Run], list[Chunk]]:
    """What another consumer leases of the chunk; slots of what was delivered at most once are its own affair."""
    held = [
        inside
        for run in holder.leases.held()
        if run.place != SLOT and (inside := sift(run.chunk, chunk)[0]) is not None
    ]
    if not held:
        return [], [chunk]
    wanted = sorted_chunk(held)
    runs = holder.leases.take(wanted)[0]
    return runs, sift(chunk, wanted)[1]


def give_back(
    queue: Queue,
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
    settings = queue.settings
    back: dict[int, list[Run]] = {}
    dead: dict[str, list[Run]] = {}
    for run in sorted(runs, key=_first):
        old = run.tally
        if failed or cancelled or unseen:
            run.tally = Tally(old.deliveries, old.failures + failed, old.cancels + cancelled, old.unseen + unseen)
        reasons = spent(run.tally, settings)
        late = queue.expiry.overdue(run.chunk, now.wall)
        if late is not None:
            inside, outside, slices = sift(run.chunk, late)
            assert inside is not None
            dead.setdefault(",".join((TIME_LIMIT, *reasons)), []).append(run.part(inside, slices))
            rest = [run.part(part, slices) for part in outside]
        else:
            rest = [run]
        if reasons:
            if rest:
                dead.setdefault(",".join(reasons), []).extend(rest)
            continue
        for part in rest:
            wait = delay
            if wait is None:
                retry = settings.retry
                wait = (
                    back_off(retry, run.tally.failures, queue.id, part.chunk[0]) if failed and retry is not None else 0
                )
            back.setdefault(_due(queue, now.wall + wait) if wait > 0 else 0, []).append(part)
    header: dict[str, object] = {"cause": cause, "failed": failed, "cancelled": cancelled}
    if unseen:
        header["unseen"] = True
    if why:
        header["why"] = why
    for reason, lost in dead.items():
        if queue.wants_letter(reason):
            # the counts outlive a crash before the letter is written
            sink.record(Kind.RETURN, queue.name, header, pairs_body(queue.id, lost))
        queue.expire(lost, reason, sink)
    for due, kept in back.items():
        told = {**header, "not_before": due} if due else header
        sink.record(Kind.RETURN, queue.name, told, pairs_body(queue.id, kept))
        if not due and queue.limits is not None and queue.limits.ring < NEVER:
            kept = returning(queue, kept, sink)
        for part in kept:
            if due:
                part.deadline, part.by = due, None
                queue.late().retry(part)
                if queue.last_values is not None:
                    queue.last_values.came_back(part)
                queue.barriers.delay(part.chunk, 1)
            else:
                part.deadline = 0
                queue.put_back(part)


def _due(queue: Queue, due: int) -> int:
    """When a delay ends.  Of many in back-off those of one moment end together, so that they cost little."""
    if queue.delays.retries.count < MANY_RETRIES:
        return due
    return -(-due // RETRY_GRAIN_US) * RETRY_GRAIN_US


def _first(run: Run) -> int:
    return run.chunk[0]


def extend(queue: Queue, consumer: Consumer, chunk: Chunk, deadline: int) -> int:
    """Let what the consumer holds of the chunk end at `deadline` (monotonic microseconds) at the earliest.

    Returns how many messages it holds of them; a lease that does not end by time stays so.
    """
    count = consumer.leases.extend(chunk, deadline)
    if count:
        queue.leases_in_order = False
    return count
