"""Slabs and shelves beside a dict of rows: nothing is lost, doubled or mixed up, however slabs interlace."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.memory.shelf import Shelf
from penstock.memory.slab import Slab, piece_of
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.entries import Publishes, Rows, Topic
from penstock.records.message_bodies import PackedBodies
from penstock.records.one_or_each import Where
from unit.memory.world import check_shelf

TOPICS = (Topic("/", "", "a"), Topic("/", "", "b"))


def slab(lsns: list[int], *, packed: bool = False) -> Slab:
    bodies = [b"%d" % lsn for lsn in lsns]
    return Slab(
        as_chunk(lsns), [TOPICS[lsn % 2] for lsn in lsns], [b"h%d" % lsn for lsn in lsns],
        PackedBodies.of(bodies) if packed else bodies, [10 * lsn for lsn in lsns], [lsn % 3 for lsn in lsns], None,
    )  # fmt: skip


@given(st.lists(st.sets(st.integers(1, 200), min_size=1, max_size=40), max_size=6), st.data())
def test_a_shelf_gives_every_row_that_was_put_on_it(groups: list[set[int]], data: st.DataObject) -> None:
    """Rows that are put again stand there once."""
    shelf = Shelf()
    there = set[int]()
    for group in groups:
        shelf.put(slab(sorted(group), packed=data.draw(st.booleans())))
        there |= group
        check_shelf(shelf)
        assert sum(map(len, shelf)) == shelf.rows == len(there)
    asked = sorted(data.draw(st.sets(st.integers(1, 200), min_size=1)))
    chunk = as_chunk(asked)
    start, found = 0, list[int]()
    rows = Rows([], [], [], [], [], [], [])
    while start < len(chunk):
        stop, one, where = shelf.find(chunk, start)
        assert stop > start
        part = chunk[start:stop]
        if one is None:
            assert there.isdisjoint(part)
        else:
            piece = one.piece(part, where)
            assert piece.bodies == [b"%d" % lsn for lsn in part]
            headers = piece.properties if isinstance(piece.properties, list) else [piece.properties] * len(part)
            assert headers == [b"h%d" % lsn for lsn in part]
            one.add_to(rows, part, where)
            found += part
        start = stop
    assert found == [lsn for lsn in asked if lsn in there]
    assert rows.lsns == found
    assert rows.times == [10 * lsn for lsn in found]
    assert rows.expires_at == [lsn % 3 for lsn in found]
    assert rows.priority == [0] * len(found)


@given(st.sets(st.integers(1, 60), min_size=1), st.data())
def test_a_slab_is_given_free_when_all_its_rows_were_taken(lsns: set[int], data: st.DataObject) -> None:
    shelf = Shelf()
    one = slab(sorted(lsns))
    shelf.put(one)
    left = len(lsns)
    while left:
        count = data.draw(st.integers(1, left))
        left -= count
        freed = shelf.take(one, count)
        assert freed == (0 if left else one.cost)
        check_shelf(shelf)
    assert shelf.bytes == shelf.rows == 0


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["the lower first", "the higher first"])
def test_rows_of_slabs_that_interlace_are_copied_once(order: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by messages of many priorities: each cut copied all that was left, 200 ms of the loop for a read."""
    rows = 2_000
    copied = [0]
    select = Slab.select

    def counted(one: Slab, chunk: Chunk, where: Where) -> Slab:
        copied[0] += len(chunk)
        return select(one, chunk, where)

    monkeypatch.setattr(Slab, "select", counted)
    shelf = Shelf()
    for side in order:
        shelf.put(slab(list(range(1 + side, 2 * rows, 2))))
    check_shelf(shelf)
    assert shelf.rows == 2 * rows - 1
    assert copied[0] <= 3 * rows


def test_a_slab_of_a_batch_keeps_nothing_else_of_it() -> None:
    batch = Publishes(TOPICS[0], [b"h%d" % i for i in range(10)], [b"x" * 100 * i for i in range(10)], 50, time=7)
    part = Slab.of_batch(batch, as_chunk([51, 53]))
    assert part.bodies == [b"x" * 100, b"x" * 300]
    assert part.properties == [b"h1", b"h3"]
    assert (part.times, part.first, part.last) == (7, 51, 53)
    assert part.cost < 800


def test_columns_in_which_all_rows_agree_are_one_value() -> None:
    rows = Rows([1, 2, 3], [TOPICS[0]] * 3, [b"h"] * 3, [b"a", b"b", b"c"], [5, 5, 5], [0, 0, 0], [0, 0, 0])
    one = Slab.of_rows(rows)
    assert (one.topics, one.properties, one.times, one.expires_at, one.priority) == (TOPICS[0], b"h", 5, None, None)
    piece = piece_of(rows, range(1, 4))
    assert (piece.topics, piece.properties) == (TOPICS[0], b"h")
    several = Slab.of_rows(Rows([1, 9], list(TOPICS), [b"h", b"g"], [b"a", b"b"], [5, 6], [0, 4], [1, 0]))
    assert several.properties == [b"h", b"g"]
    assert several.times == [5, 6]
    assert several.expires_at == [0, 4]


def test_pieces_of_a_slab_are_about_as_large_as_asked() -> None:
    one = slab(list(range(1, 101)))
    parts = one.in_pieces(one.cost // 4)
    assert [len(part) for part in parts] == [25] * 4
    assert sum(part.cost for part in parts) == one.cost
    assert slab([5]).in_pieces(1)[0].first == 5
