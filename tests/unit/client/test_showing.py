"""What notebooks show: bounded, escaped, and nothing that it takes away."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import cast

import pyarrow as pa

from penstock.client import connect
from penstock.client.admin import SHOWN
from penstock.client.messages import Message, Rows
from penstock.client.reading import Result
from penstock.client.showing import CELL, ROWS, Facts, Listed
from penstock.testing import Broker


def result(rows: int) -> Result:
    batches = [pa.record_batch({"n": [n], "text": [f"<b>{n}</b>"]}) for n in range(rows)]
    return Result(pa.schema({"n": pa.int64(), "text": pa.string()}), iter(batches))


def test_a_result_is_shown_and_can_still_be_read() -> None:
    found = result(3)
    shown = found._repr_html_()
    assert "<th>n</th><th>text</th>" in shown
    assert "<td>2</td><td>&lt;b&gt;2&lt;/b&gt;</td>" in shown
    assert shown.endswith("<p>3 rows</p>")
    assert found._repr_html_() == shown
    assert [row["n"] for row in found.rows()] == [0, 1, 2]
    assert "have been read" in found._repr_html_()


def test_a_result_in_a_terminal_says_what_it_has_and_how_it_is_read() -> None:
    found = result(1)
    assert repr(found).startswith("Result(n, text: rows(), to_arrow(), ")
    assert found.rows() == [{"n": 0, "text": "<b>0</b>"}]
    assert repr(found).startswith("Result(n, text, read: ")


def test_a_large_one_is_read_no_further_than_it_is_shown() -> None:
    taken = list[int]()

    def batches():  # type: ignore[no-untyped-def]
        for n in range(10_000):
            taken.append(n)
            yield pa.record_batch({"n": [n]})

    found = Result(pa.schema({"n": pa.int64()}), batches())
    shown = found._repr_html_()
    assert shown.count("<tr>") == ROWS + 1
    assert f"the first {ROWS} rows" in shown
    assert len(taken) == ROWS + 1
    assert found.to_arrow().num_rows == 10_000


def test_messages_and_queues() -> None:
    body = b"<script>" + b"x" * 1000 + b"\xff"
    rows = {"lsn": [7], "bookmark": ["1|7|"], "topic": ["orders"], "exchange": [None], "body": [body],
            "time": [datetime(2026, 1, 1, tzinfo=UTC)], "attempt": [2]}  # fmt: skip
    shown = Message(Rows(pa.record_batch(rows)), 0)._repr_html_()
    assert "<th>bookmark</th><td>1|7|</td>" in shown
    assert "&lt;script&gt;" in shown
    assert "<script>" not in shown
    assert len(shown) < 1000 + CELL
    assert "<th>reason</th>" not in shown, "what it has nothing to say of"
    assert Facts(ready=3, name="q")._repr_html_() == (
        "<table><tbody><tr><th>ready</th><td>3</td></tr><tr><th>name</th><td>q</td></tr></tbody></table>"
    )
    with Broker({"queue": [{"name": "to-ship"}]}) as broker, connect(broker.flight_url) as client:
        listed = client.queues()
    assert set(SHOWN) <= listed[0].keys(), "a column that no queue has is empty"
    assert "<td>to-ship</td>" in cast("Listed", listed)._repr_html_()
    many = Listed([{"name": f"q{n}", "ready": n} for n in range(ROWS + 1)], ("name", "ready"))
    assert many._repr_html_().count("<tr>") == ROWS + 1
    assert many[0] == {"name": "q0", "ready": 0}
