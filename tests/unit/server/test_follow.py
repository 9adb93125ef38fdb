"""What is followed: a snapshot whole before what changes, slow readers that cost little, and threads that are woken."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.errors import NotFound, PenstockError, Unavailable
from penstock.server.flight import handover as flight_handover
from penstock.server.follow import Asking, Follow, Mapped, Reader, Sign, Source
from penstock.server.views import record_source, row_source, shown
from penstock.server.views.record_query import Event, Wish
from penstock.testing import Broker

VIEW = {"name": "totals", "source": "orders", "select": "/r AS /r, SUM(/n) AS /n", "group_by": ["/r"]}
PRICES = {"name": "prices", "key": ["/s"]}
CONFIG: dict[str, object] = {
    "queue": [{"name": "orders"}],
    "view": [VIEW],
    "topic": [{"name": "prices", "key": ["/s"]}],
}


class Taker:
    """Room as a test says; what happened in order."""

    def __init__(self, room: int) -> None:
        self.most = room
        self.told: list[object] = []
        self.bodies: list[bytes] = []

    def room(self) -> int:
        return self.most

    def take(self, portion: list[Event], /) -> None:
        assert len(portion) <= self.most
        self.bodies += [event.body for event in portion]
        self.most -= len(portion)
        self.told += [(event.kind, event.body) for event in portion]

    def level(self) -> None:
        self.told.append("level")

    def ended(self, error: PenstockError | None) -> None:
        self.told.append(error)


def follow(broker: Broker, topic: str, taker: Taker, **wish: object) -> Follow[list[Event]]:
    return broker.command(
        lambda instance: Follow(instance.engine.views.events("/", "", topic, Wish(**wish)), taker)  # type: ignore[arg-type]
    )


def go_on(broker: Broker, followed: Follow[list[Event]], taker: Taker, room: int) -> None:
    taker.most = room
    broker.command(lambda _: followed.step())


@pytest.mark.parametrize("topic", ["totals", "prices"])
@pytest.mark.parametrize("interval", [None, 1_000_000])
def test_who_has_little_room_is_told_that_the_rows_have_come_when_they_have(topic: str, interval: int | None) -> None:
    with Broker(CONFIG) as broker:
        for number in range(5):
            broker.publish("orders", b'{"r": %d, "n": 1}' % number)
            broker.publish("prices", b'{"s": %d}' % number)
        taker = Taker(room=2)
        followed = follow(broker, topic, taker, conflation=interval)
        assert [one for one in taker.told if one == "level"] == []
        broker.publish("orders", b'{"r": 0, "n": 1}')
        broker.publish("prices", b'{"s": 0, "p": 1}')
        broker.advance(1.0)
        for _ in range(5):
            go_on(broker, followed, taker, room=2)
        kinds = [one if isinstance(one, str) else one[0] for one in taker.told]  # type: ignore[index]
        assert kinds == ["sow"] * 5 + ["level", "publish"]


@pytest.mark.parametrize(("wish", "made"), [({}, 0), ({"oof": True}, 0), ({"filter": "/n > 0", "order_by": "/r"}, 5)])
def test_rows_are_written_out_when_they_are_read(
    monkeypatch: pytest.MonkeyPatch, wish: dict[str, object], made: int
) -> None:
    """Each reader of a view had all of its rows in memory, whether it read them or not."""
    written, body = list[object](), shown.body_of
    with Broker(CONFIG) as broker:
        for number in range(5):
            broker.publish("orders", b'{"r": %d, "n": 1}' % number)
        broker.advance(1.0)
        monkeypatch.setattr(shown, "body_of", lambda view, row: written.append(row) or body(view, row))
        taker = Taker(room=0)
        followed = follow(broker, "totals", taker, **wish)
        assert len(written) == made
        broker.publish("orders", b'{"r": 4, "n": 1}')
        broker.advance(1.0)
        del written[:]
        go_on(broker, followed, taker, room=2)
        assert len(written) == 2
        go_on(broker, followed, taker, room=100)
        sums = [b'{"r":%d,"n":1}' % number for number in range(5)]
        assert taker.told == [*(("sow", one) for one in sums), "level", ("publish", b'{"r":4,"n":2}')]


def test_of_rows_that_change_for_ever_a_slow_reader_holds_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_source, "WAITING_MOST", 20)
    with Broker(CONFIG) as broker:
        taker = Taker(room=0)
        source = broker.command(lambda instance: instance.engine.views.events("/", "", "totals", Wish(oof=True)))
        followed: Follow[list[Event]] = broker.command(lambda _: Follow(source, taker))
        assert isinstance(source, row_source.RowSource)
        for _ in range(100):
            for row in range(3):
                broker.publish("orders", b'{"r": %d, "n": 1}' % row)
        assert len(source.waiting) <= 21
        go_on(broker, followed, taker, room=1000)
        rows = list(taker.bodies)
        assert taker.told[0] == "level"
        assert rows[-3:] == [b'{"r":%d,"n":100}' % row for row in range(3)], "the newest of each"
        assert len(rows) < 30


def test_who_does_not_read_what_is_removed_is_told_to_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_source, "REMOVED_MOST", 4)
    with Broker(CONFIG) as broker:
        slow, quick = Taker(room=0), Taker(room=1000)
        follow(broker, "prices", slow, oof=True)
        follow(broker, "prices", quick, oof=True)
        for _ in range(3):
            for number in range(2):
                broker.publish("prices", b'{"s": %d}' % number)
            broker.sow_delete("prices", filter="/s >= 0")
        level, error = slow.told
        assert level == "level"
        assert isinstance(error, Unavailable)
        assert "begin anew" in str(error)
        assert [one[0] for one in quick.told[1:]] == ["publish", "publish", "oof", "oof"] * 3  # type: ignore[index]


def test_a_pause_an_end_and_a_failure() -> None:
    class Numbers(Source[list[int]]):
        """1, 2, ... up to an end; then it fails, if it is to."""

        def __init__(self, end: int, error: PenstockError | None = None) -> None:
            self.at, self.end, self.error, self.closed = 0, end, error, 0

        def begin(self, reader: Reader[list[int]]) -> None:
            reader.step()

        def next(self, room: int) -> list[int] | Sign | None:
            if self.at == self.end:
                if self.error is not None:
                    raise self.error
                return Sign.OVER
            if room <= 0:
                return None
            self.at += 1
            return [self.at]

        def close(self) -> None:
            self.closed += 1

    class Into:
        def __init__(self, *pauses: int) -> None:
            self.told: list[object] = []
            self.pauses = pauses
            self.follow: Follow[list[int]] | None = None

        def room(self) -> int:
            return 1

        def take(self, portion: list[int], /) -> None:
            self.told += portion
            if self.follow is not None and portion[0] in self.pauses:
                self.follow.pause()

        def level(self) -> None: ...

        def ended(self, error: PenstockError | None) -> None:
            self.told.append(error)

    gone = NotFound("gone")
    for error in (None, gone):
        numbers, into = Numbers(4, error), Into(2)
        Follow(Mapped(numbers, lambda some: [10 * one for one in some]), into).close()
        assert into.told == [10, 20, 30, 40, error]
        assert numbers.closed == 1
    numbers, into = Numbers(0), Into(3)
    numbers.begin = lambda reader: None  # type: ignore[method-assign]
    into.follow = followed = Follow(numbers, into)
    numbers.end = 5
    followed.step()
    followed.step()
    assert into.told == [1, 2, 3]
    followed.resume()
    assert into.told == [1, 2, 3, 4, 5, None]
    assert followed.closed


class Lists(flight_handover.Outlet[list[int]]):
    """Numbers that stand for bytes."""

    def cost(self, portion: list[int]) -> int:
        return sum(portion)

    def batch(self, portions: list[list[int]], schema: pa.Schema) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"n": [one for portion in portions for one in portion]})

    def completed(self, *, last: bool) -> bytes:
        return b"last" if last else b"level"


def test_who_found_no_room_while_a_batch_was_sent_goes_on() -> None:
    """The queue fills up while the thread waits for its client, and has room again before the thread looks."""
    most = flight_handover.QUEUED_MOST
    queue, woken = Lists(1, lambda: most), list[int]()
    pieces = queue.batches(pa.schema([("n", pa.int64())]), lambda: False, lambda: woken.append(1))
    assert queue.room() > 0
    queue.take([most - 10])
    next(pieces)  # is being sent
    queue.take([11])
    assert queue.room() == 0, "the source waits from here on"
    queue.ended(None)
    rest = list(pieces)
    assert woken, "nobody would ever ask the source again"
    assert rest[-1][1] == b"last"


def test_a_source_may_be_asked_by_whoever_likes() -> None:
    woken = list[int]()
    reader: Asking[list[int]] = Asking(lambda: woken.append(1), lambda _: None)
    outer = Asking[list[int]].within(reader)
    outer.step()
    assert woken == [1]
    assert reader.room() == 0
    assert not outer.paused
