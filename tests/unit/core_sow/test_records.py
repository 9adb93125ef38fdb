"""SOW topics as a publisher, a queue and a reader see them."""

from __future__ import annotations

from typing import Any

import pytest

from message_samples import ORDER
from penstock.client.bodies import avro
from penstock.core.sow.holding import Sows
from penstock.core.state.capture import needed_pairs
from penstock.core.state.fold import Fold
from penstock.errors import InvalidArgument, NotFound, SettingsError
from penstock.testing import Broker

CONFIG: dict[str, object] = {
    "topic": [
        {"name": "orders", "key": ["/id"]},
        {"name": "given", "key_from": "publisher"},
        {"name": "short", "key": ["/id"], "expiration": "10s"},
        {"name": "plain"},
    ],
    "queue": [
        {"name": "q", "underlying_topic": "orders"},
        {"name": "fast", "underlying_topic": "short"},
    ],
}


def bodies(found: list[Any]) -> list[bytes]:
    return [one.body for one in found]


def test_the_last_message_of_each_key_is_there_and_the_queue_has_all() -> None:
    with Broker(CONFIG) as broker:
        for body in ('{"id":1,"v":1}', '{"id":2,"v":1}', '{"id":1,"v":2}'):
            broker.publish("orders", body)
        assert bodies(broker.sow("orders", order_by="/id")) == [b'{"id":1,"v":2}', b'{"id":2,"v":1}']
        assert [one.json()["v"] for one in broker.sow("q")] == [1, 1, 2]
        taken = broker.subscribe("q", max_backlog=2).take()
        assert len(taken) == 2
        assert bodies(broker.sow("q")) == [b'{"id":1,"v":2}']  # what is leased is not available


def test_a_message_without_its_key_is_refused_and_those_beside_it_are_not() -> None:
    with Broker(CONFIG) as broker:
        with pytest.raises(InvalidArgument, match="topic 'orders': the key field /id is null or missing"):
            broker.publish("orders", '{"v": 1}')
        with pytest.raises(InvalidArgument, match="header 'x-sow-key'; there is none"):
            broker.publish("given", "anything")
        assert not broker.sow("orders")
        assert not broker.sow("q")


def test_publishers_give_keys_of_bodies_that_nobody_reads() -> None:
    with Broker(CONFIG) as broker:
        for key, body in (("a", b"\xff1"), ("b", b"2"), ("a", b"3")):
            broker.publish("given", body, headers={"x-sow-key": key})
        assert {(one.key, one.body) for one in broker.sow("given")} == {("a", b"3"), ("b", b"2")}
        assert broker.sow_delete("given", keys=["a", "c"]) == 1
        assert [one.key for one in broker.sow("given")] == ["b"]
        with pytest.raises(InvalidArgument, match="name the keys, not data"):
            broker.sow_delete("given", data="2")


def test_a_delta_reaches_log_queue_and_record_as_the_merged_message() -> None:
    with Broker(CONFIG) as broker:
        broker.publish("orders", '{"id":1,"o":{"a":1},"l":[1]}')
        broker.delta_publish("orders", '{"id":1,"o":{"b":2}}')
        broker.publish("orders", '{"id":1,"l":[2]}', headers={"x-delta": True})
        broker.delta_publish("orders", '{"id":2,"n":1}')
        merged = b'{"id":1,"o":{"a":1,"b":2},"l":[2]}'
        assert bodies(broker.sow("orders", order_by="/id")) == [merged, b'{"id":2,"n":1}']
        assert bodies(broker.sow("q"))[2:] == [merged, b'{"id":2,"n":1}']
        broker.crash()
        broker.restart()
        broker.delta_publish("orders", '{"id":1,"after":"a crash"}')
        [record] = broker.sow("orders", filter="/id = 1")
        assert record.json() == {"id": 1, "o": {"a": 1, "b": 2}, "l": [2], "after": "a crash"}


def test_a_delta_to_a_topic_without_a_key_is_a_message_like_any_other() -> None:
    with Broker(CONFIG) as broker:
        bookmark = broker.delta_publish("plain", "no JSON")
        assert bookmark
        with pytest.raises(InvalidArgument, match="has no key"):
            broker.sow("plain")
        with pytest.raises(NotFound, match="no SOW topic 'nowhere'"):
            broker.sow("nowhere")


def test_a_delta_that_is_no_object_is_refused() -> None:
    with Broker(CONFIG) as broker:
        broker.publish("orders", '{"id": 1}')
        with pytest.raises(InvalidArgument, match="no JSON"):
            broker.delta_publish("orders", "{1}")
        broker.publish("given", "text", headers={"x-sow-key": "a"})
        with pytest.raises(InvalidArgument, match="the present record is no JSON"):
            broker.delta_publish("given", '{"a": 1}', headers={"x-sow-key": "a"})
        assert bodies(broker.sow("given")) == [b"text"]


def test_removal_by_filter_by_keys_and_by_data_leaves_queues_alone() -> None:
    with Broker(CONFIG) as broker:
        for n in range(6):
            broker.publish("orders", f'{{"id":{n}}}')
        keys = {one.json()["id"]: one.key for one in broker.sow("orders")}
        assert broker.sow_delete("orders", filter="/id < 2") == 2
        assert broker.sow_delete("orders", keys=[str(keys[2]), str(keys[0])]) == 1
        assert broker.sow_delete("orders", data='{"id":3,"more":1}') == 1
        assert [one.json()["id"] for one in broker.sow("orders", order_by="/id")] == [4, 5]
        assert len(broker.sow("q")) == 6
        broker.crash()
        broker.restart()
        assert [one.json()["id"] for one in broker.sow("orders", order_by="/id")] == [4, 5]
        assert broker.sow_delete("orders", filter="1=1") == 2
        with pytest.raises(InvalidArgument, match="one of them"):
            broker.sow_delete("orders")
        with pytest.raises(InvalidArgument, match="unsigned 64-bit decimals"):
            broker.sow_delete("orders", keys=["x"])


def test_records_expire_by_wall_time_and_so_do_messages_of_their_queues() -> None:
    with Broker(CONFIG) as broker:
        broker.publish("short", '{"id":1}')
        broker.publish("short", '{"id":2}', expiration=3)
        broker.publish("short", '{"id":3}', expiration=0)  # never
        broker.advance(2.999)
        assert len(broker.sow("short")) == len(broker.sow("fast")) == 3
        broker.advance(0.002)
        assert [one.json()["id"] for one in broker.sow("short", order_by="/id")] == [1, 3]
        assert [one.json()["id"] for one in broker.sow("fast")] == [1, 3]
        broker.publish("short", '{"id":1,"again":true}')  # from now on
        broker.crash()
        broker.advance(9.9)
        broker.restart()
        assert [one.json()["id"] for one in broker.sow("short", order_by="/id")] == [1, 3]
        broker.advance(0.2)
        assert [one.json()["id"] for one in broker.sow("short")] == [3]


def test_the_first_few_in_an_order() -> None:
    with Broker(CONFIG) as broker:
        for n, total in enumerate((5, None, 7, 1, 7)):
            broker.publish("orders", f'{{"id":{n},"total":{"null" if total is None else total}}}')
        ids = [one.json()["id"] for one in broker.sow("orders", order_by="/total DESC, /id")]
        assert ids == [2, 4, 0, 3, 1]
        page = broker.sow("orders", order_by=["/total", "/id DESC"], top_n=2, skip_n=1)
        assert [one.json()["id"] for one in page] == [3, 0]
        assert len(broker.sow("orders", top_n=3)) == 3
        with pytest.raises(InvalidArgument, match="skip_n needs top_n"):
            broker.sow("orders", skip_n=1)


def test_another_key_begins_without_records_and_the_same_key_keeps_them() -> None:
    with Broker(CONFIG) as broker:
        broker.publish("orders", '{"id":1,"n":7}')
        broker.restart({"topic": [{"name": "orders", "key": ["/id"], "expiration": "1h"}]})
        assert len(broker.sow("orders")) == 1
        broker.restart({"topic": [{"name": "orders", "key": ["/n"]}]})
        assert not broker.sow("orders")
        broker.publish("orders", '{"n":7}')
        broker.crash()
        broker.restart()
        assert bodies(broker.sow("orders")) == [b'{"n":7}']


@pytest.mark.parametrize("kept", [False, True])
def test_the_record_of_a_declare_says_whether_records_of_another_type_stay(kept: bool) -> None:
    """Logs of before do not say it: what these records dropped is dropped, for later ones name what came instead."""
    sows, name, key = Sows(), ("/", "", "orders"), {"key": ["/id"]}
    for lsn, ids in ((5, {7: ORDER}), (9, {7: ORDER, 9: ORDER})):
        sow = sows.declared(lsn, name, key | {"message_type": avro(ids)}, kept=kept and lsn == 9)
        assert sow is not None
        sows.put_one(sow, lsn, lsn, 0)
    assert (sow.id, sow.index.count) == ((5, 2) if kept else (9, 1))
    assert sow.rule.message_type == avro({7: ORDER, 9: ORDER})


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        ({"name": "t", "key": ["id"]}, "is no path"),
        ({"name": "t", "expiration": "1h"}, "a topic without a key has none"),
        ({"name": "t", "key": ["/a"], "key_from": "publisher"}, "comes from the fields"),
    ],
)
def test_settings_are_refused_with_their_place(topic: dict[str, object], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Broker({"topic": [topic]})


def test_a_present_record_is_needed_however_old_it_is() -> None:
    with Broker({"topic": [{"name": "orders", "key": ["/id"]}]}) as broker:
        for n in (1, 2, 1, 3, 3):
            broker.publish("orders", f'{{"id":{n}}}')
        broker.sow_delete("orders", filter="/id = 3")
        instance = broker.instance
        assert instance is not None
        state = instance.core.durable_state()
        kept = [one.lsn for one in broker.sow("orders")]
        assert needed_pairs(state, 0, state.last_lsn).tolist() == [[lsn, lsn + 1] for lsn in sorted(kept)]
        assert instance.core.floor() == min(kept)
        fold = Fold(state.decode(state.encode()))
        assert fold.finish().sows == state.sows


def test_subscribers_are_told_of_what_changes_and_what_goes() -> None:
    with Broker(CONFIG) as broker:
        for n in range(3):
            broker.publish("orders", f'{{"id":{n},"a":{n}}}')
        full: Any = broker.subscribe("orders", "/a > 0", sow=True, oof=True)
        delta: Any = broker.subscribe("orders", delta=True, no_empties=True)
        plain: Any = broker.subscribe("orders", "/a > 0", sow=True)
        assert [(one.kind, one.json()["id"]) for one in full.take()] == [("sow", 1), ("sow", 2)]
        assert [one.json()["id"] for one in plain.take()] == [1, 2]
        assert plain.is_complete
        broker.publish("orders", '{"id":1,"a":5,"b":1}')
        broker.publish("orders", '{"id":1,"a":5,"b":1}')
        broker.publish("orders", '{"id":1,"a":0,"b":1}')
        broker.sow_delete("orders", data='{"id":2}')
        told = [(one.kind, one.reason, one.body) for one in full.take()]
        assert told == [
            ("publish", "", b'{"id":1,"a":5,"b":1}'),
            ("publish", "", b'{"id":1,"a":5,"b":1}'),
            ("oof", "match", b'{"id":1,"a":0,"b":1}'),
            ("oof", "deleted", b'{"id":2,"a":2}'),
        ]
        assert bodies(delta.take()) == [b'{"id":1,"a":5,"b":1}', b'{"id":1,"a":0}']
        assert [one.kind for one in plain.take()] == ["publish", "publish"]
        full.close()
        broker.publish("orders", '{"id":9,"a":9}')
        assert not full.take()


def test_a_subscription_ends_with_its_topic_or_its_key() -> None:
    with Broker(CONFIG) as broker:
        broker.publish("orders", '{"id":1}')
        told: Any = broker.subscribe("orders", sow=True)
        broker.command(lambda one: one.core.declare_topic(one.engine.now(), "/", "", "orders", {"key": ["/n"]}))
        assert isinstance(told.error, NotFound)
        broker.publish("orders", '{"n":1}')
        assert [one.kind for one in told.take()] == ["sow"]


def test_a_subscription_to_records_of_a_queue_looks_first_and_then_leases() -> None:
    with Broker(CONFIG) as broker:
        broker.publish("orders", '{"id":1}')
        seen: list[Any] = list(broker.subscribe("q", sow=True, max_backlog=5).take())
        assert [getattr(one, "kind", "delivery") for one in seen] == ["sow", "delivery"]
        assert not seen[0].ack()
        assert seen[1].ack()


def test_a_topic_without_records_has_an_empty_snapshot_and_then_its_messages() -> None:
    with Broker(CONFIG) as broker:
        broker.publish("plain", "before")
        subscription = broker.subscribe("plain", sow=True, delta=True)
        broker.publish("plain", "after")
        assert bodies(subscription.take()) == [b"after"]
        with pytest.raises(InvalidArgument, match="no pages of it"):
            broker.subscribe("plain", sow=True, top_n=3)


def test_topics_of_one_key_domain_have_the_same_keys() -> None:
    topics = [
        {"name": "a", "key": ["/id"], "key_domain": "d"},
        {"name": "b", "key": ["/order/id"], "key_domain": "d"},
        {"name": "c", "key": ["/id"]},
        {"name": "d", "key": ["/id"]},
    ]
    with Broker({"topic": topics}) as broker:
        broker.publish("b", '{"order": {"id": 7}}')
        for name in ("a", "c", "d"):
            broker.publish(name, '{"id": 7}')
        a, b, c, d = (broker.sow(name)[0].key for name in "abcd")
        assert a == b == d, "the domain of a topic that names none is its own name"
        assert a != c
        assert broker.sow_delete("a", keys=[b or ""]) == 1
        assert len(broker.sow("b")) == 1, "records of each topic are its own"
        broker.crash()
        broker.restart()
        assert broker.sow("b")[0].key == b
        broker.restart(config={"topic": [*topics[:1], {**topics[1], "key_domain": "e"}, *topics[2:]]})
        assert broker.sow("b") == [], "another domain is another key, and begins without records"
