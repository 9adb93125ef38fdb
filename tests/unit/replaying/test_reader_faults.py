"""A fault in what one reader of topics needs ends that reader, who is told; the others miss nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from penstock.server.base.faults import TOLD
from penstock.server.replaying import page as pages
from penstock.server.replaying.log_source import Follower, LogSource, Rate
from penstock.server.replaying.sources import Feed
from planting import Fault
from unit.replaying.test_replays import Taker, filled, follow, instance_of


class Place(NamedTuple):
    """Where a fault is planted."""

    owner: Any
    name: str
    whose: Callable[[Any, Follower, Taker], bool]  # whether it is raised for this object


PLACES = {
    "what is committed": Place(LogSource, "hand", lambda one, bad, _: one is bad.source),
    "its next page": Place(LogSource, "next", lambda one, bad, _: one is bad.source),
    "what takes it": Place(Taker, "take", lambda one, _, taker: one is taker),
    "its room": Place(Taker, "room", lambda one, _, taker: one is taker),
}


def plant(monkeypatch: pytest.MonkeyPatch, place: Place, bad: Follower, taker: Taker) -> None:
    before: Callable[..., Any] = getattr(place.owner, place.name)

    def planted(one: Any, *what: Any) -> Any:
        if place.whose(one, bad, taker):
            raise Fault
        return before(one, *what)

    monkeypatch.setattr(place.owner, place.name, planted)


@pytest.mark.parametrize("bad_first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize("name", PLACES)
def test_a_fault_at_one_reader_ends_it_alone(name: str, bad_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with filled(3) as broker:
        takers = Taker(), Taker(), Taker()
        readers = [follow(broker, one, start=None) for one in takers]
        at = 0 if bad_first else -1
        bad, his = readers[at], takers[at]
        others = [one for one in takers if one is not his]
        broker.publish("q", b"before")
        plant(monkeypatch, PLACES[name], bad, his)
        if name == "its next page":
            broker.command(lambda _: bad.source.fall_behind())  # so that it asks
        broker.publish("q", b"a")
        broker.publish("q", b"b")
        broker.advance(5)
        assert [one.bodies for one in others] == [[b"before", b"a", b"b"]] * 2
        assert [one.errors for one in others] == [[], []]
        assert [str(one) for one in his.errors] == [TOLD]
        assert bad.closed
        faults = instance_of(broker).engine.faults
        assert (faults.fatal, faults.ended) == (None, 1)
        assert instance_of(broker).core.queue("/", "q").ready == 6


def test_readers_of_one_time_are_each_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The alarm that was theirs was forgotten before they were told."""
    with filled(4) as broker:
        takers = Taker(), Taker(), Taker()
        readers = [follow(broker, one, rate=Rate(messages=1)) for one in takers]
        assert [one.bodies for one in takers] == [[b"0"]] * 3
        plant(monkeypatch, PLACES["its next page"], readers[0], takers[0])
        broker.advance(10)
        assert [one.bodies for one in takers] == [[b"0"], [b"0", b"1", b"2", b"3"], [b"0", b"1", b"2", b"3"]]
        assert [str(one) for one in takers[0].errors] == [TOLD]
        assert instance_of(broker).engine.faults.fatal is None


@pytest.mark.parametrize("owner", [pages, LogSource], ids=["in its thread", "on the loop"])
def test_a_fault_in_reading_the_log_is_told_to_who_reads(owner: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(self: object, *_: object) -> object:
        raise Fault

    with filled(3) as broker:
        live = Taker()
        follow(broker, live, start=None)
        monkeypatch.setattr(owner, "page_of" if owner is pages else "_was_read", planted)
        read = Taker()
        follow(broker, read)
        assert [str(one) for one in read.errors] == [TOLD]
        broker.publish("q", b"a")
        assert live.bodies == [b"a"]
        assert instance_of(broker).engine.faults.fatal is None


def test_a_fault_in_a_feed_ends_who_reads_it_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(*_: object) -> object:
        raise Fault

    with filled(3) as broker:
        taker = Taker()
        follow(broker, taker, start=None)
        monkeypatch.setattr(Feed, "_spread", planted)
        broker.publish("q", b"a")
        assert [str(one) for one in taker.errors] == [TOLD]
        assert not instance_of(broker).engine.replays.active, "its feed is gone"
        assert instance_of(broker).engine.faults.fatal is None
