"""Batches: what pyarrow reads from them is what was handed in."""

from __future__ import annotations

from typing import TypeVar

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log import columns, encode
from penstock.log.encode import Encoder, arrow_batch, samples
from penstock.log.frame import FrameReader, Layout, NotAFrame, sound
from penstock.records.entries import Control, Entry, Group, Publishes, Topic
from penstock.records.kinds import NO_ROUTE, Kind
from penstock.records.schema import COLUMNS

T = TypeVar("T")

ENCODER = Encoder()
TOPICS = [Topic("/", "", "a"), Topic("/", "", "größe"), Topic("v", "x", "long.key" * 5, 3), Topic("/", "", "")]


def read(data: bytes | bytearray) -> pa.RecordBatch:
    batch = pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(bytes(data))), COLUMNS)
    batch.validate(full=True)
    return batch


@st.composite
def publishes(draw: st.DrawFn, first: int) -> Publishes:
    n = draw(st.sampled_from([1, 1, 2, 7, 8, 9, 60, 200]))
    several = draw(st.booleans())
    pick = st.sampled_from(TOPICS)

    def maybe(values: st.SearchStrategy[int]) -> list[int] | None:
        return draw(st.none() | st.lists(values, min_size=n, max_size=n))

    return Publishes(
        draw(st.lists(pick, min_size=n, max_size=n)) if several else draw(pick),
        draw(st.lists(st.binary(max_size=9), min_size=n, max_size=n)) if draw(st.booleans()) else draw(st.binary()),
        draw(st.lists(st.binary(max_size=20), min_size=n, max_size=n)),
        first,
        draw(st.integers(0, 1 << 52)),
        draw(st.lists(st.integers(-1, 3), min_size=n, max_size=n)) if several else draw(st.integers(-1, 9)),
        maybe(st.integers(0, 5)),
        maybe(st.integers(0, 1 << 52)),
        maybe(st.integers(0, 255)),
        draw(st.lists(st.booleans(), min_size=n, max_size=n)) if several else draw(st.booleans()),
    )


@st.composite
def commits(draw: st.DrawFn) -> list[Entry]:
    entries, lsn = list[Entry](), draw(st.sampled_from([1, 1 << 40]))
    for _ in range(draw(st.integers(1, 5))):
        lsn += draw(st.sampled_from([0, 0, 0, 1 << 32]))
        if draw(st.booleans()):
            part: Publishes | Control = draw(publishes(lsn))
        else:
            part = Control(
                draw(st.sampled_from(Kind)), draw(st.text()), draw(st.binary()), draw(st.binary()), lsn, 5, 2
            )
        entries.append(Group([part]) if draw(st.booleans()) else part)
        lsn += len(part)
    return entries


@given(commits())
def test_the_template_says_what_pyarrow_says(entries: list[Entry]) -> None:
    made = ENCODER.encode(entries, 12, 64)
    batch = read(made.data)
    assert batch.equals(arrow_batch(entries))
    assert (made.first, made.last, made.rows) == (batch["lsn"][0].as_py(), batch["lsn"][-1].as_py(), len(batch))
    frame = FrameReader().header(bytes(made.data[: len(ENCODER.layout.header)]), 64)
    assert (frame.offset, frame.length, frame.lsn, frame.durable) == (64, len(made.data), made.first, 12)
    assert sound(frame, made.data)


@st.composite
def single_rows(draw: st.DrawFn) -> Entry:
    """One row: mostly one that has a way of its own, at times with what sends it the way of all."""
    lsn, time, rarely = draw(st.sampled_from([1, 89, 1 << 40])), draw(st.integers(0, 1 << 52)), st.integers(0, 9)
    name, header = draw(st.text()), draw(st.binary()) * draw(st.sampled_from([1, 1, 1, 900]))
    body = draw(st.binary()) * draw(st.sampled_from([1, 1, 1, 9000]))
    via, route = draw(st.integers(-1, 9)), draw(st.integers(-1, 9))
    if draw(st.booleans()):
        return Control(draw(st.sampled_from(Kind)), name, header, body, lsn, time, via, route)

    def maybe(value: T, otherwise: T) -> T:
        return otherwise if draw(rarely) == 0 else value

    topic, never = Topic("/", "", name, via), None if draw(st.booleans()) else list[int]()
    return Publishes(
        maybe(topic, [topic]), maybe(header, [header]), [body], lsn, time, maybe(route, [route]),  # type: ignore[arg-type]
        maybe(never, [draw(st.integers(0, 5))]), maybe(never, [draw(st.integers(0, 1 << 52))]),
        maybe(never, [draw(st.integers(0, 255))]), maybe(draw(st.booleans()), [True]),  # type: ignore[arg-type]
    )  # fmt: skip


@given(single_rows(), st.integers(0, 1 << 40))
def test_a_row_alone_is_put_together_as_among_others(entry: Entry, offset: int) -> None:
    made = ENCODER.encode([entry], 12, offset)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "lone_row", lambda _: None)
        same = ENCODER.encode([entry], 12, offset)
    assert (made.first, made.last, made.rows, made.size) == (same.first, same.last, same.rows, same.size)
    assert bytes(made.data) == bytes(same.data)
    assert read(made.data).equals(arrow_batch([entry]))


@given(commits(), st.data())
def test_the_sum_sees_every_flipped_bit(entries: list[Entry], data: st.DataObject) -> None:
    made = ENCODER.encode(entries, 12)
    frame = FrameReader().header(bytes(made.data[: len(ENCODER.layout.header)]), 0)
    bit = data.draw(st.integers(0, 8 * len(made.data) - 1))
    made.data[bit >> 3] ^= 1 << (bit & 7)
    try:
        bent = FrameReader().header(bytes(made.data[: frame.header]), 0)
    except NotAFrame:
        return
    if bent != frame or bit >> 3 not in range(frame.crc_at, frame.crc_at + 8):
        assert not sound(bent, made.data)


@pytest.mark.parametrize("place", ["lsn", "durable"])
@pytest.mark.parametrize("digits", [b"f" * 16, b"0020000000000000", b"-000000000000001"])
def test_an_lsn_that_nobody_gives_out_is_none(place: str, digits: bytes) -> None:
    """Sums do not tell: who has a secret of a cluster may make them."""
    layout = ENCODER.layout
    header, at = bytearray(ENCODER.encode(samples()[0], 12).data[: len(layout.header)]), getattr(layout, place)
    header[at : at + 16] = digits
    with pytest.raises(NotAFrame, match="LSNs that nobody gives out"):
        FrameReader().header(bytes(header), 0)


def test_a_batch_is_sound_only_where_it_was_written() -> None:
    """A batch that somebody sends as a message's body lies elsewhere, and is never taken for one of the log."""
    made = ENCODER.encode(samples()[0], 12, 4096)
    header = bytes(made.data[: len(ENCODER.layout.header)])
    assert sound(FrameReader().header(header, 4096), made.data)
    assert not sound(FrameReader().header(header, 8192), made.data)
    ENCODER.move(made, 8192)
    moved = bytes(made.data[: len(ENCODER.layout.header)])
    assert sound(FrameReader().header(moved, 8192), made.data)


def test_without_the_template_batches_are_the_same() -> None:
    assert ENCODER.uses_template
    plain = Encoder(uses_template=False)
    assert plain.mark(3, 2) is None
    for entries in samples():
        ours, theirs = ENCODER.encode(entries, 4), plain.encode(entries, 4)
        assert read(ours.data).equals(read(theirs.data))
        frame = FrameReader().header(bytes(theirs.data[: len(ENCODER.layout.header)]), 0)
        assert sound(frame, theirs.data)
        assert frame.lsn == theirs.first


def test_a_mark_is_an_empty_batch_for_any_reader() -> None:
    mark = ENCODER.mark(9, 8)
    assert mark is not None
    assert len(read(mark)) == 0
    frame = FrameReader().header(bytes(mark), 0)
    assert (frame.rows, frame.lsn, frame.durable) == (0, 9, 8)
    assert sound(frame, mark)


def test_nulls_stand_where_nothing_is_said() -> None:
    batch = read(ENCODER.encode([Publishes(TOPICS[0], b"", [b"x"] * 3, 1, 5, NO_ROUTE, [0, 4, 0])], 0).data)
    assert [batch[name].null_count for name in COLUMNS.names] == [0, 0, 0, 3, 3, 0, 2, 3, 0, 0, 0]


def test_an_empty_commit_is_no_batch() -> None:
    with pytest.raises(ValueError, match="needs a row"):
        ENCODER.encode([], 0)


def test_more_than_a_column_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "REACH", 1 << 16)  # a row alone that is smaller needs no look
    for properties, body in [(b"", bytes(1 << 17)), (bytes(1 << 17), b"")]:
        with pytest.raises(OverflowError, match="2 GiB"):
            ENCODER.encode([Publishes(TOPICS[0], properties, [body], 1)], 0)


def test_budget_of_bytes_a_message() -> None:
    batch = Publishes(Topic("/", "", "orders"), b"\x10\0\x02", [b"x" * 100] * 1000, 1, 1_700_000_000_000_000, 1)
    assert len(ENCODER.encode([batch], 0).data) / 1000 <= 180


@given(st.binary(max_size=80), st.integers(0, 900))
def test_a_header_of_noise_is_no_layout(noise: bytes, at: int) -> None:
    header = bytearray(ENCODER.layout.header)
    header[at : at + len(noise)] = noise[: max(0, len(header) - at)]
    try:
        Layout(bytes(header))
    except NotAFrame:
        pass
