"""What links cost: settles that come before their messages, since another link is down, and words and commits of a
transfer until its messages are leased.
"""

from __future__ import annotations

import time

import pytest

from penstock.core.links.carried import Carries
from penstock.core.state.durable import canonical
from penstock.errors import QueueFull
from unit.core_links.test_linking import Linked

COUNT = 3_000


def told_one_by_one(site: Linked, lsns: range) -> float:
    """Another site has settled messages of a third that have not come; seconds of CPU that hearing it took."""
    began = time.process_time()
    for lsn in lsns:
        site.core.settled_at(site.now, site.q(), "b", [(33, lsn, lsn + 1)])
        if lsn % 100 == 0:
            site.turn()
    site.turn()
    return time.process_time() - began


def test_thousands_of_single_ones_are_heard_and_remembered_and_folded_as_they_are() -> None:
    a = Linked("a")
    a.declare("q")
    took = told_one_by_one(a, range(1, 2 * COUNT, 2))
    assert took < 5, "each looked at all that were there before"
    assert a.core.deferred_acks(a.q()) == COUNT
    assert canonical(a.folded()) == canonical(a.folded(1))
    assert told_one_by_one(a, range(1, 200, 2)) < 5
    assert a.core.deferred_acks(a.q()) == COUNT, "nothing is remembered twice"
    a.restart(clean=True)
    assert a.core.deferred_acks(a.q()) == COUNT
    began = time.process_time()
    for lsn in range(1, 2 * COUNT, 2):
        a.core.appeared(a.now, a.q(), 33, range(lsn, lsn + 1), range(1, 2))
    assert time.process_time() - began < 5
    assert a.core.deferred_acks(a.q()) == 0
    a.turn()
    a.restart(clean=True)
    assert a.core.deferred_acks(a.q()) == 0


def test_a_span_without_end_is_refused_and_not_spread_out() -> None:
    a = Linked("a")
    a.declare("q")
    with pytest.raises(QueueFull, match="more would be beyond"):
        a.core.settled_at(a.now, a.q(), "b", [(33, 1, 2**61)])
    assert a.core.deferred_acks(a.q()) == 0


@pytest.mark.parametrize("count", [1, 1_000])
def test_it_is_an_ask_an_answer_and_a_commit_at_each_site_however_many_they_are(count: int) -> None:
    """One round trip and two syncs: nothing else goes over before the lease."""
    a, b = Linked("a"), Linked("b")
    for site, other in ((a, b), (b, a)):
        site.declare("q")
        site.core.carries(other.name, [Carries("q")])
    assert a.link(b) == b.link(a) == []
    a.publish("q", *(b"x" for _ in range(count)))
    a.send(b)
    consumer = b.subscribe(b.q(), max_backlog=count)
    b.turn()
    b.advance(1)
    before = len(a.tables), len(b.tables)
    [asked] = b.core.asks(b.now)
    assert a.core.answer(a.now, "b", asked.ask) == count
    [answer] = a.send(b)
    assert answer.rows is None, "what is known there is not sent again"
    assert len(b.inbox[consumer]) == b.q().leased == count
    assert (len(a.tables) - before[0], len(b.tables) - before[1]) == (1, 1)
    assert b.core.asks(b.now) == []
