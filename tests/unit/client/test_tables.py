"""Tables that are published: what their rows become, and what no table is."""

from __future__ import annotations

from typing import Any

import orjson
import pandas as pd
import pyarrow as pa
import pytest

from penstock.client.outgoing import batches_of
from penstock.errors import InvalidArgument

FRAME: Any = pd.DataFrame({"id": [1, 2, 3], "total": [0.5, 1.5, 2.5]})


def bodies(table: object) -> list[Any]:
    _, batches = batches_of(table)
    return [orjson.loads(body) for batch in batches for body in batch.column("body").to_pylist()]


def test_the_numbers_of_rows_of_a_frame_are_no_part_of_its_rows() -> None:
    """A frame that was filtered or sorted has an index of its own, which has no name."""
    assert bodies(FRAME[FRAME["total"] > 1]) == [{"id": 2, "total": 1.5}, {"id": 3, "total": 2.5}]
    assert bodies(FRAME.sort_values("total", ascending=False))[0] == {"id": 3, "total": 2.5}
    letters: Any = pd.DataFrame({"body": ["a", "b"]})
    schema, _ = batches_of(letters[letters["body"] == "b"])
    assert schema.names == ["body"]


def test_an_index_with_a_name_is_a_column() -> None:
    assert bodies(FRAME.set_index("id"))[0] == {"id": 1, "total": 0.5}
    assert bodies(FRAME.rename_axis("row"))[1] == {"row": 1, "id": 2, "total": 1.5}
    rows: Any = pd.DataFrame({"region": ["a", "a"], "day": [1, 2], "n": [3, 4]})
    sums = rows.groupby(["region", "day"]).sum()
    assert bodies(sums)[1] == {"region": "a", "day": 2, "n": 4}


def test_a_map_is_an_object() -> None:
    """As typed consumers, filters and Spark's `map<string, ...>` read it."""
    kind = pa.map_(pa.string(), pa.map_(pa.string(), pa.int64()))
    table = pa.table({"m": pa.array([[("a", [("b", 1)])], [], None], kind)})
    assert bodies(table) == [{"m": {"a": {"b": 1}}}, {"m": {}}, {"m": None}]


MIXED = pd.DataFrame({"o": [{"x": 1}, [1]]})
TWICE = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
KEYS = pa.table({"m": pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))})


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (TWICE, "two columns of the table are called 'a'"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "two columns of the table are called 'a'"),
        (pa.table({"ok": [1], "t": pa.array([2**62], pa.timestamp("s"))}), "column 't' .* has no text"),
        (KEYS, "column 'm' has a map in which a key is there twice"),
        (MIXED, "a DataFrame that becomes no table: .*column o"),
        (pd.Series([1, 2]), "a Series is no table"),
        (pa.chunked_array([[1, 2]]), "a ChunkedArray that becomes no table: .*non-struct type"),
        ([{"a": 1}], "a list is no table"),
        (3, "a int is no table"),
    ],
)
def test_what_cannot_be_published_is_told(table: object, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        bodies(table)
