"""What is gone as it is sent: from every part of its queue, once; it fills its consumer's backlog at most."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from unit.core.world import SECOND, World, header

LATE = header(headers={"x-delay": 1000})
KINDS: Mapping[str, Mapping[str, object]] = {
    "plain": {}, "tenants": {"fairness_key": "/t"},
    "tenants with a limit": {"fairness_key": "/t", "max_leased": (0, 1)},
    "tenants and groups": {"fairness_key": "/t", "group_key": "/n"}, "groups": {"group_key": "/n"},
    "groups in a ring": {"group_key": "/n", "ring_size": 9}, "last values": {"last_value_key": "/n"},
    "bytes": {"max_length_bytes": 1000}, "deadlines": {"expiration": 9 * SECOND}, "levels": {"max_priority": 5},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("late", [(1, 3, 5), (1, 3), (3, 5), (0, 2), (5,)], ids=str)
def test_what_stood_at_several_places_leaves_once(kind: str, late: tuple[int, ...]) -> None:
    """A consumer's backlog joins what it holds; what the queue counts stays in the parts in which it was taken."""
    world = World()
    queue = world.declare("q", semantics="at-most-once", fairness_model="round-robin", deliver="durable", **KINDS[kind])
    lsns = [
        world.publish("q", b'{"t": %d, "n": %d}' % (n % 2, n), properties=LATE if n in late else header()).first
        for n in range(6)
    ]
    world.advance(2)
    one = world.subscribe(queue, tag="one", max_backlog=4)
    world.advance(0)
    queue.check()
    assert len(world.inbox[one]) == queue.outstanding == 4
    assert queue.ready == 2
    world.publish("q", b'{"t": 2, "n": 6}')  # whoever has its key by now has it alone
    two = world.subscribe(queue, tag="two", max_backlog=9)
    world.advance(0)
    queue.check()
    assert sorted(world.inbox[one] + world.inbox[two])[:6] == lsns
    assert queue.ready == 0


def test_a_limit_of_leases_shortens_no_turn_of_what_is_leased_to_nobody() -> None:
    """Each message left its tenant's turn as if it were out: one of weight 3 had no more than others."""
    world = World()
    queue = world.declare(
        "q", semantics="at-most-once", fairness_model="round-robin", fairness_key="/t", weights=(("a", 3.0),),
        max_leased=(0, 1),
    )  # fmt: skip
    for tenant in ("a",) * 6 + ("b", "c") * 2:
        world.publish("q", b'{"t": "%s"}' % tenant.encode())
    one = world.subscribe(queue, max_backlog=20)
    world.advance(0)
    queue.check()
    told = [world.read([lsn]).bodies[0][-3:-2] for lsn in world.inbox[one]]
    assert b"".join(told) == b"aaabcaaabc"


ONCE = {"semantics": "at-most-once", "fairness_model": "round-robin", "deliver": "durable"}


@pytest.mark.parametrize("late", [False, True], ids=["who waits", "who comes later"])
@pytest.mark.parametrize("keys", [{}, {"fairness_key": "/t"}], ids=["plain", "tenants"])
@pytest.mark.parametrize(
    ("no_ack", "limit"), [(True, {"max_leased": (3, 0)}), (True, {"max_backlog": 3}), (False, {"max_leased": (3, 0)})]
)
def test_a_limit_of_leases_keeps_nothing_from_who_holds_none(
    no_ack: bool, limit: Mapping[str, object], keys: Mapping[str, object], late: bool
) -> None:
    """After so many the others waited for something to happen; those of tenants went in turn, though each was alone."""
    world = World()
    queue = world.declare("q", **limit, **keys, **({} if no_ack else ONCE))
    if not late:
        one = world.subscribe(queue, no_ack=no_ack)
    lsns = world.publish("q", *(b'{"t": %d}' % (number // 4) for number in range(10))).positions
    if late:
        one = world.subscribe(queue, no_ack=no_ack)
        world.advance(0)
    queue.check()
    assert queue.ready == 0
    assert sorted(world.inbox[one]) == list(lsns)
    if not late:
        assert world.inbox[one] == list(lsns)
