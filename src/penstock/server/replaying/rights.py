"""What a subscriber may see of the topics it has chosen, and what it wants of them: both must hold.

A right may be a filter of its own for each topic.  Where nothing is limited there is only the subscriber's filter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.expr import Filter, compile_filter
from penstock.records.entries import Topic
from penstock.server.entitlements import narrowed
from penstock.server.judging import Ask, look

if TYPE_CHECKING:
    from penstock.server.entitlements import Rights
    from penstock.server.replaying.topics import Selection


@dataclass(frozen=True, slots=True)
class Sieve:
    """A filter, and the rights of one user to topics.  Equal ones let the same messages through."""

    filter: Filter | None = field(compare=False)
    rights: Rights | None
    text: str | None  # of the filter

    def passed(
        self,
        bodies: list[bytes],
        properties: bytes | list[bytes],
        topics: Topic | list[Topic],
        lsns: Sequence[int],
        times: Sequence[int],
        ask: Ask | None = None,
        *,
        here: bool,
    ) -> list[int]:
        """The places of the messages that may be seen and are wanted, ascending.  here: on the loop, at once."""
        if self.rights is None:
            assert self.filter is not None
            return _matching(self.filter, bodies, properties, topics, lsns, times, ask, here=here)
        places = dict[Filter | None, list[int]]()
        for row in range(len(bodies)):
            topic = topics[row] if isinstance(topics, list) else topics
            right = self.rights.reads_topic(topic.vhost, topic.exchange, topic.name)
            if right is not False:
                chosen = self.filter if right is True else narrowed(self.text, right)
                places.setdefault(chosen, []).append(row)
        out = places.pop(None, [])
        for one, rows in places.items():
            hits = _matching(
                one,  # type: ignore[arg-type]
                [bodies[row] for row in rows],
                properties if isinstance(properties, bytes) else [properties[row] for row in rows],
                [topics[row] for row in rows] if isinstance(topics, list) else topics,
                [lsns[row] for row in rows],
                [times[row] for row in rows],
                ask,
                here=here,
            )
            out += [rows[hit] for hit in hits]
        return sorted(out)


def sieve_of(selection: Selection, text: str | None, rights: Rights | None) -> Sieve | None:
    """What lies between the chosen topics and the subscriber; None: nothing.  AccessRefused, ExpressionError."""
    if rights is None:
        return None if text is None else Sieve(compile_filter(text), None, text)
    term = selection.terms[0]
    if len(selection.terms) == 1 and term.alone is not None:
        filter = narrowed(text, rights.read_topic(selection.vhost, term.exchange, term.alone))
        return None if filter is None else Sieve(filter, None, filter.text)
    return Sieve(None if text is None else compile_filter(text), rights, text)


def _matching(
    filter: Filter,
    bodies: list[bytes],
    properties: bytes | list[bytes],
    topics: Topic | list[Topic],
    lsns: Sequence[int],
    times: Sequence[int],
    ask: Ask | None,
    *,
    here: bool,
) -> list[int]:
    if here:
        found = filter.matches(bodies, properties, topics, lsns=lsns, times=times)
        return [place for place, yes in enumerate(found) if yes]
    return look([filter], bodies, properties, topics, lsns=lsns, times=times, ask=ask)[0]
