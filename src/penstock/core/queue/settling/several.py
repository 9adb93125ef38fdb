"""Acks of several consumers at once, as a connection with a thousand workers sends them; what one gives back singly.

They leave together where nothing could be granted between two of them: the order shows nowhere then, and one record
tells who has done what.  Nearly always each holds one message alone and nothing waits for its place (prefetches of
one), which takes the shortest way.

What a consumer gives back goes together where the same is granted between two of them as behind all.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, TypeAlias

from penstock.core.effects import Sink, Verb
from penstock.core.queue.order.runs import NEVER, PAIR_BYTES, Run, pack_number, pairs_body
from penstock.core.queue.settling.attempts import binding_limit
from penstock.core.queue.settling.leases import SLOT
from penstock.core.queue.settling.settle import by_one, count_acked, settle, taken
from penstock.core.queue.stages import PLAIN, is_quiet, stages_of
from penstock.core.state.encoding import dump
from penstock.records.chunks import Chunk, Now, as_chunk, ascend
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.queue.contents import Contents
    from penstock.core.queue.dispatching.consumers import Consumer, TargetList

_pack, _SETTLE = struct.Struct("<3q").pack, Kind.SETTLE  # looked up once: members of an enum are slow

Acked: TypeAlias = "tuple[Consumer, Sequence[Chunk]]"
"""A consumer, and what it has done of its deliveries, each chunk ascending."""


def acknowledge_lone(queue: Contents, now: Now, settled: Sequence[Acked], sink: Sink) -> bool:
    """What `acknowledge` does of these; False: that is not all there is to do, and nothing is done."""
    if queue.main.count or queue.returned.count or queue.sharing or queue.free_credit or queue.declared.actions:
        return False
    done: list[tuple[int, str]] = []
    terms = None
    for consumer, chunks in settled:
        leases = consumer.leases
        terms, lsn = leases.terms, leases.lone
        if terms is None or consumer.closed or len(chunks) != 1 or len(chunks[0]) != 1 or chunks[0][0] != lsn:
            return False
        done.append((lsn, consumer.client or consumer.tag))
    if terms is None or not is_quiet(queue, now):
        return False
    count, first = len(done), settled[0][0].leases.terms or terms
    if count > 1 and len({consumer for consumer, _ in settled}) < count:
        return False
    for consumer, _ in settled:
        leases = consumer.leases
        leases.count, leases.lone, leases.terms = 0, 0, None
    if queue.roster.silent:
        _spoke(queue, [consumer for consumer, _ in settled])
    queue.roster.spare = None
    queue.leased -= count
    queue.outstanding -= count
    if count == 1:
        [(lsn, name)] = done
        sink.record(_SETTLE, queue.name, by_one(name), _pack(queue.id, lsn, lsn + 1))
    else:
        sink.record(_SETTLE, queue.name, *by_each(queue.id, done))
    count_acked(queue, now, first, count)
    return True


def _spoke(queue: Contents, consumers: Sequence[Consumer]) -> None:
    """Those of them that were silent are served as others again."""
    for consumer in consumers:
        queue.roster.rank(consumer, silent=False)


def together(queue: Contents) -> bool:
    """Whether nothing can be granted, moved or told between the acks of two consumers."""
    return not (
        queue.ready or queue.sharing or queue.free_credit or queue.actions or stages_of(queue).keeps
    )  # fmt: skip


def shows_nowhere(queue: Contents, chunks: Sequence[Chunk]) -> bool:
    """Whether what a consumer gives back, a chunk after another, may go back at once and be granted anew then.

    Each place that comes free is filled with the oldest that is ready.  So where each comes back to the order that all
    look at, behind the one before, the same messages go out in the same order: each to whose turn it is.  Who has the
    least of what it may have is another one behind all of them, as is who is let in to a full queue; and where one may
    stay away or is over a limit, a younger one goes in its stead.
    """
    settings = queue.settings
    return (
        queue.plan is PLAIN and not queue.targets.lists and not queue.sharing and not queue.actions
        and queue.lease_due == NEVER and settings.fairness_model != "proportional"
        and settings.retry is None and not settings.max_cancels and binding_limit(settings) is None
        and ascend(chunks)
    )  # fmt: skip


def acknowledge(queue: Contents, now: Now, settled: Sequence[Acked], sink: Sink) -> int:
    """Deliveries of these consumers are done; returns how many messages that affected.  The queue is `together`."""
    if queue.roster.silent:
        _spoke(queue, [consumer for consumer, _ in settled])
    affected = 0
    runs: list[Run] = []
    names: list[str] = []  # by whom each
    for consumer, chunks in settled:
        name = consumer.client or consumer.tag
        first = consumer.leases.take_first(chunks[0]) if len(chunks) == 1 and not consumer.closed else None
        if first is not None and first.place != SLOT:  # what `freed` does, for one run of one who holds more or not
            count = len(first.chunk)
            affected += count
            queue.leased -= count
            if consumer.serial:
                queue.outstanding -= count
            runs.append(first)
            names.append(name)
            queue.roster.wake(consumer)
            continue
        held, stale = taken(consumer, chunks) if first is None else ([first], [])
        if held:
            affected += _freed(queue, now, consumer, held, runs)
            names += [name] * (len(runs) - len(names))
        if stale:
            _record(queue, now, runs, names, sink)
            runs, names = [], []
            affected += settle(queue, now, stale, Verb.ACK, sink, consumer, "", None, None)
    _record(queue, now, runs, names, sink)
    return affected


def _freed(queue: Contents, now: Now, consumer: Consumer, held: list[Run], runs: list[Run]) -> int:
    """The consumer holds these no longer: add what is still in the queue to the runs; how many it held."""
    count, slots = queue.freed(consumer, held)
    if slots and (held := [run for run in held if run.place != SLOT]):
        queue.counted(now.mono).acked += slots
    runs += held
    return count


def acknowledge_each(queue: Contents, now: Now, consumers: Sequence[Consumer], chunk: Chunk, sink: Sink) -> int:
    """The same where each of these consumers has done the one message at its place.  The queue is `together`.

    Nearly always each holds just that message, alone, and one client has them all; what is not so goes the other way.
    """
    if queue.roster.silent:
        _spoke(queue, consumers)
    client = consumers[0].client
    if not client:
        return acknowledge(queue, now, apart(consumers, chunk), sink)
    queue.roster.spare = None
    terms, others = _take_lone(consumers, chunk, client)
    done = chunk
    if others:
        left = {lsn for _, lsn in others}
        done = as_chunk([lsn for lsn in chunk if lsn not in left])
    affected = len(done)
    queue.outstanding -= affected
    queue.leased -= affected
    if terms is not None:
        _record(queue, now, [terms.part(done, False)], [client], sink)
    if others:
        rest = apart([consumer for consumer, _ in others], as_chunk([lsn for _, lsn in others]))
        affected += acknowledge(queue, now, rest, sink)
    return affected


def _take_lone(
    consumers: Sequence[Consumer], chunk: Chunk, client: str
) -> tuple[Run | None, list[tuple[Consumer, int]]]:
    """Of these consumers of one client, what each holds alone is taken: what such leases had in common; the others."""
    terms: Run | None = None
    others: list[tuple[Consumer, int]] = []
    last: TargetList | None = None
    stirred: TargetList | None = None  # its consumers need not be told any more
    for consumer, lsn in zip(consumers, chunk, strict=True):
        leases = consumer.leases
        if leases.lone != lsn or consumer.client != client or consumer.closed:
            others.append((consumer, lsn))
            continue
        terms = leases.terms
        leases.count, leases.lone, leases.terms = 0, 0, None
        targets = consumer.targets
        if targets is not stirred and targets is not None:
            targets.wake(consumer)
            if targets is last and targets.complete:  # asked of the second: most lists may have one consumer
                stirred = targets
            last = targets
    return terms, others


def apart(consumers: Sequence[Consumer], chunk: Chunk) -> list[Acked]:
    """One message of each of these consumers, one by one; neighbours of one consumer together."""
    out: list[tuple[Consumer, list[Chunk]]] = []
    for consumer, lsn in zip(consumers, chunk, strict=True):
        if out and out[-1][0] is consumer:
            out[-1][1].append(range(lsn, lsn + 1))
        else:
            out.append((consumer, [range(lsn, lsn + 1)]))
    return [*out]


def _record(queue: Contents, now: Now, runs: Sequence[Run], names: Sequence[str], sink: Sink) -> None:
    """Say that these are done, each by one of these names; they are held no longer."""
    if not runs:
        return
    if names.count(names[0]) == len(names):
        header, body = by_one(names[0]), _body(queue.id, runs)
    else:
        header, body = _by_several(queue.id, runs, names)
    sink.record(Kind.SETTLE, queue.name, header, body)
    count_acked(queue, now, runs[0], sum([len(run.chunk) for run in runs]))


def _by_several(queue: int, runs: Sequence[Run], names: Sequence[str]) -> tuple[bytes, bytes]:
    """Header and body of such a record, the oldest message first: who has done so many pairs."""
    body, by = [pack_number(queue)], list[tuple[str, int]]()
    for run, name in sorted(zip(runs, names, strict=True), key=_first_of):
        pairs = run.pair_bytes()
        body.append(pairs)
        by.append((name, len(pairs) // PAIR_BYTES))
    return dump({"by": by}), b"".join(body)


def by_each(queue: int, done: list[tuple[int, str]]) -> tuple[bytes | None, bytes]:
    """Header and body of the record of one message of each of several, by name."""
    done.sort()
    names = [name for _, name in done]
    if names.count(names[0]) == len(names):
        pairs = [queue]
        for lsn, _ in done:
            if pairs[-1] == lsn and len(pairs) > 1:
                pairs[-1] = lsn + 1
            else:
                pairs += (lsn, lsn + 1)
        return by_one(names[0]), struct.pack(f"<{len(pairs)}q", *pairs)
    pairs = [queue, *[end for lsn, _ in done for end in (lsn, lsn + 1)]]
    return dump({"by": [(name, 1) for name in names]}), struct.pack(f"<{len(pairs)}q", *pairs)


def _first_of(done: tuple[Run, str]) -> int:
    return done[0].chunk[0]


def _body(queue: int, runs: Sequence[Run]) -> bytes:
    """The body of the record, with neighbours of several consumers in one pair."""
    chunks = [run.chunk for run in runs]
    if len(chunks) == 1 or {*map(type, chunks)} != {range}:
        return pairs_body(queue, runs)
    pairs, end = [queue], -1
    for first, last in sorted([(chunk[0], chunk[-1] + 1) for chunk in chunks]):
        if first == end:
            pairs[-1] = last
        else:
            pairs += (first, last)
        end = last
    return struct.pack(f"<{len(pairs)}q", *pairs)
