"""What comes back to a queue has its old place for consumers with filters, too."""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.effects import Scan, Verb
from penstock.core.queue.dispatching import filtering, recalled
from penstock.core.queue.dispatching.consumers import Consumer, TargetList
from penstock.core.queue.dispatching.joining import replace
from penstock.core.queue.dispatching.recalled import Gone, Recalled
from penstock.core.queue.order.ranks import Ranks
from penstock.core.queue.order.targets import PriorityRecalled
from penstock.records.chunks import as_chunk
from planting import Plant
from unit.core_queue.test_queue import Bench, First


class House(Bench):
    """A queue whose messages have the bodies `a0`, `b1`, `a2` ... and consumers that want one letter of them."""

    def __init__(self, count: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.bodies: dict[int, bytes] = {}
        self.scans: list[Scan] = []
        for n in range(count):
            body = b"%c%d" % (b"ab"[n % 2], n)
            (lsn,) = self.publish(body=body)
            self.bodies[lsn] = body

    def wanting(self, text: str, backlog: int = 1, **options: Any) -> Consumer:
        return self.worker(filter=First(text), max_backlog=backlog, **options)

    def look(self) -> None:
        """Answer what is asked of the world until nothing is."""
        while scans := [effect for effect in self.sink.effects if isinstance(effect, Scan)]:
            self.scans += scans
            self.sink.effects[:] = [effect for effect in self.sink.effects if not isinstance(effect, Scan)]
            for scan in scans:
                found = [[lsn for lsn in scan.chunk if self.bodies[lsn].startswith(one.text.encode())]
                         for one in scan.filters]  # fmt: skip
                self.queue.scanned(self.now, scan.token, found, scan.chunk[-1], self.sink)

    def go_on(self) -> None:
        """As far as it goes."""
        for _ in range(9):
            self.look()
            self.queue.tick(self.now, self.sink)

    def got(self, consumer: Consumer) -> list[int]:
        """The numbers of the messages that came."""
        self.look()
        return [int(self.bodies[lsn][1:]) for lsn in self.sent(consumer)]

    def held(self, consumer: Consumer) -> list[int]:
        return sorted(lsn for run in consumer.leases.held() for lsn in run.chunk)

    def end(self, consumer: Consumer, verb: Verb = Verb.ACK) -> None:
        self.settle(as_chunk(self.held(consumer)), verb, by=consumer)


def test_what_is_cancelled_comes_before_what_is_younger() -> None:
    house = House(80)
    worker, other = house.wanting("b"), house.wanting("a")
    assert (house.got(worker), house.got(other)) == ([1], [0])
    for _ in range(3):
        house.end(worker, Verb.CANCEL)
        assert house.got(worker) == [1]
    house.end(worker)
    assert house.got(worker) == [3]


def test_when_others_take_what_a_filter_has_still_to_look_at_it_gives_the_next() -> None:
    """It does not wait for the answer to a question about what is gone."""
    house = House(3)
    oldest, _, next_one = house.bodies
    anybody = house.worker(max_backlog=1)
    assert house.got(anybody) == [0]
    worker = house.wanting("a")
    assert house.got(worker) == [2]
    for one in (worker, anybody):
        house.queue.choke(one)
        house.end(one, Verb.RELEASE)
    house.queue.unchoke(house.now, worker, house.sink)
    assert house.sent() == []
    another = house.worker(max_backlog=1)
    assert (house.sent(another), house.sent(worker)) == ([oldest], [next_one])


def test_who_knows_its_next_by_what_others_take_is_served_in_the_same_round() -> None:
    """It comes before who has a lower priority; and filters that wait cost nothing for each message taken meanwhile."""
    house, count, workers = House(0), 40, 20
    bodies = [*[b"x"] * count, *(b"%02d" % n for n in range(workers))]
    lsns = [house.publish(body=body)[0] for body in bodies]
    house.bodies.update(zip(lsns, bodies, strict=True))
    anybody = house.worker(max_backlog=count)
    several = [house.wanting(f"{n:02}", priority=1) for n in range(workers)]
    house.look()
    assert house.sent(anybody) == lsns[:count]
    for one in (anybody, *several):
        house.queue.choke(one)
        house.end(one, Verb.RELEASE)
    house.sent()
    for one in several:
        house.queue.unchoke(house.now, one, house.sink)
    assert house.sent() == []
    with patch.object(TargetList, "stop", autospec=True, side_effect=TargetList.stop) as asked:
        another = house.worker()
    assert house.sent(another) == lsns[:count]
    assert [house.sent(one) for one in several] == [[lsn] for lsn in lsns[count:]]
    assert asked.call_count <= 4 * workers


def test_the_same_where_a_filter_has_still_to_look_at_what_never_went_out() -> None:
    house = House(4)
    oldest, wanted, *younger = house.bodies
    former = house.wanting("b")
    assert house.got(former) == [1]
    house.queue.unsubscribe(house.now, [former], house.sink, requeue=False)
    worker = house.wanting("b", priority=1)
    house.end(former, Verb.RELEASE)
    assert house.sent() == []  # it is not answered yet about the oldest
    anybody = house.worker()
    assert (house.sent(worker), house.sent(anybody)) == ([wanted], [oldest, *younger])


@pytest.mark.parametrize("order", [None, "/p"])
def test_whose_filter_let_it_in_may_have_gone_as_long_as_somebody_has_the_same_filter(order: str | None) -> None:
    """A consumer that was cancelled gives back what its successor wants: nobody has to look, nobody takes it before."""
    house = House(1, priority_expression=order)
    first = house.wanting("a")
    assert house.got(first) == [0]
    house.queue.unsubscribe(house.now, [first], house.sink, requeue=False)
    second = house.wanting("a", priority=1)
    other = house.worker()
    house.look()
    looked = len(house.scans)
    house.end(first, Verb.RELEASE)
    assert (house.sent(second), house.sent(other)) == ([*house.bodies], [])
    house.look()
    assert len(house.scans) == looked


def test_leases_that_end_give_what_is_oldest_again() -> None:
    """Forty messages, two at a time: not the first two for ever, and none after a younger one."""
    house = House(80, lease_period=10)
    worker = house.wanting("a", 4)
    assert house.got(worker) == [0, 2, 4, 6]
    house.advance(10)
    assert house.got(worker) == [0, 2, 4, 6]
    house.settle(as_chunk(house.held(worker)[1:3]), by=worker)
    assert house.got(worker) == [8, 10]
    house.advance(10)
    assert house.got(worker) == [0, 6, 8, 10]


@pytest.mark.parametrize("lost", [False, True])
def test_what_a_leaver_held_comes_before_what_is_younger(lost: bool) -> None:
    house = House(20)
    first, second = house.wanting("a", 2), house.wanting("a", 1)
    assert (house.got(first), house.got(second)) == ([0, 4], [2])
    house.queue.unsubscribe(house.now, [first], house.sink, requeue=True, lost=lost)
    house.end(second)
    assert house.got(second) == [0]
    house.end(second)
    assert house.got(second) == [4]


def test_a_list_that_did_not_give_it_out_waits_until_it_has_looked() -> None:
    house = House(20)
    everybody, worker = house.worker(max_backlog=1), house.wanting("a", 1)
    house.look()
    assert house.held(everybody) == [100]
    assert house.got(worker) == [2]
    house.queue.unsubscribe(house.now, [everybody], house.sink, requeue=True)
    house.end(worker)
    assert house.sent(worker) == [], "message 0 came back, and nobody has looked at it for this filter"
    assert house.got(worker) == [0]
    house.end(worker)
    assert house.got(worker) == [4]


def test_what_it_waits_for_may_be_taken_by_others() -> None:
    house = House(20)
    everybody, worker = house.worker(max_backlog=1), house.wanting("a", 1)
    house.look()
    house.sent()
    house.settle(range(100, 101), Verb.RELEASE, by=everybody, delay=5)
    assert house.held(everybody) == [101]
    house.queue.choke(everybody)
    house.advance(5)
    house.end(worker)
    assert house.held(worker) == []
    house.queue.withdraw(house.now, range(100, 101), house.sink)
    assert house.held(worker) == [104], "without an answer"
    house.look()
    house.queue.check()


def test_the_list_that_gave_it_out_is_not_asked_again() -> None:
    house = House(40)
    worker = house.wanting("a", 3)
    house.look()
    asked = len(house.scans)
    for _ in range(5):
        house.end(worker, Verb.RELEASE)
        house.look()
    assert len(house.scans) == asked
    other = house.wanting("b", 3)
    house.look()
    asked = len(house.scans)
    house.end(worker, Verb.RELEASE)
    house.look()
    assert [[one.text for one in scan.filters] for scan in house.scans[asked:]] in ([], [["b"]])
    assert (house.held(worker), house.held(other)) == ([100, 102, 104], [101, 103, 105])


def test_what_another_filter_let_in_is_not_taken_for_a_match() -> None:
    house = House(20)
    worker = house.wanting("a", 2)
    house.look()
    replace(house.queue, house.now, worker, house.sink, filter=First("b"), max_backlog=2)
    house.look()
    house.sent()
    house.end(worker, Verb.RELEASE)
    house.look()
    assert house.held(worker) == [101, 103]
    house.end(worker, Verb.RELEASE)
    assert house.held(worker) == [101, 103], "what it was given since is known"


def test_a_full_list_gives_what_is_older_than_all_it_knows() -> None:
    """What it has no room for comes later, and never behind what is younger."""
    house = House(40)
    house.queue.ensure_targets().most = 2
    first = house.wanting("a", 12)
    house.look()
    second = house.wanting("a", 1)
    assert house.got(second) == [24]
    for lsn in reversed(house.held(first)):
        house.queue.choke(first)
        house.settle(range(lsn, lsn + 1), Verb.RELEASE, by=first)
    house.queue.unsubscribe(house.now, [first], house.sink, requeue=True)
    out = list[int]()
    for _ in range(20):
        house.end(second)
        out += house.got(second)
    assert out == [*range(0, 24, 2), *range(26, 40, 2)]


def crowd(house: House, count: int) -> list[Consumer]:
    return [house.wanting(f"{number:02}", backlog=100) for number in range(count)]


def crowded(count: int, messages: int, **settings: Any) -> House:
    """Messages for so many filters in turn, all of which came back from consumers that are lost."""
    house = House(0, **settings)
    for number in range(messages):
        body = b"%02d" % (number % count)
        (lsn,) = house.publish(body=body)
        house.bodies[lsn] = body
    former = crowd(house, count)
    house.look()
    assert house.queue.ready == 0
    house.queue.unsubscribe(house.now, former, house.sink, requeue=True, lost=True)
    house.sent()
    house.scans.clear()
    return house


@pytest.mark.parametrize("settings", [{}, {"max_priority": 3}])
def test_filters_that_come_when_much_came_back_look_together_and_keep_it_in_mind_once(settings: dict[str, int]) -> None:
    """Where a crowd of consumers is lost and comes again, each with a filter of its own."""
    house = crowded(20, 1200, **settings)
    with patch.object(Recalled, "_push", autospec=True, side_effect=Recalled._push) as pushed:
        again = crowd(house, 20)
        assert sum(len(call.args[1].lsns) for call in pushed.call_args_list) == 1200
    house.go_on()
    assert [[house.bodies[lsn] for lsn in house.sent(one)] for one in again] == [[b"%02d" % n] * 60 for n in range(20)]
    assert len(house.scans) < 20, "not each by itself"


def calls_to_serve(count: int, **settings: Any) -> int:
    """How many calls it takes until so many filters have 1,200 messages that came back."""
    house = crowded(count, 1200, **settings)
    again, plant = crowd(house, count), Plant(-1, "penstock.core")
    with plant.there():
        house.go_on()
    assert sum(len(house.sent(one)) for one in again) == 1200
    return plant.calls


@pytest.mark.parametrize("settings", [{}, {"max_priority": 3}])
def test_what_is_given_of_what_came_back_is_told_once_however_many_filters_there_are(settings: dict[str, int]) -> None:
    few, many = (calls_to_serve(count, **settings) for count in (20, 80))
    assert 2 * many < 3 * few


@pytest.mark.parametrize("seed", range(12))
def test_who_comes_and_goes_while_others_look_at_what_came_back_is_given_all_of_its_own_in_order(seed: int) -> None:
    """Answers come late, and for a part; more comes back meanwhile."""
    chance, count = random.Random(seed), 5
    house = crowded(count, 60, **chance.choice(({}, {"max_priority": 3})))
    there: dict[str, Consumer] = {}
    with patch.object(filtering, "RECHECK", 7):
        for _ in range(60):
            text = f"{chance.randrange(count):02}"
            if text in there:
                house.queue.unsubscribe(house.now, [there.pop(text)], house.sink, requeue=True, lost=True)
            else:
                there[text] = house.wanting(text, backlog=chance.choice((1, 3, 100)))
            scans = [effect for effect in house.sink.effects if isinstance(effect, Scan)]
            if scans and chance.random() < 0.5:
                house.sink.effects.remove(scans[0])
                upto = chance.choice(scans[0].chunk)
                found = [[lsn for lsn in scans[0].chunk if lsn <= upto and house.bodies[lsn] == one.text.encode()]
                         for one in scans[0].filters]  # fmt: skip
                house.queue.scanned(house.now, scans[0].token, found, upto, house.sink)
            house.queue.check()
        house.look()
        house.queue.unsubscribe(house.now, [*there.values()], house.sink, requeue=True, lost=True)
        last = crowd(house, count)
        house.sent()
        house.go_on()
    lsns = sorted(house.bodies)
    assert [house.held(one) for one in last] == [lsns[number::count] for number in range(count)]


# -- what is kept in mind


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.sets(st.integers(1, 60), min_size=1, max_size=9), st.sampled_from([0, 0, 70])),
            st.tuples(st.just("left"), st.sets(st.integers(1, 60), min_size=1, max_size=9), st.just(0)),
            st.tuples(st.just("look"), st.just(set[int]()), st.integers(1, 5)),
            st.tuples(st.just("put each"), st.sets(st.integers(1, 60), min_size=1, max_size=9), st.just(0)),
            st.tuples(st.just("move"), st.just(set[int]()), st.integers(1, 5)),
        ),
        max_size=30,
    ),
    st.booleans(),
    st.sampled_from([1, 4096]),
)
def test_what_came_back_and_did_not_leave_is_known_in_order(
    steps: list[tuple[str, set[int], int]], ranked: bool, most: int
) -> None:
    ranks = Ranks()
    ranks.add(range(1, 61), [lsn * 7 % 4 for lsn in range(1, 61)])
    gone = Gone()

    def nothing() -> Recalled:
        return PriorityRecalled(gone, ranks) if ranked else Recalled(gone)

    some, beside = nothing(), nothing()  # the other one is put every second of them, and asked at the end alone
    there: dict[int, tuple[int, int]] = {}
    others: dict[int, tuple[int, int]] = {}
    before, recalled.GONE_MOST = recalled.GONE_MOST, most
    try:
        for what, lsns, number in steps:
            if what == "put":
                new = sorted(lsns - there.keys())
                if new:
                    some.put(as_chunk(new), number)
                    there.update((lsn, some.key(lsn, number)) for lsn in new)
                if odd := [lsn for lsn in new if lsn % 2 and not beside.has(lsn)]:
                    beside.put(as_chunk(odd), number)
                    others.update((lsn, some.key(lsn, number)) for lsn in odd)
            elif what == "left":
                first = min(there.values(), default=None)
                for lsn in lsns:
                    there.pop(lsn, None)
                    others.pop(lsn, None)
                gone.left(as_chunk(sorted(lsns)))
                assert some.left(as_chunk(sorted(lsns))) == (first != min(there.values(), default=None))
                gone.tidy()
            elif what == "put each":  # of each message a place of its own, or none
                keys = {lsn: some.key(lsn, lsn % 3 and 100 - lsn) for lsn in lsns - there.keys()}
                new = sorted(keys, key=keys.__getitem__)
                if new:
                    places = [lsn % 3 and 100 - lsn for lsn in new]
                    some.put_others([(new, places)], len(there) + len(new))
                    there.update(keys)
            elif (piece := some.next(number)) is not None:
                seen = list(some.living(piece))
                assert seen
                assert min(there.values()) == there[seen[0]]
                if what == "move":  # to somebody else, who knows where each stands
                    other = nothing()
                    other.put_of(piece, as_chunk(sorted(seen)[::2]))
                    assert other.first(100) == sorted(there[lsn] for lsn in sorted(seen)[::2])
                some.cut(piece, max(seen))
                for lsn in seen:
                    del there[lsn]
            assert some.head() == min(there.values(), default=None)
            assert some.first(100) == sorted(there.values())
            assert all(some.has(lsn) == (lsn in there) for lsn in range(1, 61))
        assert len(gone.when) <= max(most, 100)
        assert all(beside.has(lsn) == (lsn in others) for lsn in range(1, 61))
        assert beside.first(100) == sorted(others.values())
        assert beside.head() == min(others.values(), default=None)
    finally:
        recalled.GONE_MOST = before


@pytest.mark.parametrize("settings", [{}, {"max_priority": 3}])
def test_what_became_due_each_in_its_own_moment_is_looked_at_many_at_once(settings: dict[str, int]) -> None:
    """By a filter that comes when it waits, whose matches go in the order in which they became due."""
    q = House(0, **settings)
    due = random.Random(1).sample(range(3000), 3000)
    for number in due:
        (lsn,) = q.publish(not_before=[q.time + 1 + number])
        q.bodies[lsn] = b"%c%d" % (b"ab"[number % 2], number)
    for _ in due:
        q.advance(1)
    wanting = q.wanting("a", backlog=50)
    assert q.got(wanting) == [*range(0, 100, 2)]
    assert len(q.scans) <= 2 * 3000 // filtering.RECHECK


@pytest.mark.parametrize("limit", [{"max_length": 1}, {"ring_size": 1}])
def test_what_gives_way_unseen_within_a_batch_stands_before_nobody_any_more(limit: dict[str, int]) -> None:
    """As message by message: the first of the batch takes its room, and what comes then goes to who wants it."""
    q = House(0, **limit)
    wanting = q.wanting("a", backlog=9)
    first = q.publish(body=b"a0", not_before=[q.time + 5])
    q.advance(10)
    last = q.publish(3, body=b"a1")
    q.bodies.update({lsn: b"a%d" % at for at, lsn in enumerate([*first, *last])})
    assert q.got(wanting) == [1, 2, 3]
    assert q.queue.ready == 0
    q.queue.check()
