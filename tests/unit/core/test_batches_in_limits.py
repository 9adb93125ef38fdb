"""What a batch becomes is what its messages would one by one, whoever gives way and whoever is let go by that."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest

from choices import spread
from penstock.expr import compile_filter
from penstock.records.entries import Topic
from unit.core.world import DURABLE, World, header

LATE = header(headers={"x-delay": 2000})
KINDS: Mapping[str, Mapping[str, Any]] = {
    "plain": {}, "levels": {"max_priority": 5}, "groups": {"group_key": "/g"}, "tenants": {"fairness_key": "/g"},
    "levels and groups": {"max_priority": 5, "group_key": "/g"},
    "levels and tenants": {"max_priority": 5, "fairness_key": "/g"},
    "tenants and groups": {"fairness_key": "/t", "group_key": "/g"}, "expression": {"priority_expression": "/p"},
    "expression and groups": {"priority_expression": "/p", "group_key": "/g"},
    "last values": {"last_value_key": "/g"}, "deadlines": {"expiration": 3_000_000, "group_key": "/g"},
}  # fmt: skip
LIMITS: Mapping[str, Mapping[str, Any]] = {
    "ring": {"ring_size": 3}, "length": {"max_length": 3}, "bytes": {"max_length_bytes": 80},
}  # fmt: skip


def received(kind: str, limit: str, together: bool, taken: int, start: str) -> list[bytes]:
    """Bodies in the order in which consumers got them: one who was there first, and one after a start."""
    world = World()
    queue = world.declare("q", **KINDS[kind], **LIMITS[limit])
    world.publish("q", b'{"g": 1, "t": 1, "p": 1, "n": 99}', properties=LATE)
    wants = None if "fairness_key" in KINDS[kind] else compile_filter("/t = 1")  # tenants take turns among all
    before = world.subscribe(queue, max_backlog=taken, filter=wants)
    topic = world.core.topic("/", "", "q")
    messages = list[tuple[Topic, bytes, bytes]]()
    for n in range(14):
        rank = n * 5 % 7
        body = b'{"g": %d, "t": %d, "p": %d, "n": %d}' % (n * n % 3, n % 2, rank, n)
        messages.append((topic, header(priority=rank % 5) if n % 3 else DURABLE, body))
    for some in [messages] if together else [[one] for one in messages]:
        world.publish_all(*some)
    got = list(world.inbox[before])
    world.advance(2)
    world.restart(clean=start == "clean")
    world.turn()
    queue = world.core.queue("/", "q")
    queue.check()
    after = world.subscribe(queue, max_backlog=20)
    world.advance(0)
    queue.check()
    return [world.rows[lsn][0].bodies[world.rows[lsn][1]] for lsn in got + world.inbox[after]]


# Four of each kind: with each limit, killed or not, and with each number taken.
@pytest.mark.parametrize(
    ("kind", "limit", "start", "taken"), spread(product(KINDS, LIMITS, ["clean", "killed"], [1, 4]), 44)
)
def test_a_batch_is_its_messages_one_by_one(kind: str, limit: str, start: str, taken: int) -> None:
    assert received(kind, limit, True, taken, start) == received(kind, limit, False, taken, start)
