"""Which segments are worth rewriting, and which must be left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.log.rewrite_plan import UNKNOWN, Aims, Facts, plan

MB = 1 << 20
AIMS = Aims(segment=256 * MB)
NOBODY = 1 << 60


def segments(*changes: dict[str, object]) -> list[Facts]:
    """Neighbours of a million rows and 200 MB each, in batches of a thousand."""
    whole = Facts(1, 1_000_000, 1_000_000, 1000, 200 * MB)
    out = list[Facts]()
    for at, changed in enumerate(changes):
        first = at * 1_000_000 + 1
        out.append(replace(whole, first=first, last=first + 999_999, **changed))  # type: ignore[arg-type]
    return out


def told(
    closed: list[Facts], *, hold: int = NOBODY, room: int = 1 << 40, aims: Aims = AIMS
) -> list[tuple[str, int, int]]:
    """Why, first segment and how many, of each task."""
    return [(t.why, closed.index(t.segments[0]), len(t.segments)) for t in plan(closed, hold, room, aims)]


PAST = {"past": True, "needed": 1}


def test_nothing_is_worth_it_in_a_log_of_large_batches() -> None:
    assert told(segments({}, {}, {"past": True, "needed": 900_000})) == []


def test_neighbours_that_shrink_go_into_one_file() -> None:
    closed = segments(PAST, PAST, {}, PAST, {"past": True, "needed": 499_999}, {"past": True, "needed": 600_000})
    assert told(closed) == [("sparse", 0, 2), ("sparse", 3, 2)]
    [first, second] = plan(closed, NOBODY, 1 << 40, AIMS)
    assert (first.rows, first.rows_before, first.drops) == (2, 2_000_000, True)
    assert first.gain == 400 * MB - first.bytes > second.gain


def test_a_file_does_not_grow_beyond_a_segment() -> None:
    half = {"past": True, "needed": 500_000}
    assert told(segments(half, half, half, half, half)) == [("sparse", 0, 2), ("sparse", 2, 2), ("sparse", 4, 1)]


def test_rows_stay_that_are_young_or_held_or_were_not_counted() -> None:
    closed = segments(PAST, PAST, {"past": True, "needed": UNKNOWN}, {"needed": 0})
    assert told(closed, hold=1_500_000) == [("sparse", 0, 1)]
    assert told(closed, hold=1_000_000) == []
    assert told(closed, hold=1_000_001) == [("sparse", 0, 1)]


def test_little_gain_is_none() -> None:
    assert told(segments({**PAST, "bytes": 10 * MB})) == []
    assert told(segments({"past": True, "needed": 0, "rows": 0, "batches": 0, "generation": 1, "bytes": 3000})) == []


def test_small_batches_are_joined_once() -> None:
    small = {"batches": 10_000}
    assert told(segments(small, {**small, "generation": 1}, {}, {"batches": 5, "rows": 10})) == [("small", 0, 1)]
    large_bodies = {"batches": 10_000, "rows": 20_000, "bytes": 900 * MB}
    assert told(segments(large_bodies)) == []


def test_many_small_files_become_one() -> None:
    left = {"generation": 1, "rows": 10, "batches": 1, "bytes": 4000}
    assert told(segments(*[left] * 7)) == []
    assert told(segments(*[left] * 8, {}, *[left] * 3)) == [("many", 0, 8)]


def test_cold_segments_are_compressed_where_wanted() -> None:
    closed = segments(*[{}] * 7)
    assert told(closed) == []
    wanted = replace(AIMS, compress=True)
    assert told(closed, aims=wanted) == [("cold", 0, 1), ("cold", 1, 1), ("cold", 2, 1)]
    assert told(closed, aims=wanted, hold=1_500_000) == [("cold", 0, 1)]
    assert told(segments({"compressed": True}, *[{}] * 4), aims=wanted) == []


def test_a_segment_is_in_one_task_and_the_disk_has_room_for_it() -> None:
    sparse_and_small = {**PAST, "batches": 10_000}
    assert told(segments(sparse_and_small)) == [("sparse", 0, 1)]
    small = {"batches": 10_000}
    assert told(segments(small), room=100 * MB) == []
    assert told(segments(small), room=0) == []


@pytest.mark.parametrize("needed", [0, 1, 100])
def test_what_was_compacted_is_not_compacted_again(needed: int) -> None:
    closed = segments({"past": True, "needed": needed, "rows": needed, "batches": 1, "generation": 1, "bytes": 20_000})
    assert told(closed) == []
