"""Sites in a row, whose ends have no link, and queues that begin at one site while links to it are up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest

from choices import SEED, spread
from penstock.core.effects import Verb
from penstock.core.links.carried import Carries
from penstock.core.links.ownership import EARLY_MOST
from penstock.core.links.parcels import Ask, read_ask
from penstock.core.state.lsns import flat
from penstock.errors import QueueFull
from unit.core_links.test_linking import Linked

GROUPS = ("east", "west", "south")


def row(*, middle: bool = True, **settings: object) -> tuple[Linked, Linked, Linked]:
    """Three sites, of which the second one is linked to both others; middle: whether it has the queue already."""
    a, b, c = (Linked(name) for name in "abc")
    for site in (a, b, c):
        if site is not b or middle:
            site.declare("q", **settings)
        else:
            site.core.declare_topic(site.now, "/", "", "q", {})  # keeps what passes
            site.turn()
    for one, other in ((a, b), (b, a), (b, c), (c, b)):
        one.core.carries(other.name, [Carries(".*")], GROUPS)
    for one, other in ((a, b), (b, a), (b, c), (c, b)):
        assert one.link(other, pass_through=GROUPS) == []
    return a, b, c


def ask(*sites: Linked) -> int:
    """Each asks whom it may, and is answered; how many messages were given."""
    count, named = 0, {site.name: site for site in sites}
    for site in sites:
        for one in site.core.asks(site.now):
            count += named[one.to].core.answer(named[one.to].now, site.name, one.ask)
        site.turn()
    return count


def tell(*sites: Linked) -> None:
    """All that is new goes to the neighbours, and on to theirs."""
    for _ in sites:
        for one, other in pairwise(sites):
            one.send(other)
            other.send(one)


def states(sites: Sequence[Linked]) -> list[tuple[int, int, int]]:
    return [(site.q().ready, site.q().leased, site.q().foreign_count) for site in sites]


def test_an_ask_is_handed_on_to_an_owner_to_whom_no_link_leads() -> None:
    sites = a, b, c = row()
    a.publish("q", b"0", b"1", b"2")
    tell(*sites)
    worker = c.subscribe(c.q(), max_backlog=2)
    c.advance(1)
    [one] = c.core.asks(c.now)
    assert (one.owner, one.to, read_ask(one.ask).path) == ("a", "b", ("c",))
    assert b.core.answer(b.now, "c", one.ask) == 0
    [on] = b.core.asks(b.now)
    assert (on.owner, on.to, read_ask(on.ask).path) == ("a", "a", ("c", "b"))
    assert a.core.answer(a.now, "b", on.ask) == 2
    tell(*sites)
    assert states(sites) == [(1, 0, 2), (0, 0, 3), (0, 2, 1)]
    for lsn in c.inbox[worker]:
        c.core.settle(c.now, c.q(), [range(lsn, lsn + 1)], Verb.ACK, by=worker)
    tell(*sites)
    assert states(sites) == [(1, 0, 0), (0, 0, 1), (0, 0, 1)]


def test_an_ask_goes_round_no_circle_and_of_what_others_own_nobody_gives() -> None:
    sites = a, b, c = row()
    first = a.publish("q", b"0").first
    tell(*sites)
    c.subscribe(c.q())
    c.advance(1)
    [one] = c.core.asks(c.now)
    for path in (("b",), ("c", "b"), tuple("12345678"), ("unmet",)):
        words = read_ask(one.ask)._replace(path=path).words
        assert b.core.answer(b.now, "c", words) == 0
        assert b.core.asks(b.now) == [], path
    for wrong in (("c", "c"), tuple("123456789"), ("x" * 2000,)):
        with pytest.raises(ValueError, match="ask of a link"):
            b.core.answer(b.now, "c", Ask("/", "q", ((11, first, first + 1),), wrong).words)
    with pytest.raises(ValueError, match="10000 at most"):
        b.core.answer(b.now, "c", Ask("/", "q", ((11, 1, 20_000),)).words)
    for _ in range(300):
        b.core.answer(b.now, "c", one.ask)
    assert len(b.core.asks(b.now)) == 100


def test_a_queue_that_begins_while_links_are_up_is_shared_from_its_first_message_on() -> None:
    """A site was told of it half a second later, and worked by itself what came before."""
    a, b = Linked("a"), Linked("b")
    for one, other in ((a, b), (b, a)):
        one.core.carries(other.name, [Carries(".*")])
    assert a.link(b) == b.link(a) == []
    b.declare("q")
    a.turn()
    a.declare("q")
    a.publish("q", b"0", b"1")
    a.send(b)
    assert (a.q().ready, b.q().ready, b.q().foreign_count) == (2, 0, 2)
    worker = a.subscribe(a.q())
    a.core.settle(a.now, a.q(), [range(a.inbox[worker][0], a.inbox[worker][1] + 1)], Verb.ACK, by=worker)
    a.send(b)
    assert (a.q().leased, b.q().foreign_count) == (0, 0)
    b.publish("q", b"2")
    b.send(a)
    assert (a.q().foreign_count, b.q().ready) == (1, 1)


def test_queues_that_differ_are_not_one_when_one_begins_while_links_are_up() -> None:
    a, b = Linked("a"), Linked("b")
    for one, other in ((a, b), (b, a)):
        one.core.carries(other.name, [Carries(".*")])
    assert a.link(b) == b.link(a) == []
    b.declare("q", filter="/n > 1")
    a.declare("q")
    a.turn()
    telling = a.tellings["b"]
    parcels = [parcel for table in a.tables for batch in table.to_batches() for parcel in telling.parcels(batch)]
    faults = [line for one in parcels for line in b.core.hear(b.now, "a", one.head, one.rows).faults]
    assert faults == ["queue 'q' in vhost '/': its filter is '/n > 1' here and None there"]


@pytest.mark.parametrize("seed", spread(range(SEED, SEED + 20), 8))
def test_a_middle_that_has_the_queue_later_than_the_ends(seed: int) -> None:
    """What has passed it before is each end's own; all else is worked once; and nothing stays for ever."""
    dice = Random(seed)
    sites = a, b, c = row(middle=False)
    late, made = set[bytes](), 0
    for site in (a, c):
        site.subscribe(site.q(), max_backlog=3)
    pairs = [(a, b), (b, a), (b, c), (c, b)]
    begins = dice.randrange(5, 25)
    for step in range(60):
        if step == begins:
            b.declare("q")
            if dice.random() < 0.5:
                b.subscribe(b.q(), max_backlog=2)
        site = dice.choice((a, c) if step < begins else sites)
        match dice.randrange(5):
            case 0:
                site.publish("q", b"%d" % made)
                if step > begins:
                    late.add(b"%d" % made)
                made += 1
            case 1:
                settle(site, 1)
            case 2:
                one, other = dice.choice(pairs)
                one.send(other)
            case 3:  # a link begins anew: of queues it is told before what has not come yet
                one, other = dice.choice(pairs)
                assert one.link(other, pass_through=GROUPS) == []
            case _:
                site.advance(0.3)
                ask(*sites)
    for _ in range(20):
        tell(*sites)
        for site in sites:
            settle(site, 100)
            site.advance(5)
        if not b.q().consumers:
            b.subscribe(b.q(), max_backlog=2)
        ask(*sites)
    assert states(sites) == [(0, 0, 0)] * 3
    worked = Counter(body for site in sites for body in bodies(site))
    assert set(worked) == {b"%d" % n for n in range(made)}
    assert {body: count for body, count in worked.items() if count > (1 if body in late else 2)} == {}


def settle(site: Linked, most: int) -> None:
    for consumer in list(site.q().consumers) if site.core.find_queue("/", "q") else ():
        for lsn in flat([run.chunk for run in consumer.leases.held()]).tolist()[:most]:
            site.core.settle(site.now, site.q(), [range(lsn, lsn + 1)], Verb.ACK, by=consumer)
            site.turn()


def bodies(site: Linked) -> list[bytes]:
    """What workers of a site were given."""
    rows = [site.rows[lsn] for some in site.inbox.values() for lsn in some]
    return [batch.bodies[row] for batch, row in rows]


def test_claims_to_what_has_not_come_are_remembered_within_a_bound() -> None:
    a, _ = Linked("a"), Linked("b")
    a.declare("q")
    spans = [(33, lsn, lsn + 1) for lsn in range(1, 2 * EARLY_MOST, 2)]
    claim = a.q().claims(a.core.peers).here.to("b", "transfer")
    a.core.each_owned_at(a.now, a.q(), "b", [(spans, claim)])
    with pytest.raises(QueueFull, match="claims to messages that have not come"):
        a.core.each_owned_at(a.now, a.q(), "b", [([(33, 2 * EARLY_MOST + 1, 2 * EARLY_MOST + 2)], claim)])
    assert a.core.each_owned_at(a.now, a.q(), "b", [(spans[:100], claim)]) == [0], "what is known is heard again"
