"""Memory goes back to the system when a burst is over.

Free memory is given back when the process has grown, and not before.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from garbage import collector_as_before
from penstock.server.base import allocator
from penstock.server.process import settle_garbage


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_free_memory_goes_back() -> None:
    burst = [bytes(4000) for _ in range(20_000)]
    full = resident()
    kept = burst[::1000]
    del burst
    allocator.give_back()
    assert len(kept) == 20
    assert full - resident() > 40 << 20


class Cycle:
    """Garbage that holds memory and that no reference count ends."""

    def __init__(self, size: int) -> None:
        self.body = bytes(size)
        self.me = self


@pytest.fixture
def resting() -> Iterator[None]:
    """The collector of cycles as a server has it."""
    with collector_as_before():
        settle_garbage()
        yield


@pytest.mark.usefixtures("resting")
def test_cycles_that_the_collector_would_leave_are_collected_when_the_process_has_grown() -> None:
    """Connections and errors that were told are cycles: a siege found a server that rose to three times its budget."""
    now, size = 0.0, [100 << 20]
    cycles = allocator.Cycles(16 << 20, lambda: now, lambda: size[0])
    held = [Cycle(1 << 20) for _ in range(8)]
    gc.collect(1)
    left = [weakref.ref(one) for one in held]
    held.clear()
    gc.collect(1)
    assert all(one() for one in left), "they were old by then"
    size[0] += 16 << 20
    assert not cycles.beat(), "it has not grown by more than that"
    size[0] += 1
    assert cycles.beat()
    assert not any(one() for one in left)
    size[0] += 20 << 20
    assert not cycles.beat(), "not at once again"
    now += allocator.APART_S + 1
    assert cycles.beat()
    size[0] -= 100 << 20
    now += 1000
    assert not cycles.beat()
    size[0] += 17 << 20
    assert cycles.beat(), "it has grown since it was smaller"


@pytest.mark.parametrize(
    ("account", "known", "grown", "more"),
    [("accounted", 190, 200, 7), ("about", 200, 253, 14)],
    ids=["caches", "views"],
)
def test_what_the_process_accounts_for_is_no_reason_to_look_for_cycles(
    account: str, known: int, grown: int, more: int
) -> None:
    """2,000 clients waited 75 ms for a look at all that lives, since the bodies of 50,000 messages filled the cache.

    Two views of 300,000 records each stopped the server for 0.9 s while they grew; of such a quarter may be wrong.
    """
    size = [100 << 20]
    cycles = allocator.Cycles(16 << 20, lambda: 0.0, lambda: size[0])
    size[0] += grown << 20
    assert not cycles.beat(**{account: known << 20})
    size[0] += more << 20
    assert cycles.beat(**{account: known << 20})


def test_a_long_collection_is_far_from_the_next() -> None:
    times, size = iter([0.0, 0.0, 0.2, 99.0, 101.0, 101.1]), [0]
    cycles = allocator.Cycles(1, lambda: next(times), lambda: size[0])
    for expected in (True, False, True):
        size[0] += 10
        assert cycles.beat() is expected, "it took 0.2 s, and 500 times that is 100 s"


def test_who_insists_gives_back_after_the_burst_too_and_rests_longer_where_that_brings_little() -> None:
    """A look at the height of a burst finds nothing, and nothing grows when it is over."""
    now, size = 0.0, 100 << 20
    tidy = allocator.Tidy(32 << 20, insists=True, mono=lambda: now, resident=lambda: size)
    assert not tidy.due()
    size = 900 << 20  # in use
    assert tidy.due()
    tidy.run()
    runs = list[float]()
    while now < 1000:
        now += 1
        if tidy.due():
            tidy.run()
            runs.append(now)
    apart = [after - before for before, after in zip([0.0, *runs], runs, strict=False)]
    assert apart[:3] == [4, 8, 16]
    assert max(apart) == allocator.GIVE_MOST_S
    size = 110 << 20
    assert not tidy.due()


def test_who_does_not_insist_is_content_with_what_is_in_use() -> None:
    size = 100 << 20
    tidy = allocator.Tidy(32 << 20, mono=lambda: 0.0, resident=lambda: size)
    size = 900 << 20
    assert tidy.due()
    tidy.run()
    assert not tidy.due()
    size += 33 << 20
    assert tidy.due()


def test_memory_is_given_back_when_the_process_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    resident = [100]
    given: list[int] = []
    monkeypatch.setattr(allocator, "resident_bytes", lambda: resident[0])
    monkeypatch.setattr(allocator, "give_back", lambda: given.append(resident[0]))
    tidy = allocator.Tidy(growth=20)
    assert not tidy.due()
    resident[0] = 90
    assert not tidy.due()
    resident[0] = 111
    assert tidy.due()
    tidy.run()
    assert given == [111]
    assert not tidy.due(), "what is left is in use"
    resident[0] = 132
    assert tidy.due()


def test_the_process_has_a_size() -> None:
    assert 10 << 20 < allocator.resident_bytes() < 1 << 40
