"""The system starts no more threads: what cannot begin is refused, put off or waits, and nothing else ends with it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import wait
from typing import Any

import pytest

from penstock.cli.main import main
from penstock.server.base.allowed import Pool, begin
from penstock.server.sql.children import Children


class Full:
    """Lets so many threads begin, and no more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        start = threading.Thread.start

        def started(thread: threading.Thread) -> None:
            if self.left <= 0:
                raise RuntimeError("can't start new thread")
            self.left -= 1
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", started)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Full:
    return Full(monkeypatch)


def test_a_thread_that_cannot_begin_is_no_mistake_of_ours(full: Full) -> None:
    with pytest.raises(BlockingIOError, match=r"raise their limit \(ulimit -u, LimitNPROC="):
        begin(threading.Thread(target=int))
    full.left = 1
    begin(thread := threading.Thread(target=int))
    thread.join()
    full.left = 1
    with pytest.raises(RuntimeError, match="once"):
        begin(thread)


def test_the_work_of_a_pool_waits_for_the_threads_that_it_has(full: Full) -> None:
    with pytest.raises(BlockingIOError, match="ulimit -u"):
        Pool(4, "none")
    full.left = 2
    with Pool(4, "some") as pool:
        both = threading.Barrier(2)
        assert not wait([pool.submit(both.wait, 30) for _ in range(2)], 30).not_done
        assert [pool.submit(abs, -number).result(30) for number in range(5)] == list(range(5))
        free = threading.Event()
        held = [pool.submit(free.wait, 30) for _ in range(4)]
        free.set()
        assert all(one.result(30) for one in held)


class Resting:
    """A child of SQL that nobody has needed for an hour."""

    lives = True

    def __init__(self) -> None:
        self.idle_since, self.ended = time.monotonic() - 3600, threading.Event()
        self.end = self.ended.set


def test_a_child_of_sql_ends_at_the_next_look_for_which_there_is_a_thread(full: Full) -> None:
    children = Children(1.0)
    child: Any = Resting()
    children._warm = child
    children.beat()
    assert not child.ended.is_set()
    child.idle_since, full.left = time.monotonic() - 3600, 1
    children.beat()
    assert child.ended.wait(30)


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), BlockingIOError(11, "try again")])
def test_a_command_tells_which_limit_it_has_met(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(name: object) -> object:
        raise error

    monkeypatch.setattr("penstock.cli.main.command", command)
    with pytest.raises(SystemExit) as ended:
        main(["serve"])
    assert ended.value.code == 2
    assert "the system starts no more processes or threads for this server" in capsys.readouterr().err
