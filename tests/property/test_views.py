"""Views kept up change by change against the same views computed anew."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from choices import examples
from penstock.core import view_contributions
from penstock.core.view_contributions import AVAILABLE, AWAY, GONE
from penstock.core.view_groups import Elements, View, body_of
from penstock.expr.view_definition import Definition
from penstock.server.views import builder, step_worker
from penstock.testing import Broker
from property.view_model import GROUPING, SELECT, rows, shown

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from([0.1, 0.2, 0.3, -0.1, 1.0, 2.5, 1e300, 1e-300, 3e15 + 0.5]),
    st.sampled_from(["", "a", "b", "é", "1", "1.0", "2.50", "10"]),
)
RECORDS = st.fixed_dictionaries(
    {
        "g": st.sampled_from(["n", "s", 1, 1.0, True, None, ""]),
        "v": VALUES,
        "w": st.one_of(st.none(), st.integers(0, 4)),
    }
)


def told(view: View) -> dict[str, Any]:
    return {
        orjson.dumps(key, default=str).decode(): shown(orjson.loads(body_of(view, row)))
        for key, row in view.rows.items()
    }


def expected(records: list[dict[str, Any]]) -> list[Any]:
    return sorted(repr(shown(row)) for row in rows(records).values())


class Kept(RuleBasedStateMachine):
    """A view that hears of entering, leaving and coming back, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.saved = view_contributions.BLOCK, view_contributions.SQUEEZED
        view_contributions.BLOCK, view_contributions.SQUEEZED = 4, 2
        self.view = View(Definition("v", "q", (SELECT,), GROUPING), weighed=True)
        self.records: dict[int, dict[str, Any]] = {}
        self.available: set[int] = set()
        self.next = 1
        self.seen: dict[Any, Any] = {}

    def teardown(self) -> None:
        view_contributions.BLOCK, view_contributions.SQUEEZED = self.saved

    @rule(some=st.lists(st.tuples(RECORDS, st.integers(0, 2), st.sampled_from([1, 1, 1, 2])), min_size=1, max_size=9))
    def enter(self, some: list[tuple[dict[str, Any], int, int]]) -> None:
        lsns, bodies, states = list[int](), list[bytes](), list[int]()
        for record, gap, state in some:
            self.next += gap
            lsns.append(self.next)
            self.records[self.next] = record
            bodies.append(orjson.dumps(record))
            states.append(state)
            if state == view_contributions.AVAILABLE:
                self.available.add(self.next)
            self.next += 1
        self.view.enter(self.view.read(Elements(lsns, [orjson.loads(b) for b in bodies], bodies, states=bytes(states))))

    def span(self, low: int, length: int) -> set[int]:
        return {lsn for lsn in self.records if low <= lsn < low + length}

    @rule(low=st.integers(0, 60), length=st.integers(1, 20))
    def leave(self, low: int, length: int) -> None:
        self.view.move([low, low + length], AWAY)
        self.available -= self.span(low, length)

    @rule(low=st.integers(0, 60), length=st.integers(1, 20))
    def back(self, low: int, length: int) -> None:
        self.view.move([low, low + length], AVAILABLE)
        self.available |= self.span(low, length)

    @rule(low=st.integers(0, 60), length=st.integers(1, 20))
    def gone(self, low: int, length: int) -> None:
        self.view.move([low, low + length], GONE)
        self.available -= self.span(low, length)
        for lsn in self.span(low, length):
            del self.records[lsn]

    @rule()
    def all_anew(self) -> None:
        self.view.clear()
        bodies = [orjson.dumps(self.records[lsn]) for lsn in sorted(self.records)]
        states = bytes(1 if lsn in self.available else 2 for lsn in sorted(self.records))
        if bodies:
            records = [orjson.loads(body) for body in bodies]
            self.view.enter(self.view.read(Elements(sorted(self.records), records, bodies, states=states)))
        assert not self.view.flush(), "a row is told again as it was"

    @precondition(lambda self: self.records)
    @rule()
    def all_gone(self) -> None:
        self.gone(0, self.next)

    @invariant()
    def it_is_what_it_would_be_anew(self) -> None:
        for change in self.view.flush():
            assert self.seen.get(change.key) == change.old
            if change.new is None:
                del self.seen[change.key]
            else:
                self.seen[change.key] = change.new
        assert self.seen == self.view.rows
        available = [self.records[lsn] for lsn in sorted(self.available)]
        assert sorted(map(repr, told(self.view).values())) == expected(copy.deepcopy(available))
        assert self.view.messages == len(self.records)
        assert self.view.size == self.weight_anew()

    def weight_anew(self) -> int:
        view, records = View(self.view.definition, weighed=True), [self.records[lsn] for lsn in sorted(self.records)]
        if records:
            view.enter(view.read(Elements(range(len(records)), records, list(map(orjson.dumps, records)))))
        return view.size


KeptTest = Kept.TestCase
KeptTest.settings = settings(max_examples=examples(40, 5), stateful_step_count=25, deadline=None)

CONFIG: dict[str, Any] = {
    "queue": [
        {"name": "graves"},
        {
            "name": "q",
            "lease_period": "30s",
            "max_cancels": 2,
            "dead_letter_exchange": "",
            "dead_letter_routing_key": "graves",
        },
    ],
    "view": [
        {"name": "v", "source": "q", "select": SELECT, "group_by": list(GROUPING)},
        {"name": "even", "source": "q", "select": "COUNT(1) AS /n", "filter": "/w % 2 = 0"},
        {"name": "above", "source": "v", "select": "COUNT(/group) AS /groups, SUM(/count) AS /values"},
        {"name": "dead", "source": "graves", "select": SELECT, "group_by": list(GROUPING)},
    ],
}  # fmt: skip


class OverAQueue(RuleBasedStateMachine):
    """The same in a broker: what happens to a queue's messages, crashes included."""

    @initialize(depth=st.sampled_from([None, None, 1000]), once=st.booleans(), retry=st.booleans(), tiny=st.booleans())
    def start(self, depth: int | None, once: bool, retry: bool, tiny: bool) -> None:
        self.bounds = pytest.MonkeyPatch()
        if tiny:  # nothing is kept in memory for views, and they take two messages at a time
            for module, name, value in (
                (step_worker, "LAG_BYTES", 0),
                (step_worker, "PORTION", 2),
                (builder, "PORTION", 2),
            ):
                self.bounds.setattr(module, name, value)
        config = copy.deepcopy(CONFIG)
        if once:
            config["queue"][1]["semantics"] = "at-most-once"
        if retry and not once:
            config["queue"][1]["retry"] = {"initial": "5s", "factor": 1.0, "max": "5s", "jitter": 0.0}
        if depth is not None:
            config["queue"][1]["target_queue_depth"] = depth
        self.broker = Broker(config=config)
        self.held: list[Any] = []
        self.subscriptions: list[Any] = []

    def teardown(self) -> None:
        if hasattr(self, "broker"):
            self.broker.close()
            self.bounds.undo()

    @rule(records=st.lists(RECORDS, min_size=1, max_size=5), delay=st.sampled_from([None, None, None, 7]),
          expiration=st.sampled_from([None, None, 20]))  # fmt: skip
    def publish(self, records: list[dict[str, Any]], delay: float | None, expiration: float | None) -> None:
        for record in records:
            self.broker.publish("q", orjson.dumps(record), delay=delay, expiration=expiration)

    @rule(backlog=st.integers(1, 4), filter=st.sampled_from([None, "/w > 1"]))
    def subscribe(self, backlog: int, filter: str | None) -> None:
        if len(self.subscriptions) < 3:
            self.subscriptions.append(self.broker.subscribe("q", filter=filter, max_backlog=backlog))

    @rule(what=st.sampled_from(["ack", "cancel", "expire"]), count=st.integers(1, 3))
    def settle(self, what: str, count: int) -> None:
        for subscription in self.subscriptions:
            self.held += subscription.take()
        some, self.held = self.held[:count], self.held[count:]
        for message in some:
            getattr(message, what)()

    @rule()
    def close(self) -> None:
        if self.subscriptions:
            self.subscriptions.pop(0).close()

    @rule(seconds=st.sampled_from([1.0, 6.0, 31.0]))
    def advance(self, seconds: float) -> None:
        self.broker.advance(seconds)

    @rule(which=st.sampled_from(["/w = 1", "/v > 2", "1 = 1"]))
    def ack_some(self, which: str) -> None:
        marks = [one.bookmark for one in self.broker.sow("q", filter=which)][:3]
        if marks:
            self.broker.ack("q", marks)

    @rule()
    def purge(self) -> None:
        self.broker.command(
            lambda instance: instance.core.purge_queue(instance.engine.now(), instance.core.queue("/", "q"))
        )

    @rule()
    def crash(self) -> None:
        self.broker.crash()
        self.broker.restart()
        self.held, self.subscriptions = [], []

    @invariant()
    def it_shows_what_is_available(self) -> None:
        if not hasattr(self, "broker"):
            return
        for view, queue in (("v", "q"), ("dead", "graves")):
            available = [one.json() for one in sorted(self.broker.sow(queue), key=lambda one: one.lsn)]
            kept = sorted(repr(shown(one.json())) for one in self.broker.sow(view))
            assert kept == expected(available)
            anew = self.broker.sow(queue, projection=SELECT, grouping=list(GROUPING))
            assert sorted(repr(shown(one.json())) for one in anew) == kept
            if queue == "q":
                even = sum(one.get("w") is not None and one["w"] % 2 == 0 for one in available)
                assert [one.json()["n"] for one in self.broker.sow("even")] == ([even] if even else [])
        groups = [one.json() for one in self.broker.sow("v")]
        counts = [one["count"] for one in groups]
        named = sum(one["group"] is not None for one in groups)
        above = [one.json() for one in self.broker.sow("above")]
        assert above == ([{"groups": named, "values": sum(counts)}] if groups else [])


OverAQueueTest = OverAQueue.TestCase
OverAQueueTest.settings = settings(
    max_examples=examples(12), stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.parametrize("values", [[0.1] * 10, [1e16, 1.0, -1e16], [1e308, 1e308], [2**63, 2**63, 2**63]])
def test_taking_away_leaves_no_rounding_behind(values: list[float]) -> None:
    view = View(Definition("v", "q", ("SUM(/v) AS /s, AVG(/v) AS /a, STDDEV_POP(/v) AS /d",)))
    record = [{"v": 0.3}]
    view.enter(view.read(Elements([1], record)))
    view.flush()
    before = dict(view.rows)
    view.enter(view.read(Elements(range(2, 2 + len(values)), [{"v": value} for value in values])))
    view.flush()
    assert view.rows != before
    view.move([2, 100], GONE)
    view.flush()
    assert view.rows == before
