"""Queues with barriers, priorities, tenants, limits and a target depth that sites share: each keeps them for itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from penstock.core.effects import Verb
from penstock.core.links.carried import Carries
from penstock.core.links.parcels import BLIND_MOST, read
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.explaining import where
from penstock.core.state.durable import canonical
from penstock.errors import QueueFull
from penstock.expr import compile_filter
from sim.sites_steps import Steps
from unit.core.world import SECOND, header
from unit.core_links.test_linking import Linked

Pair = tuple[Linked, Linked]


@pytest.fixture
def linked() -> Iterator[Callable[..., Pair]]:
    """Two sites with one queue of these settings."""
    sites = list[Linked]()

    def make(**settings: object) -> Pair:
        a, b = Linked("a"), Linked("b")
        sites.extend((a, b))
        for site, other in ((a, b), (b, a)):
            site.declare("q", **settings)
            site.core.carries(other.name, [Carries(".*")])
        assert a.link(b) == b.link(a) == []
        return a, b

    yield make
    for site in sites:
        site.q().check()
        if site.q().ranked_by is None:  # the log has no ranks: they are worked out again
            assert canonical(site.core.durable_state()) == canonical(site.folded(3)), site.name


def bodies(site: Linked, consumer: Consumer) -> list[bytes]:
    return [site.rows[lsn][0].bodies[site.rows[lsn][1]] for lsn in site.inbox[consumer]]


def ack(site: Linked, consumer: Consumer) -> None:
    """All that somebody holds is done."""
    for run in list(consumer.leases.held()):
        site.core.settle(site.now, site.q(), [run.chunk], Verb.ACK, by=consumer)
        site.turn()


def ask(asker: Linked, owner: Linked) -> int:
    """All that one site asks another now; how many it was given."""
    asker.advance(1)
    given = sum([owner.core.answer(owner.now, asker.name, one.ask) for one in asker.core.asks(asker.now)])
    asker.turn()
    owner.send(asker)
    return given


# -- barriers


BARRIER = {"barrier_expression": "/barrier = 1"}
MARK = b'{"barrier": 1}'


def test_each_site_lets_a_barrier_go_when_all_before_it_is_done_there(linked: Callable[..., Pair]) -> None:
    a, b = linked(**BARRIER)
    mine, yours = a.subscribe(a.q(), max_backlog=1), b.subscribe(b.q(), max_backlog=1)
    a.publish("q", b"0", b"1", MARK, b"2")
    a.send(b)
    assert (a.q().leased, a.q().ready, a.q().held) == (1, 1, 2)
    assert (b.q().foreign_count, b.q().held, b.inbox[yours]) == (3, 1, []), "the barrier is b's as well"
    ack(a, mine)
    ack(a, mine)
    assert bodies(a, mine) == [b"0", b"1", MARK, b"2"]
    assert (b.q().held, b.inbox[yours]) == (1, []), "nothing before it is done, as far as b knows"
    a.send(b)
    assert bodies(b, yours) == [MARK]
    b.send(a)
    assert (a.q().leased, b.q().foreign_count, b.q().held) == (1, 1, 0)


def test_what_was_taken_over_holds_a_barrier_back_until_it_is_done_at_both(linked: Callable[..., Pair]) -> None:
    a, b = linked(**BARRIER)
    a.publish("q", b"0", MARK, b"1")
    a.send(b)
    yours = b.subscribe(b.q(), max_backlog=5)
    assert ask(b, a) == 1, "what is behind the barrier is not asked for"
    assert bodies(b, yours) == [b"0"]
    mine = a.subscribe(a.q(), max_backlog=5)
    assert bodies(a, mine) == [], "b works on what stands before the barrier"
    ack(b, yours)
    assert bodies(b, yours) == [b"0", MARK]
    b.send(a)
    assert bodies(a, mine) == [MARK, b"1"]


def test_an_ack_of_another_site_takes_no_barrier_away(linked: Callable[..., Pair]) -> None:
    a, b = linked(**BARRIER)
    a.publish("q", b"0", MARK)
    a.send(b)
    lsn = b.q().first(2, "held")[0][1].chunk[0]
    b.core.settle(b.now, b.q(), [range(lsn, lsn + 1)], Verb.ACK)
    b.turn()
    b.send(a)
    assert (a.q().held, b.q().held) == (1, 0)


def test_without_the_expression_barriers_are_their_owners_messages(linked: Callable[..., Pair]) -> None:
    a, b = linked(**BARRIER)
    a.publish("q", b"0", MARK)
    a.send(b)
    b.restart(clean=True)
    b.core.alter_queue(b.now, b.q(), replace(b.q().settings, barrier_expression=None))
    b.turn()
    assert (b.q().held, b.q().ready, b.q().foreign_count) == (0, 0, 2)


def test_a_claim_takes_what_a_barrier_holds_back(linked: Callable[..., Pair]) -> None:
    a, b = linked(**BARRIER)
    mine = a.subscribe(a.q(), max_backlog=1)
    a.publish("q", b"0", MARK, b"1")
    a.send(b)
    b.core.absent.add("a")
    b.core.proxy(b.now, b.q(), True)
    b.subscribe(b.q(), max_backlog=5)
    b.core.asks(b.now)
    b.turn()
    b.send(a)
    ack(a, mine)
    assert bodies(a, mine) == [b"0", MARK], "the one behind it is b's"
    assert a.q().foreign_count == 1


def test_both_sides_have_the_same_barriers(linked: Callable[..., Pair]) -> None:
    a, b = linked()
    a.core.alter_queue(a.now, a.q(), replace(a.q().settings, barrier_expression="/barrier = 1"))
    a.turn()
    assert a.link(b) == ["queue 'q' in vhost '/': its barrier_expression is None here and '/barrier = 1' there"]


# -- target depth


def test_a_transfer_reaches_beyond_the_target_depth(linked: Callable[..., Pair]) -> None:
    """001: it processes messages until it reaches the one to be transferred, transfers it, and stops again."""
    a, b = linked(target_queue_depth=1000)
    a.publish("q", *([b"{}"] * 1500), b'{"n": 1}', *([b"{}"] * 500))
    a.send(b)
    assert (a.q().ready, a.q().inactive) == (1000, 1001)
    b.subscribe(b.q(), max_backlog=5, filter=compile_filter("/n = 1"))
    b.core.asks(b.now)
    b.turn()
    assert ask(b, a) == 1
    assert (a.q().ready, a.q().inactive, a.q().foreign_count) == (1500, 500, 1)
    assert b.q().leased == 1
    mine = a.subscribe(a.q(), max_backlog=600)
    ack(a, mine)
    assert (a.q().leased + a.q().ready, a.q().inactive) == (1000, 400)


def test_a_claim_takes_what_is_inactive(linked: Callable[..., Pair]) -> None:
    a, b = linked(target_queue_depth=1000)
    a.publish("q", *([b"{}"] * 1200))
    a.send(b)
    b.core.absent.add("a")
    b.core.proxy(b.now, b.q(), True)
    b.subscribe(b.q(), max_backlog=1200)
    b.core.asks(b.now)
    b.turn()
    assert b.q().leased == 1200
    b.send(a)
    assert (a.q().ready, a.q().inactive, a.q().foreign_count) == (0, 0, 1200)


# -- priorities


def test_what_would_be_served_first_is_asked_for_first(linked: Callable[..., Pair]) -> None:
    a, b = linked(priority_expression="/p")
    a.publish("q", *(b'{"p": %d}' % n for n in (1, 5, 3, 5, 2)))
    a.send(b)
    yours = b.subscribe(b.q(), max_backlog=2)
    assert ask(b, a) == 2
    assert bodies(b, yours) == [b'{"p": 5}'] * 2
    ack(b, yours)
    b.restart(clean=False)
    b.core.carries("a", [Carries(".*")])
    assert b.link(a) == a.link(b) == []
    b.send(a)
    yours = b.subscribe(b.q(), max_backlog=3)
    assert ask(b, a) == 3
    assert bodies(b, yours) == [b'{"p": %d}' % n for n in (3, 2, 1)]


# -- tenants


def test_tenants_have_their_turns_at_each_site(linked: Callable[..., Pair]) -> None:
    a, b = linked(fairness_key="/t")
    a.publish("q", *(b'{"t": "%s", "n": %d}' % (t, n) for t in (b"x", b"y") for n in range(4)))
    a.send(b)
    b.publish("q", *(b'{"t": "%s", "n": 9}' % t for t in (b"x", b"z", b"z")))
    yours = b.subscribe(b.q(), max_backlog=3)
    assert [one[6:9] for one in bodies(b, yours)] == [b'"x"', b'"z"', b'"z"']
    ack(b, yours)
    b.core.unsubscribe(b.now, yours, requeue=True)
    yours = b.subscribe(b.q(), max_backlog=8)
    assert ask(b, a) == 8
    assert [one[6:9] for one in bodies(b, yours)] == [b'"x"', b'"y"'] * 4
    assert (a.q().ready, a.q().foreign_count) == (0, 8)
    b.send(a)
    ack(b, yours)
    b.send(a)
    assert a.q().foreign_count == b.q().foreign_count == 0


# -- limits


@pytest.mark.parametrize("overflow", ["reject-publish", "drop-newest", "drop-head", "reject-publish-dlx"])
def test_a_limit_counts_what_is_the_sites_own(linked: Callable[..., Pair], overflow: str) -> None:
    a, b = linked(max_length=3, overflow=overflow)
    a.publish("q", *(b"%d" % n for n in range(5)))
    assert a.q().ready == 3
    a.send(b)
    b.publish("q", b"b", b"c")
    b.send(a)
    assert (b.q().ready, b.q().foreign_count, a.q().ready, a.q().foreign_count) == (2, 3, 3, 2)
    yours = b.subscribe(b.q(), max_backlog=10)
    assert ask(b, a) == 3, "whoever has room is given it before anything gives way"
    assert (b.q().leased, b.q().foreign_count, a.q().foreign_count) == (5, 0, 5)
    ack(b, yours)


def test_what_another_site_took_is_refused_by_none(linked: Callable[..., Pair]) -> None:
    """A group-local queue's first owner takes what others have told their publishers that it is stored."""
    group = {"kind": "group-local", "initial_owner": "b", "group_local_queue_domain": "d"}
    a, b = linked(max_length=2, overflow="reject-publish", **group)
    assert a.publish("q", *(b"%d" % n for n in range(5))).stored == 5, "a has no message of its own to be limited"
    a.send(b)
    assert (a.q().foreign_count, b.q().ready) == (5, 5)
    refused = b.publish("q", b"5").refused
    assert [type(why) for _, why in refused] == [QueueFull]


def test_a_ring_lets_go_of_its_own(linked: Callable[..., Pair]) -> None:
    a, b = linked(ring_size=2)
    a.publish("q", b"0", b"1", b"2")
    a.send(b)
    b.publish("q", b"3", b"4", b"5")
    assert (b.q().ready, b.q().foreign_count) == (2, 2), "what gave way at a is gone everywhere"


# -- expiry


def test_what_is_over_is_its_owners_dead_letter_and_nobody_elses(linked: Callable[..., Pair]) -> None:
    a, b = linked(dead_letter_exchange="", dead_letter_routing_key="dead")
    for site in (a, b):
        site.declare("dead", kind="local")
    a.publish("q", b"0", properties=header(expiration="5000"))
    a.publish("q", b"1", properties=header(expiration="500"))
    b.advance(1)
    a.send(b)
    b.advance(5)
    b.send(a)
    assert (b.q().foreign_count, b.q("dead").ready) == (0, 0)
    assert a.q().ready == 2, "b's clock is ahead: that is no reason for a to give up its own"
    a.advance(6)
    assert (a.q().ready, a.q("dead").ready) == (0, 2)


def test_a_queues_expiration_counts_from_where_it_was_published(linked: Callable[..., Pair]) -> None:
    a, b = linked(expiration=10 * SECOND)
    for site in (a, b):
        site.declare("copies", kind="local", underlying_topic="q", expiration=10 * SECOND)
    a.publish("q", b"0")
    a.advance(3)
    a.publish("q", b"1", properties=header(expiration="60000"))
    a.publish("q", b"2")
    b.advance(8)
    a.send(b)
    assert (b.q().foreign_count, b.q("copies").ready) == (3, 3)
    b.restart(clean=False)
    b.advance(3)
    assert (b.q().foreign_count, b.q("copies").ready) == (2, 2), "ten seconds after it was published, not after it came"
    b.advance(3)
    assert (b.q().foreign_count, b.q("copies").ready) == (1, 1)


def test_what_a_site_passes_on_is_as_old_as_it_was_there() -> None:
    a, b, c = Linked("a"), Linked("b"), Linked("c")
    for site in (a, b, c):
        site.declare("copies", kind="local", underlying_topic="q", expiration=10 * SECOND)
    a.link(b)
    b.link(c, pass_through=["east"])
    for wait in (0, 2):
        a.advance(wait)
        a.publish("q", b"0")
    for site in (b, c):
        site.advance(9)
    a.send(b)
    b.publish("q", b"1")
    b.send(c)
    assert c.q("copies").ready == 3
    c.advance(2)
    assert c.q("copies").ready == 2
    c.advance(2)
    assert c.q("copies").ready == 1
    assert canonical(c.core.durable_state()) == canonical(c.folded(1))


def test_no_message_is_newer_than_the_clock_here(linked: Callable[..., Pair]) -> None:
    a, b = linked(expiration=10 * SECOND)
    a.advance(3600)
    a.publish("q", b"0")
    a.send(b)
    b.advance(11)
    assert b.q().foreign_count == 0, "a's clock is an hour ahead: it is as old as it is known to be here"


# -- what is told


def test_explain_says_since_when_and_how_often_it_was_asked_for(linked: Callable[..., Pair]) -> None:
    a, b = linked()
    lsn = a.publish("q", b"0").first
    a.send(b)
    b.subscribe(b.q(), max_backlog=1)
    here = b.q().first(1, "foreign")[0][1].chunk[0]
    _, text = where(b.q(), here, b.now) or ("", "")
    assert text == "site 'a' owns it, where it was published; it was never transferred"
    for _ in range(2):
        b.advance(1)
        asked = b.core.asks(b.now)
        assert len(asked) == 1
    _, text = where(b.q(), here, b.now) or ("", "")
    assert text.endswith("never transferred, and asked for twice since, last at 2023-11-14T22:13:22.000Z")
    assert a.core.answer(a.now, "b", asked[0].ask) == 1
    a.turn()
    _, text = where(a.q(), lsn, a.now) or ("", "")
    assert text == "site 'b' owns it, which asked for it, since 2023-11-14T22:13:20.000Z; it was transferred once"


def test_of_very_many_further_keys_so_many_are_told() -> None:
    a, b = Linked("a"), Linked("b")
    for site in (a, b):
        site.declare("q")
    a.link(b)
    keys = ["q", "x" * 300, *(f"k{n}" for n in range(900))]
    a.publish("q", b"0", properties=header(headers={"BCC": keys}))
    [parcel] = a.send(b)
    assert [len(piece.blind) for piece in parcel.pieces] == [BLIND_MOST]
    assert "x" * 300 not in parcel.pieces[0].blind
    piece = parcel.pieces[0]._replace(blind=("y" * 256,))
    with pytest.raises(ValueError, match="further routing keys"):
        read(parcel._replace(pieces=(piece,)).head, parcel.rows)
    with pytest.raises(ValueError, match="further routing keys"):
        read(parcel._replace(pieces=(piece._replace(blind=("y",) * 257),)).head, parcel.rows)


def test_parcels_with_many_further_keys_are_small() -> None:
    a, b = Linked("a"), Linked("b")
    for site in (a, b):
        site.declare("q")
    a.link(b)
    topic = a.core.topic("/", "", "q")
    a.publish_all(*(
        (topic, header(headers={"BCC": [f"{n}-{k}" + "z" * 200 for k in range(200)]}), b"") for n in range(12)
    ))  # fmt: skip
    parcels = a.send(b)
    assert len(parcels) > 1
    assert max(len(one.head) for one in parcels) < 512 << 10


def test_who_asks_for_what_is_leased_is_given_others_once_it_was_not_answered(linked: Callable[..., Pair]) -> None:
    """A backlog is each site's own: what an owner may not give out, though it is ready, others may."""
    a, b = linked(max_backlog=2)
    mine = a.subscribe(a.q(), max_backlog=10)
    a.publish("q", *(b"%d" % n for n in range(8)))
    a.send(b)
    yours = b.subscribe(b.q(), max_backlog=10)
    assert (a.q().leased, a.q().ready, b.q().foreign_count) == (2, 6, 8)
    assert ask(b, a) == 0, "the oldest two, which are leased"
    a.send(b)
    assert ask(b, a) == 2, "as many as it has room for"
    a.send(b)
    assert bodies(b, yours) == [b"2", b"3"]
    assert ask(b, a) == 0, "it has no room"
    ack(b, yours)
    ack(a, mine)
    assert bodies(a, mine)[2:] == [b"4", b"5"]


def test_two_sites_that_wait_for_each_other_behind_barriers_give_each_other_what_these_hold_back() -> None:
    """Each owns what stands before a barrier of the other, and behind its own: it is asked for, and given."""
    steps = Steps("ab", barrier_expression="/k = 0")
    a, b = steps.a, steps.b
    a.publish("q", b'{"k": 1}', b'{"k": 0}')
    b.publish("q", b'{"k": 2}', b'{"k": 0}')
    steps.level()
    for site, other in ((a, b), (b, a)):
        first = min(lsn for chunk in site.queue.snapshot()[0] for lsn in chunk)
        claim = site.queue.claims(site.core.peers).of(first).to(other.name, "transfer")
        site.core.own(site.now, site.queue, [(first, first + 1)], claim)
        site.turn()
    steps.level()
    workers = [(site, steps.work(site)) for site in (a, b)]
    assert not any(site.inbox[worker] for site, worker in workers)
    for _ in range(4):
        for site, worker in workers:
            steps.grant(site)
            steps.level()
            steps.ack(site, worker)
    steps.level()
    assert steps.told() == {"a": (0, 0, 0), "b": (0, 0, 0)}
