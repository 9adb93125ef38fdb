"""Ready messages to consumers: who gets which, in what order.

The definition: again and again, the oldest ready message that some consumer with room wants goes to one of those that
want it, of the highest consumer priority, picked by the fairness model.  Without filters a whole slice is dealt at
once; with filters `matched` looks at those that match.  Where consumers share credit it goes message by message.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.core.effects import Deliver, Sink
from penstock.core.queue.dispatching.attendance import watch
from penstock.core.queue.dispatching.browsing import browse_all
from penstock.core.queue.dispatching.fairness import deal, pick
from penstock.core.queue.dispatching.matched import dispatch_matched
from penstock.core.queue.heeding import exact_body, gone
from penstock.core.queue.order.runs import Key, Run, packed, pairs_body, view
from penstock.core.queue.settling.attempts import delivered
from penstock.core.queue.settling.leases import SLOT
from penstock.core.state.plain import dump
from penstock.records.chunks import Now, as_chunk, pack_pairs
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from penstock.core.queue.dispatching.consumers import Consumer
    from penstock.core.queue.dispatching.target_list import TargetList
    from penstock.core.queue.view import Queue

DISPATCH_MOST = 2048
"""Messages granted in one step; the queue asks to be called again for the rest, so that nobody holds up a turn."""
TENANTS_MOST = 512
"""The same where tenants take turns, which costs a few microseconds a message."""
PIECES_MOST = 8
"""More pieces than this for one consumer are gathered."""


def dispatch(queue: Queue, now: Now, sink: Sink) -> None:
    """Grant what can be granted, `DISPATCH_MOST` at most, to tenants `TENANTS_MOST`."""
    queue.hungry = False
    roster = queue.roster
    if not queue.offered or not roster.all or queue.expiry.busy or queue.overfull or queue.paused_until:
        return
    if queue.ranking is not None or queue.older is not None:
        return
    if queue.shares is not None and queue.shares.unordered:
        return
    budget = queue.dispatch_most
    if queue.settings.non_destructive:
        browse_all(queue, sink, budget)
        return
    if queue.shares is not None:
        queue.shares.mono = now.mono
        if queue.shares.tenants is not None:
            budget = min(budget, TENANTS_MOST)
    if queue.pace is not None:
        budget = min(budget, queue.pace.allowed(now.mono))
        if not budget:
            return
    if queue.sharing or (queue.settings.max_backlog and any(consumer.no_ack for consumer in roster.all)):
        if queue.targets.lists or _tangled(queue):
            _one_by_one(queue, now, sink, budget)
            return
    elif queue.targets.lists:
        dispatch_matched(queue, now, sink, budget, grant)
        return
    for level in roster.levels:
        # the first test alone answers for most of many: `room` is a call
        free = [one for one in level if one.leases.count < one.limit and not one.paused and one.room > 0]
        if not free:
            continue
        limit = min(queue.offered, queue.room)
        if len(free) == 1:
            want = min(limit, free[0].room)
        else:
            want = min(limit, sum([consumer.room for consumer in free]))
        count = min(want, budget)
        if count < want:
            queue.hungry = True
        if count <= 0:
            break
        budget -= count
        runs = queue.take_ready(count)
        if queue.shares is not None:  # a tenant may not have more out
            count = sum([len(run.chunk) for run in runs])
            if not count:
                queue.hungry = False  # what is left may not go now: there is nothing to come back for
                return
        if len(free) == 1:
            grant(queue, now, sink, free[0], runs)
            queue.roster.turn = free[0].serial
        else:
            _deal(queue, now, sink, free, runs, count)
        if not queue.offered:
            return


def room_now(queue: Queue, now: Now) -> int:
    """How many messages would be dispatched at once, if there were as many; where credit is shared perhaps fewer."""
    if not queue.roster.all or queue.expiry.busy or queue.overfull or queue.paused_until or queue.older is not None:
        return 0
    if queue.ranking is not None or (queue.shares is not None and queue.shares.unordered):
        return 0
    rooms = [max(one.room, 0) for level in queue.roster.levels for one in level if not one.paused]
    room = min(queue.room, sum(rooms))
    return room if queue.pace is None else min(room, queue.pace.allowed(now.mono))


def _tangled(queue: Queue) -> bool:
    """Whether what one consumer takes changes another's room otherwise than by the message."""
    if queue.settings.max_backlog and any(consumer.no_ack for consumer in queue.roster.all):
        return True
    if not queue.sharing:
        return False
    seen = [id(consumer.shared) for consumer in queue.roster.all if consumer.shared is not None]
    return len(set(seen)) < len(seen)


def _deal(queue: Queue, now: Now, sink: Sink, free: Sequence[Consumer], runs: list[Run], count: int) -> None:
    turn = queue.roster.turn
    first = next((i for i, consumer in enumerate(free) if consumer.serial > turn), 0)
    model = queue.settings.fairness_model
    if count == 1:
        consumer = pick(model, free, turn)
        grant(queue, now, sink, consumer, runs)
        queue.roster.turn = consumer.serial
        return
    held = [consumer.load if consumer.shared is not None else consumer.leases.count for consumer in free]
    rooms = [consumer.room for consumer in free]
    weights = [math.inf if consumer.no_ack else consumer.weight for consumer in free]  # it never holds anything
    who = deal(model, rooms, held, weights, first, count)
    shares: list[list[Run]] = [[] for _ in free]
    done = 0
    for run in runs:
        owners = who[done : done + len(run.chunk)]
        done += len(run.chunk)
        lowest, highest = int(owners.min()), int(owners.max())
        if lowest == highest:
            shares[lowest].append(run)
            continue
        lsns = view(run.chunk)
        for i in range(lowest, highest + 1):
            mine = lsns[owners == i]
            if len(mine):
                shares[i].append(run.part(packed(mine), False))
    for consumer, share in zip(free, shares, strict=True):
        if share:
            grant(queue, now, sink, consumer, share)
    queue.roster.turn = free[int(who[-1])].serial


def _one_by_one(queue: Queue, now: Now, sink: Sink, budget: int) -> None:
    model = queue.settings.fairness_model
    order = [consumer for level in queue.roster.levels for consumer in level if not consumer.paused]
    shares: dict[int, list[Run]] = {}
    main = queue.main
    given = held = 0
    while queue.ready and queue.room - held > 0:
        free = [consumer for consumer in order if consumer.room > 0]
        if not free:
            break
        heads: dict[TargetList | None, Key | None] = {}
        for consumer in free:
            if consumer.targets not in heads:
                targets = consumer.targets
                heads[targets] = queue.head() if targets is None else targets.head(main)
        keys = [key for key in heads.values() if key is not None]
        if not keys:
            break
        if given == budget:
            queue.hungry = True
            break
        oldest = min(keys)
        wanting = [consumer for consumer in free if heads[consumer.targets] == oldest]
        best = wanting[0].priority
        consumer = pick(model, [c for c in wanting if c.priority == best], queue.roster.turn)
        run = queue.take_one(oldest)
        shares.setdefault(consumer.serial, []).append(run)
        given += 1
        # count it at once, for the next pick; `grant` counts for good
        if not consumer.no_ack:
            held += 1
            consumer.leases.count += 1
            if consumer.shared is not None:
                consumer.shared.used += 1
        queue.roster.turn = consumer.serial
    for consumer in order:
        share = shares.get(consumer.serial)
        if share:
            if not consumer.no_ack:
                consumer.leases.count -= len(share)
                if consumer.shared is not None:
                    consumer.shared.used -= len(share)
            grant(queue, now, sink, consumer, share)
            if consumer.targets is not None:
                consumer.targets.takers.served(consumer)


def gathered(runs: list[Run]) -> list[Run]:
    """Runs of one consumer with neighbours joined where tally, place and order allow."""
    out = list[Run]()
    last: Run | None = None
    lsns = list[int]()
    for run in runs:
        same = last is not None and last.tally == run.tally and last.place == run.place
        if same and lsns[-1] < run.chunk[0] and len(lsns) < DISPATCH_MOST:
            lsns.extend(run.chunk)
            continue
        if last is not None:
            out.append(last if len(lsns) == len(last.chunk) else last.part(as_chunk(lsns), False))
        last, lsns = run, list(run.chunk)
    if last is not None:
        out.append(last if len(lsns) == len(last.chunk) else last.part(as_chunk(lsns), False))
    return out


def grant(queue: Queue, now: Now, sink: Sink, consumer: Consumer, runs: list[Run]) -> None:
    """Give these to the consumer: the records, the lease, the effects.  They are no longer among the ready."""
    settings = queue.settings
    once = settings.semantics == "at-most-once"
    keep = not consumer.no_ack
    if len(runs) > PIECES_MOST or (len(runs) > 1 and len(runs[0].chunk) == 1):
        runs = gathered(runs)
    settled = 0
    deadline = until = 0
    if once or not keep:
        body = exact_body(queue, runs) if queue.actions else pairs_body(queue.id, runs)
        settled = sink.record(Kind.SETTLE, queue.name, {"by": consumer.client or consumer.tag}, body)
        if queue.actions:
            gone(queue, runs, settled, sink)
    else:
        if settings.lease_period:
            deadline = now.mono + settings.lease_period
            until = now.wall + settings.lease_period
            queue.leased_until(deadline)
        if len(runs) == 1:
            _log_grant(queue, sink, consumer, runs[0].tally.deliveries + 1, pairs_body(queue.id, runs))
        else:
            attempts: dict[int, list[int]] = {}
            for run in runs:
                attempts.setdefault(run.tally.deliveries + 1, []).extend(run.pairs())
            for attempt, pairs in attempts.items():
                _log_grant(queue, sink, consumer, attempt, pack_pairs(queue.id, pairs))
    early = settings.deliver == "early"
    figures = queue.counted(now.mono)
    count = 0
    for run in runs:
        chunk, tally = run.chunk, run.tally
        count += len(chunk)
        if keep:
            if once:
                run.place = SLOT
            else:
                run.tally = delivered(tally)
                run.deadline = deadline
                run.granted = now.mono
            consumer.leases.add(run)
        if consumer.timeout:
            watch(queue, now.mono + consumer.timeout)
        again = len(chunk) if tally.deliveries else 0
        if not again and chunk[0] < queue.redelivered_below:
            again = bisect_left(chunk, queue.redelivered_below)
        figures.redelivered += again
        if 0 < again < len(chunk):
            after = settled if once else 0 if early else chunk[again - 1]
            sink.effect(Deliver(consumer, queue, chunk[:again], tally.deliveries + 1, True, after, until=until))
            chunk, again = chunk[again:], 0
        after = settled if once else 0 if early else chunk[-1]
        sink.effect(Deliver(consumer, queue, chunk, tally.deliveries + 1, again > 0, after, until=until))
    figures.delivered += count
    if queue.pace is not None:
        queue.pace.spend(count)
    if (once or not keep) and queue.shares is not None:
        queue.shares.freed(runs)
        if queue.shares.left(queue, runs) or queue.shares.tenants is not None:
            queue.hungry = True
    if keep:
        queue.outstanding += count
        if not once:
            queue.leased += count
        if consumer.shared is not None:
            consumer.shared.used += count
            consumer.shared.served(consumer)


def _log_grant(queue: Queue, sink: Sink, consumer: Consumer, attempt: int, body: bytes) -> None:
    header = consumer.first_grant if attempt == 1 else b""
    if not header:
        header = dump({"consumer": consumer.tag, "client": consumer.client, "attempt": attempt})
        if attempt == 1:
            consumer.first_grant = header
    sink.record(Kind.GRANT, queue.name, header, body)
