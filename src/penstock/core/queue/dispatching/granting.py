"""What was dealt is granted: the records, the leases, the effects.

One record tells of all that a step gave out, whoever got it: a thousand workers that are given one message each would
otherwise cost a row of the log each.  What is delivered at most once, or to who never acknowledges, is settled instead.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

import orjson

from penstock.core.effects import Deliver, DeliverEach, Sink
from penstock.core.queue.dispatching.attendance import watch
from penstock.core.queue.order.runs import PAIR_BYTES, Run, pack_number, pairs_body
from penstock.core.queue.parts import DISPATCH_MOST
from penstock.core.queue.settling.attempts import FRESH, ONCE, Tally, delivered
from penstock.core.queue.settling.leases import SLOT
from penstock.core.queue.settling.settle import exact_body, gone
from penstock.core.queue.whole import DISPATCH
from penstock.core.state.encoding import dump
from penstock.records.chunks import Chunk, Now, as_chunk
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents
    from penstock.core.queue.dispatching.consumers import Consumer

PIECES_MOST = 8
"""More pieces than this for one consumer are gathered."""

Share: TypeAlias = "tuple[Consumer, list[Run]]"
"""A consumer, and what it is given: no longer among the ready, in the order in which it gets it."""

EACH_LEAST = 4
"""Messages of which each goes to a consumer of its own, of one holder, from which on they are one effect."""

FIRST = 1, 0
"""The number of a first send, and how many of those before it nobody saw."""

_first_of = itemgetter(0)


def gathered(runs: list[Run]) -> list[Run]:
    """Runs of one consumer with neighbours joined where tally, place and order allow."""
    out: list[Run] = []
    last: Run | None = None
    lsns: list[int] = []
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


def grant(queue: Contents, now: Now, sink: Sink, consumer: Consumer, runs: list[Run]) -> None:
    """Give these to the consumer: the records, the lease, the effects.  They are no longer among the ready."""
    once = queue.settings.semantics == "at-most-once"
    if once or consumer.no_ack:
        _settle(queue, now, sink, consumer, runs, once=once)
        return
    deadline, until = _period(queue, now)
    runs = _few(runs) if len(runs) > 1 else runs
    _log(queue, sink, ((consumer, runs),))
    _leased(queue, now, _hold(queue, now, sink, consumer, runs, deadline, until))


def grant_all(queue: Contents, now: Now, sink: Sink, shares: Sequence[Share]) -> None:
    """The same for several consumers, each of which is here once."""
    if not shares:
        return
    once = queue.settings.semantics == "at-most-once"
    if not once and not [one for one, _ in shares if one.no_ack]:
        _lease(queue, now, sink, shares)
        return
    for consumer, runs in shares:
        grant(queue, now, sink, consumer, runs)


def is_fresh(run: Run) -> bool:
    """Whether its messages were never delivered, and stand at their own places."""
    return run.tally is FRESH and not run.place


def one_each(queue: Contents, consumers: Sequence[Consumer], chunk: Chunk) -> bool:
    """Whether `grant_each` may give these consumers what `is_fresh`."""
    settings = queue.settings
    if (
        settings.deliver != "early"
        or settings.semantics == "at-most-once"
        or chunk[0] < queue.redelivered_below
        or queue.sharing
    ):
        return False
    if len(consumers) == 1:
        return not consumers[0].no_ack
    return len({*consumers}) == len(consumers) and not [one for one in consumers if one.no_ack]


def grant_each(queue: Contents, now: Now, sink: Sink, consumers: Sequence[Consumer], chunk: Chunk) -> None:
    """Give each of these consumers the message at its place, where that is `one_each`: what `grant_all` would do.

    Each of them counts it as held already.  chunk: ascending.
    """
    deadline, until = _period(queue, now)
    count = len(consumers)
    if count == 1:
        body = struct.pack("<3q", queue.id, chunk[0], chunk[0] + 1)
        _log_one(queue, sink, consumers[0], FIRST, body)
    else:
        names = b"1],".join([one.named or _named(one) for one in consumers])
        pairs = [0] * (2 * count)
        pairs[::2] = chunk
        pairs[1::2] = range(chunk.start + 1, chunk.stop + 1) if isinstance(chunk, range) else [lsn + 1 for lsn in chunk]
        header = b'{"attempt":1,"to":[%s1]]}' % names
        sink.record(Kind.GRANT, queue.name, header, struct.pack(f"<{1 + 2 * count}q", queue.id, *pairs))
    terms = first_terms(now.mono, deadline)
    for consumer, lsn in zip(consumers, chunk, strict=True):
        leases = consumer.leases
        if leases.count == 1:
            leases.lone, leases.terms = lsn, terms  # as `add_lone` does
        else:
            leases.add_lone(lsn, terms)
        if consumer.timeout:
            watch(queue, now.mono + consumer.timeout)
    holder = consumers[0].holder
    if count < EACH_LEAST:
        for consumer, lsn in zip(consumers, chunk, strict=True):
            sink.effect(Deliver(consumer, queue, range(lsn, lsn + 1), 1, False, 0, until))
    elif not [one for one in consumers if one.holder is not holder]:
        sink.effect(DeliverEach(consumers, queue, chunk, until))
    else:
        _send_to_holders(queue, zip(consumers, chunk, strict=True), until, sink)
    _leased(queue, now, count)


def _period(queue: Contents, now: Now) -> tuple[int, int]:
    """When a lease that is given now ends, on the monotonic clock and on the wall; 0: not by time."""
    period = queue.settings.lease_period
    if not period:
        return 0, 0
    queue.leased_until(now.mono + period)
    return now.mono + period, now.wall + period


def terms_of(mono: int, deadline: int) -> Run:
    """What first deliveries have in common that are given now."""
    terms = Run(range(0), True, ONCE, 0, deadline)
    terms.granted = mono
    return terms


def first_terms(mono: int, deadline: int) -> Run:
    """The same, made once for all that are given at one moment: nothing changes it."""
    terms = _LAST[0]
    if terms.granted != mono or terms.deadline != deadline:
        terms = _LAST[0] = terms_of(mono, deadline)
    return terms


_LAST = [terms_of(0, 0)]


def _lease(queue: Contents, now: Now, sink: Sink, shares: Sequence[Share]) -> None:
    """They are held until they are settled, or until their time is over."""
    deadline, until = _period(queue, now)
    shares = [(consumer, _few(runs) if len(runs) > 1 else runs) for consumer, runs in shares]
    _log(queue, sink, shares)
    total = 0
    if len(shares) >= EACH_LEAST and queue.settings.deliver == "early":
        shares, alone = _apart(queue, shares)
        total = len(alone)
        _lease_each(queue, sink, alone, now.mono, deadline, until)
    for consumer, runs in shares:
        total += _hold(queue, now, sink, consumer, runs, deadline, until)
    _leased(queue, now, total)


def _hold(
    queue: Contents, now: Now, sink: Sink, consumer: Consumer, runs: Sequence[Run], deadline: int, until: int
) -> int:
    """The consumer holds these, and they are sent to it; how many."""
    leases, total = consumer.leases, 0
    for run in runs:
        chunk = run.chunk
        total += len(chunk)
        run.tally = delivered(run.tally)
        run.deadline = deadline
        run.granted = now.mono
        leases.add(run)
        _send(queue, now, sink, consumer, chunk, run.tally, None, until)
    if consumer.shared is not None:
        consumer.shared.used += total
        consumer.shared.served(consumer)
    return total


def _leased(queue: Contents, now: Now, count: int) -> None:
    """So many more are held."""
    _count(queue, now, count)
    queue.outstanding += count
    queue.leased += count


def _settle(queue: Contents, now: Now, sink: Sink, consumer: Consumer, runs: list[Run], *, once: bool) -> None:
    """They are removed before they are sent.  once: they fill the consumer's backlog until it acknowledges them."""
    keep = not consumer.no_ack
    runs = _few(runs)
    body = exact_body(queue, runs) if queue.actions else pairs_body(queue.id, runs)
    settled = sink.record(Kind.SETTLE, queue.name, {"by": consumer.client or consumer.tag}, body)
    if queue.actions:
        gone(queue, runs, settled, sink)
    total = 0
    for run in runs:
        chunk = run.chunk
        total += len(chunk)
        if keep:
            slots = run.part(chunk, True)  # of its own: leases join what they hold
            slots.place = SLOT
            consumer.leases.add(slots)
        _send(queue, now, sink, consumer, chunk, delivered(run.tally), settled if once else None, 0)
    _count(queue, now, total)
    if queue.shares is not None:
        queue.shares.freed(runs)
        if queue.shares.tenants is not None:
            queue.agenda |= DISPATCH
    queue.left(runs)
    if keep:
        queue.outstanding += total
        if consumer.shared is not None:
            consumer.shared.used += total
            consumer.shared.served(consumer)


def _few(runs: list[Run]) -> list[Run]:
    """Many small runs as few."""
    return gathered(runs) if len(runs) > PIECES_MOST or (len(runs) > 1 and len(runs[0].chunk) == 1) else runs


def _send(
    queue: Contents,
    now: Now,
    sink: Sink,
    consumer: Consumer,
    chunk: Chunk,
    tally: Tally,
    settled: int | None,
    until: int,
) -> None:
    """Have messages delivered, once what removes them is durable.

    tally: with this delivery.
    settled: the LSN of that; None: they are leased, or nobody acknowledges them, and `deliver` says when they may go.
    """
    if consumer.timeout:
        watch(queue, now.mono + consumer.timeout)
    if consumer.passive or consumer.no_ack:
        queue.counted(now.mono).handed(len(chunk), asked=consumer.passive, no_ack=consumer.no_ack)
    early = queue.settings.deliver == "early"
    attempt, sends = tally.attempt, tally.deliveries
    again = len(chunk) if attempt > 1 else 0
    if not again and chunk[0] < queue.redelivered_below:
        again = bisect_left(chunk, queue.redelivered_below)
    if again:
        queue.counted(now.mono).redelivered += again
        if again < len(chunk):
            after = settled if settled is not None else 0 if early else chunk[again - 1]
            sink.effect(Deliver(consumer, queue, chunk[:again], attempt, True, after, until, sends=sends))
            chunk, again = chunk[again:], 0
    after = settled if settled is not None else 0 if early else chunk[-1]
    sink.effect(Deliver(consumer, queue, chunk, attempt, again > 0, after, until, sends=sends))


def _apart(queue: Contents, shares: Sequence[Share]) -> tuple[list[Share], list[tuple[Consumer, Run]]]:
    """Shares that are one message, at its own place and delivered for the first time, apart from the others."""
    others: list[Share] = []
    alone: list[tuple[Consumer, Run]] = []
    below = queue.redelivered_below
    for share in shares:
        consumer, runs = share
        run = runs[0]
        if (
            len(runs) == 1
            and len(run.chunk) == 1
            and is_fresh(run)
            and run.chunk[0] >= below
            and consumer.shared is None
        ):
            alone.append((consumer, run))
        else:
            others.append(share)
    return others, alone


def _lease_each(
    queue: Contents, sink: Sink, alone: Sequence[tuple[Consumer, Run]], mono: int, deadline: int, until: int
) -> None:
    """The first delivery of one message to each of these."""
    terms = first_terms(mono, deadline)
    for consumer, run in alone:
        consumer.leases.count += 1
        consumer.leases.add_lone(run.chunk[0], terms)
        if consumer.timeout:
            watch(queue, mono + consumer.timeout)
    _send_to_holders(queue, [(consumer, run.chunk[0]) for consumer, run in alone], until, sink)


def _send_to_holders(queue: Contents, given: Iterable[tuple[Consumer, int]], until: int, sink: Sink) -> None:
    """Have first deliveries of one message each sent, those of one holder together."""
    each: dict[object, list[tuple[int, Consumer]]] = {}
    for consumer, lsn in given:
        each.setdefault(consumer.holder, []).append((lsn, consumer))
    for some in each.values():
        _send_each(queue, some, until, sink)


def _send_each(queue: Contents, some: list[tuple[int, Consumer]], until: int, sink: Sink) -> None:
    """Have messages of which each has a consumer of its own delivered; all consumers have one holder."""
    if len(some) < EACH_LEAST:
        for lsn, consumer in some:
            sink.effect(Deliver(consumer, queue, range(lsn, lsn + 1), 1, False, 0, until))
        return
    some.sort(key=_first_of)
    chunk = as_chunk([lsn for lsn, _ in some])
    sink.effect(DeliverEach([consumer for _, consumer in some], queue, chunk, until))


def _count(queue: Contents, now: Now, count: int) -> None:
    queue.counted(now.mono).delivered += count
    if queue.pace is not None:
        queue.pace.spend(count)


# -- the record


def _log(queue: Contents, sink: Sink, shares: Sequence[Share]) -> None:
    """One record for each attempt that somebody makes; nearly always the first is the only one."""
    consumer, runs = shares[0]
    if len(shares) == 1 and len(runs) == 1:
        _log_one(queue, sink, consumer, _numbers(runs[0]), pairs_body(queue.id, runs))
        return
    alike: dict[tuple[int, int], list[tuple[Consumer, bytes]]] = {}
    for consumer, runs in shares:
        for run in runs:
            alike.setdefault(_numbers(run), []).append((consumer, run.pair_bytes()))
    for numbers, some in alike.items():
        body = b"".join([pack_number(queue.id), *[pairs for _, pairs in some]])
        if some[0][0] is some[-1][0]:
            _log_one(queue, sink, some[0][0], numbers, body)
        else:
            sink.record(Kind.GRANT, queue.name, _told(numbers, some), body)


def _numbers(run: Run) -> tuple[int, int]:
    """The number of its next send, and how many of those before it nobody saw."""
    return run.tally.deliveries + 1, run.tally.unseen


def _log_one(queue: Contents, sink: Sink, consumer: Consumer, numbers: tuple[int, int], body: bytes) -> None:
    attempt, unseen = numbers
    if attempt == 1:
        header = consumer.first_grant or first_header(consumer)
    else:
        told = {"consumer": consumer.tag, "client": consumer.client, "attempt": attempt}
        header = dump({**told, "unseen": unseen} if unseen else told)
    sink.record(Kind.GRANT, queue.name, header, body)


def first_header(consumer: Consumer) -> bytes:
    """The header of the record of a first delivery to one consumer; it is remembered."""
    header = consumer.first_grant
    if not header:
        header = consumer.first_grant = dump({"consumer": consumer.tag, "client": consumer.client, "attempt": 1})
    return header


def _told(numbers: tuple[int, int], some: Sequence[tuple[Consumer, bytes]]) -> bytes:
    """The header of a record for several, in the order of its pairs: the names of each, and how many pairs are its."""
    to: list[bytes] = []
    last, size = some[0][0], 0
    for consumer, pairs in some:
        if consumer is not last:
            to.append(b"%s%d]" % (_named(last), size // PAIR_BYTES))
            last, size = consumer, 0
        size += len(pairs)
    to.append(b"%s%d]" % (_named(last), size // PAIR_BYTES))
    attempt, unseen = numbers
    return b'{"attempt":%d,%s"to":[%s]}' % (attempt, b'"unseen":%d,' % unseen if unseen else b"", b",".join(to))


def _named(consumer: Consumer) -> bytes:
    """The names of a consumer, as an entry of such a list begins."""
    named = consumer.named
    if not named:
        named = consumer.named = orjson.dumps([consumer.tag, consumer.client])[:-1] + b","
    return named
