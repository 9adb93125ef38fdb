"""An answer of many records: its keys are put in order once, and an order has the log looked through once a portion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.history.history import History
from penstock.server.views.record_query import PORTION_BYTES
from penstock.testing import Broker

BATCHES = 30

ASKS: tuple[Callable[[penstock.Client], int], ...] = (
    lambda client: sum(map(len, client.sow_batches("t", batch_size=1))),
    lambda client: sum(map(len, client.sow_batches("t", batch_size=1, filter="/v = 1"))),
    lambda client: sum(map(len, client.sow_batches("t", batch_size=1, order_by="/id"))),
)


@pytest.mark.parametrize("ask", ASKS)
def test_keys_are_put_in_order_once_however_many_batches_an_answer_has(
    ask: Callable[[penstock.Client], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, argsort = list[int](), np.argsort

    def counted(values: Any, *more: Any, **words: Any) -> Any:
        sizes.append(len(values))
        return argsort(values, *more, **words)

    with Broker() as broker, penstock.connect(broker.flight_url) as client:
        client.declare_topic("t", key=["/id"])
        for number in range(BATCHES):
            broker.publish("t", b'{"id": %d, "v": 1}' % number)
        monkeypatch.setattr(np, "argsort", counted)
        assert ask(client) == BATCHES
    assert 0 < sizes.count(BATCHES) <= 3


SCATTERED = 3000
LARGE = PORTION_BYTES // 4


def read_at_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each look through the log is asked for, from now on."""
    asked, rows_at = list[int](), History.rows_at

    def counted(history: History, lsns: Any) -> Any:
        asked.append(len(lsns))
        return rows_at(history, lsns)

    monkeypatch.setattr(History, "rows_at", counted)
    return asked


@pytest.mark.parametrize("descending", [False, True])
def test_an_order_unlike_the_logs_is_read_in_one_look_however_many_rows_it_has(
    descending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300,000 records took 31 s: for each thousand of them all of the log was read again."""
    with Broker() as broker, penstock.connect(broker.flight_url) as client:
        client.declare_topic("t", key=["/id"])
        values = [(number * 7919) % SCATTERED for number in range(SCATTERED)]
        bodies = [b'{"id": %d, "v": %d}' % row for row in enumerate(values)]
        client.publish_table("t", pa.table({"body": pa.array(bodies, pa.binary())}))
        asked = read_at_once(monkeypatch)
        order = "/v DESC" if descending else "/v"
        found = [message.json()["v"] for message in client.sow("t", order_by=order)]
        assert found == sorted(values, reverse=descending)
        assert asked == [SCATTERED, SCATTERED]  # who matches, and in which order; then what is shown


def test_of_large_records_in_an_order_few_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand of them were, whatever they took."""
    with Broker() as broker, penstock.connect(broker.flight_url) as client:
        client.declare_topic("t", key=["/id"])
        for number in range(7):
            broker.publish("t", b'{"id": %d, "v": "%s"}' % (number, b"x" * LARGE))
        asked = read_at_once(monkeypatch)
        assert [message.json()["id"] for message in client.sow("t", order_by="/id DESC")] == [6, 5, 4, 3, 2, 1, 0]
        assert asked == [7, 3, 3, 1]


def test_the_page_of_a_subscription_is_read_in_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its records was looked for alone."""
    with Broker() as broker, penstock.connect(broker.flight_url) as client:
        client.declare_topic("t", key=["/id"])
        for number in range(BATCHES):
            broker.publish("t", b'{"id": %d, "v": %d}' % (number, number * 7 % BATCHES))
        asked = read_at_once(monkeypatch)
        with client.sow_and_subscribe("t", order_by="/v", top_n=20) as page:
            assert [next(page).json()["v"] for _ in range(20)] == list(range(20))
        assert asked == [BATCHES, 20]
