"""After a start queues of several sites wait until the others have told what happened meanwhile."""

from __future__ import annotations

from penstock.core.links.carried import Carries
from penstock.core.queue.explaining import explain_queue
from unit.core_links.test_linking import Linked


def linked() -> tuple[Linked, Linked]:
    a, b = Linked("a"), Linked("b")
    for site, other in ((a, b), (b, a)):
        site.declare("q")
        site.declare("own", kind="local")
        site.core.carries(other.name, [Carries("q")])
    assert a.link(b, Carries("q")) == b.link(a, Carries("q")) == []
    return a, b


def test_nothing_of_what_a_link_carries_is_delivered_or_given_away_before_that_site_has_told() -> None:
    a, b = linked()
    assert a.core.await_sites(a.now, ["b", "nobody"]) == ["b"]
    a.publish("q", b"0", b"1")
    a.publish("own", b"2")
    a.send(b)
    there = b.subscribe(b.q(), max_backlog=1)
    b.advance(1)
    [asked] = b.core.asks(b.now)
    assert a.core.answer(a.now, "b", asked.ask) == 0
    here, own = a.subscribe(a.q(), max_backlog=5), a.subscribe(a.q("own"), max_backlog=5)
    a.turn()
    assert (len(a.inbox.get(here, ())), len(a.inbox[own])) == (0, 1)
    assert [one.code for one in explain_queue(a.q(), a.now)][:1] == ["behind"]
    assert a.core.asks(a.now) == []
    a.core.level(a.now, "c")
    a.turn()
    assert a.q().leased == 0
    a.core.level(a.now, "b")
    a.turn()
    assert (a.q().leased, len(a.inbox[here])) == (2, 2)
    assert b.inbox.get(there, []) == []


def test_a_queue_waits_for_each_of_its_sites() -> None:
    a, _ = linked()
    a.core.carries("c", [Carries("q")])
    assert a.core.await_sites(a.now, ["b", "c"]) == ["b", "c"]
    a.publish("q", b"0")
    a.subscribe(a.q())
    for site, leased in (("b", 0), ("c", 1)):
        a.core.level(a.now, site)
        a.turn()
        assert a.q().leased == leased
