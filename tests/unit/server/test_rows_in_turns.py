"""The rows of a view come to a crowd of subscribers by turns of the server: nobody else waits for all of them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import pairwise
from unittest.mock import patch

import orjson
import pytest

from penstock.errors import PenstockError
from penstock.server.base.rounds import TURN_US, Turns
from penstock.server.follow import Follow
from penstock.server.views import row_source
from penstock.server.views.record_query import Event, Wish
from penstock.testing import Broker
from penstock.testing.instance import Instance

SETTINGS = {
    "topic": [{"name": "orders", "key": ["/id"]}],
    "view": [{"name": "groups", "source": "orders", "select": "/group, COUNT(/id) AS /n", "group_by": ["/group"]}],
}
SUBSCRIBERS, ROWS = 20, 30


class Subscriber:
    """To give it a portion takes a millisecond."""

    def __init__(self, instance: Instance, given: list[Subscriber]) -> None:
        self.clock, self.given = instance.clock, given
        self.rows: dict[str, bytes] = {}
        self.is_level = False

    def room(self) -> int:
        return 1 << 30

    def take(self, events: list[Event]) -> None:
        self.clock.advance(1000)
        self.given.append(self)
        for event in events:
            if event.kind == "oof":
                del self.rows[event.key]
            else:
                assert event.kind == "publish" or event.key not in self.rows
                self.rows[event.key] = event.body

    def level(self) -> None:
        self.is_level = True

    def ended(self, error: PenstockError | None) -> None:
        raise AssertionError(error)


class Crowd:
    """Subscribers of one topic."""

    def __init__(self, broker: Broker) -> None:
        assert broker.instance is not None
        self.broker, self.given = broker, list[Subscriber]()
        self.all = [Subscriber(broker.instance, self.given) for _ in range(SUBSCRIBERS)]

    def follow(self, topic: str, wish: Wish) -> None:
        self.broker.command(
            lambda instance: [Follow(instance.engine.views.events("/", "", topic, wish), one) for one in self.all]
        )

    @contextmanager
    def in_turns(self) -> Generator[None]:
        """What is given meanwhile is: in each there is time for some of it."""
        wait, ends = Turns.wait, [len(self.given)]

        def noted(turns: Turns, go_on: Callable[[], None]) -> None:
            ends.append(len(self.given))
            wait(turns, go_on)

        with patch.object(Turns, "wait", noted):
            yield
        turns = [after - before for before, after in pairwise([*ends, len(self.given)])]
        assert max(turns) <= 3 * TURN_US // 1000 < sum(turns)


@pytest.mark.parametrize(
    "wish",
    [
        Wish(oof=True),
        Wish(oof=True, filter="/n > 0", order_by=("/group",)),
        Wish(projection=("/group", "COUNT(/id) AS /n"), grouping=("/group",), oof=True),
    ],
    ids=["plain", "ordered", "projection"],
)
def test_a_crowd_is_given_the_rows_of_a_view_in_many_turns(wish: Wish, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_source, "PORTION", 10)
    with Broker(SETTINGS) as broker:
        for number in range(ROWS):
            broker.publish("orders", orjson.dumps({"id": number, "group": number}))
        crowd = Crowd(broker)
        with crowd.in_turns():
            crowd.follow("orders" if wish.projection else "groups", wish)
        assert all(one.is_level for one in crowd.all)
        for change in ({"id": ROWS, "group": ROWS}, {"id": ROWS + 1, "group": 1}, {"id": 2, "group": 3}):
            broker.publish("orders", orjson.dumps(change))
        (rows,) = {tuple(sorted(one.rows.items())) for one in crowd.all}
        counts = {row["group"]: row["n"] for row in map(orjson.loads, dict(rows).values())}
        assert counts == {number: 2 if number in (1, 3) else 1 for number in range(ROWS + 1) if number != 2}


@pytest.mark.parametrize("topic", ["groups", "orders"])
def test_what_is_due_to_a_crowd_of_conflated_subscribers_comes_in_many_turns(
    topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows had changed within one interval: a crowd, or who had very many rows, was told of all in one turn."""
    monkeypatch.setattr(row_source, "PORTION", 10)
    with Broker(SETTINGS) as broker:
        crowd = Crowd(broker)
        crowd.follow(topic, Wish(conflation=1_000_000, oof=True))
        for number in range(ROWS):
            broker.publish("orders", orjson.dumps({"id": number, "group": number}))
        with crowd.in_turns():
            broker.advance(1.0)
        (rows,) = {tuple(one.rows) for one in crowd.all}
        assert len(rows) == ROWS


def test_a_change_of_a_view_comes_to_a_crowd_in_many_turns() -> None:
    with Broker(SETTINGS) as broker:
        crowd = Crowd(broker)
        crowd.follow("groups", Wish(oof=True))
        with crowd.in_turns():
            broker.publish("orders", orjson.dumps({"id": 1, "group": 1}))
        assert all(list(one.rows) == ["[1]"] for one in crowd.all)
