"""What replays cost and hold: nothing without readers, the log for those that move, the loop's timers, a broken log."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from unittest.mock import Mock

import pytest

from penstock.errors import LogBroken, NotFound, PenstockError
from penstock.history.spans import Stretch
from penstock.server import replaying
from penstock.server.base.rounds import TURN_US
from penstock.server.flight import followed
from penstock.server.replaying import page as page_module
from penstock.server.replaying.log_source import Asked, Follower, Rate
from penstock.server.replaying.page import Page
from penstock.server.replaying.selection import Selection
from penstock.server.upkeep.retention import HOLD_US
from penstock.testing import Broker
from penstock.testing.instance import Instance
from penstock.wire.flight.commands import MESSAGES, select

Q = Selection.topic("/", "", "q")


class Taker:
    def __init__(self, room: int = 1 << 30) -> None:
        self.most = room
        self.bodies: list[bytes] = []
        self.errors: list[PenstockError] = []

    def room(self) -> int:
        return self.most

    def take(self, page: Page) -> None:
        self.bodies += page.bodies
        self.most -= len(page)

    def level(self) -> None:
        pass

    def ended(self, error: PenstockError | None) -> None:
        self.errors.append(error)


def instance_of(broker: Broker) -> Instance:
    assert broker.instance is not None
    return broker.instance


def follow(broker: Broker, taker: Taker, start: int | None = 1, rate: Rate | None = None) -> Follower:
    engine = instance_of(broker).engine
    return broker.command(lambda _: Follower(engine.replays.source(Q, start=start, rate=rate), taker))


def filled(count: int) -> Broker:
    broker = Broker({"queue": [{"name": "q"}]})
    for number in range(count):
        broker.publish("q", b"%d" % number)
    return broker


def test_without_readers_nothing_is_gathered_or_kept() -> None:
    with filled(3) as broker:
        replays = instance_of(broker).engine.replays
        assert not replays.active
        assert replays.floor() is None
        follower = follow(broker, Taker())
        assert replays.active
        broker.command(lambda _: follower.close())
        follower.close()
        assert not replays.active
        assert replays.floor() is None


def test_what_has_no_room_waits_in_the_log_and_not_in_memory() -> None:
    with filled(5) as broker:
        taker = Taker(room=2)
        follower = follow(broker, taker)
        assert taker.bodies == [b"0", b"1"]
        for number in range(5, 10):
            broker.publish("q", b"%d" % number)
        assert taker.bodies == [b"0", b"1"]
        assert not follower.source.live
        taker.most = 100
        broker.command(lambda _: follower.step())
        assert taker.bodies == [b"%d" % number for number in range(10)]
        assert follower.source.live


def test_a_reader_that_moves_holds_the_log_and_one_that_stands_still_does_not_for_ever() -> None:
    with filled(3) as broker:
        engine = instance_of(broker).engine
        taker = Taker(room=1)
        follower = follow(broker, taker)
        held = follower.source.position
        assert engine.reading() <= held < engine.log.durable
        broker.advance(HOLD_US / 1e6 - 1)
        assert engine.reading() <= held
        broker.advance(2)
        assert engine.reading() > held
        taker.most = 100
        broker.command(lambda _: follower.step())
        assert follower.source.live
        assert engine.reading() >= engine.log.durable, "a live reader holds nothing back"


def test_a_reader_that_retention_has_passed_is_told() -> None:
    with filled(3) as broker:
        taker = Taker(room=0)
        follower = follow(broker, taker)
        taker.most = 100
        follower.source.cursor = -5  # what it wanted is gone
        broker.command(lambda _: follower.step())
        assert isinstance(taker.errors[0], NotFound)
        assert "retention has passed" in str(taker.errors[0])
        assert follower.closed


def test_a_rate_sets_the_engines_timer() -> None:
    with filled(3) as broker:
        engine = instance_of(broker).engine
        taker = Taker()
        follow(broker, taker, rate=Rate(messages=1))
        assert len(taker.bodies) == 1
        assert engine.next_deadline()[1] == engine.clock.mono() + 1_000_000
        broker.advance(1.0)
        assert len(taker.bodies) == 2


def test_readers_of_a_broken_log_are_told() -> None:
    with filled(3) as broker:
        engine = instance_of(broker).engine
        taker = Taker()
        follower = follow(broker, taker)
        broker.command(lambda _: engine.break_down(LogBroken("the disk is gone")))
        assert isinstance(taker.errors[0], LogBroken)
        assert follower.closed
        assert taker.bodies == [b"0", b"1", b"2"]


def test_readers_of_the_same_topics_and_filter_share_a_feed() -> None:
    with filled(1) as broker:
        replays = instance_of(broker).engine.replays
        takers = [Taker() for _ in range(5)]
        followers = [follow(broker, taker, start=None) for taker in takers]
        broker.publish("q", b"1")
        assert all(taker.bodies == [b"1"] for taker in takers)
        assert len(replays._feeds) == 1  # pyright: ignore[reportPrivateUsage]
        for follower in followers:
            broker.command(lambda _, one=follower: one.close())
        assert not replays._feeds  # pyright: ignore[reportPrivateUsage]


def test_pages_that_were_kept_for_one_are_no_part_of_what_comes_later() -> None:
    """A page that was kept, then one that nobody needed kept, then another: who comes from the past gets all three."""
    with filled(0) as broker:
        slow, late, past = Taker(room=0), Taker(room=0), Taker(room=0)
        first = follow(broker, slow, start=None)
        broker.publish("q", b"0")  # kept for the slow one
        slow.most = 100
        broker.command(lambda _: first.step())
        assert first.source.live
        broker.publish("q", b"1")  # nobody is behind
        follow(broker, late, start=None)
        reader = follow(broker, past, start=1)
        broker.publish("q", b"2")  # kept for the late one
        past.most = 100
        broker.command(lambda _: reader.step())
        assert past.bodies == [b"0", b"1", b"2"]
        assert slow.bodies == [b"0", b"1", b"2"]


class Slow(Taker):
    """To give it anything takes a millisecond."""

    def __init__(self, broker: Broker, given: list[Slow]) -> None:
        super().__init__()
        self.clock, self.given = instance_of(broker).clock, given

    def take(self, page: Page) -> None:
        super().take(page)
        self.clock.advance(1000)
        self.given.append(self)


def turns_of(broker: Broker, given: list[Slow], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many were given something up to the end of each turn, as far as somebody has to wait for the next."""
    turns, ends = instance_of(broker).engine.turns, list[int]()
    waits = turns.wait

    def wait(go_on: Callable[[], None]) -> None:
        ends.append(len(given))
        waits(go_on)

    monkeypatch.setattr(type(turns), "wait", lambda _, go_on: wait(go_on))
    return ends


@pytest.mark.parametrize("start", [None, 1])
def test_a_crowd_of_readers_is_given_a_page_in_many_turns_each_of_them_once(
    start: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who are live as well as those who read the log, so that nobody else waits for all of them."""
    with filled(1) as broker:
        given = list[Slow]()
        crowd = [Slow(broker, given) for _ in range(100)]
        for one in crowd:
            follow(broker, one, start)
        given.clear()
        ends = turns_of(broker, given, monkeypatch)
        for number in range(3):
            broker.publish("q", b"%d" % number)
        before = [] if start is None else [b"0"]
        assert all(one.bodies == [*before, b"0", b"1", b"2"] for one in crowd)
        assert len(given) == 300
        assert max(after - before for before, after in pairwise([0, *ends, 300])) <= 2 * TURN_US // 1000
        broker.publish("q", b"3")
        assert all(one.bodies[-1] == b"3" for one in crowd)
        assert instance_of(broker).engine.replays.kept.bytes == 0, "nothing is kept for those who have it"


def test_a_crowd_that_begins_at_one_place_has_the_log_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Mock(wraps=replaying.look)
    monkeypatch.setattr(replaying, "look", looks)
    monkeypatch.setattr(page_module, "PAGE_ROWS", 10)
    with filled(100) as broker:
        takers = [Taker(room=0) for _ in range(50)]
        followers = [follow(broker, taker) for taker in takers]
        for room in (7, 40, 1 << 30):
            for taker, follower in zip(takers, followers, strict=True):
                taker.most = room
                broker.command(lambda _, one=follower: one.step())
        assert all(taker.bodies == [b"%d" % number for number in range(100)] for taker in takers)
        assert looks.call_count <= 20
        broker.publish("q", b"100")
        assert all(taker.bodies[-1] == b"100" for taker in takers)
        assert instance_of(broker).engine.replays.kept.bytes == 0


def test_who_has_a_rate_does_not_have_the_log_read_for_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Mock(wraps=replaying.look)
    monkeypatch.setattr(replaying, "look", looks)
    with filled(40) as broker:
        takers = [Taker() for _ in range(20)]
        for taker in takers:
            follow(broker, taker, rate=Rate(messages=1))
        for _ in range(30):
            broker.advance(1)
        assert all(taker.bodies == [b"%d" % number for number in range(31)] for taker in takers)
        assert looks.call_count <= 2, "all began at one place"


def test_what_a_rate_holds_back_counts_and_goes_where_memory_is_short() -> None:
    """A page for each replay that goes slowly counted against nothing."""
    with filled(40) as broker:
        replays, taker = instance_of(broker).engine.replays, Taker()
        follower = follow(broker, taker, rate=Rate(size=2))
        broker.advance(20)  # whoever else kept pages has let them go
        held, given = replays.kept.bytes, taker.bodies[:]
        assert held >= 40 - len(given) > 0
        assert broker.command(lambda _: replays.give(1)) == held
        assert replays.kept.bytes == 0
        for _ in range(9):
            broker.advance(1)
        assert taker.bodies == [b"%d" % number for number in range(len(taker.bodies))]
        assert 40 > len(taker.bodies) > len(given)
        assert replays.kept.bytes > 0
        broker.command(lambda _: follower.close())
        assert replays.kept.bytes == 0


def test_what_was_read_for_one_is_cut_for_who_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with filled(20) as broker:
        engine, all_, some = instance_of(broker).engine, Taker(), Taker()
        lazy, first = Taker(room=0), engine.log.durable - 19
        follow(broker, lazy)
        follow(broker, all_)
        broker.command(lambda _: engine.replays.start(Asked(Q), some, Stretch(first + 3, first + 7)))
        assert all_.bodies == [b"%d" % number for number in range(20)]
        assert some.bodies == [b"3", b"4", b"5", b"6"]
        assert some.errors == [None]


def test_a_page_is_made_a_batch_once_for_all_who_follow_with_the_same_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Mock(wraps=followed.message_batch)
    monkeypatch.setattr(followed, "message_batch", made)
    wide, narrow = (select(MESSAGES, columns) for columns in (("lsn", "topic", "time", "body"), ("lsn", "body")))
    asked = [wide] * 20 + [narrow] * 20
    with filled(0) as broker:
        outlets = [followed.PageOutlet(7, lambda: 1 << 30) for _ in asked]
        engine = instance_of(broker).engine
        for outlet in outlets:
            broker.command(lambda _, to=outlet: Follower(engine.replays.source(Q), to))
        for number in range(3):
            broker.publish("q", b"%d" % number)
        for outlet in outlets:
            outlet.ended(None)
        pieces = [list(outlet.batches(schema, bool, bool)) for outlet, schema in zip(outlets, asked, strict=True)]
    assert made.call_count == 2
    rows = [[row for piece in some if not isinstance(piece, tuple) for row in piece.to_pylist()] for some in pieces]
    assert [row["body"] for row in rows[0]] == [b"0", b"1", b"2"]
    assert all(some == rows[0] for some in rows[:20])
    assert all(some == [{"lsn": row["lsn"], "body": row["body"]} for row in rows[0]] for some in rows[20:])
