"""What links cost: settles that come before their messages, since another link is down, and words and commits of a
transfer until its messages are leased.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from penstock.core.commands import forgetting
from penstock.core.effects import Verb
from penstock.core.links.asking import AGAIN_FIRST, ASKED_SPANS, PATIENCE_LEAST, Ask, Asking, Waiting
from penstock.core.links.carried import Carries, Numbers
from penstock.core.links.ownership import Claim, Claims, Grant, Span, grants, without
from penstock.core.links.parcels import SPANS_MOST
from penstock.core.queue import owning
from penstock.core.queue.foreign import Foreign
from penstock.core.state.durable import canonical
from penstock.errors import QueueFull
from penstock.records.chunks import LSN_LIMIT
from unit.core.world import header
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


class Number(int):
    """An LSN that counts how often one is held against another."""

    looks = 0

    def __lt__(self, other: int) -> bool:
        Number.looks += 1
        return int(self) < int(other)

    def __gt__(self, other: int) -> bool:
        Number.looks += 1
        return int(self) > int(other)

    def __le__(self, other: int) -> bool:
        Number.looks += 1
        return int(self) <= int(other)

    def __ge__(self, other: int) -> bool:
        Number.looks += 1
        return int(self) >= int(other)


def told_besides(spans: list[Span]) -> None:
    asking, now = Asking(), PATIENCE_LEAST
    waiting = [Waiting(*span, "a", 0) for span in spans]
    asking.asks(now, waiting, len(spans))
    [again] = asking.asks(now + AGAIN_FIRST, waiting, len(spans))
    Number.looks = 0
    assert asking.besides(again, now + AGAIN_FIRST, waiting) == ()
    more = [*waiting, Waiting(10_000, 10_003, "a", 0)]
    assert asking.besides(again, now + AGAIN_FIRST, more) == ((10_000, 10_003),)


def granted(spans: list[Span]) -> None:
    Number.looks = 0
    assert grants(Claims("a"), spans, spans, "b") == [
        Grant(*span, Claims("a").here.to("b", "transfer")) for span in spans
    ]


def stayed(spans: list[Span]) -> None:
    """Each second it is looked where messages stood that are gone; the first of all may stay for days."""
    numbers = Numbers([(first, first, 1) for first, _ in spans])
    Number.looks = 0
    assert not numbers.forget_below(spans[0][0])
    assert Number.looks < 30


def left_out(spans: list[Span]) -> None:
    Number.looks = 0
    assert len(without((0, 10_000), spans)) == len(spans) + 1


@pytest.mark.parametrize("work", [told_besides, granted, stayed, left_out])
def test_pieces_of_single_messages_are_not_held_against_all_others(work: Callable[[list[Span]], None]) -> None:
    """Where every second message is done all that is asked for is in such pieces, thousands of them."""
    count = 400
    work([(Number(2 * n + 2), Number(2 * n + 3)) for n in range(count)])
    assert Number.looks < 60 * count


def with_every_second_done(count: int, **settings: object) -> tuple[Linked, Linked]:
    """Two sites, of which the first has so many messages in as many pieces."""
    a, b = Linked("a"), Linked("b")
    for site, other in ((a, b), (b, a)):
        site.declare("q", **settings)
        site.core.carries(other.name, [Carries("q")])
    assert a.link(b) == b.link(a) == []
    a.publish("q", *(b"x" for _ in range(2 * count)))
    worker = a.subscribe(a.q(), max_backlog=2 * count)
    while len(a.inbox[worker]) < 2 * count:
        a.turn()
        a.core.tick(a.now)
    done = [range(lsn, lsn + 1) for lsn in a.inbox[worker][::2]]
    a.core.settle(a.now, a.q(), done, Verb.ACK, by=worker)
    a.core.unsubscribe(a.now, worker, requeue=True)
    a.send(b)
    assert a.q().ready == b.q().foreign_count == count
    return a, b


def test_a_queue_is_looked_at_once_for_all_pieces_of_a_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, living, extract = list[str](), owning._living, Foreign.extract

    def counted(*args: object) -> object:
        looks.append("living")
        return living(*args)  # type: ignore[arg-type]

    def taken(*args: object) -> object:
        looks.append("extract")
        return extract(*args)  # type: ignore[arg-type]

    a, b = with_every_second_done(200)
    b.subscribe(b.q(), max_backlog=200)
    b.advance(1)
    monkeypatch.setattr(owning, "_living", counted)
    monkeypatch.setattr(Foreign, "extract", taken)
    [asked] = b.core.asks(b.now)
    assert a.core.answer(a.now, "b", asked.ask) == 200
    a.send(b)
    assert (b.q().leased, a.q().foreign_count) == (200, 200)
    assert len(looks) < 10


def test_what_is_told_of_asks_takes_little_room_however_many_pieces_they_have() -> None:
    _, b = with_every_second_done(1)
    spans = [(2 * n, 2 * n + 1) for n in range(1_000, 1_000 + ASKED_SPANS)]
    tracemalloc.start()
    try:
        for n in range(10):
            b.q().asked(n, [(first + 0, stop + 0) for first, stop in spans])
        room, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert room < 10 * ASKED_SPANS * 30, "16 bytes a piece, and what Python keeps of tuples that are gone"
    foreign = b.q().foreign
    assert foreign is not None
    assert foreign.history(2_000) == (0, [*range(10)])
    assert foreign.history(2_001) == (0, [])


def test_the_first_of_very_many_ends_is_told_before_the_others_are_looked_at() -> None:
    """All pairs of a batch of the log were made lists of before: 50 ms of the loop for 100,000."""
    a, _ = with_every_second_done(1)
    pairs = np.arange(2 * 50_000, dtype=np.int64).reshape(-1, 2) * 2
    known = a.tellings["b"]._known(pairs)
    tracemalloc.start()
    try:
        assert next(known)[1:] == (0, 2)
        _, room = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert room < 200 * SPANS_MOST
    assert sum(1 for _ in known) == 50_000 - 1


def test_what_waits_is_not_walked_through_while_none_of_its_owners_may_be_asked() -> None:
    """As in each round until an answer comes: consumers have room again meanwhile."""
    _, b = with_every_second_done(200)
    looks = list[str]()

    def none(owner: str) -> bool:
        looks.append(owner)
        return False

    assert not list(b.q().in_turn(LSN_LIMIT, none))
    assert looks == ["a"]
    assert [claim.owner for _, _, claim in b.q().in_turn(LSN_LIMIT, "a".__eq__)] == 200 * ["a"]


def test_of_several_owners_only_the_pieces_of_those_are_walked_through_that_may_be_asked() -> None:
    """As where one is away, and has many that stand before those of the others."""
    _, b = with_every_second_done(200)
    pieces, foreign = list(b.q().in_turn(LSN_LIMIT, lambda _: True)), b.q().foreign
    assert foreign is not None
    for first, stop, _ in pieces[150:160]:
        foreign.claims.put(first, stop, Claim("c", 1, "transfer"))
    looks = list[str]()

    def may(owner: str) -> bool:
        looks.append(owner)
        return owner == "c"

    assert [(first, stop) for first, stop, _ in b.q().in_turn(LSN_LIMIT, may)] == [one[:2] for one in pieces[150:160]]
    assert sorted(looks) == ["a", "c"]
    assert [one[:2] for one in b.q().in_turn(pieces[155][0], may)] == [one[:2] for one in pieces[150:155]]
    both = [one[:2] for one in b.q().in_turn(LSN_LIMIT, lambda _: True)]
    assert both == [one[:2] for one in pieces]


def test_pieces_are_found_among_what_waits_at_once_where_priorities_order_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each piece all that waits was searched twice."""
    _, b = with_every_second_done(200, max_priority=9)
    looks, foreign = list[str](), b.q().foreign
    assert foreign is not None
    for first, stop, _ in list(b.q().in_turn(LSN_LIMIT, "a".__eq__))[::2]:
        foreign.claims.put(first, stop, Claim("a", 2, "transfer"))

    class Watched:
        def __getattr__(self, name: str) -> object:
            looks.append(name)
            return getattr(np, name)

    monkeypatch.setattr(owning, "np", Watched())
    assert [claim.owner for _, _, claim in b.q().in_turn(LSN_LIMIT, "a".__eq__)] == 200 * ["a"]
    assert len(looks) < 20


def test_claims_know_which_other_sites_have_some() -> None:
    claims = Claims("a")
    claims.put(10, 30, Claim("b"))
    claims.put(12, 14, Claim("c", 1, "transfer"))
    claims.put(20, 22, Claim("a", 1, "transfer"))
    assert sorted(claims.others()) == ["b", "c"]
    claims.put(12, 13, Claim("b", 2, "transfer"))
    claims.remove(13, 14)
    assert claims.others() == ["b"]
    claims.put(40, 50, Claim("c"))
    claims.forget_but(np.array([9, 42, 43, 50]))
    assert claims.others() == ["c"]
    assert list(claims.spans()) == [(40, 50, Claim("c"))]
    claims.remove(40, 50)
    assert claims.others() == []


def two_with_one_queue() -> tuple[Linked, Linked]:
    """Sites that are linked, and share it."""
    a, b = Linked("a"), Linked("b")
    for site, other in ((a, b), (b, a)):
        site.declare("q")
        site.core.carries(other.name, [Carries("q")])
    assert a.link(b) == b.link(a) == []
    return a, b


@pytest.mark.parametrize("stay", [0, 1, 20])
def test_what_is_known_of_messages_goes_with_them_also_where_each_site_works_its_own(
    stay: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What two sites publish by turns is a claim and a place each; some may wait for their time for days between."""
    monkeypatch.setattr(owning, "CLAIMS_FEW", 16)
    monkeypatch.setattr(forgetting, "HELD_FEW", 16)
    monkeypatch.setattr(forgetting, "STAYING_MOST", 5)
    a, b = two_with_one_queue()
    here, there = (site.subscribe(site.q(), max_backlog=1) for site in (a, b))
    for n in range(200):
        if n < stay:
            a.publish("q", b"later", properties=header(headers={"x-delay": 86_400_000}))
        for site, worker in ((a, here), (b, there)):
            site.publish("q", b"x")
            site.core.settle(site.now, site.q(), [range(site.inbox[worker][-1], site.inbox[worker][-1] + 1)], Verb.ACK)
            site.turn()
        a.send(b)
        b.core.acked["a"] = b.core.last_lsn
        b.advance(2)
        b.core.asks(b.now)
        b.turn()
    foreign = b.q().foreign
    assert foreign is not None
    assert len(foreign.claims) <= 16 + stay
    assert b.core.carried[1].held <= 20 + 2 * stay
    assert (b.q().delayed, b.q().foreign_count, b.q().ready) == (stay, 0, 0)
    assert canonical(b.core.durable_state()) == canonical(b.folded())
    b.restart(clean=True)
    a.advance(90_000)
    for _ in range(stay):
        a.core.settle(a.now, a.q(), [range(a.inbox[here][-1], a.inbox[here][-1] + 1)], Verb.ACK)
        a.turn()
    b.core.carries("a", [Carries("q")])
    assert a.link(b) == b.link(a) == []
    a.send(b)
    assert (b.q().delayed, b.q().foreign_count) == (0, 0)


def test_all_that_waits_is_looked_through_the_more_seldom_the_more_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what may be forgotten: 10 million in a queue take a turn of 0.3 s."""
    monkeypatch.setattr(forgetting, "HELD_FEW", 0)
    monkeypatch.setattr(owning, "CLAIMS_FEW", 0)
    a, b = two_with_one_queue()
    b.publish("q", *(b"x" for _ in range(640)))
    looks, living = list[object](), owning._living

    def counted(*args: object) -> object:
        looks.append(args)
        return living(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(owning, "_living", counted)
    for count, seen in ((20, False), (40, True)):
        for _ in range(count):
            for site in (a, b):
                site.publish("q", b"x")
            a.send(b)
            b.advance(2)
            b.core.asks(b.now)
        assert bool(looks) == seen


def test_what_a_site_says_of_its_queue_has_nobody_look_at_each_message_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a start what that one had before its queue was there is unsure: nothing, where it was there before them."""
    a, b = two_with_one_queue()
    for _ in range(50):
        for site in (a, b):
            site.publish("q", b"x")
        a.send(b)
    b.restart(clean=True)
    b.core.carries("a", [Carries("q")])
    looks, told_as, foreign = list[int](), b.core.told_as, b.q().foreign
    assert foreign is not None
    assert len(foreign.claims) == 50

    def counted(first: int, stop: int) -> list[tuple[int, int, int]]:
        looks.append(first)
        return told_as(first, stop)

    monkeypatch.setattr(b.core, "told_as", counted)
    assert a.link(b) == b.link(a) == []
    assert (len(looks), b.core.enquiries(b.now)) == (0, [])


def test_claims_count_what_ceases_to_be_of_this_site() -> None:
    claims, count = Claims("a"), 0
    for first, stop, claim, ceded in [
        (10, 30, Claim("a", 1, "transfer"), 0), (20, 40, Claim("b", 1, "transfer"), 10),
        (5, 35, Claim("c", 2, "transfer"), 25), (5, 35, Claim("c", 2, "transfer"), 0), (0, 50, Claim("b"), 15),
        (0, 40, Claim("a", 3, "transfer"), 0), (0, 40, Claim("b", 4, "transfer"), 40),
    ]:  # fmt: skip
        claims.put(first, stop, claim)
        count += ceded
        assert claims.ceded == count


def test_an_ask_has_so_many_pieces_at_most_and_what_is_left_comes_with_the_next() -> None:
    asking, now = Asking(), PATIENCE_LEAST
    waiting = [Waiting(2 * n, 2 * n + 1, "a", 0) for n in range(1, ASKED_SPANS + 100)]
    [ask] = asking.asks(now, waiting, 10_000)
    assert ask == Ask("a", tuple((one.first, one.stop) for one in waiting[:ASKED_SPANS]))
    asking.granted("a", ASKED_SPANS)
    [ask] = asking.asks(now, waiting[ASKED_SPANS:], 10_000)
    assert len(ask) == 99
    [adjacent] = Asking().asks(now, [Waiting(1, 10_001, "a", 0)], 10_000)
    assert len(adjacent) == 10_000
