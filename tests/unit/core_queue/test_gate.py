"""Dispatch that waits for consumers, in a queue without a world around it: also for the first look of their filters."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.effects import Effect, Scan, Verb, delivered
from penstock.core.outbox import Outbox
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.dispatching.joining import replace
from penstock.core.queue.explaining import explain_queue
from penstock.core.queue.queue import Queue
from penstock.records.chunks import Now, as_chunk
from penstock.records.entries import Publishes, Topic
from penstock.records.queue_settings import QueueSettings
from unit.core_queue.test_foreseen import Has


class Gate:
    """A queue that waits for two consumers, four messages in it, and one consumer without a filter."""

    def __init__(self, **settings: Any) -> None:
        self.time = 10
        self.sink = Outbox[Effect](100)
        self.queue = Queue(1, "/", "q", QueueSettings(consumers_before_dispatch=2, **settings))
        self.arrive(b"a", b"ab", b"b", b"ab")
        self.plain = self.consumer("plain")

    @property
    def now(self) -> Now:
        return Now(self.time, self.time)

    def consumer(self, tag: str, filter: str | None = None, **terms: Any) -> Consumer:
        matcher = None if filter is None else Has(filter)
        return self.queue.subscribe(self.now, self.sink, tag=tag, holder=None, filter=matcher, **terms)

    def arrive(self, *bodies: bytes) -> None:
        first, self.sink.next_lsn = self.sink.next_lsn, self.sink.next_lsn + len(bodies)
        ranks = [3] * len(bodies) if self.queue.ranks is not None else None
        self.queue.arrive(
            self.now, range(first, self.sink.next_lsn), self.sink, ranks=ranks,
            batch=Publishes(Topic("/", "", "q"), b"", [*bodies]),
        )  # fmt: skip

    def sent(self) -> dict[str, list[int]]:
        """What was delivered to whom; scans are still to be answered."""
        effects = self.sink.take_effects()
        self.scans = [effect for effect in effects if isinstance(effect, Scan)]
        out: dict[str, list[int]] = {}
        for one in delivered(effects):
            out.setdefault(one.consumer.tag, []).extend(one.chunk)
        return out

    def answer(self, *matching: int) -> None:
        """The one scan under way found these."""
        [scan] = self.scans
        self.queue.scanned(self.now, scan.token, [list(matching)], scan.chunk[-1], self.sink)


@pytest.mark.parametrize("settings", [{}, {"max_priority": 3}])
def test_dispatch_waits_until_the_filter_that_came_last_has_looked(settings: dict[str, Any]) -> None:
    gate = Gate(fairness_model="round-robin", **settings)
    gate.consumer("choosy", "b")
    assert gate.sent() == {}
    for reason in (reasons := explain_queue(gate.queue, gate.now)):
        assert reason.code == "standby"
        assert reason.text.endswith("waits until the filters of all have looked at what waits first")
    assert len(reasons) == 2
    gate.answer(101, 102, 103)
    assert gate.sent() == {"plain": [100, 102], "choosy": [101, 103]}


def test_it_waits_for_the_first_look_alone_and_not_for_all_of_a_deep_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.core.queue.dispatching.filtering.WALK_FIRST", 2)
    gate = Gate(fairness_model="round-robin")
    gate.consumer("choosy", "b")
    assert gate.sent() == {}
    assert list(gate.scans[0].chunk) == [100, 101]
    gate.answer(101)
    assert gate.sent() == {"plain": [100, 102, 103], "choosy": [101]}


def test_it_waits_for_the_look_at_what_came_back(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    getter = gate.consumer("getter", passive=True)
    assert gate.queue.pull(gate.now, getter, 4, gate.sink) == 4
    gate.queue.settle(gate.now, [range(100, 104)], Verb.RELEASE, gate.sink, by=getter)
    gate.sent()
    gate.consumer("choosy", "b", priority=1)
    assert gate.sent() == {}
    gate.answer(101, 102, 103)
    assert gate.sent() == {"plain": [100], "choosy": [101, 102, 103]}


def test_no_longer_than_the_delay_says() -> None:
    gate = Gate(delay_before_dispatch=5)
    gate.consumer("choosy", "b")
    gate.time += 5
    gate.queue.tick(gate.now, gate.sink)
    assert gate.sent() == {"plain": [100, 101, 102, 103]}
    gate.answer(101)
    assert gate.sent() == {}


def test_not_when_who_had_the_filter_has_left_or_has_another() -> None:
    gate = Gate()
    choosy = gate.consumer("choosy", "b")
    gate.queue.unsubscribe(gate.now, [choosy], gate.sink, requeue=True)
    assert gate.sent() == {}
    gate.consumer("second")
    assert gate.sent()
    gate = Gate(fairness_model="round-robin")
    choosy = gate.consumer("choosy", "b")
    replace(gate.queue, gate.now, choosy, gate.sink, filter=None, max_backlog=None)
    assert gate.sent() == {"plain": [100, 102], "choosy": [101, 103]}


def test_what_arrives_meanwhile_is_not_held_back_where_nothing_is_left_to_look_at() -> None:
    gate = Gate()
    getter = gate.consumer("getter", passive=True, no_ack=True)
    gate.consumer("choosy", "b")
    assert gate.sent() == {}
    gate.queue.settle(gate.now, [as_chunk([100, 101, 102, 103])], Verb.ACK, gate.sink)
    assert not gate.queue.pull(gate.now, getter, 1, gate.sink)
    gate.answer()
    gate.arrive(b"b")
    assert sum(map(len, gate.sent().values())) == 1
