"""What actions watch, what they cannot watch here, and the figures of a queue: rows of docs/proofs/amps.md."""

from __future__ import annotations

import pytest

import penstock
from penstock.errors import SettingsError
from penstock.testing import Broker
from scenario import broker_of, waiting

KEYED = {"name": "stock", "key": ["/id"], "expiration": "5s"}


def watching(topic: str, event: str, data: str, **more: object) -> dict[str, object]:
    return {"on": {"topic": topic, "event": event, **more}, "do": {"publish": {"topic": "out", "data": data}}}


def test_a_record_that_expires_or_is_deleted_goes_out_of_focus_and_none_ever_does_by_a_filter() -> None:
    kinds = ("delete", "expire", "match", "all")
    actions = [watching("stock", "oof", f"{kind} {{{{AMPS_PREVIOUS_DATA}}}}", type=kind) for kind in kinds]
    with broker_of({"name": "out"}, topic=[KEYED], action=actions) as broker:
        broker.publish("stock", b'{"id": 1}')
        broker.publish("stock", b'{"id": 1, "changed": true}')
        broker.publish("stock", b'{"id": 2}')
        assert waiting(broker, "out") == []
        broker.sow_delete("stock", filter="/id = 2")
        assert sorted(waiting(broker, "out")) == [b'all {"id": 2}', b'delete {"id": 2}']
        broker.advance(6)
        assert sorted(waiting(broker, "out")) == [
            b'all {"id": 1, "changed": true}',
            b'all {"id": 2}',
            b'delete {"id": 2}',
            b'expire {"id": 1, "changed": true}',
        ]


def test_nothing_is_published_by_another_instance() -> None:
    sources = ("all", "local", "replicated")
    actions = [watching("q", "publish", source, source=source) for source in sources]
    with broker_of({"name": "q"}, {"name": "out"}, action=actions) as broker:
        broker.publish("q", b"a")
        assert sorted(waiting(broker, "out")) == [b"all", b"local"]


def test_an_action_of_a_queues_name_watches_each_of_its_topics() -> None:
    queue: dict[str, object] = {"name": "work", "underlying_topic": "^orders", "default_publish_target": "orders"}
    with broker_of(queue, {"name": "out"}, action=[watching("work", "publish", "{{AMPS_TOPIC}}")]) as broker:
        for topic in ("orders", "orders.eu", "bills"):
            broker.publish(topic, b"a")
        assert waiting(broker, "out") == [b"orders", b"orders.eu"]


def test_one_instance_owns_all_and_transfers_nothing() -> None:
    with broker_of({"name": "q"}) as broker:
        for _ in range(3):
            broker.publish("q", b"a")
        broker.subscribe("q").take()
        stats = broker.stats("q")
        assert (stats["owned"], stats["queue_depth"]) == (3, 3)
        assert (stats["transferred_in"], stats["transferred_out"], stats["proxied_transfer"]) == (0, 0, False)


def test_details_are_of_the_first_thousand_messages_and_change_nothing() -> None:
    with broker_of({"name": "q"}) as broker:
        marks = [broker.publish("q", b"%d" % number) for number in range(1_001)]
        before = broker.stats("q")
        with penstock.connect(broker.flight_url) as client:
            messages = client.details("q")["messages"]
        assert [message["bookmark"] for message in messages] == marks[:1_000]
        assert broker.stats("q") == before


def test_a_right_knows_its_user_and_no_client() -> None:
    def rights(read: str) -> dict[str, object]:
        return {"user": [{"name": "ann", "password": "p"}], "entitlement": [{"queue": "q", "read": read}]}

    with broker_of({"name": "q"}, **rights("/owner = USER() AND AMPS_INSTANCE_NAME() IS NOT NULL")) as broker:
        for owner in ("ann", "bob"):
            broker.publish("q", f'{{"owner": "{owner}"}}'.encode())
        with penstock.connect(f"penstock://ann:p@{broker.flight_url.rpartition('@')[2]}") as ann:
            assert [message.json() for message in ann.peek("q", 9)] == [{"owner": "ann"}]
    with (
        pytest.raises(SettingsError, match="CLIENT_NAME cannot be used here"),
        broker_of({"name": "q"}, **rights("/owner = CLIENT_NAME()")) as broker,
    ):
        assert broker.flight_url, "rights are read as the doors open"


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"queue": "q", "select": "-/,+/id"}, "a select list goes with a topic"),
        ({"select": "-/,+/id"}, "a select list goes with a topic"),
        ({"topic": "t", "select": "id"}, r"\[\[entitlement\]\] number 1 select: 'id' is no part of a list"),
    ],
)
def test_a_list_of_fields_is_of_topics(entry: dict[str, object], problem: str) -> None:
    entitlement = [{**entry, "read": True}]
    with pytest.raises(SettingsError, match=problem), broker_of({"name": "q"}, entitlement=entitlement) as broker:
        assert broker.flight_url


def test_a_pattern_of_consume_reaches_queues_alone() -> None:
    with Broker({"queue": [{"name": "jobs.a"}, {"name": "other"}], "topic": [{"name": "jobs.topic"}]}) as broker:
        for topic in ("jobs.topic", "jobs.a", "other"):
            broker.publish(topic, topic.encode())
        with penstock.connect(broker.flight_url) as client, client.consume("^jobs", backlog=9) as consumer:
            assert consumer.queues == ["jobs.a"]
            assert next(iter(consumer)).body == b"jobs.a"
