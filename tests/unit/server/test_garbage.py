"""How much the collector of cycles walks at once while the server runs, and what goes with a cycle of garbage."""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest

from garbage import collector_as_before
from penstock.errors import Unavailable
from penstock.server.bulk.process import Bulk, Exchange
from penstock.server.doors.line import Line, Lines
from penstock.server.flight.calls import Caller, Calls, Intake
from penstock.server.flight.remote_call import Call
from penstock.server.people.access import Who
from penstock.server.process import settle_garbage
from penstock.server.sql import children
from penstock.server.sql.queries import Query


@pytest.fixture
def as_before() -> Iterator[None]:
    """The collector as it was."""
    with collector_as_before():
        yield


@pytest.mark.usefixtures("as_before")
def test_no_collection_walks_many_young_objects() -> None:
    walked = list[int]()

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            walked.append(sum(len(gc.get_objects(young)) for young in range(info["generation"] + 1)))

    settle_garbage()
    gc.callbacks.append(note)
    try:
        kept = [[number] for number in range(300_000)]
    finally:
        gc.callbacks.remove(note)
    assert len(kept) == 300_000
    assert walked
    assert max(walked) <= 30_000


Lent = tuple[
    Any, AbstractContextManager[Any], Callable[[], bool]
]  # who has something, a lock that he may need, whether it is back
NOTHING = cast("Any", None)


def call_of_a_door(_: Path) -> Lent:
    there, lines = socket.socketpair(), None
    try:
        lines = Lines(there[0])
        lines.give(*lines.take())
        [(_, line, _)] = lines._idle  # it is older than the call
        return Call(lines, None), lines._lock, lambda: line.sock.fileno() < 0 and not lines._taken
    finally:
        there[1].close()
        if lines is not None:
            lines._sock.close()


def request_of_the_bulk_process(folder: Path) -> Lent:
    there, bulk = socket.socketpair(), Bulk(folder)
    bulk._lines = lines = Lines(there[0])
    try:
        exchange = Exchange(bulk, lines, "read", lambda: True)
        [line] = lines._taken
        return exchange, bulk._lock, lambda: line.sock.fileno() < 0 and not bulk.running
    finally:
        for one in there:
            one.close()


def statement(folder: Path) -> Lent:
    """Its child is one that waited for it."""
    there, (ours, theirs) = children.Children(), socket.socketpair()
    theirs.close()
    child = children.Child.__new__(children.Child)
    child.line, child.sockets = Line(ours), socket.socket()
    child._process = cast("Any", SimpleNamespace(poll=lambda: None, kill=lambda: None, wait=lambda _: 0))
    there.back(child)
    gone = folder / "gone"
    queries = SimpleNamespace(children=there, scratch=lambda: gone, running=0, total=0, left=lambda _: None)
    query = Query(cast("Any", queries), NOTHING, "/", "SELECT 1", 0.0)
    return query, there._lock, lambda: ours.fileno() < 0 and not there._out and not queries.running


def stream_of_a_client(_: Path) -> Lent:
    intake = Intake(1 << 20)
    slot = Calls(intake, 1).stream(Caller(Who("ann"), "", lambda: False))
    slot.hold(100)
    return SimpleNamespace(slot=slot), intake._lock, lambda: not intake.whole


@pytest.mark.parametrize(
    "lend", [call_of_a_door, request_of_the_bulk_process, statement, stream_of_a_client], ids=lambda one: one.__name__
)
def test_what_somebody_had_goes_back_from_a_cycle_of_garbage_in_the_middle_of_anything(
    lend: Callable[[Path], Lent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a cycle anything may be finalized first, a socket too; and a collection comes at any step of a thread."""
    complaints = list[Any]()
    monkeypatch.setattr(sys, "unraisablehook", lambda told: complaints.append(told.exc_value))
    holder, lock, is_back = lend(tmp_path)
    holder.itself = holder
    del holder

    def collected() -> None:
        with lock:
            gc.collect()

    thread = Thread(target=collected, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert complaints == []
    assert is_back()


def test_a_call_that_gets_no_line_says_so_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    complaints = list[Any]()
    monkeypatch.setattr(sys, "unraisablehook", lambda told: complaints.append(told.exc_value))
    ours, theirs = socket.socketpair()
    theirs.close()
    lines = Lines(ours)
    with pytest.raises(Unavailable, match="no line"):
        Call(lines, None)
    lines.close()
    gc.collect()
    assert complaints == []
