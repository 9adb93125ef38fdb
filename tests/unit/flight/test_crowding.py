"""When calls get no thread, and when a connection is to be cut: a burst of honest callers is no flood."""

from __future__ import annotations

import resource
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.server.flight import crowding
from penstock.server.flight.crowding import (
    BURST,
    LASTS_S,
    NO_STACK,
    OVER_S,
    STACK,
    THREADS_MOST,
    WAITING_MOST,
    Crowding,
)

OWN = 30


class House:
    """A process whose threads are as many as is said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.stacks = [STACK]  # of threads that begin, one after the other
        self.under_way = 0
        self.crowding = Crowding(lambda: self.under_way)
        self.threads(0)
        monkeypatch.setattr(self.crowding, "_memory", lambda: 0)
        monkeypatch.setattr(crowding, "with_stacks", self.with_stacks)
        monkeypatch.setattr(crowding, "setswitchinterval", lambda _: None)

    def with_stacks(self, size: int) -> None:
        if size != self.stacks[-1]:
            self.stacks.append(size)

    def threads(self, waiting: int) -> None:
        self.crowding._threads = lambda: OWN + self.under_way + waiting  # type: ignore[assignment]

    def begun(self, calls: int) -> None:
        self.crowding.calls += calls

    def too_many(self, later: float = 0.0) -> bool:
        self.now += later
        return self.crowding.too_many(self.now)


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> House:
    return House(monkeypatch)


@pytest.mark.parametrize("callers", [250, 500, 700])
def test_honest_callers_who_come_at_once_all_get_a_thread(house: House, callers: int) -> None:
    """250 of them found no thread, whatever the machine did: more than 192 had not said yet who they are."""
    for waiting in range(callers, 0, -8):
        house.threads(waiting)
        house.begun(8)
        assert not house.too_many(0.05), "they wait for Python's lock, for as long as it takes"
    assert house.stacks == [STACK]


def test_a_flood_gets_no_more_threads_and_is_cut(house: House) -> None:
    house.threads(WAITING_MOST + 100)
    assert not house.too_many()
    house.begun(BURST + 1)
    assert not house.too_many()
    assert house.stacks == [STACK, NO_STACK]
    assert not house.too_many(0.5 * LASTS_S)
    assert house.too_many(0.6 * LASTS_S)
    assert not house.too_many(0.1), "what was cut gives back its memory in a while"


def test_beyond_the_bound_of_the_process_nobody_waits_to_see_whether_it_passes(house: House) -> None:
    house.threads(THREADS_MOST)
    house.too_many()
    assert house.stacks == [STACK, NO_STACK]
    house.threads(0)
    house.too_many(0.01)
    assert house.stacks == [STACK, NO_STACK, STACK]
    assert not house.too_many(2 * LASTS_S), "it passed"


def test_while_no_call_begins_it_is_looked_less_often_and_the_first_one_is_no_later_than_before(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A door with one idle client looked fifty times a second."""
    monkeypatch.setattr(crowding, "CROWDS_S", 0.0)
    monkeypatch.setattr(crowding, "CALM_S", 3600.0)
    with ThreadPoolExecutor() as pool:
        for calls in (1, 20):
            paused = pool.submit(house.crowding.pause)
            for _ in range(calls):
                house.crowding.begun()
            paused.result(30)
    house.crowding.begun()
    house.crowding.pause()
    monkeypatch.setattr(crowding, "OVER_S", float("inf"))
    house.crowding.pause()  # while some were turned away it does not wait for the next call


def test_nobody_waits_for_one_who_sees_it_and_gets_no_turn_of_pythons_lock(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand threads more began meanwhile, as many as the process has room for, and ended it."""
    stands, goes_on = threading.Event(), threading.Event()

    def stand(size: int) -> None:
        stands.set()
        assert goes_on.wait(30)
        house.with_stacks(size)

    house.threads(THREADS_MOST)
    with ThreadPoolExecutor() as pool:
        monkeypatch.setattr(crowding, "with_stacks", stand)
        first = pool.submit(house.crowding._count, house.now)
        assert stands.wait(30)
        monkeypatch.setattr(crowding, "with_stacks", house.with_stacks)
        house.too_many()
        assert house.stacks == [STACK, NO_STACK]
        house.threads(0)
        house.too_many(0.01)
        assert house.stacks == [STACK, NO_STACK, STACK]
        goes_on.set()
        first.result()
        house.too_many(0.01)
        assert house.stacks == [STACK, NO_STACK, STACK, NO_STACK, STACK], "who came late has the last word for a moment"


def test_a_flood_that_lets_up_for_a_moment_is_cut_all_the_same(house: House) -> None:
    house.begun(2 * BURST)
    cuts = 0
    for _ in range(10):
        house.threads(WAITING_MOST + 100)
        cuts += house.too_many(0.02)
        cuts += house.too_many(0.06)
        house.threads(10)
        house.too_many(0.05)
    assert cuts
    assert cuts <= 3, "one at a time"


def test_a_flood_that_is_over_is_forgotten(house: House) -> None:
    house.begun(2 * BURST)
    for _ in range(6):
        house.threads(WAITING_MOST + 100)
        assert not house.too_many(0.01)
        assert not house.too_many(0.5 * LASTS_S)
        house.threads(10)
        assert not house.too_many(0.01)
        assert not house.too_many(1.1 * OVER_S)
        house.begun(2 * BURST)


def test_calls_that_are_under_way_do_not_count_as_waiting(house: House) -> None:
    house.under_way = THREADS_MOST - OWN - WAITING_MOST
    house.begun(2 * BURST)
    house.threads(WAITING_MOST - OWN)
    assert not house.too_many()
    assert house.stacks == [STACK]


def test_what_was_taken_since_calls_began_to_crowd_is_known(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is free again stays the process's: a second flood was judged by what the first had left."""
    page, used = resource.getpagesize(), 0

    def has(mebibytes: int) -> None:
        nonlocal used
        threads = house.crowding._threads()
        used = ((mebibytes << 20) + threads * STACK) // page

    monkeypatch.setattr(house.crowding, "_memory", lambda: used)
    has(600)
    assert not house.too_many(1.0)
    assert house.crowding.grown == 0
    house.begun(2 * BURST)
    house.threads(WAITING_MOST + 100)
    has(650)
    assert not house.too_many(0.01)
    has(900)
    assert house.too_many(2 * LASTS_S)
    assert house.crowding.grown == 300 << 20
    house.crowding.relieved()
    has(890)
    house.too_many(0.1)
    assert house.crowding.grown < 0, "it was given back, and is kept"
    has(950)
    assert house.too_many(0.1)
    assert house.crowding.grown == 50 << 20
    house.threads(10)
    has(880)
    house.too_many(0.1)
    house.too_many(1.1 * OVER_S)
    has(980)
    house.too_many(0.1)
    assert house.crowding.grown == 0, "nobody crowds: what is taken then is other people's"


COMPRESSED = """
    from penstock.server.flight import crowding
    crowding.with_small_stacks()
    crowding.with_threads_of_arrow()
    crowding.with_stacks(crowding.NO_STACK)
    import pyarrow as pa
    column = pa.array([bytes(100_000)] * 4)
    batch = pa.RecordBatch.from_arrays([column] * 20, [str(n) for n in range(20)])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    print(pa.ipc.open_stream(sink.getvalue()).read_all().num_rows, "rows")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc gives threads their stacks")
def test_arrow_has_its_threads_before_there_may_be_no_more() -> None:
    """An upload that was compressed was refused as one that cannot be read, while a flood lasted."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(COMPRESSED)], capture_output=True, text=True)
    assert done.stdout == "4 rows\n", done.stderr
