"""Who subscribes to records and applies what it is told holds what a query finds, whenever it began."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from choices import examples
from penstock.core.sow.select import merge
from penstock.testing import Broker

CONFIG: dict[str, object] = {"topic": [{"name": "t", "key": ["/id"], "expiration": "30s"}]}
FILTER = "/a >= 2"
ORDER, TOP, SKIP = "/a DESC", 2, 1

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 5), st.integers(0, 4)),
        st.tuples(st.just("delta"), st.integers(0, 5), st.integers(0, 4)),
        st.tuples(st.just("delete"), st.integers(0, 4), st.just(0)),
        st.tuples(st.just("advance"), st.integers(1, 20), st.just(0)),
        st.tuples(st.just("subscribe"), st.just(0), st.just(0)),
        st.tuples(st.just("look"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


class Reader:
    """A client that keeps what it is told by key, and the subscriptions that tell it."""

    def __init__(self, broker: Broker) -> None:
        self.kept: dict[str, dict[str, bytes]] = {}
        self.subscriptions = {
            "all": broker.subscribe("t", sow=True, oof=True),
            "filter": broker.subscribe("t", FILTER, sow=True, oof=True),
            "delta": broker.subscribe("t", FILTER, sow=True, oof=True, delta=True),
            "page": broker.subscribe("t", FILTER, sow=True, oof=True, order_by=ORDER, top_n=TOP, skip_n=SKIP),
        }

    def look(self, broker: Broker) -> None:
        for name, subscription in self.subscriptions.items():
            kept = self.kept.setdefault(name, {})
            told: Any
            for told in subscription.take():
                if told.kind == "oof":
                    assert kept.pop(told.key, None) is not None, (name, told)
                elif name == "delta" and told.kind == "publish" and told.key in kept:
                    kept[told.key] = merge(kept[told.key], told.body)
                else:
                    assert told.kind == "publish" or told.key not in kept
                    kept[told.key] = told.body
            find: dict[str, Any] = {} if name == "all" else {"filter": FILTER}
            if name == "page":
                find |= {"order_by": ORDER, "top_n": TOP, "skip_n": SKIP}
            found = {str(one.key): json.loads(one.body) for one in broker.sow("t", **find)}
            assert {key: json.loads(body) for key, body in kept.items()} == found, name


@settings(max_examples=examples(60))
@given(STEPS)
def test_what_is_told_adds_up_to_what_is_there(steps: list[tuple[str, int, int]]) -> None:
    with Broker(CONFIG) as broker:
        readers = [Reader(broker)]
        for verb, a, b in steps:
            match verb:
                case "publish":
                    broker.publish("t", json.dumps({"id": a, "a": b, "o": {"x": [b], "y": 0}}))
                case "delta":
                    broker.delta_publish("t", json.dumps({"id": a, "o": {"y": b}} if b % 2 else {"id": a, "a": b}))
                case "delete":
                    broker.sow_delete("t", filter=f"/a = {a}")
                case "advance":
                    broker.advance(a)
                case "subscribe":
                    readers.append(Reader(broker))
                case _:
                    readers[-1].look(broker)
        for reader in readers:
            reader.look(broker)
