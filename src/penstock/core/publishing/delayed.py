"""Messages that wait at the exchange they were published to, until they are due.

What is published to an exchange of type `x-delayed-message` waits in a queue of its own, `amq.delayed.NAME`, that
nobody else may use: durable as any queue, counted and listed with the others.  What becomes due there goes to the
exchange as if it were published at that moment, in one group with the record that ends it: bindings made meanwhile
count, and a crash leaves it in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from penstock.core.publishing.published import Published, TraitsMemo, filled, read_traits, transient_of
from penstock.core.topology.topology import WAITING
from penstock.errors import ProtocolError
from penstock.records import properties as header_codec
from penstock.records.entries import Publishes, Rows, Topic
from penstock.records.field_tables import FieldValue, Table, Written

PREFIX = WAITING.prefix
"""What the queues of exchanges that delay are called, and the exchange under which their rows stand in the log."""

DELAY = "x-delay"


def later(
    batch: Publishes, delaying: frozenset[tuple[str, str]], memo: TraitsMemo, skip: int, time: int
) -> dict[int, int]:
    """The rows that have to wait at their exchange, and until when; `delaying`: these exchanges."""
    topics = batch.topics
    if isinstance(topics, Topic):
        if (topics.vhost, topics.exchange) not in delaying:
            return {}
        rows: Sequence[int] = range(skip, len(batch.bodies))
    else:
        rows = [row for row in range(skip, len(topics)) if (topics[row].vhost, topics[row].exchange) in delaying]
    out: dict[int, int] = {}
    for row in rows:
        traits = memo[batch.properties_of(row)]
        if traits.refusal is not None:
            continue
        when = batch.not_before[row] if batch.not_before is not None else traits.not_before(time)
        if when > time:
            out[row] = when
    return out


Hiding: TypeAlias = "Callable[[Topic, tuple[str, ...]], Topic | None]"
"""A topic for messages with BCC keys; None where they cannot be remembered."""


def waiting_rows(
    batch: Publishes, rows: dict[int, int], memo: TraitsMemo, persistent: bool | None, hiding: Hiding
) -> Publishes:
    """These rows as they wait: under the exchange's own name for what waits, so that no reader of a topic sees them.

    Their own life begins when they are due, unless the edge said when it ends.  Their headers say BCC only where it
    cannot be remembered otherwise.
    """
    chosen = list(rows)
    out = batch.select(chosen)
    traits = [memo[batch.properties_of(row)] for row in chosen]
    kinds = [(batch.topic_of(row), one.blind) for row, one in zip(chosen, traits, strict=True)]
    names = {kind: _waiting_topic(*kind, hiding) for kind in dict.fromkeys(kinds)}
    out.topics = names[kinds[0]] if len(names) == 1 else [names[kind] for kind in kinds]
    if any(blind for _, blind in names):
        out.properties = [
            one.cleaned if names[kind].blind and one.cleaned is not None else batch.properties_of(row)
            for row, kind, one in zip(chosen, kinds, traits, strict=True)
        ]
    out.not_before = list(rows.values())
    out.priority = filled(out.priority, [one.priority or None for one in traits])
    out.transient = transient_of(traits, persistent)
    return out


def _waiting_topic(topic: Topic, blind: tuple[str, ...], hiding: Hiding) -> Topic:
    plain = Topic(topic.vhost, PREFIX + topic.exchange, topic.name)
    return (hiding(plain, blind) or plain) if blind else plain


def by_exchange(batch: Publishes, rows: dict[int, int]) -> dict[tuple[str, str], dict[int, int]]:
    """The rows by (vhost, exchange)."""
    out: dict[tuple[str, str], dict[int, int]] = {}
    for row, when in rows.items():
        topic = batch.topic_of(row)
        out.setdefault((topic.vhost, topic.exchange), {})[row] = when
    return out


def with_waiting(
    waiting: Mapping[int, int], rest: Published | None, others: Sequence[int], skip: int, last: int
) -> Published:
    """What became of a batch of which some rows wait, by row their LSNs; `others`: the rows of `rest`."""
    by_lsn = {lsn: row for row, lsn in waiting.items()}
    if rest is None:
        rest = Published(0, last)
    by_lsn.update(zip(rest.positions, (others[row] for row in rest.stored_rows(len(others))), strict=True))
    lsns = sorted(by_lsn)
    return replace(
        rest.among(others), first=lsns[0] if lsns else 0, last=max(last, rest.last),
        repeats=[*range(skip), *(others[row] for row in rest.repeats)],
        stored=len(lsns), lsns=lsns, order=[by_lsn[lsn] for lsn in lsns],
    )  # fmt: skip


def due_rows(
    rows: Rows,
    order: Sequence[int],
    find_topic: Callable[[str], Topic | None],
    name: str,
    time: int,
    blind_of: Callable[[Topic], tuple[str, ...]],
) -> tuple[list[int], Publishes | None]:
    """What those that are due become, in order: (their LSNs, a batch), None when there is nothing to publish.

    find_topic    of a key at the exchange `name`; None: it is gone
    blind_of      BCC keys of a stored topic
    """
    causes: list[int] = []
    topics: list[Topic] = []
    headers, bodies, ends = list[bytes](), list[bytes](), list[int]()
    for i in order:
        came_by = rows.topics[i]
        if came_by.exchange != PREFIX + name:
            continue  # somebody published to the queue's own name
        topic = find_topic(came_by.name)
        if topic is None:
            continue
        causes.append(rows.lsns[i])
        topics.append(topic.with_blind(blind_of(came_by)))
        headers.append(negated(rows.properties[i]))
        bodies.append(rows.bodies[i])
        ends.append(rows.expires_at[i])
    if not causes:
        return [], None
    size = sum(map(len, bodies)) + sum(map(len, headers))
    batch = Publishes(topics, headers, bodies, size=size)
    batch.not_before = [0] * len(causes)
    if any(ends):  # what the edge said; the life that a header gives begins now
        lives = [read_traits(header).ttl for header in headers]
        batch.expires_at = [end or (0 if life is None else time + life) for end, life in zip(ends, lives, strict=True)]
    return causes, batch


def negated(properties: bytes) -> bytes:
    """The header with the delay negated: it is over, and whoever reads it sees what it was."""
    written: Written = {}
    try:
        header = header_codec.decode(properties, written)
    except ProtocolError:
        return properties
    headers: Table = dict(header.headers or {})
    delay: FieldValue = headers.get(DELAY)
    if isinstance(delay, bool) or not isinstance(delay, int) or delay <= 0:
        return properties
    headers[DELAY] = -int(delay)  # of a time, too, which could not be below zero
    header.headers = headers
    return header_codec.encode(header, written)
