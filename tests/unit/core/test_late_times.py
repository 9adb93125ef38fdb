"""Times that somebody says: those that are no dates are refused, whoever says them, and nothing changes."""

from __future__ import annotations

import pytest

from penstock.core.publishing.published import read_traits
from penstock.errors import InvalidArgument
from penstock.records.properties import Properties, encode
from penstock.units import LATEST
from unit.core.world import World

BEYOND = (LATEST + 1, 2**61, 2**62, 2**63 - 1, 2**63, 2**64)


@pytest.fixture
def world() -> World:
    made = World()
    made.declare("q")
    made.publish("q", b"1")
    return made


@pytest.mark.parametrize("moment", BEYOND)
def test_a_queue_is_not_halted_until_then(world: World, moment: int) -> None:
    queue = world.core.queue("/", "q")
    with pytest.raises(InvalidArgument, match=f"until {moment} us after 1970"):
        world.core.pause_queue(world.now, queue, moment)
    assert not queue.paused
    world.core.pause_queue(world.now, queue, LATEST)
    assert queue.paused


@pytest.mark.parametrize("moment", [*BEYOND, 0, -1])
def test_messages_do_not_wait_until_then(world: World, moment: int) -> None:
    queue = world.core.queue("/", "q")
    with pytest.raises(InvalidArgument, match=f"{moment} us since 1970 is not in the years 1970 to 9999"):
        world.core.reschedule_messages(world.now, [queue], range(1, 1000), moment)
    assert queue.delayed == 0
    world.core.reschedule_messages(world.now, [queue], range(1, 1000), LATEST)
    assert queue.delayed == 1


@pytest.mark.parametrize("name", ["x-delay", "x-deliver-at", "_AMQ_SCHED_DELIVERY"])
@pytest.mark.parametrize("value", [2**42 + 1, 2**53, 2**62, 2**63 - 1, -(2**63)])
def test_no_header_asks_for_them(name: str, value: int) -> None:
    assert read_traits(encode(Properties(headers={name: value}))).refusal is not None
    found = read_traits(encode(Properties(headers={name: 2**42})))
    assert found.refusal is None
    assert 0 < found.not_before(0) <= LATEST


@pytest.mark.parametrize("text", [str(2**53), str(2**63 - 1), str(2**64), "9" * 200])
def test_no_expiration_is_one(text: str) -> None:
    assert read_traits(encode(Properties(expiration=text))).refusal is not None
