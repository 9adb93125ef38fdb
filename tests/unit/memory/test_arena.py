"""Arrays in a file: they say what they said, their room is used again, and a full disk changes nothing."""

from __future__ import annotations

import random
import threading
from array import array

import numpy as np
import pytest

from penstock.core.arena import Move, heap
from penstock.server.scratch_pages import EXTENT, PAGE, Arena, Spans
from penstock.testing.instance import NoFile


@pytest.mark.parametrize(
    "values", [array("q", range(-5, 3000)), array("Q", [1 << 63, 7] * 500), bytes(range(256)) * 20, bytearray(5000)]
)
def test_a_kept_array_says_the_same_and_is_not_changed(values: array[int] | bytes | bytearray) -> None:
    view = Arena(NoFile()).keep(values)
    assert view is not None
    assert view == values
    assert list(view) == list(values)
    assert view.nbytes == memoryview(values).nbytes
    with pytest.raises(TypeError):
        view[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        np.frombuffer(view, dtype=np.uint8)[0] = 1
    if isinstance(values, array):
        assert heap(view) == values
        assert heap(view).typecode == values.typecode


def test_a_block_lives_as_long_as_any_part_of_it() -> None:
    arena = Arena(NoFile())
    view = arena.keep(array("q", range(2000)))
    assert view is not None
    part = np.frombuffer(view[100:200], dtype=np.int64)[5:]
    assert arena.used == 4 * PAGE
    del view
    for _ in range(10):
        arena.keep(array("q", bytes(16_000)))  # nobody holds it
    assert arena.used == 8 * PAGE
    assert part.tolist() == list(range(105, 200))
    del part
    other = arena.keep(array("q", [7]))
    assert arena.used == PAGE
    assert other == array("q", [7])


def test_the_file_has_four_mebibytes_at_least_grows_and_never_shrinks() -> None:
    backing = NoFile()
    arena = Arena(backing)
    assert arena.size == 0
    one = array("q", bytes(1 << 20))
    held = [arena.keep(one)]
    assert arena.size == EXTENT == 4 << 20
    sizes = [arena.size]
    for _ in range(60):
        held.append(arena.keep(one))
        sizes.append(arena.size)
    assert sizes == sorted(sizes)
    assert arena.used == 61 << 20
    assert arena.size <= 76 << 20
    held.clear()
    held.append(arena.keep(one))
    assert arena.used == 1 << 20
    assert arena.size == backing.size == sizes[-1]
    for _ in range(40):
        held.append(arena.keep(one))
    assert arena.size == sizes[-1], "freed room is used again before the file grows"


def test_one_array_may_be_larger_than_an_extent() -> None:
    arena = Arena(NoFile(), extent=1 << 16)
    large = array("q", range(100_000))
    assert arena.keep(large) == large


def test_a_full_disk_is_told_and_tried_again_when_asked() -> None:
    backing = NoFile(EXTENT)
    arena = Arena(backing)
    first = arena.keep(array("q", bytes(3 << 20)))
    assert arena.keep(array("q", bytes(3 << 20))) is None
    assert (arena.reason, arena.refused) == ("No space left on device", 1)
    assert arena.keep(array("q", bytes(3 << 20))) is None
    assert arena.refused == 1, "it is not tried again with every array"
    assert arena.keep(array("q", bytes(1 << 20))) is not None, "there is room left for a smaller one"
    arena.retry()
    assert arena.keep(array("q", bytes(3 << 20))) is None
    assert arena.refused == 2
    backing.capacity = 1 << 30
    arena.retry()
    assert arena.keep(array("q", bytes(3 << 20))) is not None
    assert first is not None


def test_a_write_that_fails_leaves_the_room_free(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = Arena(NoFile())

    def broken(data: memoryview, offset: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(NoFile, "write", lambda self, data, offset: broken(data, offset))
        assert arena.keep(array("q", range(1000))) is None
    assert (arena.used, arena.refused, arena.reason) == (0, 1, "Input/output error")
    assert arena.keep(array("q", range(1000))) == array("q", range(1000))


def test_views_may_be_dropped_by_any_thread() -> None:
    arena = Arena(NoFile())
    for _ in range(20):
        held = [arena.keep(array("q", range(n, n + 1000))) for n in range(50)]
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
    arena.keep(array("q", [1]))
    assert arena.used == 0 or arena.used == PAGE
    assert arena.size == EXTENT


def test_nothing_of_what_lives_is_ever_overwritten() -> None:
    chance = random.Random(3)
    arena = Arena(NoFile(), extent=1 << 16)
    living: list[tuple[memoryview[int], array[int]]] = []
    for _ in range(3000):
        if living and chance.random() < 0.48:
            living.pop(chance.randrange(len(living)))
        else:
            values = array("q", [chance.randrange(1 << 60)]) * chance.randrange(1, 3000)
            view = arena.keep(values)
            assert view is not None
            living.append((view, values))
    assert all(view == values for view, values in living)
    arena.keep(array("q", [0]))
    assert arena.used <= sum(-(-view.nbytes // PAGE) for view, _ in living) * PAGE + PAGE


def test_spans_agree_with_a_map_of_pages() -> None:
    chance = random.Random(11)
    spans, free, taken = Spans(), set[int](), list[tuple[int, int]]()
    edges, end = set[int](), 0
    for _ in range(4000):
        way = chance.random()
        if way < 0.02:
            size = chance.randrange(1, 40)
            spans.add(end, size)
            free.update(range(end, end + size))
            edges.add(end)
            end += size
        elif way < 0.5 and taken:
            start, size = taken.pop(chance.randrange(len(taken)))
            spans.give(start, size)
            free.update(range(start, start + size))
        else:
            size = chance.randrange(1, 9)
            at = spans.take(size)
            longest = _longest(free, edges)
            assert (at is None) == (longest < size), "free neighbours are joined, and the border of an extent is one"
            if at is not None:
                assert free.issuperset(range(at, at + size))
                free.difference_update(range(at, at + size))
                taken.append((at, size))
        assert spans.free == len(free)


def _longest(free: set[int], edges: set[int]) -> int:
    """The most pages in a row, none of them but the first on an edge."""
    longest = size = 0
    for page in sorted(free):
        size = size + 1 if size and page - 1 in free and page not in edges else 1
        longest = max(longest, size)
    return longest


# --- what one look moves --------------------------------------------------------------------------------------------


def test_ranges_small_arrays_and_young_ones_stay() -> None:
    arena = Arena(NoFile())
    move = Move(arena, 1000, 10)
    for chunk in (range(900), array("q", range(500)), array("q", range(400, 1001)), array("q")):
        assert move.chunk(chunk) is chunk
    old = array("q", range(600))
    moved = move.chunk(old)
    assert isinstance(moved, memoryview)
    assert moved == old
    assert move.chunk(moved) is moved
    assert move.room == 9


def test_a_look_ends_when_its_room_is_used_up() -> None:
    move = Move(Arena(NoFile()), 1 << 60, 2)
    moved = [move.longs(array("q", range(1000))) for _ in range(4)]
    assert [isinstance(one, memoryview) for one in moved] == [True, True, False, False]
    assert move.room == 0


def test_without_room_in_the_file_everything_stays_and_the_look_goes_on_to_others() -> None:
    full = Arena(NoFile(0))
    move = Move(full, 1 << 60, 2)
    values = array("q", range(1000))
    assert move.longs(values) is values
    assert move.longs(values) is values
    assert (move.room, full.refused) == (2, 1)


def test_a_small_part_of_a_block_is_copied_so_that_the_block_goes() -> None:
    arena = Arena(NoFile())
    whole = arena.keep(array("q", range(10_000)))
    assert whole is not None
    move = Move(arena, 1 << 60, 10)
    large, middle, small = whole[:5000], whole[5000:7000], whole[9000:9100]
    del whole
    assert move.longs(large) is large
    second = move.longs(middle)
    assert second is not middle
    assert second == array("q", range(5000, 7000))
    assert arena.block(second) == 16_000
    third = move.longs(small)
    assert isinstance(third, array)
    assert third == array("q", range(9000, 9100))
