"""Jobs from threads to the loop and answers back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import pytest

from penstock.errors import LogBroken, NotFound, Unavailable
from penstock.server.base.faults import Faults
from penstock.server.base.rounds import HEARD_US, Turns
from penstock.server.flight.handover import Abandoned, Answer, Handover
from sim.serverkit import clock


class Loop:
    """An engine as far as the hand-over sees it, and a loop that runs when told."""

    def __init__(self) -> None:
        self.on_broken: list[Callable[[str], None]] = []
        self.broken: str | None = None
        self.woken: list[Callable[[], None]] = []
        self.waiting: list[tuple[int, Callable[[], None]]] = []
        self.core = self.log = self
        self.last_lsn = 5
        self.durable = 0
        self.armed = 0
        self.guests = 0
        self.whole = True
        self.clock = clock()
        self.turns = Turns(self.clock.mono, self.woken.append, lambda work: work())
        self.faults = Faults(cast("Any", self), cast("Any", None))

    def whole_after(self, error: BaseException) -> bool:
        return self.whole

    def contain_command(self, error: BaseException) -> bool:
        return False

    def arm(self) -> None:
        self.armed += 1
        self.turns.number += 1

    def announce_guest(self) -> None:
        self.guests += 1

    def when_durable(self, lsn: int, callback: Callable[[], None]) -> None:
        self.waiting.append((lsn, callback))

    def when_answerable(self, since: int, lsn: int, callback: Callable[[], None]) -> None:
        self.waiting.append((lsn, callback))

    def run(self) -> None:
        woken, self.woken = self.woken, []
        for one in woken:
            one()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def handover(loop: Loop) -> Handover:
    return Handover(cast("Any", loop), lambda job: loop.woken.append(job))


def test_one_wake_serves_all_jobs(loop: Loop, handover: Handover) -> None:
    done: list[int] = []
    for number in range(3):
        handover.post(lambda number=number: done.append(number))  # type: ignore[misc]
    assert len(loop.woken) == 1
    loop.run()
    assert done == [0, 1, 2]
    assert loop.armed == 1
    handover.post(lambda: None)
    assert len(loop.woken) == 1


def test_jobs_that_came_at_once_share_what_there_is_in_a_turn(loop: Loop, handover: Handover) -> None:
    done: list[int] = []

    def dear(number: int) -> None:
        loop.clock.advance(3000)
        done.append(number)
        if number < 40:  # as others come meanwhile
            handover.post(partial(dear, number + 20))

    for number in range(20):
        handover.post(partial(dear, number))
    turns = list[int]()
    while loop.woken:
        before = loop.clock.mono()
        loop.run()
        turns.append(loop.clock.mono() - before)
    assert max(turns) <= HEARD_US + 3000
    assert done == [*range(60)]


@pytest.mark.parametrize("whole", [True, False])
def test_a_failing_job_does_not_keep_the_others(loop: Loop, handover: Handover, whole: bool) -> None:
    """Its caller hears of it; so does the loop, which ends the server, where something may be half changed."""
    loop.whole = whole
    done: list[int] = []

    def wrong(answer: Answer[None]) -> None:
        raise AssertionError("ours")

    answer = handover.submit(wrong)
    handover.post(lambda: done.append(1))
    with nullcontext() if whole else pytest.raises(AssertionError):
        loop.run()
    loop.run()
    assert done == [1]
    assert (loop.faults.fatal is None) == whole
    with pytest.raises(AssertionError, match="ours"):
        answer.wait()


def test_an_answer_waits_for_the_disk(loop: Loop, handover: Handover) -> None:
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.append(handover.call(lambda: "stored")))
    thread.start()
    while not loop.woken:
        thread.join(0.001)
    loop.run()
    [(lsn, callback)] = loop.waiting
    assert lsn == 5
    assert not got
    callback()
    thread.join(30)
    assert got == ["stored"]


def test_a_refusal_reaches_the_caller(loop: Loop, handover: Handover) -> None:
    def refuse(answer: Answer[None]) -> None:
        raise NotFound("no queue")

    answer = handover.submit(refuse)
    loop.run()
    with pytest.raises(NotFound, match="no queue"):
        answer.wait()


def test_a_broken_log_tells_everybody_who_waits(loop: Loop, handover: Handover) -> None:
    answer: Answer[int] = Answer()
    handover.when_durable(5, answer, 1)
    loop.on_broken[0]("disk gone")
    with pytest.raises(LogBroken, match="disk gone"):
        answer.wait()
    loop.broken, loop.durable = "disk gone", 3
    later: Answer[int] = Answer()
    handover.when_durable(4, later, 1)
    with pytest.raises(LogBroken):
        later.wait()
    before: Answer[int] = Answer()
    handover.when_durable(3, before, 7)
    assert before.wait() == 7


def test_a_thread_leaves_when_its_client_is_gone(handover: Handover) -> None:
    with pytest.raises(Abandoned):
        handover.submit(lambda answer: None).wait(lambda: True)


def test_nobody_waits_for_a_closed_server(loop: Loop, handover: Handover) -> None:
    waiting: Answer[int] = Answer()
    handover.when_durable(5, waiting, 1)
    handover.close("the server stops")
    with pytest.raises(Unavailable):
        waiting.wait()
    late = handover.submit(lambda answer: answer.give(None))
    loop.run()
    with pytest.raises(Unavailable, match="stops"):
        late.wait()
