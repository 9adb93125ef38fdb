"""A fault at one view stops that view, which gathers its source anew later; other views, queues and clients go on.

One row a place: where the fault is planted, and of which view.  What the view publishes afterwards is what it would
have published without the fault: nothing twice, and nothing missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import orjson
import pytest

from penstock.core.broker import Core
from penstock.core.view_contributions import AVAILABLE, AWAY, GONE, Join
from penstock.core.view_feed import Feed
from penstock.core.view_groups import Side, View
from penstock.errors import PenstockError
from penstock.log.simdisk import SimDisk
from penstock.server.asking.judging import Judges
from penstock.server.base.faults import TOLD, reports
from penstock.server.figures import view_facts
from penstock.server.opening import declare_views
from penstock.server.views import builder, evaluating, step_worker
from penstock.server.views.builder import Builder
from penstock.server.views.conflated import _Feed  # pyright: ignore[reportPrivateUsage]  # a fault is planted in it
from penstock.server.views.row_source import RowSource
from penstock.server.views.shown import Live
from penstock.server.views.step_worker import Worker
from penstock.wire.amqp import methods as m
from planting import Fault
from sim.serverkit import Life, clock

SECOND = 1_000_000
SUMS = {"select": "/r AS /r, SUM(/n) AS /n", "group_by": ["/r"]}
CONFIG: dict[str, object] = {
    "queue": [{"name": "orders"}, {"name": "more"}, {"name": "over", "underlying_topic": "totals"}],
    "view": [
        {"name": "totals", "source": "orders", **SUMS},
        {"name": "beside", "source": "orders", **SUMS},
        {"name": "moving", "source": "more", **SUMS},
        {"name": "above", "source": "totals", "select": "COUNT(1) AS /orders, SUM(/n) AS /n"},
        {
            "name": "joined", "join": ["[orders]./r = [more]./r"],
            "select": "[orders]./r AS /r, COUNT(1) AS /n", "group_by": ["[orders]./r"],
        },
    ],
}  # fmt: skip


class Place(NamedTuple):
    """Where a fault is planted."""

    owner: object
    name: str
    view: str = ""  # it fails for this one alone
    then: str = ""  # which view shows that it failed; else any
    state: int | None = None  # it fails for messages that come to be in this one


PLACES = {
    "what messages give": Place(View, "read", "totals"),
    "what messages give to a view that publishes nothing": Place(View, "read", "beside"),
    "a group that messages enter": Place(View, "enter", "totals"),
    "the middle of a group": Place(View, "_change", "totals"),
    "messages that are leased": Place(View, "move", "moving", state=AWAY),
    "messages that come back": Place(View, "move", "moving", state=AVAILABLE),
    "messages that are gone": Place(View, "move", "moving", state=GONE),
    "how many are gone": Place(View, "measure", "moving"),
    "rows that changed": Place(View, "changed", "totals"),
    "a row": Place(View, "_row", "totals"),
    "words for who follows": Place(Live, "_told", "totals"),
    "a view above": Place(View, "enter", "above"),
    "a body for a view above": Place(step_worker, "body_of", then="above"),
    "a side": Place(Side, "enter", then="joined"),
    "a side's messages": Place(Join, "_show", then="joined"),
    "a side's messages that are leased": Place(Join, "_hide", then="joined"),
    "rows side by side": Place(Join, "changes", then="joined"),
    "bodies": Place(step_worker, "elements_of"),
    "bodies that are read": Place(evaluating, "body_type"),
    "states": Place(evaluating, "states_of"),
    "a portion": Place(step_worker, "portion"),
    "what a turn decided": Place(Feed, "read"),
    "one record": Place(Feed, "_one"),
    "what became durable": Place(Worker, "committed"),
}

BEGINNINGS = {
    "a source": Place(Builder, "source"),
    "what a source holds": Place(builder, "held_by"),
    "a portion of it": Place(Builder, "_build"),
    "bodies of it": Place(step_worker, "elements_of_rows"),
    "what came meanwhile": Place(Builder, "_catch_up"),
}

PUBLISHING = {
    "rows to publish": Place(_Feed, "_publish"),
    "a batch of rows": Place(_Feed, "_next"),
    "rows that a filter judges": Place(Judges, "ready"),
    "how they are routed": Place(Core, "publish"),
}


class Plant:
    """Raises while it is there, before or instead of what is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
        self.there, self.raised, self.at = False, 0, list[int]()
        self.life: Life
        before: Callable[..., Any] = getattr(place.owner, place.name)

        def planted(*what: Any, **named: Any) -> Any:
            here = (not place.view or name_of(what[0]) == place.view) and place.state in (None, what[-1])
            if self.there and here and self.mine(what):
                self.raised += 1
                now = self.life.clock.mono() // SECOND
                if now not in self.at:
                    self.at.append(now)
                raise Fault
            return before(*what, **named)

        monkeypatch.setattr(place.owner, place.name, planted)
        self.mine: Callable[[tuple[Any, ...]], bool] = lambda _: True


def name_of(one: View | Live) -> str:
    return one.definition.name


def made() -> Life:
    life = Life(SimDisk(), clock(), config=CONFIG)
    begin(life)
    return life


def begin(life: Life) -> None:
    declare_views(life.engine.views, life.settings)
    life.run()


def pass_time(life: Life, seconds: int = 1) -> None:
    """The engine does what is due, a second at a time."""
    for _ in range(seconds):
        life.clock.advance(SECOND)
        life.log.tick()
        life.engine.tick()
        life.run()


def publish(life: Life, queue: str, *numbers: int) -> None:
    client = life.client(confirm=True)
    client.publish(queue, *(orjson.dumps({"r": number, "n": 1}) for number in numbers))
    life.run()
    assert sum(count if many else 1 for _, count, many in client.confirms()[-1:]) == len(numbers)
    client.lose()
    life.run()


def consume(life: Life) -> None:
    """Of three that are leased one is settled, one comes back, and one is dropped."""
    client = life.client(prefetch=3)
    client.consume("more")
    life.run()
    client.take(m.BasicConsumeOk)
    one, two, three = (message.tag for message in client.messages())
    client.ack(one)
    client.method(m.BasicNack(two, requeue=True))
    client.method(m.BasicReject(three, requeue=False))
    client.method(m.BasicCancel("c"))
    life.run()
    client.lose()
    life.run()
    pass_time(life)


def rows(life: Life, name: str) -> list[tuple[Any, ...]]:
    found = life.engine.views.shown("/", name)
    assert isinstance(found, Live)
    return sorted(tuple(orjson.loads(row).values()) for row in found.rows().values())


def contents(life: Life, queue: str) -> Counter[int]:
    return Counter(row["r"] for row in map(orjson.loads, life.contents(queue)))


def expected(life: Life) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of each view, computed from what the queues hold."""
    orders, more = contents(life, "orders"), contents(life, "more")
    totals = sorted(orders.items())
    both = [(r, n * more[r]) if more[r] else (r, n) for r, n in totals]
    return {
        "totals": totals, "beside": totals, "moving": sorted(more.items()),
        "above": [(len(totals), orders.total())] if totals else [], "joined": both,
    }  # fmt: skip


def published(life: Life) -> list[tuple[int, int]]:
    return [(row["r"], row["n"]) for row in map(orjson.loads, life.contents("over"))]


def is_level(life: Life) -> None:
    assert {name: rows(life, name) for name in expected(life)} == expected(life)
    assert not any(one["stopped"] for one in view_facts(life.engine))
    assert not life.engine.views.alarms.all


def failing(life: Life) -> set[str]:
    return {one["name"] for one in view_facts(life.engine) if one["error"]}


def failed(life: Life) -> set[str]:
    """The views that have failed lately."""
    return {one.name for one in life.engine.views.all_shown() if isinstance(one, Live) and one.setback.failures}


def work(life: Life, plant: Plant) -> None:
    """What leads to every place, with the fault there."""
    publish(life, "orders", 1, 2, 3)
    publish(life, "more", 1, 1, 2, 3)
    is_level(life)
    plant.there = True
    publish(life, "orders", 1, 4)
    publish(life, "more", 5)
    consume(life)
    publish(life, "orders", 5, 6)


TOLD_OF = [(1, 1), (2, 1), (3, 1), (1, 2), (4, 1), (5, 1), (6, 1)]


@pytest.mark.parametrize("name", PLACES)
def test_a_view_that_fails_begins_anew_alone_and_publishes_each_row_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, life = PLACES[name], made()
    plant, before = Plant(monkeypatch, place), reports.counts["view"]
    plant.life = life
    work(life, plant)
    assert plant.raised, "the act does not come by there"
    assert reports.counts["view"] > before
    assert life.engine.faults.fatal is None
    named = place.view or place.then
    assert failed(life) == {named} if named else failed(life)
    if named:
        others = expected(life)
        del others[named]
        others.pop("above" if named == "totals" else "", None)
        assert {one: rows(life, one) for one in others} == others, "each by itself"
    pass_time(life, 3)
    plant.there = False
    pass_time(life, 8)
    is_level(life)
    assert Counter(published(life)) == Counter(TOLD_OF)
    assert [n for r, n in published(life) if r == 1] == [1, 2], "in order"


@pytest.mark.parametrize("name", BEGINNINGS)
def test_a_start_goes_on_whatever_fails_as_a_view_begins(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    life = made()
    publish(life, "orders", 1, 2, 3)
    publish(life, "more", 1)
    life.kill()
    plant = Plant(monkeypatch, BEGINNINGS[name])
    plant.life = again = Life(life.disk, life.clock, config=CONFIG)
    plant.there = True
    declare_views(again.engine.views, again.settings)
    publish(again, "orders", 1)
    assert plant.raised
    assert failing(again) >= {"totals", "beside", "moving"}
    pass_time(again, 3)
    assert again.engine.faults.fatal is None
    plant.there = False
    pass_time(again, 8)
    is_level(again)
    publish(again, "orders", 2)
    assert published(again) == [(1, 1), (2, 1), (3, 1), (2, 2)]


@pytest.mark.parametrize("name", PUBLISHING)
def test_rows_that_cannot_be_published_wait_and_then_come_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    life = made()
    plant = Plant(monkeypatch, PUBLISHING[name])
    plant.life = life
    publish(life, "orders", 1, 2)
    if name in {"rows that a filter judges", "how they are routed"}:
        plant.mine = lambda what: any("totals" in str(getattr(one, "topics", one)) for one in what[1:])
    plant.there = True
    publish(life, "orders", 1, 3)
    pass_time(life, 8)
    assert plant.raised >= 3
    assert life.engine.faults.fatal is None
    assert published(life) == [(1, 1), (2, 1)]
    plant.there = False
    pass_time(life, 16)
    assert sorted(published(life)) == [(1, 1), (1, 2), (2, 1), (3, 1)]
    is_level(life)


@pytest.mark.parametrize("owner", [_Feed, RowSource])
def test_rows_that_are_not_taken_over_are_told_of_and_those_that_come_later_are_published(
    owner: type, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    life = made()
    plant = Plant(monkeypatch, Place(owner, "take" if owner is _Feed else "next"))
    plant.life = life
    publish(life, "orders", 1, 2)
    plant.there = True
    publish(life, "orders", 3)
    assert plant.raised == 1
    assert "rows of 'totals' that have just changed may be missing" in caplog.text
    assert not failed(life), "it is no fault of the view"
    plant.there = False
    pass_time(life, 2)
    publish(life, "orders", 1, 4)
    assert published(life) == [(1, 1), (2, 1), (1, 2), (4, 1)]
    is_level(life)


def test_a_message_that_always_fails_is_tried_less_and_less_often_also_after_a_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    life = made()
    plant = Plant(monkeypatch, Place(View, "read", "totals"))
    plant.mine = lambda what: any(b"7" in body for body in what[1].bodies)
    plant.life, plant.there = life, True
    start = life.clock.mono() // SECOND
    publish(life, "orders", 1)
    publish(life, "orders", 7)
    pass_time(life, 200)
    assert [at - start for at in plant.at] == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert failing(life) == {"totals"}
    assert published(life) == [(1, 1)]
    life.kill()
    plant.life = again = Life(life.disk, life.clock, config=CONFIG)
    begin(again)
    publish(again, "orders", 2)
    assert again.engine.faults.fatal is None
    assert rows(again, "beside") == expected(again)["beside"]
    plant.there = False
    pass_time(again, 2)
    is_level(again)


def test_who_asks_for_the_rows_of_a_view_that_begins_anew_is_refused_and_who_follows_hears_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    life, got = made(), list[str]()
    plant = Plant(monkeypatch, Place(View, "enter", "totals"))
    plant.life = life
    view = life.engine.views.shown("/", "totals")
    assert isinstance(view, Live)
    plant.there = True

    def refuse(error: PenstockError) -> None:
        got.append(str(error))

    publish(life, "orders", 1)
    view.when_current(lambda: got.append("rows"), refuse)
    view.when_current(lambda: got.append("level"))
    life.run()
    assert got == [f"view 'totals' gathers its source anew after {TOLD}; ask again in a minute"]
    [facts] = [one for one in view_facts(life.engine) if one["name"] == "totals"]
    assert facts["stopped"]
    assert facts["lag"]
    assert TOLD in str(view.facts()["error"])
    plant.there = False
    pass_time(life, 2)
    assert got[1:] == ["level"]
    view.when_current(lambda: got.append("rows"), refuse)
    life.run()
    assert got[2:] == ["rows"]
    assert "error" not in view.facts()


def test_a_view_that_is_dropped_while_it_rests_stays_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    life = made()
    plant = Plant(monkeypatch, Place(View, "enter", "beside"))
    plant.life, plant.there = life, True
    publish(life, "orders", 1)
    view = life.engine.views.shown("/", "beside")
    assert isinstance(view, Live)
    life.engine.views.drop(view)
    plant.there = False
    pass_time(life, 5)
    assert not life.engine.views.alarms.all
    assert view.rows() == {}
