"""Packed bodies: they read like a list of bytes, hold no memory that nobody counts, and make the same log."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.log import columns, encode, writer
from penstock.log.encode import Encoder, arrow_batch
from penstock.log.simdisk import SimDisk
from penstock.log.writer import cut, slice_of
from penstock.records.entries import Control, Entry, Group, Publishes, Topic
from penstock.records.kinds import Kind
from penstock.records.message_bodies import (
    LARGE,
    PackedBodies,
    data_bytes,
    from_column,
    held_by,
    lengths,
    listed,
    size_of,
)
from sim.logkit import content, opened

ENCODER = Encoder()
TOPIC = Topic("/", "", "orders")
PERSISTENT = b"\x10\0\x02"
bodies = st.lists(st.binary(max_size=20), max_size=40)


def packed(values: list[bytes], before: int = 1) -> PackedBodies:
    """The values as a slice of a larger column, so that nothing begins at 0."""
    column = pa.array([b"before"] * before + values + [b"after"], pa.binary())
    return PackedBodies(column.slice(before, len(values)))


@given(bodies, st.integers(-50, 50), st.slices(40), st.data())
@example([], 0, slice(None), None)
def test_it_reads_like_a_list(values: list[bytes], at: int, some: slice, data: st.DataObject | None) -> None:
    ours = packed(values)
    assert (list(ours), len(ours), ours.tolist(), listed(ours)) == (values, len(values), values, values)
    assert ours[some] == values[some]
    assert list(reversed(ours)) == values[::-1]
    if -len(values) <= at < len(values):
        assert ours[at] == values[at]
        assert ours.index(values[at]) == values.index(values[at])
    else:
        with pytest.raises(IndexError):
            ours[at]
    assert ours.size == size_of(ours) == size_of(values) == data_bytes(ours.array)
    assert bytes(ours.data) == b"".join(values)
    assert lengths(ours).tolist() == lengths(values).tolist() == list(map(len, values))
    if data is not None:
        low = data.draw(st.integers(0, len(values)))
        high = data.draw(st.integers(low, len(values)))
        part = ours.part(low, high)
        assert (part.tolist(), part.size) == (values[low:high], size_of(values[low:high]))


@given(bodies)
def test_a_copy_of_its_own_is_equal_and_holds_only_itself(values: list[bytes]) -> None:
    ours = packed(values, before=10_000).owned()
    assert ours.tolist() == values
    assert held_by(ours.array) <= ours.size + 4 * (len(values) + 1)


def test_a_buffer_is_kept_only_by_those_who_count_for_most_of_it() -> None:
    large = pa.array([b"x" * 100] * 2000, pa.binary())
    whole = PackedBodies(large).owned()
    assert whole.data.obj is not None
    assert held_by(whole.array) == held_by(large)
    for rows in (2, 1000):
        part = PackedBodies(large.slice(500, rows)).owned()
        assert held_by(part.array) <= part.size + 4 * (rows + 1)
    message = pa.py_buffer(bytes(1 << 20))  # what a column is cut from counts whole
    offsets = pa.py_buffer(np.arange(0, 2001 * 100, 100, dtype=np.int32))
    cut_out = pa.Array.from_buffers(pa.binary(), 2000, [None, offsets, message.slice(64, 200_000)])
    assert held_by(cut_out) == (1 << 20) + 4 * 2001
    assert held_by(PackedBodies(cut_out).owned().array) == 200_000 + 4 * 2001


def test_few_small_bodies_are_a_list() -> None:
    few = pa.array([b"x"] * 10, pa.binary())
    assert from_column(few, 10) == [b"x"] * 10
    assert isinstance(from_column(pa.array([b"x"] * 1000, pa.binary()), 1000), PackedBodies)
    assert isinstance(from_column(pa.array([bytes(LARGE)], pa.binary()), LARGE), PackedBodies)


@st.composite
def batches(draw: st.DrawFn) -> list[Entry]:
    """Batches of all kinds, and control records between them."""
    entries, lsn = list[Entry](), 5
    for _ in range(draw(st.integers(1, 5))):
        values = draw(st.lists(st.binary(max_size=20), min_size=1, max_size=90))
        headers = draw(st.sampled_from([PERSISTENT, [b"h" * (row % 5) for row in range(len(values))]]))
        entries.append(Publishes(TOPIC, headers, values, lsn, 1_700_000_000_000_000, 3))
        lsn += len(values)
        if draw(st.booleans()):
            entries.append(Control(Kind.SETTLE, "orders", b"{}", b"body", lsn, 1_700_000_000_000_000))
            lsn += 1
    return [Group(entries)] if draw(st.booleans()) else entries


def repacked(entries: list[Entry], choose: list[bool]) -> list[Entry]:
    """The same, with packed bodies where `choose` says so."""
    out, turns = list[Entry](), iter(choose * len(entries))
    for entry in entries:
        if isinstance(entry, Group):
            out.append(Group([part for part in repacked(entry.entries, choose) if not isinstance(part, Group)]))
        elif isinstance(entry, Publishes) and next(turns):
            out.append(replace(entry, bodies=packed(listed(entry.bodies))))
        else:
            out.append(entry)
    return out


@given(batches(), st.lists(st.booleans(), min_size=1, max_size=4))
def test_a_batch_of_the_log_is_the_same_bytes(entries: list[Entry], choose: list[bool]) -> None:
    plain = ENCODER.encode(entries, 3, 64)
    assert ENCODER.encode(repacked(entries, choose), 3, 64) == plain
    assert arrow_batch(repacked(entries, choose)).equals(arrow_batch(entries))


@given(batches(), st.booleans())
def test_a_batch_in_pieces_is_the_same_bytes(entries: list[Entry], pack: bool) -> None:
    joined = ENCODER.encode(entries, 3, 64)
    assert not joined.rest
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "_GATHER", 1)
        pieces = ENCODER.encode(repacked(entries, [pack]), 3, 64)
        assert pieces.rest
        assert (pieces.data, pieces.size) == (joined.data, len(joined.data))
        ENCODER.move(joined, 8192)
        ENCODER.move(pieces, 8192)
        assert pieces.data == joined.data


def test_more_than_a_column_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "REACH", 10)
    one, six = packed([b"12345678901"]), packed([b"123456"])
    for refused in ([one], [six, six], [six, [b"123456"]], [[b"123456"], six]):
        entries = [Publishes(TOPIC, b"", some, 1) for some in refused]
        with pytest.raises(OverflowError, match="2 GiB"):
            ENCODER.encode(entries, 0)


@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=200),
    st.booleans(),
    st.integers(1, 50),
    st.integers(1, 5_000),
)
def test_a_long_run_is_cut_the_same(values: list[bytes], several: bool, rows: int, size: int) -> None:
    headers = [PERSISTENT * (row % 3) for row in range(len(values))] if several else PERSISTENT
    run = Publishes(TOPIC, headers, values, 7)
    ours = [batch for some in cut([replace(run, bodies=packed(values))], rows, size) for batch in some]
    plain = [batch for some in cut([run], rows, size) for batch in some]
    lsn = 7
    for a, b in zip(ours, plain, strict=True):
        assert isinstance(a, Publishes)
        assert isinstance(b, Publishes)
        assert (a.first, listed(a.bodies), a.properties) == (b.first, listed(b.bodies), b.properties)
        assert a.first == lsn
        assert len(a) <= rows
        assert len(a) == 1 or writer.size_of(a) <= size
        lsn += len(a)
    assert lsn == 7 + len(values)


def test_a_slice_of_packed_bodies_makes_no_objects() -> None:
    part = slice_of(Publishes(TOPIC, b"", packed([b"a", b"b", b"c"]), 7), 1, 3)
    assert isinstance(part.bodies, PackedBodies)
    assert (part.first, list(part.bodies)) == (8, [b"b", b"c"])


def test_the_log_gives_back_what_was_packed() -> None:
    disk = SimDisk()
    log = opened(disk)
    values = [b"%d" % row * (row % 200) for row in range(3000)]
    first = log.appended + 1
    log.append([Publishes(TOPIC, PERSISTENT, packed(values), first, 1_700_000_000_000_000)])
    log.flush()
    assert log.read(range(first, log.durable + 1)).bodies == values
    disk.kill()
    assert content(opened(disk)) == [(first + row, body) for row, body in enumerate(values)]
