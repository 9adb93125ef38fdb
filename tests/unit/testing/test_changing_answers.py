"""Where an answer has to stay the same, functions whose answer changes with time are refused; elsewhere they stand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.errors import PenstockError
from penstock.testing import Broker

NOW = "UNIX_TIMESTAMP() > 0"
CONFIG: dict[str, object] = {"queue": [{"name": "q"}], "topic": [{"name": "t", "key": ["/id"]}]}


@pytest.mark.parametrize(
    "config",
    [
        {"queue": [{"name": "q", "filter": NOW}]},
        {"queue": [{"name": "q", "barrier_expression": NOW}]},
        {"queue": [{"name": "q", "priority_expression": "UNIX_TIMESTAMP()"}]},
        {
            **CONFIG,
            "view": [{"name": "v", "source": "q", "select": "SUM(/a) AS /a", "group_by": ["/b"], "filter": NOW}],
        },
        {**CONFIG, "view": [{"name": "v", "source": "q", "select": "SUM(UNIX_TIMESTAMP()) AS /a"}]},
        {**CONFIG, "conflated_topic": [{"name": "c", "source": "t", "filter": NOW}]},
    ],
)
def test_settings_that_need_a_lasting_answer_refuse_it(config: dict[str, object]) -> None:
    with pytest.raises(PenstockError, match="time"):
        Broker(config)


@pytest.mark.parametrize(
    "ask",
    [
        lambda broker: broker.subscribe("t", filter=NOW, oof=True),
        lambda broker: broker.subscribe("t", filter=NOW, sow=True, top_n=5),
        lambda broker: broker.sow("q", projection="MAX(UNIX_TIMESTAMP()) AS /n", grouping="/id"),
    ],
)
def test_subscriptions_that_need_a_lasting_answer_refuse_it(ask: Callable[[Broker], object]) -> None:
    with Broker(CONFIG) as broker, pytest.raises(PenstockError, match="UNIX_TIMESTAMP cannot be used"):
        ask(broker)


def test_in_a_consumers_filter_and_in_a_query_they_stand() -> None:
    with Broker(CONFIG) as broker:
        broker.publish("q", b"{}")
        assert len(broker.sow("q", filter="UNIX_TIMESTAMP() - LAST_UPDATED() < 3600")) == 1
        assert len(broker.subscribe("q", filter="UNIX_TIMESTAMP() - LAST_UPDATED() < 3600").take()) == 1
        assert broker.ack_filter("q", NOW) == 1
