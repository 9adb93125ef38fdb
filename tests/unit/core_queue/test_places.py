"""A queue's places are all there is of it, and whoever looks goes over them."""

from __future__ import annotations

import ast
import re
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from penstock.core.effects import Verb
from penstock.core.queue.parts import QueueParts
from penstock.core.queue.places import AVAILABLE, STATES, WAITING, Part, State, after
from penstock.core.queue.queue import Queue
from penstock.wire.flight import tickets
from planting import Plant
from unit.core_queue.test_queue import Bench

SOURCE = Path(__file__).resolve().parents[3] / "src" / "penstock"

HOLD: dict[str, set[Part]] = {
    "main": {"main"},
    "returned": {"returned"},
    "shares": {"tenants", "lines", "unkeyed"},
    "barriers": {"barriers"},
    "older": {"found"},
    "tail": {"tail"},
    "delays": {"retries", "scheduled"},
    "all_consumers": {"leases"},
    "letters": {"letters"},
    "foreign": {"theirs"},
}
"""Slots of a queue in which messages stand, and what the places there are called."""

HOLD_NOTHING = {
    "agenda", "arrived", "attendance", "behind", "declared", "dedup", "dispatch_most", "draining", "expiry", "figures",
    "free_credit", "id", "last_values", "lease_due", "leased", "leases_in_order", "limits", "loaded", "name",
    "outstanding", "pace", "paused_until", "plan", "ranking", "ranks", "redelivered_below",
    "roster", "ruling", "serial", "settings", "sharing", "targets", "used_at", "usual", "weight",
}  # fmt: skip
"""The others: counts, settings, consumers, and what is known of messages that stand elsewhere."""

DECIDES: dict[str, set[str]] = {
    "core/commands/common_parts.py": {"all_consumers"},  # who consumes from a queue that ends
    "core/commands/life.py": {"older"},  # whether what a pass finds has to wait for its end
    "core/publishing/arrivals.py": {"shares"},  # whether newcomers need keys
}
"""Who may name such a slot outside of `core.queue`, for a decision; nobody there looks at messages in it."""


def test_every_slot_of_a_queue_says_whether_messages_stand_in_it() -> None:
    slots = {name for kind in Queue.__mro__ for name in getattr(kind, "__slots__", ())}
    assert slots == {*HOLD, *HOLD_NOTHING}, "a new slot: messages in it need a place (`core.queue.places`)"
    assert set(QueueParts.__slots__) <= slots


def test_every_kind_of_place_belongs_to_a_slot() -> None:
    assert {part for parts in HOLD.values() for part in parts} == set(get_args(Part))


def test_states_at_the_doors_are_the_queues_own() -> None:
    assert set(tickets.STATES) == set(STATES) - {"inactive"}, "what is inactive is not looked at by queries"
    assert set(AVAILABLE) < set(WAITING) < set(STATES)


LOOKS = re.compile(rf"queue\w*\W+(?:{'|'.join(HOLD)})\b")
"""What stands wherever `named` finds something: most files need not be parsed."""


def named(text: str) -> Iterator[tuple[int, str]]:
    """Line and name of each slot of something called a queue that is looked at."""
    for node in ast.walk(ast.parse(text)) if LOOKS.search(text) else ():
        if isinstance(node, ast.Attribute) and node.attr in HOLD:
            owner = node.value
            called = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
            if "queue" in called:
                yield node.lineno, node.attr


def test_nobody_outside_names_a_part_of_a_queue_that_holds_messages() -> None:
    found = list[str]()
    for file in sorted(SOURCE.rglob("*.py")):
        where = file.relative_to(SOURCE).as_posix()
        if not where.startswith("core/queue/"):
            allowed = DECIDES.get(where, set())
            text = file.read_text(encoding="utf-8")
            found += (f"{where}:{line}: .{name}" for line, name in named(text) if name not in allowed)
    assert not found, "these ask a part instead of `queue.places`:\n" + "\n".join(found)


def test_the_test_above_sees_what_it_is_for() -> None:
    text = "for run in self.queue.returned.runs():\n    pass\n(queue\n .main.chunks())\nwords.main()"
    assert list(named(text)) == [(1, "returned"), (3, "main")]


@pytest.mark.parametrize("most", [1, 3, 5, 100])
def test_the_first_messages_are_the_first_of_all_places(most: int) -> None:
    bench = Bench()
    worker = bench.worker(max_backlog=4)
    lsns = bench.publish(12, gap=1)
    bench.queue.choke(worker)
    bench.settle(lsns[2:3], by=worker)
    bench.settle(lsns[1:2], by=worker, verb=Verb.RELEASE)
    bench.publish(3, not_before=[bench.time + 5] * 3)
    there = sorted({*lsns, *bench.queue.delays.scheduled.blocks[0].lsns} - {lsns[2]})
    found = bench.queue.first(most)
    some = sorted(lsn for _, run, _ in found for lsn in run.chunk)
    assert some[:most] == there[:most]
    assert len(some) <= 3 * most
    holders = {lsn: holder for state, run, holder in found for lsn in run.chunk if state == "leased"}
    assert set(holders.values()) == {worker}
    assert [lsn for _, run, _ in bench.queue.first(most, "delayed") for lsn in run.chunk][:most] == there[-3:][:most]


def test_no_message_in_line_is_older_than_the_floor() -> None:
    """In a ring a scheduled message enters at the head, so an older one may wait in line behind it."""
    bench = Bench(group_key="/g", ring_size=10)
    (older,) = bench.publish(1, keys=[("a",)])
    (younger,) = bench.publish(1, keys=[("a",)], not_before=[bench.time + 5])
    bench.advance(5)
    worker = bench.worker(max_backlog=1)
    assert bench.sent(worker) == [younger]
    assert [place.part for place in bench.queue.places("ready")] == ["lines"]
    assert bench.queue.floor() == older, "the log would let it go"
    bench.settle(range(younger, younger + 1), by=worker)
    assert bench.sent(worker) == [older]
    bench.queue.check()


def test_of_many_consumers_those_are_asked_for_the_floor_that_hold_something() -> None:
    """Retention asks each queue that changed, in a turn of the server: 500 clients that poll 200 queues are 100,000."""
    bench = Bench()
    some = [bench.worker(max_backlog=1) for _ in range(50)]
    [first, second] = bench.publish(2)
    asked = Plant(-1, "penstock.core.queue.settling")
    with asked.there():
        assert bench.queue.floor() == first
    assert asked.calls == 2
    bench.settle(range(first, first + 1), by=next(one for one in some if bench.sent(one) == [first]))
    assert bench.queue.floor() == second


def test_a_look_behind_a_message_is_no_look_at_all_that_follow() -> None:
    """Whoever goes through a queue in portions looks as many times: no portion costs what the whole queue does."""
    bench = Bench()
    bench.publish(1)
    bench.queue.main.append(range(200, 10**12))
    bench.queue.main.append(array("q", range(2 * 10**12, 2 * 10**12 + 5)))
    assert after(bench.queue, 0, 3).tolist() == [100, 200, 201]
    assert after(bench.queue, 10**12 - 3, 4).tolist() == [10**12 - 2, 10**12 - 1, 2 * 10**12, 2 * 10**12 + 1]
    assert after(bench.queue, 2 * 10**12 + 4, 4).tolist() == []


@pytest.mark.parametrize("most", [1, 3, 5, 100])
@pytest.mark.parametrize("states", [(), ("ready",), ("leased",), ("delayed",), WAITING], ids=str)
@pytest.mark.parametrize("options", [{}, {"max_priority": 3}, {"group_key": "/g"}, {"target_queue_depth": 6}], ids=str)
def test_a_look_behind_a_message_sees_every_place(
    options: Mapping[str, Any], states: tuple[State, ...], most: int
) -> None:
    bench = Bench(**options)
    worker = bench.worker(max_backlog=4)
    keys = {"keys": [("a",), ("b",)] * 6} if "group_key" in options else {}
    lsns = bench.publish(12, gap=1, **keys)
    bench.queue.choke(worker)
    held = [lsn for run in bench.queue.leased_runs() for lsn in run.chunk]
    bench.settle(held[1:2], by=worker)
    bench.settle(held[:1], by=worker, verb=Verb.RELEASE)
    bench.publish(3, not_before=[bench.time + 5] * 3, **({"keys": [("a",)] * 3} if keys else {}))
    there = sorted(lsn for chunk in bench.queue.chunks(*states) for lsn in chunk)
    for lsn in (0, lsns[0], lsns[5], lsns[-1], there[-1] if there else 1):
        assert (
            after(bench.queue, lsn, most).tolist()
            == sorted(one for chunk in bench.queue.chunks() for one in chunk if one > lsn)[:most]
        )
        assert after(bench.queue, lsn, most, *states).tolist() == [one for one in there if one > lsn][:most]
