"""Arrow batches to messages and back."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from choices import examples
from penstock.errors import InvalidArgument
from penstock.records.message_bodies import PackedBodies, held_by
from penstock.records.properties import Properties, decode, encode
from penstock.records.schema import COLUMNS, TIMESTAMP
from penstock.wire.fields import PROPERTIES_MOST
from penstock.wire.flight.codec import (
    LATEST,
    PLAIN,
    Upload,
    header_columns,
    header_of,
    present,
    properties_of,
    read_upload,
)
from penstock.wire.flight.commands import HEADERS, MESSAGES, select
from penstock.wire.flight.received import PUBLISHED, Bounds, columns_of, receive


def upload(columns: dict[str, Any], topic: str | None = "t", bounds: Bounds | None = None) -> Upload:
    return of_batch(pa.record_batch(columns), topic, bounds or Bounds())


def of_batch(batch: pa.RecordBatch, topic: str | None, bounds: Bounds) -> Upload:
    return read_upload(receive(batch, PUBLISHED, bounds), topic, bounds)


def test_bodies_alone_share_one_header() -> None:
    got = upload({"body": [b"a", b"bc", b""]})
    assert got.bodies == [b"a", b"bc", b""]
    assert got.properties == PLAIN
    assert decode(PLAIN) == Properties(delivery_mode=2)
    assert (got.names, got.name_of) == (["t"], None)
    assert got.size == 3 + 3 * len(PLAIN)


def test_many_bodies_stay_in_one_buffer_of_their_own() -> None:
    bodies = [b"%d" % row for row in range(1000)]
    got = upload({"body": bodies})
    assert isinstance(got.bodies, PackedBodies)
    assert (got.bodies.tolist(), got.size) == (bodies, sum(map(len, bodies)) + 1000 * len(PLAIN))
    column = pa.array([b"z" * 1000] * 2000, pa.binary())
    small = of_batch(pa.record_batch({"body": column}).slice(1000, 100), "t", Bounds())
    assert isinstance(small.bodies, PackedBodies)
    assert small.bodies.tolist() == [b"z" * 1000] * 100
    assert held_by(small.bodies.array) == 100 * 1000 + 4 * 101


def test_text_bodies_become_bytes() -> None:
    assert upload({"body": ["é", "x"]}).bodies == ["é".encode(), b"x"]


def test_rows_may_have_topics_of_their_own() -> None:
    got = upload({"body": [b"1", b"2", b"3"], "topic": ["a", None, "a"]})
    assert [got.names[place] for place in got.name_of or []] == ["a", "t", "a"]
    assert upload({"body": [b"1", b"2"], "topic": ["a", "a"]}).name_of is None


def test_a_row_without_any_topic_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no topic"):
        upload({"body": [b"1"]}, topic=None)
    with pytest.raises(InvalidArgument, match="nulls"):
        upload({"body": [b"1", b"2"], "topic": ["a", None]}, topic=None)
    with pytest.raises(InvalidArgument, match="longer than 255"):
        upload({"body": [b"1"], "topic": ["a" * 256]})


def test_times_are_microseconds_and_nulls_are_zero() -> None:
    stamps = pa.array([1_000, None], pa.timestamp("ms", tz="Europe/Rome"))
    got = upload({"body": [b"1", b"2"], "not_before": stamps})
    assert got.not_before == [1_000_000, 0]
    assert got.expires_at is None


def test_durations_count_from_when_it_is_taken_row_by_row() -> None:
    stamps = pa.array([7, None, None], pa.timestamp("us", tz="UTC"))
    got = upload(
        {"body": [b"1", b"2", b"3"], "not_before": stamps, "delay": [None, 5, None], "expiration": [None, 0, 9]}
    )
    assert (got.starts(100), got.ends(100)) == ([7, 105, 0], [0, 100, 109])
    assert got.starts(200) == [7, 205, 0]
    assert upload({"body": [b"1"]}).starts(100) is None


@pytest.mark.parametrize(("at", "after"), [("not_before", "delay"), ("expires_at", "expiration")])
def test_a_row_has_one_time_for_each_thing(at: str, after: str) -> None:
    stamps = pa.array([None, 7, None], pa.timestamp("us", tz="UTC"))
    with pytest.raises(InvalidArgument, match=f"row 1 has both {at} and {after}: give one of them"):
        upload({"body": [b"1"] * 3, at: stamps, after: [5, 5, None]})
    assert upload({"body": [b"1"] * 3, at: stamps, after: [5, None, None]}).starts(0) in ([5, 7, 0], None)


def test_columns_have_names_that_can_be_read_and_one_each() -> None:
    twice = pa.RecordBatch.from_arrays([pa.array([b"1"]), pa.array([b"2"])], ["body", "body"])
    with pytest.raises(InvalidArgument, match="column 'body' is there twice"):
        of_batch(twice, "t", Bounds())


@pytest.mark.parametrize("name", ["not_before", "expires_at"])
@pytest.mark.parametrize("micros", [-1, LATEST + 1, 2**62])
def test_a_time_that_is_no_date_is_refused(name: str, micros: int) -> None:
    column = pa.array([None, 1, micros], pa.timestamp("us", tz="UTC"))
    with pytest.raises(InvalidArgument, match=f"{name} is {micros} us since 1970"):
        upload({"body": [b"1"] * 3, name: column})
    last = upload({"body": [b"1"], name: pa.array([LATEST], pa.timestamp("us", tz="UTC"))})
    assert getattr(last, name) == [LATEST]


def test_header_columns_become_properties_of_each_row() -> None:
    got = upload(
        {
            "body": [b"1", b"2", b"3"],
            "priority": pa.array([1, None, 1], pa.int64()),
            "headers": pa.array([[("k", "v")], None, [("k", "v")]], HEADERS),
            "content_type": ["text/plain", None, "text/plain"],
            "message_id": ["m", None, "m"],
        }
    )
    assert isinstance(got.properties, list)
    assert got.properties[0] == got.properties[2]
    assert decode(got.properties[0]) == Properties(
        content_type="text/plain", headers={"k": "v"}, delivery_mode=2, priority=1, message_id="m"
    )
    assert decode(got.properties[1]) == Properties(delivery_mode=2)


def test_headers_of_more_than_a_frame_of_amqp_are_refused() -> None:
    """Each value is looked at on the loop: half a million of one message kept it for 0.7 s."""

    def of(size: int) -> int:
        headers = pa.array([[("k", "v" * size)]], HEADERS)
        made = upload({"body": [b"x"], "headers": headers}).properties
        assert isinstance(made, bytes)
        return len(made)

    def many(count: int) -> None:
        columns = {"body": [b"x"] * 3, "headers": pa.array([[("k", "v")], [("", None)] * count, None], HEADERS)}
        upload({name: pa.array(values)[1:] for name, values in columns.items()})

    many(PROPERTIES_MOST // 2)  # all of one name
    with pytest.raises(InvalidArgument, match=f"have {PROPERTIES_MOST + 2} bytes, {PROPERTIES_MOST} are allowed"):
        many(PROPERTIES_MOST // 2 + 1)
    beside = of(0)
    assert of(PROPERTIES_MOST - beside) == PROPERTIES_MOST
    with pytest.raises(InvalidArgument, match=f"have {PROPERTIES_MOST + 1} bytes, {PROPERTIES_MOST} are allowed"):
        of(PROPERTIES_MOST - beside + 1)


def test_a_header_without_a_value_stays_one() -> None:
    """AMQP's clients have such, and Spark's maps: it came back as the text `null`."""
    got = upload({"body": [b"1"], "headers": pa.array([[("a", None), ("b", "x")]], HEADERS)})
    assert isinstance(got.properties, bytes)
    assert decode(got.properties).headers == {"a": None, "b": "x"}
    assert header_columns(got.properties, 1, ["headers"])["headers"].to_pylist() == [[("a", None), ("b", "x")]]


def test_equal_header_columns_are_one_header() -> None:
    got = upload({"body": [b"1", b"2"], "content_type": ["a", "a"], "priority": pa.array([3, 3], pa.int16())})
    assert got.properties == encode(Properties(content_type="a", delivery_mode=2, priority=3))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"body": [b"1"], "priority": [256]}, r"priority is 256, not in 0\.\.255"),
        ({"body": [b"1"], "priority": [70_000]}, "priority"),
        ({"body": [b"1"], "message_id": ["x" * 256]}, "message_id"),
        ({"body": pa.array([None], pa.binary())}, "nulls"),
        ({"body": [1]}, "column 'body' is int64, not binary"),
        ({"boddy": [b"1"]}, "unknown column 'boddy'; did you mean 'body'"),
        ({"topic": ["t"]}, "column 'body' is missing"),
        ({"body": [b"1"], "not_before": [1]}, "column 'not_before' is int64"),
        ({"body": [b"1"], "not_before": pa.array([1], pa.timestamp("us"))}, "column 'not_before'"),
        ({"body": pa.array([b"1"]).dictionary_encode()}, "column 'body' is dictionary.*; send it decoded"),
        ({"body": [b"1"], "priority": pa.array(["1"], pa.string_view())}, "column 'priority' is string_view"),
        ({"body": pa.array([[b"1"]])}, "column 'body' is list"),
        ({"body": [b"1"], "headers": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))}, "column 'headers'"),
    ],
)
def test_a_wrong_column_is_named(columns: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        upload(columns)


VIEWS = {"body": pa.binary_view(), "topic": pa.string_view(), "content_type": pa.string_view()}


@pytest.mark.parametrize("body", [pa.binary_view(), pa.string_view()])
def test_views_are_bytes_and_texts(body: pa.DataType) -> None:
    columns = {"body": ["a" * 20, "b", ""], "topic": ["t" * 20, "u", "t" * 20], "content_type": ["x", None, "y" * 20]}
    views = {name: pa.array(values, {**VIEWS, "body": body}[name]) for name, values in columns.items()}
    got, same = upload(views), upload(columns)
    assert (got.bodies, got.names, got.properties) == (same.bodies, same.names, same.properties)
    whole = pa.record_batch(views)
    assert columns_of(receive(whole.slice(1), PUBLISHED, Bounds()))["body"].to_pylist() == [b"b", b""]
    assert len(receive(whole.slice(3), PUBLISHED, Bounds())) == 0


def views_of(sizes: list[int], data: bytes) -> pa.Array[Any]:
    """Views that all show the same bytes."""
    views = np.zeros((len(sizes), 4), np.int32)
    views[:, 0], views[:, 1] = sizes, int.from_bytes(data[:4], "little")
    return pa.Array.from_buffers(
        pa.binary_view(), len(sizes), [None, pa.py_buffer(views.tobytes()), pa.py_buffer(data)]
    )


def test_views_are_bounded_by_what_they_show_and_may_not_lie() -> None:
    with pytest.raises(InvalidArgument, match="a batch has 101[0-9]* bytes; at most 100000 are taken"):
        receive(pa.record_batch({"body": views_of([1000] * 1000, b"z" * 1000)}), PUBLISHED, Bounds(batch_bytes=100_000))
    for sizes in ([1001], [-5]):
        with pytest.raises(InvalidArgument, match="not valid Arrow"):
            receive(pa.record_batch({"body": views_of(sizes, b"z" * 1000)}), PUBLISHED, Bounds())


def test_extension_types_and_unions_are_refused() -> None:
    for column in (
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16], pa.binary(16))),
        pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([b"x"])]),
    ):
        with pytest.raises(InvalidArgument, match="column 'body'"):
            upload({"body": column})


def test_bounds_are_kept() -> None:
    with pytest.raises(InvalidArgument, match="3 rows; at most 2"):
        upload({"body": [b"1"] * 3}, bounds=Bounds(rows=2))
    with pytest.raises(InvalidArgument, match="a body has 11 bytes; at most 10"):
        upload({"body": [b"1" * 11]}, bounds=Bounds(body_bytes=10))
    with pytest.raises(InvalidArgument, match=r"bytes; at most 100 are taken"):
        upload({"body": [b"1" * 200]}, bounds=Bounds(batch_bytes=100))


def test_offsets_that_lie_are_found_before_they_are_followed() -> None:
    good = pa.array([b"abc", b"def"])
    _, _, data = good.buffers()
    offsets = pa.py_buffer((0).to_bytes(4, "little") + (2**30).to_bytes(4, "little") + (6).to_bytes(4, "little"))
    lying = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, data])
    with pytest.raises(InvalidArgument, match="not valid Arrow"):
        receive(pa.record_batch({"body": lying}), PUBLISHED, Bounds())


def test_text_that_is_no_utf8_is_found() -> None:
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    with pytest.raises(InvalidArgument, match="not valid Arrow"):
        receive(pa.record_batch({"body": [b"1"], "topic": broken}), PUBLISHED, Bounds())


TEXT = st.none() | st.text(max_size=8)
TABLE = st.dictionaries(st.text(max_size=4), st.text(max_size=4))
ROW = st.tuples(st.none() | st.integers(0, 255), TEXT, TEXT, st.none() | TABLE)
Row = tuple[int | None, str | None, str | None, dict[str, str] | None]


@settings(max_examples=examples(100, 5))
@given(st.lists(ROW, min_size=1, max_size=12))
def test_headers_come_back_as_they_went(rows: list[Row]) -> None:
    n = len(rows)
    columns: dict[str, pa.Array[Any]] = {
        "priority": pa.array([row[0] for row in rows], pa.int16()),
        "content_type": pa.array([row[1] for row in rows], pa.string()),
        "reply_to": pa.array([row[2] for row in rows], pa.string()),
        "headers": pa.array([None if row[3] is None else list(row[3].items()) for row in rows], HEADERS),
    }
    written = properties_of(columns, n, "publish")
    each = [written] * n if isinstance(written, bytes) else written
    assert [decode(one).delivery_mode for one in each] == [2] * n
    back = header_columns(written, n, columns)
    assert back["priority"].to_pylist() == [row[0] for row in rows]
    assert back["content_type"].to_pylist() == [row[1] for row in rows]
    assert back["reply_to"].to_pylist() == [row[2] for row in rows]
    assert [dict(item or []) for item in back["headers"].to_pylist()] == [row[3] or {} for row in rows]


def test_header_values_of_any_type_become_text() -> None:
    header = header_of(encode(Properties(headers={"a": 1, "b": True, "c": b"\xff", "d": [1, "x"], "e": None})))
    assert dict(header.headers or ()) == {"a": "1", "b": "true", "c": "�", "d": '[1,"x"]', "e": None}


def test_rows_of_the_log_as_readers_get_them() -> None:
    now = time.time_ns() // 1000
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array([5, 6], pa.int64()),
            pa.array([1, 1], pa.int8()),
            pa.array(["a", "b"]),
            pa.array([None, 3], pa.int32()),
            pa.array([1, None], pa.int32()),
            pa.array([now, now], TIMESTAMP),
            pa.nulls(2, TIMESTAMP),
            pa.nulls(2, TIMESTAMP),
            pa.array([0, 9], pa.int16()),
            pa.array([PLAIN, encode(Properties(headers={"k": "v"}))]),
            pa.array([b"x", b"y"]),
        ],
        schema=COLUMNS,
    )
    schema = select(MESSAGES, ("lsn", "bookmark", "topic", "exchange", "headers", "body"))
    shown = present(rows, schema, 77, {3: "ex"}.__getitem__)
    shown.validate(full=True)
    assert shown.to_pylist() == [
        {"lsn": 5, "bookmark": "77|5|", "topic": "a", "exchange": "", "headers": None, "body": b"x"},
        {"lsn": 6, "bookmark": "77|6|", "topic": "b", "exchange": "ex", "headers": [("k", "v")], "body": b"y"},
    ]
