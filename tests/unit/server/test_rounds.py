"""The end of a round of the loop: behind all that is ready, before the loop looks at its sockets again."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from unittest.mock import Mock

import pytest

from penstock.server.base.rounds import HEARD_US, Pulse, Turns
from penstock.server.http.messages import Getter
from penstock.testing.instance import FakeClock
from sim.serverkit import clock


def _run(coroutine: object) -> None:
    pulse = Pulse()
    with asyncio.Runner(loop_factory=pulse.new_loop) as runner:
        runner.run(coroutine(pulse))  # type: ignore[operator]


def test_it_comes_behind_all_that_is_ready_and_before_the_next_look() -> None:
    async def go(pulse: Pulse) -> None:
        loop = asyncio.get_running_loop()
        at_end = pulse.at_round_end(loop)
        came: list[str] = []
        pairs = [socket.socketpair() for _ in range(5)]
        over = loop.create_future()

        def read(number: int) -> None:
            pairs[number][0].recv(10)
            came.append(f"read {number}")
            if number == int(came[0][-1]):  # the first of the round, whichever that is
                at_end(lambda: came.append("end"))
                loop.call_soon(lambda: came.append("next round"))
                loop.call_later(0.001, over.set_result, None)

        for number, (ours, theirs) in enumerate(pairs):
            ours.setblocking(False)
            loop.add_reader(ours, read, number)
            theirs.send(b"x")
        await over
        for ours, theirs in pairs:
            loop.remove_reader(ours)
            ours.close()
            theirs.close()
        assert sorted(came[:5]) == [f"read {number}" for number in range(5)]
        assert came[5:] == ["end", "next round"]

    _run(go)


def test_what_is_asked_for_when_nothing_is_ready_is_done_at_once() -> None:
    async def go(pulse: Pulse) -> None:
        loop = asyncio.get_running_loop()
        at_end = pulse.at_round_end(loop)
        done = loop.create_future()
        began = time.monotonic()
        loop.call_later(0.001, at_end, lambda: at_end(lambda: done.set_result(None)))  # and what that asks for
        loop.call_later(60, lambda: None)  # what else would wake it
        await done
        assert time.monotonic() - began < 20

    _run(go)


def test_an_error_is_the_loops_and_the_next_round_has_an_end() -> None:
    async def go(pulse: Pulse) -> None:
        loop = asyncio.get_running_loop()
        at_end = pulse.at_round_end(loop)
        errors: list[object] = []
        loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
        done = loop.create_future()

        def fail() -> None:
            raise ValueError("told")

        at_end(fail)
        await asyncio.sleep(0.001)
        at_end(lambda: done.set_result(None))
        await done
        assert [str(one) for one in errors] == ["told"]

    _run(go)


def test_on_anothers_loop_it_comes_soon() -> None:
    async def go() -> None:
        done = asyncio.get_running_loop().create_future()
        Pulse().at_round_end(asyncio.get_running_loop())(lambda: done.set_result(None))
        await done

    asyncio.run(go())


SPAN = 4000


def in_turns(
    come: Callable[[int, Turns, Callable[[], None]], Awaitable[None]], fake: FakeClock, *, ended: bool = False
) -> list[int]:
    """Twenty come at once, each for work of `SPAN`; how long turns took.  ended: none is counted any more."""
    turns = list[int]()

    async def go(pulse: Pulse) -> None:
        loop = asyncio.get_running_loop()
        at_end = pulse.at_round_end(loop)
        ours = Turns(fake.mono, loop.call_soon, lambda work: work())
        began, asked = fake.mono(), list[int]()

        def over() -> None:
            nonlocal began
            ours.number += not ended
            turns.append(fake.mono() - began)
            began = fake.mono()
            asked.clear()

        def arm() -> None:
            if not asked:
                asked.append(1)
                at_end(over)

        await asyncio.gather(*[come(number, ours, arm) for number in range(20)])

    _run(go)
    return turns


@pytest.mark.parametrize("ended", [False, True], ids=["turns go on", "no turn ends any more"])
def test_what_comes_at_once_shares_what_there_is_in_a_turn(ended: bool) -> None:
    fake, done = clock(), list[int]()

    async def come(number: int, turns: Turns, arm: Callable[[], None]) -> None:
        await turns.heard(arm)
        fake.advance(SPAN)
        done.append(number)
        arm()

    took = in_turns(come, fake, ended=ended)
    assert done == [*range(20)]
    assert ended or max(took) <= HEARD_US + SPAN


def test_what_a_turn_brings_to_many_who_get_over_http_is_told_by_turns() -> None:
    """Hundreds that got five hundred messages at once were a turn of a tenth of a second."""
    fake, waiting, told = clock(), list[Callable[[], None]](), list[int]()

    async def get(_: int, turns: Turns, arm: Callable[[], None]) -> None:
        engine = Mock(turns=turns, arm=arm)
        getter = Getter(Mock(engine=engine), Mock(vhost="/"), "guest")

        def after_deliveries(_: object, then: Callable[[], None]) -> None:
            waiting.append(then)
            if len(waiting) == 20:  # one turn brings it to all
                for one in waiting:
                    one()

        engine.gates.after_deliveries = after_deliveries
        await getter.pull(Mock(closed=False), 500)
        fake.advance(SPAN)
        told.append(fake.mono())
        arm()

    took = in_turns(get, fake)
    assert len(told) == 20
    assert max(took) <= HEARD_US + SPAN
