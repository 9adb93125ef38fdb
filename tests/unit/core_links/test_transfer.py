"""What a transfer costs: words that go between two sites, and commits until its messages are leased."""

from __future__ import annotations

import pytest

from penstock.core.links.telling import Carries
from unit.core_links.test_linking import Linked


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
