"""What a record's key is, is looked up for each batch of an answer; that all keys are put in order is done once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock
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
