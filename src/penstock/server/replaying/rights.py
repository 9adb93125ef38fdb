"""What a subscriber may see of the topics it has chosen, and what it wants of them: both must hold.

A right may be a filter of its own for each topic.  Where nothing is limited there is only the subscriber's filter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from penstock.core.publishing.traits import read_traits
from penstock.expr import Filter, compile_filter
from penstock.records.dataclass import dataclass
from penstock.records.entries import Topic
from penstock.server.entitlements import asks_shown, narrowed
from penstock.server.filters.evaluating import Ask
from penstock.server.filters.judging import look

if TYPE_CHECKING:
    from penstock.core.sow.select import SelectList
    from penstock.server.entitlements import Rights
    from penstock.server.replaying.topics import Selection


@dataclass(frozen=True, slots=True)
class Sieve:
    """A filter, and the rights of one user to topics.  Equal ones let the same messages through.

    `chosen`: what of the topics is meant, where their messages' headers say it.
    """

    filter: Filter | None = field(compare=False)
    rights: Rights | None
    text: str | None  # of the filter
    chosen: Selection | None = None

    @property
    def plain(self) -> bool:
        """Whether the filter is all there is."""
        return self.rights is None and self.chosen is None

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
        if self.plain:
            assert self.filter is not None
            return _matching(self.filter, bodies, properties, topics, lsns, times, ask, here=here)
        places = dict[Filter | None, list[int]]()
        for row in range(len(bodies)):
            topic = topics[row] if isinstance(topics, list) else topics
            if self.chosen is not None:
                data = properties if isinstance(properties, bytes) else properties[row]
                if not self.chosen.lets(topic, read_traits(data).headers or {}):
                    continue
            if self.rights is None:
                places.setdefault(self.filter, []).append(row)
                continue
            right = self.rights.reads_topic(topic.vhost, topic.exchange, topic.name)
            if self.rights.fields(topic.vhost, topic.exchange, topic.name) is not None:
                continue  # of several topics those that may be read whole
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
    """What lies between the chosen topics and the subscriber; None: nothing.  AccessRefused, ExpressionError.

    Whoever takes the messages cuts them to `fields_of`.
    """
    chosen = selection if selection.by_headers else None
    if rights is None:
        own = None if text is None else compile_filter(text)
        return None if own is None and chosen is None else Sieve(own, None, text, chosen)
    term = selection.terms[0]
    if len(selection.terms) == 1 and term.alone is not None:
        asks_shown(rights.user, fields_of(selection, rights), [text])
        filter = narrowed(text, rights.read_topic(selection.vhost, term.exchange, term.alone, whole=False))
        return None if filter is None else Sieve(filter, None, filter.text)
    return Sieve(None if text is None else compile_filter(text), rights, text, chosen)


def fields_of(selection: Selection, rights: Rights | None) -> SelectList | None:
    """Which fields of the chosen topics a subscriber may read; None: all, for of several he gets what is whole."""
    term = selection.terms[0]
    if rights is None or len(selection.terms) > 1 or term.alone is None:
        return None
    return rights.fields(selection.vhost, term.exchange, term.alone)


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
