"""Strangers: how many, from where, how long; and the lines that are written about them.  Time is moved by hand."""

from __future__ import annotations

import heapq
import logging
import resource
from collections.abc import Callable
from itertools import count

import pytest

from penstock.server.sockets.listening import LEAST, OWN, connections_most
from penstock.server.sockets.strangers import (
    HEARD_MOST,
    MOST,
    SHORT_S,
    TOLD_S,
    Complaints,
    Guards,
    Stranger,
    Terms,
    address_of,
)


class Time:
    """A clock and what is due by it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._due = list[tuple[float, int, Callable[[], None]]]()
        self._number = count()

    def later(self, seconds: float, work: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._number), work))

    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while self._due and self._due[0][0] <= until:
            self.now, _, work = heapq.heappop(self._due)
            work()
        self.now = until

    @property
    def idle(self) -> bool:
        """Whether nothing is due any more."""
        return not self._due


class House:
    """Doors under one set of terms; who was sent away is noted."""

    def __init__(self, **terms: float) -> None:
        self.time = Time()
        self.complaints = Complaints(self.time.later)
        self.guards = Guards(Terms(**terms), self.complaints, lambda: self.time.now, self.time.later)  # type: ignore[arg-type]
        self.guard = self.guards.of("amqp")
        self.sent_away = list[str]()

    def enter(self, name: str, host: str = "10.0.0.1") -> Stranger:
        return self.guard.enter(host, 5000, lambda: self.sent_away.append(name))

    def crowd(self, number: int, host: str = "10.0.0.{}") -> list[Stranger]:
        return [self.enter(str(one), host.format(one)) for one in range(number)]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, "penstock.server.doors")
    return lambda: [one.getMessage() for one in caplog.records]


def test_who_says_nothing_is_sent_away_after_its_time_and_who_logs_in_is_not(lines: Callable[[], list[str]]) -> None:
    house = House(time_s=10)
    house.enter("silent")
    known = house.enter("known")
    house.time.advance(9.5)
    known.known()
    assert not house.sent_away
    house.time.advance(1)
    assert house.sent_away == ["silent"]
    house.time.advance(100)
    assert house.sent_away == ["silent"]
    assert len(house.guard) == 0
    assert house.guard.closed == {"time": 1}
    assert lines() == ["amqp: 10.0.0.1 was sent away: it had not logged in after 10 s"]


def test_nobody_looks_when_nobody_is_there() -> None:
    house = House()
    house.enter("one").gone()
    house.time.advance(TOLD_S + 1)
    assert house.time.idle


def test_time_begins_anew_with_each_request_and_stands_still_while_somebody_waits_for_us() -> None:
    house = House(time_s=10)
    one, waits = house.enter("one"), house.enter("waits")
    waits.held = True
    for _ in range(5):
        house.time.advance(8)
        one.again()
    assert not house.sent_away
    waits.held = False
    house.time.advance(0.5)
    assert house.sent_away == ["waits"]


def test_whoever_was_known_is_a_stranger_again_when_it_begins_anew() -> None:
    house = House(time_s=10)
    one = house.enter("one")
    one.known()
    assert not one.counted
    one.again()
    assert one.counted
    assert house.guard._by_address["10.0.0.1"] == 1
    house.time.advance(10.5)
    assert house.sent_away == ["one"]


def test_where_all_places_are_taken_the_next_one_waits_for_the_first_that_is_free() -> None:
    house = House(sockets=4)
    crowd = house.crowd(4)
    assert not house.guard.room
    came = list[bool]()
    house.guard.when_room(lambda: came.append(True))
    assert not came
    crowd[2].known()
    assert came == [True]


def test_the_silent_have_to_go_soon_when_somebody_waits_and_only_then() -> None:
    house = House(sockets=4)
    house.crowd(3)
    house.time.advance(SHORT_S + 1)
    assert not house.sent_away
    came = list[str]()
    house.enter("fresh", "10.0.0.9")
    house.guard.when_room(lambda: came.append("next"))
    house.time.advance(0.1)
    assert (house.sent_away, came) == (["0"], ["next"]), "one place is wanted, and one in four gives way"
    house.enter("next", "10.0.0.9")
    house.guard.when_room(lambda: came.append("another"))
    house.time.advance(0.1)
    assert (house.sent_away, came) == (["0", "1"], ["next", "another"])
    assert house.guard.closed == {"sockets": 2}


def test_who_said_something_has_more_patience_than_who_said_nothing() -> None:
    house = House(sockets=4)
    spoke, *_ = house.crowd(4)
    spoke.heard(1)

    def wait_on() -> None:
        house.enter("next").heard(1)
        house.guard.when_room(wait_on)

    house.guard.when_room(wait_on)
    house.time.advance(SHORT_S - 0.05)
    assert house.sent_away == ["1", "2", "3"]
    house.time.advance(0.1)
    assert house.sent_away == ["1", "2", "3", "0"]


def test_those_of_a_crowded_address_go_first() -> None:
    house = House(sockets=8, per_address=3)
    house.enter("alone", "10.0.0.2")
    for one in house.crowd(7, "10.0.0.1"):
        one.heard(1)
    house.time.advance(SHORT_S)
    house.guard.when_room(lambda: None)
    house.time.advance(0.1)
    assert house.sent_away == ["0", "1"], "one was there longer and said nothing, but from where nobody else is"


def test_who_sends_without_an_end_is_sent_away(lines: Callable[[], list[str]]) -> None:
    house = House()
    known, one = house.enter("known"), house.enter("one")
    known.known()
    for _ in range(16):
        known.heard(HEARD_MOST // 16)
        one.heard(HEARD_MOST // 16)
    assert not house.sent_away
    known.heard(1)
    one.heard(1)
    assert house.sent_away == ["one"]
    assert lines() == ["amqp: 10.0.0.1 was sent away: it sent more than 1 MiB without a login"]


def test_descriptors_that_are_short_press_all_doors() -> None:
    house = House()
    house.enter("silent")
    house.guards.of("http").enter("10.0.0.2", 1, lambda: house.sent_away.append("http"))
    house.time.advance(SHORT_S + 1)
    house.guards.press()
    house.time.advance(0.3)
    assert house.sent_away == ["silent", "http"]


def test_beyond_the_number_of_one_address_its_silent_have_to_go_soon() -> None:
    house = House(time_s=6, sockets=100, per_address=3)
    for one in house.crowd(11, "10.0.0.1")[10:]:
        one.heard(1)
    others = house.crowd(2, "10.0.0.2")
    house.time.advance(1.9)
    assert not house.sent_away, "a burst has a moment to log in"
    house.time.advance(0.4)
    assert house.sent_away == ["0", "1", "2", "3", "4", "5", "6", "7"]
    assert house.guard._by_address["10.0.0.1"] == 3
    assert all(one.counted for one in others)


def test_a_burst_of_any_size_is_served_when_each_logs_in_soon() -> None:
    house = House(sockets=8, per_address=4)
    served = 0
    waiting = 1000

    def take() -> None:
        nonlocal waiting, served
        while waiting and house.guard.room:
            waiting -= 1
            house.time.later(0.05, house.enter("burst").known)
            served += 1
        if waiting:
            house.guard.when_room(take)

    take()
    house.time.advance(60)
    assert (served, waiting, house.sent_away) == (1000, 0, [])


def test_addresses_are_counted_by_who_has_them() -> None:
    assert address_of("10.1.2.3") == address_of("::ffff:10.1.2.3") == "10.1.2.3"
    assert address_of("2001:db8:1:2:3:4:5:6") == address_of("2001:db8:1:2::1") == "2001:db8:1:2::/64"
    assert address_of("2001:db8:1:3::1") != address_of("2001:db8:1:2::1")
    assert address_of("fe80::1%eth0") == "fe80::/64"
    assert address_of("no:address") == "no:address"


def test_who_owes_nothing_is_closed_without_a_word(lines: Callable[[], list[str]]) -> None:
    house = House(time_s=10)
    house.enter("idle").again(idle=True)
    house.time.advance(11)
    assert house.sent_away == ["idle"]
    assert lines() == []


# -- lines


def test_lines_are_bounded_and_what_is_not_written_is_counted(lines: Callable[[], list[str]]) -> None:
    house = House()
    for one in range(1000):
        house.complaints.tell("http", f"10.0.{one // 250}.{one % 250}", "it sent no HTTP")
    assert len(lines()) == MOST
    assert house.complaints.counts == {"http": 1000}
    house.time.advance(TOLD_S)
    assert lines()[MOST:] == [f"http: {1000 - MOST} more were sent away in 10 s, for the same or other reasons"]
    house.complaints.tell("http", "10.0.0.1", "it sent no HTTP")
    assert len(lines()) == MOST + 2


def test_the_same_word_about_the_same_host_is_written_once(lines: Callable[[], list[str]]) -> None:
    house = House()
    for _ in range(5):
        house.complaints.tell("http", "10.0.0.1", "it sent no HTTP")
        house.complaints.tell("http", "10.0.0.2", "it sent no HTTP")
    assert len(lines()) == 2


def test_each_door_that_is_a_process_has_as_many_connections_as_there_are_descriptors() -> None:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert connections_most() == connections_most(doors=1) == max(files - OWN, LEAST)
    assert connections_most(doors=4) == 4 * connections_most()
