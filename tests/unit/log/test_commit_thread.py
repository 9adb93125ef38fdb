"""The log's writer ends after what it was given, also when it was only just woken for it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import cast

from penstock.log.committers import CommitThread
from penstock.log.writer import Appender, Commit


class Kept:
    """Instead of an appender: keeps what it was given."""

    def __init__(self) -> None:
        self.commits: list[Commit] = []

    def run(self, commit: Commit) -> None:
        self.commits.append(commit)


def test_a_commit_that_was_given_and_not_begun_is_done_before_the_end() -> None:
    kept, gate = Kept(), Event()
    first, second = Commit([], 0, False), Commit([], 0, True)

    def tell(commit: Commit) -> None:
        if commit is first:
            gate.wait(20)

    thread = CommitThread(cast(Appender, kept), tell)
    thread.post(first)
    assert first.done is not None
    assert first.done.acquire(timeout=20)
    thread.post(second)  # the thread is still telling of the first
    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(thread.stop)
        gate.set()
        stopped.result(20)
    assert [commit is one for commit, one in zip(kept.commits, (first, second), strict=True)] == [True, True]


def test_an_idle_thread_ends_at_once() -> None:
    CommitThread(cast(Appender, Kept()), lambda commit: None).stop()
