"""A fault at a conflated topic ends it for a while: it begins anew, and tells what differs, once.

One row a place, of a source with records and of one with rows.  Who follows the topic ends up with its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import orjson
import pytest

from penstock.errors import PenstockError
from penstock.log.simdisk import SimDisk
from penstock.server.base.faults import TOLD
from penstock.server.figures import view_facts
from penstock.server.follow import ENDLESS, Follow
from penstock.server.opening import declare_views
from penstock.server.views import conflated
from penstock.server.views.conflated import ConflatedTopic
from penstock.server.views.record_query import Wish
from penstock.server.views.record_source import RecordSource
from penstock.server.views.row_source import Conflated, RowSource
from penstock.server.views.shown import RowChange
from penstock.server.views.views import Views
from planting import Fault
from sim.serverkit import Life, clock

SECOND = 1_000_000
CONFIG: dict[str, object] = {
    "queue": [{"name": "orders"}],
    "topic": [{"name": "records", "key": ["/r"], "expiration": "20s"}],
    "view": [{"name": "sums", "source": "orders", "select": "/r AS /r, SUM(/n) AS /n", "group_by": ["/r"]}],
    "conflated_topic": [
        {"name": f"slow {name}", "source": name, "interval": "1s"} for name in ("records", "sums")
    ],
}  # fmt: skip


class Place(NamedTuple):
    owner: Any
    name: str
    source: str  # where it is met
    late: bool = False  # it has done its work


PLACES = {
    f"{owner.__name__}.{name} of {source}{' late' * late}": Place(owner, name, source, late)
    for owner, name, source in (
        (RecordSource, "next", "records"), (RowSource, "next", "sums"), (Conflated, "_put", "records"),
        (Conflated, "_put", "sums"), (Conflated, "next", "records"), (ConflatedTopic, "take", "records"),
        (ConflatedTopic, "take", "sums"), (conflated, "RowChange", "records"), (conflated, "RowChange", "sums"),
    )
    for late in (False, True)
}  # fmt: skip


class House:
    """A server with a follower of each conflated topic, and a fault at a place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
        self.life = Life(SimDisk(), clock(), config=CONFIG)
        declare_views(self.life.engine.views, self.life.settings)
        self.life.run()
        self.there, self.raised = False, 0
        before: Callable[..., Any] = getattr(place.owner, place.name)

        def planted(*what: Any, **named: Any) -> Any:
            if not self.there:
                return before(*what, **named)
            if place.late:
                before(*what, **named)
            self.raised += 1
            raise Fault

        monkeypatch.setattr(place.owner, place.name, planted)
        self.told: dict[str, dict[str, bytes]] = {}
        self.changes = list[tuple[str, RowChange]]()
        for name in ("records", "sums"):
            self.told[name] = {}
            self.topic(name).told.append(lambda changes, name=name: self.hear(name, changes))  # type: ignore[misc]

    def hear(self, name: str, changes: Sequence[RowChange]) -> None:
        rows = self.told[name]
        for change in changes:
            self.changes.append((name, change))
            assert rows.get(change.key) != change.body, "nothing is told twice"
            if change.body is None:
                del rows[change.key]
            else:
                rows[change.key] = change.body

    def topic(self, source: str) -> ConflatedTopic:
        found = self.life.engine.views.shown("/", f"slow {source}")
        assert isinstance(found, ConflatedTopic)
        return found

    def publish(self, *numbers: int) -> None:
        client = self.life.client()
        for name in ("orders", "records"):
            client.publish(name, *(orjson.dumps({"r": number, "n": len(self.changes)}) for number in numbers))
        self.life.run()
        client.lose()
        self.pass_time()

    def pass_time(self, seconds: int = 2) -> None:
        for _ in range(seconds):
            self.life.clock.advance(SECOND)
            self.life.log.tick()
            self.life.engine.tick()
            self.life.run()

    def stopped(self) -> set[str]:
        return {str(one["name"]) for one in view_facts(self.life.engine) if one["stopped"]}


@pytest.mark.parametrize("name", PLACES)
def test_a_conflated_topic_that_fails_begins_anew_and_tells_what_differs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = PLACES[name]
    house = House(monkeypatch, place)
    other = {"records": "sums", "sums": "records"}[place.source]
    house.publish(1, 2, 3)
    assert len(house.told[place.source]) == 3
    house.there = True
    house.publish(2, 4)
    house.there = False
    assert house.raised
    assert house.life.engine.faults.fatal is None
    assert f"slow {place.source}" in house.stopped()
    assert TOLD in str(house.topic(place.source).facts()["error"])
    house.publish(5)
    house.pass_time(6)
    assert not house.stopped()
    for one in (place.source, other):
        topic, found = house.topic(one), house.life.engine.views.shown("/", "sums")
        assert found is not None
        assert topic.count == 5
        assert topic.rows() == house.told[one], "all that differs was told"
        if one == "sums":
            assert sorted(topic.rows().values()) == sorted(found.rows().values())
    house.pass_time(20)
    assert house.topic("records").rows() == house.told["records"] == {}, "its records are over"


def test_rows_that_went_while_it_rested_are_told_of_when_it_is_level(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(monkeypatch, PLACES["RecordSource.next of records"])
    house.publish(1, 2)
    house.pass_time(15)
    house.there = True
    house.publish(3)
    house.pass_time(15)
    assert house.stopped() == {"slow records"}
    assert len(house.told["records"]) == 2
    house.there = False
    house.pass_time(20)
    assert not house.stopped()
    assert house.topic("records").rows() == house.told["records"] == {}


def test_one_whose_source_goes_while_it_rests_waits_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(monkeypatch, PLACES["RecordSource.next of records"])
    house.publish(1)
    house.there = True
    house.publish(2)
    house.there = False
    core, now = house.life.core, house.life.engine.now()
    core.delete_topic(now, "/", "", "records")
    house.pass_time(5)
    assert house.topic("records").rows() == house.told["records"] == {}
    assert not house.stopped()
    core.declare_topic(house.life.engine.now(), "/", "", "records", {"key": ["/r"]})
    house.publish(7)
    assert len(house.told["records"]) == 1


def test_a_fault_of_its_views_look_is_no_end_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(monkeypatch, Place(Views, "_look_at", "records"))
    house.publish(1)
    house.there = True
    house.life.declare("more")
    house.there = False
    assert house.raised == 2
    house.pass_time(4)
    assert not house.stopped()
    house.publish(2)
    assert all(len(rows) == 2 for rows in house.told.values())


class Fails:
    """A follower that fails at what it is told, and hears that it has ended."""

    def __init__(self, house: House, name: str) -> None:
        self.why: PenstockError | None = None
        shown = house.topic(name)
        others, shown.told = shown.told, []
        self.follow = Follow(RowSource(house.life.clock, shown, Wish(sow=False, oof=True)), self)
        shown.told += others  # which come behind it

    def room(self) -> int:
        return ENDLESS

    def take(self, portion: object) -> None:
        raise Fault

    def level(self) -> None: ...

    def ended(self, error: PenstockError | None) -> None:
        self.why = error


@pytest.mark.parametrize("changes", ["rows", "a source that goes"])
@pytest.mark.parametrize("name", ["records", "sums"])
def test_a_follower_that_fails_keeps_nothing_from_the_others(
    name: str, changes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House(monkeypatch, PLACES[f"ConflatedTopic.take of {name}"])
    house.publish(1, 2)
    fails = Fails(house, name)
    if changes == "rows":
        house.publish(2, 3)
    else:
        house.topic(name).let_go()
    assert TOLD in str(fails.why)
    assert house.topic(name).rows() == house.told[name]
    assert len(house.told[name]) == (3 if changes == "rows" else 0)
    assert not house.stopped()
    assert house.life.engine.faults.fatal is None
