"""Waits of tests go on while something works, and end when nothing does."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

import progress
import waiting
from progress import AT_MOST, IDLE, IN_LINE, Progress, delayed, given, ran, used


class Machine:
    """A clock and processes, moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.spent: dict[int, float] = {1: 50.0}
        self.stood: dict[int, float] = {1: 7.0, 11: 3.0}
        self.progress = Progress(100.0, lambda: self.spent, lambda: self.now, lambda: self.stood)

    def passes(self, seconds: float, **cpu: float) -> bool:
        self.now += seconds
        for name, more in cpu.items():
            pid = int(name.removeprefix("p"))
            self.spent[pid] = self.spent.get(pid, 0.0) + more
        return self.progress.is_over()


def test_what_works_slowly_is_waited_for() -> None:
    machine = Machine()
    assert not machine.passes(99)
    assert not machine.passes(2, p1=110 * IDLE)
    assert not machine.passes(101, p2=110 * IDLE)
    del machine.spent[2]  # it has ended
    assert not machine.passes(101, p3=110 * IDLE)


def test_what_does_nothing_is_not() -> None:
    machine = Machine()
    assert not machine.passes(100, p1=110 * IDLE)
    assert machine.passes(100, p1=90 * IDLE)


def test_what_gets_no_cpu_is_waited_for_as_long_as_it_wants_some() -> None:
    """A worker of Spark was taken for an idle one beside thirty others: it was ready to run, and was not let."""
    machine = Machine()
    machine.stood[11] += 110 * IN_LINE
    assert not machine.passes(101, p1=1 * IDLE)
    machine.stood[12] = 110 * IN_LINE  # a thread that is new
    assert not machine.passes(101)
    for thread in range(20, 60):  # many that only wake up now and then
        machine.stood[thread] = 10 * IN_LINE
    assert machine.passes(101)


def test_how_long_threads_stood_in_line_is_read_of_each() -> None:
    found = delayed([os.getpid(), 2**22 + 1])
    assert found.keys() == {int(task.name) for task in Path("/proc/self/task").iterdir()}
    assert found[threading.get_native_id()] > 0


def test_nothing_is_waited_for_without_end() -> None:
    machine = Machine()
    for _ in range(AT_MOST):
        assert not machine.passes(100, p1=100)
    assert machine.passes(1, p1=1)


def test_a_program_is_run_to_its_end(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getcwd()); print('no', file=sys.stderr); sys.exit(3)"
    ended = ran([sys.executable, "-c", code], patience=60, env=os.environ, cwd=tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, f"{tmp_path}\n", "no\n")
    with pytest.raises(AssertionError, match="did nothing for 0 s"):
        ran([sys.executable, "-c", "import time; time.sleep(600)"], patience=0, env=os.environ)


def test_processes_that_have_ended_use_nothing() -> None:
    assert used([os.getpid(), 2**22 + 1]).keys() == {os.getpid()}


def test_a_loop_that_gets_no_cpu_is_waited_for_and_one_that_does_nothing_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that began in a process of many tests was given up after 30 s on a machine with twenty others."""
    works, idle = Future[str](), Future[str]()

    class Seen(Progress):
        looks = 0

        def is_over(self) -> bool:
            Seen.looks += 1
            if Seen.looks == 3:
                works.set_result("late")
            return False

    monkeypatch.setattr(progress, "Progress", Seen)
    monkeypatch.setattr(progress, "LOOK_S", 0.001)
    assert given(works, 0.001) == "late"
    monkeypatch.setattr(Seen, "is_over", lambda _: True)
    with pytest.raises(AssertionError, match="nothing was done"):
        given(idle, 0.001)


def test_what_a_loop_raises_is_raised_also_where_that_is_that_it_took_too_long() -> None:
    late = Future[str]()
    late.set_exception(TimeoutError("of its own"))
    with pytest.raises(TimeoutError, match="of its own"):
        given(late, 0.001)


def test_a_wait_whose_time_is_over_goes_on_while_somebody_works(monkeypatch: pytest.MonkeyPatch) -> None:
    over, told = iter([False, False, True]), list[float]()

    class Works:
        def __init__(self, patience: float, in_line: object) -> None:
            told.append(patience)

        def is_over(self) -> bool:
            return next(over)

    monkeypatch.setattr(waiting, "Progress", Works)
    longer, passed = waiting.Patience(60.0), waiting.Patience(0.0)
    assert not longer.is_over()
    assert told == []
    assert [passed.is_over() for _ in range(3)] == [False, False, True]
    assert len(told) == 1
