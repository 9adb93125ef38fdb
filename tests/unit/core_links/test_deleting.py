"""A shared queue that one of its sites deletes: what the others hear of it, and where it has to stay."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import pytest

from penstock.core.effects import Verb
from penstock.core.links import parcels, telling
from penstock.core.links.carried import Carries
from penstock.core.links.telling import Telling
from penstock.core.queue import owning
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.state.durable import canonical
from penstock.core.state.lsns import Ints
from penstock.errors import PreconditionFailed
from penstock.records.entries import Control
from penstock.records.kinds import Kind
from unit.core_links.test_chains import ask, row, settle, states, tell
from unit.core_links.test_linking import Linked


def pair(**settings: object) -> tuple[Linked, Linked]:
    a, b = Linked("a"), Linked("b")
    for site, other in ((a, b), (b, a)):
        site.declare("q", **settings)
        site.core.carries(other.name, [Carries(".*")])
    assert a.link(b) == b.link(a) == []
    return a, b


def delete(site: Linked) -> None:
    site.core.delete_queue(site.now, site.q())
    site.turn()


def lend(a: Linked, b: Linked, count: int, *bodies: bytes) -> Consumer:
    """These are published at `a`, and a worker at `b` has so many of them."""
    a.publish("q", *bodies)
    a.send(b)
    worker = b.subscribe(b.q(), max_backlog=count)
    b.advance(1)
    assert ask(b, a) == count
    a.send(b)
    return worker


@pytest.mark.parametrize("anew", [False, True])
def test_what_was_the_sites_own_goes_everywhere_with_its_queue(anew: bool) -> None:
    """Ready, leased and taken over; what others own stays theirs.  anew: the others know already that it is gone."""
    a, b = pair()
    worker = lend(a, b, 1, b"0", b"1", b"2")
    b.publish("q", b"3", b"4")
    b.send(a)
    assert states((a, b)) == [(2, 0, 3), (2, 1, 2)]
    assert len(b.inbox[worker]) == 1
    delete(b)
    if anew:
        assert a.core.share("b", b.core.said_to("a")) == []
        assert a.core.sharing.with_site(a.q().id, "b") is None
    b.send(a)
    assert states((a,)) == [(2, 0, 0)]
    assert a.contents(a.q()) in ([b"0", b"1"], [b"0", b"2"], [b"1", b"2"])
    assert canonical(b.core.durable_state()) == canonical(b.folded(3))


@pytest.mark.parametrize("restarted", [False, True])
def test_what_was_done_before_a_queue_went_is_told_after_it_went(restarted: bool) -> None:
    a, b = pair()
    worker = lend(a, b, 2, b"0", b"1")
    first = b.inbox[worker][0]
    b.core.settle(b.now, b.q(), [range(first, first + 2)], Verb.ACK, by=worker)
    b.turn()
    delete(b)
    assert a.q().foreign_count == 2
    told = len(b.tables)
    if restarted:
        b.restart(clean=False)
        b.link(a)
        b.told["a"] = 0
    b.send(a)
    assert len(b.tables) >= told
    assert states((a,)) == [(0, 0, 0)]
    assert canonical(b.core.durable_state()) == canonical(b.folded(3))


@pytest.mark.parametrize("anew", [False, True])
def test_what_was_given_away_before_a_queue_went_is_who_has_it(anew: bool) -> None:
    a, b = pair()
    b.publish("q", b"0", b"1")
    b.send(a)
    worker = a.subscribe(a.q(), max_backlog=1)
    a.advance(1)
    assert ask(a, b) == 1
    delete(b)
    if anew:
        assert a.core.share("b", b.core.said_to("a")) == []
    b.send(a)
    assert states((a,)) == [(0, 1, 0)], "the other one went with the queue"
    assert len(a.inbox[worker]) == 1


def test_a_site_that_has_the_queue_no_more_says_nothing_of_what_others_own() -> None:
    a, b = pair()
    worker = lend(a, b, 1, b"0", b"1")
    assert b.inbox[worker]
    [own] = a.core.told_as(*a.q().ready_spans([(0, 1 << 40)])[0])
    delete(b)
    a.core.share("b", [])
    head = b'{"upto": 1000, "told": [["/", "q", [%d, %d, %d, 99, 1, 5]]]}' % own
    a.core.hear(a.now, "b", head)
    assert (a.q().ready, a.q().foreign_count) == (1, 1), "neither its own, nor of an origin that nobody has met"


def test_a_site_between_others_keeps_its_queue_while_it_has_messages_of_theirs() -> None:
    """What one end works the other one hears through it."""
    sites = a, b, c = row()
    a.publish("q", b"0", b"1")
    c.publish("q", b"2")
    tell(*sites)
    with pytest.raises(PreconditionFailed, match=r"3 messages of other sites.*'a' and 'c' hear of each other's"):
        b.core.delete_queue(b.now, b.q())
    c.subscribe(c.q(), max_backlog=5)
    for _ in range(4):
        c.advance(1)
        ask(*sites)
        tell(*sites)
        settle(c, 5)
    delete(b)  # it is empty: what was said of its last message is told behind it
    tell(*sites)
    assert states((a, c)) == [(0, 0, 0)] * 2


def test_the_ends_of_a_row_may_delete_theirs() -> None:
    sites = a, b, c = row()
    a.publish("q", b"0")
    c.publish("q", b"1")
    tell(*sites)
    delete(a)
    tell(*sites)
    assert states((b, c)) == [(0, 0, 1), (1, 0, 0)]


def test_without_pass_through_each_pair_is_for_itself() -> None:
    sites = a, b, _ = row()
    for site in sites:
        for other in sites:
            if other is not site and "b" in (site.name, other.name):
                site.core.carries(other.name, [Carries(".*")])
    a.publish("q", b"0")
    tell(*sites)
    delete(b)


def test_what_waited_to_be_a_dead_letter_goes_everywhere_too() -> None:
    a, b = pair(dead_letter_exchange="", dead_letter_routing_key="graves")
    b.declare("graves", kind="local", max_length=1, overflow="reject-publish")
    b.publish("graves", b"full")
    b.publish("q", b"0", b"1")
    b.send(a)
    worker = b.subscribe(b.q(), max_backlog=1)
    [lsn] = b.inbox[worker]
    b.core.settle(b.now, b.q(), [range(lsn, lsn + 1)], Verb.EXPIRE, by=worker)
    b.turn()
    b.send(a)
    assert (b.q().dying, a.q().foreign_count) == (1, 2), "its letter finds no room, and nobody was told that it is gone"
    delete(b)
    b.send(a)
    assert states((a,)) == [(0, 0, 0)]
    assert canonical(b.core.durable_state()) == canonical(b.folded(3))


def test_what_goes_with_a_deep_queue_is_told_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owning, "PAIRS_MOST", 2)
    a, b = pair()
    b.declare("between")
    for n in range(5):
        b.publish("q", b"%d" % n)
        b.publish("between", b"")
    b.send(a)
    assert a.q().foreign_count == 5
    delete(b)
    gone = [one for one in b.entries if isinstance(one, Control) and one.kind is Kind.DROP]
    assert [len(one.body) for one in gone] == [8 + 32, 8 + 32, 8 + 16]
    b.send(a)
    assert states((a,)) == [(0, 0, 0)]
    assert canonical(b.core.durable_state()) == canonical(b.folded(3))


def test_a_queue_that_no_other_site_hears_of_says_nothing_when_it_goes() -> None:
    a, b = pair()
    for site in (a, b):
        site.declare("mine", non_destructive=True)
        site.link(b if site is a else a)
    b.publish("mine", b"0", b"1")
    b.core.delete_queue(b.now, b.q("mine"))
    b.turn()
    assert not [one for one in b.entries if isinstance(one, Control) and one.kind is Kind.DROP]


def test_what_one_record_says_of_very_many_is_told_as_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more of it is in memory than a few parcels have, however many messages somebody acknowledges at once."""
    for module in (telling, parcels):
        monkeypatch.setattr(module, "SPANS_MOST", 10)
    a, b = pair()
    first = a.publish("q", *[b"0"] * 1000).first
    a.send(b)
    worker = a.subscribe(a.q(), max_backlog=1000)
    made, known = 0, Telling._known

    def counted(one: Telling, pairs: Ints) -> Iterator[tuple[int, int, int]]:
        nonlocal made
        for span in known(one, pairs):
            made += 1
            yield span

    monkeypatch.setattr(Telling, "_known", counted)
    odd = array("q", range(first + 1, first + 1000, 2))
    a.core.settle(a.now, a.q(), [odd], Verb.ACK, by=worker)
    a.turn()
    [batch] = a.tables[-1].combine_chunks().to_batches()
    for n, one in enumerate(a.tellings["b"].parcels(batch)):
        assert made <= 10 * (n + 5)
        b.core.hear(b.now, "a", one.head, one.rows)
        b.turn()
    assert made == 500
    assert b.q().foreign_count == 500
