"""Records beside queues: keys, orders, pages, and what a subscriber is told.  Rows of docs/proofs/amps.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.config.foreign import read_foreign
from penstock.config.foreign.converted import Verdict
from penstock.errors import InvalidArgument, PenstockError
from penstock.testing import Broker
from scenario import bodies, broker_of, waiting

AMPS = Path(__file__).resolve().parents[1] / "amps"
ORDERS: dict[str, object] = {"name": "orders", "key": ["/id"]}


def told(subscription: Any) -> list[tuple[str, str, object]]:
    return [(one.kind, one.reason, json.loads(one.body)) for one in subscription.take()]


def test_a_publisher_gives_no_key_where_fields_make_it() -> None:
    with broker_of(topic=[ORDERS, {"name": "given", "key_from": "publisher"}]) as broker:
        broker.publish("orders", b'{"id": 1}')
        broker.publish("orders", b'{"id": 1, "n": 2}', headers={"x-sow-key": "mine"})
        [record] = broker.sow("orders")
        assert (record.key != "mine", record.json()) == (True, {"id": 1, "n": 2}), "the header is one like any other"
        broker.publish("given", b'{"id": 1}', headers={"x-sow-key": "mine"})
        assert [one.key for one in broker.sow("given")] == ["mine"]


def test_a_delta_without_a_record_reaches_subscribers_and_queues_as_it_is() -> None:
    with broker_of({"name": "q", "underlying_topic": "plain"}) as broker:
        watch = broker.subscribe("plain")
        broker.publish("plain", b'{"a": 1}')
        broker.delta_publish("plain", b'{"b": 2}')
        assert bodies(watch.take()) == waiting(broker, "q") == [b'{"a": 1}', b'{"b": 2}']


def test_a_query_of_a_queue_is_ordered_and_cut_too() -> None:
    with broker_of({"name": "q"}) as broker:
        for total in ("3", "null", "1", '"text"', "2"):
            broker.publish("q", f'{{"total": {total}}}'.encode())
        found = broker.sow("q", order_by="/total")
        assert [one.json()["total"] for one in found] == [None, 1, 2, 3, "text"]
        assert [one.json()["total"] for one in broker.sow("q", order_by="/total DESC")] == ["text", 3, 2, 1, None]
        page = broker.sow("q", "/total > 0", order_by="/total", top_n=2, skip_n=1)
        assert [one.json()["total"] for one in page] == [2, 3]
        assert broker.stats("q")["ready"] == 5


def test_what_goes_out_of_focus_says_why() -> None:
    with broker_of(topic=[{**ORDERS, "expiration": "5s"}]) as broker:
        for id in (1, 2, 3):
            broker.publish("orders", json.dumps({"id": id, "open": 1}).encode())
        watch = broker.subscribe("orders", "/open = 1", sow=True, oof=True)
        assert len(told(watch)) == 3
        broker.publish("orders", b'{"id": 1, "open": 0}')
        broker.sow_delete("orders", filter="/id = 2")
        assert told(watch) == [("oof", "match", {"id": 1, "open": 0}), ("oof", "deleted", {"id": 2, "open": 1})]
        broker.advance(6)
        assert told(watch) == [("oof", "expired", {"id": 3, "open": 1})]


def test_a_record_that_a_right_no_longer_reaches_goes_by_match() -> None:
    settings: dict[str, Any] = {
        "user": [{"name": "ann", "password": "p"}],
        "topic": [ORDERS],
        "entitlement": [{"topic": "orders", "read": "/owner = USER()"}],
    }
    with Broker(settings) as broker:
        broker.publish("orders", b'{"id": 1, "owner": "ann"}')
        with penstock.connect(f"penstock://ann:p@{broker.flight_url.rpartition('@')[2]}") as ann:
            rows = iter(ann.sow_and_subscribe("orders", oof=True))
            assert next(rows).json() == {"id": 1, "owner": "ann"}
            broker.publish("orders", b'{"id": 1, "owner": "bob"}')
            gone = next(rows)
            assert (gone.event, gone.reason) == ("oof", "match")


def test_a_page_follows_its_records_and_has_a_limit() -> None:
    with broker_of(topic=[ORDERS]) as broker:
        for id in (1, 2, 3, 4):
            broker.publish("orders", json.dumps({"id": id}).encode())
        page = broker.subscribe("orders", sow=True, oof=True, order_by="/id", top_n=2, skip_n=1)
        assert told(page) == [("sow", "", {"id": 2}), ("sow", "", {"id": 3})]
        broker.publish("orders", b'{"id": 0}')
        assert sorted(told(page), key=str) == [("oof", "match", {"id": 3}), ("publish", "", {"id": 1})]
        broker.subscribe("orders", sow=True, top_n=10_000)
        with pytest.raises(InvalidArgument, match=r"top_n of a subscription is 10001, not in 1..10000"):
            broker.subscribe("orders", sow=True, top_n=10_001)


def test_the_key_of_a_row_is_the_values_of_its_group() -> None:
    view = {"name": "all", "source": "orders", "select": "/kind, COUNT(/id) AS /n", "group_by": ["/kind"]}
    with broker_of(topic=[ORDERS], view=[view, {**view, "name": "fewer", "filter": "/id > 1"}]) as broker:

        def keys(name: str) -> dict[str, tuple[str, int]]:
            rows: Any = broker.subscribe(name, sow=True).take()
            return {row.json()["kind"]: (row.key, row.json()["n"]) for row in rows}

        for id, kind in ((1, "a"), (2, "b"), (3, "a")):
            broker.publish("orders", json.dumps({"id": id, "kind": kind}).encode())
        (a, first), (b, _) = keys("all")["a"], keys("all")["b"]
        assert first == 2
        assert a != b
        broker.publish("orders", b'{"id": 4, "kind": "a"}')
        assert keys("all") == {"a": (a, 3), "b": (b, 1)}, "another count, the same key"
        assert keys("fewer") == {"a": (a, 2), "b": (b, 1)}, "other records, the same key"
        broker.crash()
        broker.restart()
        assert keys("all") == {"a": (a, 3), "b": (b, 1)}


def test_a_key_domain_of_a_view_changes_nothing(tmp_path: Path) -> None:
    text = (AMPS / "views.xml").read_text()
    (tmp_path / "plain.xml").write_text(text)
    (tmp_path / "views.xml").write_text(text.replace("</View>", "<KeyDomain>d</KeyDomain></View>", 1))
    plain, named = (read_foreign(str(tmp_path / name), {}) for name in ("plain.xml", "views.xml"))
    assert named.settings == plain.settings
    [remark] = [remark for remark in named.remarks if "KeyDomain" in remark.place.told(remark.text)]
    assert remark.verdict is Verdict.NO_MEANING
    assert "the key of a row is the values of its group" in remark.text


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_subscribers_are_told_of_nothing_that_is_not_durable(kind: str) -> None:
    with broker_of(topic=[ORDERS, {"name": "plain"}]) as broker:
        watches = [broker.subscribe("plain"), broker.subscribe("orders", oof=True)]
        broker.publish("plain", b"1")
        broker.publish("orders", b'{"id": 1}')
        assert [len(watch.take()) for watch in watches] == [1, 1]
        broker.disk.fail_next(kind)
        for topic in ("plain", "orders"):
            with pytest.raises(PenstockError):
                broker.publish(topic, b'{"id": 1, "lost": true}')
        assert [watch.take() for watch in watches] == [[], []]
        broker.crash()
        broker.restart()
        assert [one.json() for one in broker.sow("orders")] == [{"id": 1}]


def test_the_work_of_a_queue_comes_whole() -> None:
    with broker_of({"name": "q"}) as broker, pytest.raises(InvalidArgument, match="work comes whole"):
        broker.subscribe("q", select="-/,+/id")
