"""Whatever reads bodies reads those of every message type: each reader is asked of each type; a broker here, too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from message_samples import AVRO, ORDER, SAMPLES, Sample
from penstock.client.bodies import avro
from penstock.core.publishing.published import Published
from penstock.errors import InvalidArgument, PenstockError, PreconditionFailed, SettingsError
from penstock.expr.bodies import body_type
from penstock.records.entries import Publishes, Topic
from penstock.records.message_types import named
from penstock.records.properties import Properties, encode
from penstock.testing import Broker

ORDERS = [
    {"id": "a-1", "total": 7, "region": "north", "note": "x"},
    {"id": "a-2", "total": 9, "region": "south", "note": "y"},
    {"id": "a-3", "total": 3, "region": "north", "note": "z"},
]
EMPTY: Mapping[str, Any] = {}
ALL = pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES.keys())


def broker(sample: Sample, *queues: dict[str, Any], topic: dict[str, Any] | None = None, **more: Any) -> Broker:
    """A broker with queues over the topic `t`, all of the sample's type."""
    told = [{"underlying_topic": "t", "message_type": sample.name, **queue} for queue in queues]
    topics = [] if topic is None else [{"name": "t", "message_type": sample.name, **topic}]
    return Broker(config={"queue": told, "topic": topics, **more})


def publish(one: Broker, sample: Sample, orders: list[dict[str, Any]] = ORDERS) -> None:
    for order in orders:
        one.publish("t", sample.body(order), headers=sample.headers)


@pytest.fixture
def ids(sample: Sample) -> Any:
    """Which orders some bodies are."""
    read = sample.read
    names = [read(sample.body(order)) for order in ORDERS]
    return lambda bodies: [names.index(read(body)) + 1 for body in bodies]


def taken(one: Broker, queue: str, **terms: Any) -> list[bytes]:
    return [message.body for message in one.subscribe(queue, max_backlog=10, **terms).take()]


@ALL
def test_filters_of_queues_and_of_subscriptions(sample: Sample, ids: Any) -> None:
    north = sample.said("{region} = 'north'")
    with broker(sample, {"name": "north", "filter": north}, {"name": "all"}) as one:
        publish(one, sample)
        assert ids(taken(one, "north")) == [1, 3]
        assert ids(taken(one, "all", filter=sample.said("{total} > 5"))) == [1, 2]


@ALL
def test_priorities_and_keys(sample: Sample, ids: Any) -> None:
    queues: list[dict[str, Any]] = [
        {"name": "ranked", "priority_expression": sample.path("total")},
        {"name": "grouped", "group_key": sample.path("region")},
        {"name": "last", "last_value_key": sample.path("region")},
        {"name": "once", "dedup_key": sample.path("region"), "unique": True},
        {"name": "barred", "barrier_expression": sample.said("{id} = 'a-2'")},
        {"name": "fair", "fairness_key": sample.path("region")},
    ]
    with broker(sample, *queues) as one:
        publish(one, sample)
        assert ids(taken(one, "ranked")) == [2, 1, 3]
        assert ids(taken(one, "grouped")) == [1, 2]
        assert ids(taken(one, "last")) == [2, 3]
        assert ids(taken(one, "once")) == [1, 2]
        assert ids(taken(one, "barred")) == [1]
        assert ids(taken(one, "fair")) == [1, 2, 3]


@ALL
def test_settling_and_moving_by_filter(sample: Sample) -> None:
    with broker(sample, {"name": "q"}, {"name": "other"}) as one:
        publish(one, sample)
        assert one.ack_filter("q", sample.said("{region} = 'north'")) == 2
        assert one.stats("q")["ready"] == 1


@ALL
def test_records(sample: Sample, ids: Any) -> None:
    key = sample.path("id")
    with broker(sample, topic={"key": [key]}) as one:
        publish(one, sample)
        one.publish("t", sample.body(ORDERS[0]), headers=sample.headers)
        found = one.sow("t", filter=sample.said("{region} = 'north'"), order_by=sample.said("{total} DESC"))
        assert ids(record.body for record in found) == [1, 3]
        assert len(one.sow("t")) == 3
        [row] = one.sow(
            "t",
            projection=sample.said("COUNT({id}) AS /n"),
            grouping=sample.path("note"),
            filter=sample.said("{note} = 'x'"),
        )
        assert row.body == b'{"n":1}'
        [message] = one.subscribe("t", sow=True, filter=sample.said("{total} = 9"), max_backlog=10).take()
        assert ids([message.body]) == [2]
        assert one.sow_delete("t", filter=sample.said("{region} = 'north'")) == 2
        said = f"the body is no {body_type(sample.name).title}, so it has no key"
        with pytest.raises(PenstockError, match=said):
            one.publish("t", b"\xc1<")


@ALL
def test_deltas_and_select_lists(sample: Sample) -> None:
    read = sample.read
    with broker(sample, topic={"key": [sample.path("id")]}) as one:
        one.publish("t", sample.body(ORDERS[0]), headers=sample.headers)
        change = sample.body({"id": "a-1", "region": "west"})
        if not sample.merges:
            with pytest.raises(PenstockError, match="is not written here, so it has no deltas"):
                one.delta_publish("t", change, headers=sample.headers)
            with pytest.raises(InvalidArgument, match="so its bodies are sent whole"):
                one.sow("t", select="-/, +/order/id")
            return
        one.delta_publish("t", change)
        [record] = one.sow("t")
        assert read(record.body) == read(sample.body({**ORDERS[0], "region": "west"}))
        [record] = one.sow("t", select=f"-/, +{sample.path('region')}")
        assert read(record.body) == read(sample.body({"region": "west"}))
        follower = one.subscribe("t", delta=True, max_backlog=10)
        one.publish("t", sample.body({**ORDERS[0], "region": "east"}))
        [message] = follower.take()
        assert read(message.body) == read(sample.body({"id": "a-1", "region": "east"}))


@ALL
def test_views_and_replays(sample: Sample, ids: Any) -> None:
    select = sample.said("{region} AS /region, COUNT({id}) AS /n")
    view = {"name": "v", "source": "q", "select": select, "group_by": [sample.path("region")]}
    with broker(sample, {"name": "q"}, topic={}, view=[view]) as one:
        publish(one, sample)
        assert sorted(row.body for row in one.sow("v")) == [b'{"region":"north","n":2}', b'{"region":"south","n":1}']
        replay = one.subscribe("t", bookmark="EPOCH", filter=sample.said("{region} = 'north'"), max_backlog=10)
        assert ids(message.body for message in replay.take()) == [1, 3]
        cut = partial(one.subscribe, "t", bookmark="EPOCH", select=f"-/, +{sample.path('id')}", max_backlog=10)
        if not sample.merges:
            with pytest.raises(InvalidArgument, match="so its bodies are sent whole"):
                cut()
            return
        assert cut().take()[0].body == sample.body({"id": "a-1"})


def test_a_queue_and_its_topic_say_the_same() -> None:
    said = "has message_type nvfix, and its topic 't' was declared with json"
    queue = {"name": "q", "underlying_topic": "t", "message_type": "nvfix"}
    with pytest.raises(SettingsError, match=said), Broker(config={"topic": [{"name": "t"}], "queue": [queue]}):
        pass
    with Broker(config={"queue": [queue]}) as one:
        with pytest.raises(PreconditionFailed, match="it comes with the declare, and stays"):
            one.alter("q", message_type="json")
        assert one.stats("q")["message_type"] == "nvfix"


def test_a_filter_that_says_another_type_is_refused() -> None:
    with Broker(config={"queue": [{"name": "q", "message_type": "nvfix"}]}) as one:
        one.publish("q", b"a=1\x01")
        with pytest.raises(InvalidArgument, match="reads bson, and the bodies here are nvfix"):
            one.subscribe("q", filter="[bson] /a = 1")
        [message] = one.subscribe("q", filter="[nvfix] /a = 1").take()
        message.ack()


def test_fields_of_several_topics_are_those_of_json() -> None:
    with Broker(config={"queue": [{"name": "q", "message_type": "nvfix"}], "topic": [{"name": "r"}]}) as one:
        one.subscribe("^r", bookmark="EPOCH", filter="/a = 1")
        with pytest.raises(InvalidArgument, match="topic 'q' is among those that are chosen, and its bodies are nvfix"):
            one.subscribe("^[qr]", bookmark="EPOCH", filter="/a = 1")
    with (
        Broker(config={"topic": [{"name": "q", "message_type": AVRO}, {"name": "r"}]}) as one,
        pytest.raises(InvalidArgument, match=f"its bodies are {re.escape(named(AVRO))}: what asks"),
    ):
        one.subscribe("^[qr]", bookmark="EPOCH", filter="/a = 1")


def test_bodies_without_fields_are_delivered() -> None:
    with Broker(config={"queue": [{"name": "q", "message_type": "binary"}]}) as one:
        one.publish("q", b'{"a": 1}')
        assert [message.body for message in one.subscribe("q", filter="/a IS NULL").take()] == [b'{"a": 1}']


def sent(
    one: Broker, topic: str, bodies: list[bytes], content_types: list[str | None], headers: Mapping[str, Any] = EMPTY
) -> Published:
    """What became of messages that say what they are."""
    heads = [encode(Properties(content_type=said, headers=dict(headers))) for said in content_types]
    batch = Publishes(Topic("/", "", topic), heads, bodies)
    return one.command(lambda instance: instance.core.publish(instance.engine.now(), batch))


@ALL
def test_a_content_type_that_contradicts_is_refused(sample: Sample) -> None:
    """All but JSON, whose topics take what comes."""
    other = "application/bson" if sample.name != "bson" else "application/json; charset=utf-8"
    with broker(sample, {"name": "q"}, topic={"key": [sample.path("id")]}) as one:
        said = [None, "text/plain", "application/octet-stream", other]
        told = sent(one, "t", [sample.body(ORDERS[0])] * 4, said, sample.headers)
        if sample.name == "json":
            assert told.stored == 4
            return
        [(row, why)] = told.refused
        assert (row, told.stored, one.stats("q")["ready"], len(one.sow("t"))) == (3, 3, 3, 1)
        assert str(why).startswith(f"content type {other!r} says ")
        assert f", and the bodies of topic 't' are {named(sample.name)}" in str(why)
        assert not sent(one, "t", [sample.body(ORDERS[0])], [other], sample.headers).stored


def test_the_other_rows_of_a_batch_are_published() -> None:
    with Broker(config={"queue": [{"name": "q", "message_type": "nvfix"}]}) as one:
        told = sent(one, "q", [b"a=%d\x01" % n for n in range(4)], ["text/plain", "application/json", "a/x+xml", None])
        assert [row for row, _ in told.refused] == [1, 2]
        assert [message.body for message in one.subscribe("q", max_backlog=9).take()] == [b"a=0\x01", b"a=3\x01"]


def test_who_has_asked_already_gets_bodies_of_a_schema_that_comes_later() -> None:
    """They lay there ready, and only who asked after the queue knew the schema was given them."""
    first, later = avro({7: ORDER}), avro({7: ORDER, 9: ORDER})
    body = SAMPLES["avro"].body(ORDERS[0])
    with Broker(config={"queue": [{"name": "q", "message_type": first}]}) as one:
        low, high = (one.subscribe("q", filter=f"/total {sign} 5", max_backlog=9) for sign in "<>")
        one.publish("q", b"\0\0\0\0\x09" + body)
        one.publish("q", b"\0\0\0\0\x07" + body)
        assert [message.body[4] for message in high.take()] == [7]
        one.alter("q", message_type=later)
        one.publish("q", b"\0\0\0\0\x09" + body)
        assert [message.body[4] for message in high.take()] == [9, 9]
        assert low.take() == []
        high.replace(filter="/total > 6")
        one.publish("q", b"\0\0\0\0\x09" + body)
        assert [message.body[4] for message in high.take()] == [9]


def test_a_view_reads_bodies_of_a_schema_that_comes_later() -> None:
    """They were counted, and had no fields."""
    first, later = avro({7: ORDER}), avro({7: ORDER, 9: ORDER})
    body = SAMPLES["avro"].body(ORDERS[0])
    view = {"name": "v", "source": "q", "select": ["COUNT(1) AS /n", "SUM(/total) AS /sum"]}
    with Broker(config={"queue": [{"name": "q", "message_type": first}], "view": [view]}) as one:
        one.publish("q", b"\0\0\0\0\x09" + body)
        one.publish("q", b"\0\0\0\0\x07" + body)
        assert [row.json() for row in one.sow("v")] == [{"n": 2, "sum": 7}]
        one.alter("q", message_type=later)
        one.publish("q", b"\0\0\0\0\x09" + body)
        assert [row.json() for row in one.sow("v")] == [{"n": 3, "sum": 21}]


@ALL
def test_a_key_of_conflation(sample: Sample, ids: Any) -> None:
    with broker(sample, topic={"key": [sample.path("id")]}) as one:
        watch = one.subscribe("t", conflation="1s", conflation_key=sample.path("region"), max_backlog=10)
        publish(one, sample)
        one.advance(1.1)
        assert ids(message.body for message in watch.take()) == [3, 2]
        by_header = one.subscribe("t", conflation="1s", conflation_key="/@headers/kind", max_backlog=10)
        for order, kind in zip(ORDERS, "aab", strict=True):
            one.publish("t", sample.body(order), headers={**sample.headers, "kind": kind})
        one.advance(1.1)
        assert ids(message.body for message in by_header.take()) == [2, 3]


def test_a_body_is_no_larger_than_a_server_would_take() -> None:
    with Broker(config={"amqp": {"message_max": "1KiB"}, "queue": [{"name": "q"}]}) as broker:
        broker.publish("q", b"x" * 1024)
        with pytest.raises(InvalidArgument, match="the body has 1025 bytes; at most 1024 are taken"):
            broker.publish("q", b"x" * 1025)
        assert broker.stats("q")["ready"] == 1


def later_broker(**topic: Any) -> Broker:
    one = Broker()
    learn(one, message_type=avro({7: ORDER}), **topic)
    return one


def learn(one: Broker, **settings: Any) -> None:
    """The topic's type has one schema more."""
    settings = {"message_type": avro({7: ORDER, 9: ORDER}), **settings}
    one.command(lambda house: house.core.declare_topic(house.engine.now(), "/", "", "t", settings))


def order_of(number: int, **fields: Any) -> bytes:
    """An order behind the id of its schema."""
    return b"\0\0\0\0" + bytes([number]) + SAMPLES["avro"].body({**ORDERS[0], **fields})


def test_records_stay_when_their_topic_learns_a_schema() -> None:
    """All of them were gone, as with another key; they stay over a restart, too."""
    with later_broker(key=["/id"]) as one:
        for number in range(3):
            one.publish("t", order_of(7, id=f"k{number}"))
        learn(one, key=["/id"])
        assert len(one.sow("t")) == 3
        one.publish("t", order_of(9, id="k1", total=100))
        one.publish("t", order_of(9, id="k3", total=200))
        for _ in range(2):
            assert [row.body[4] for row in one.sow("t", order_by="/id")] == [7, 9, 7, 9]
            assert [row.body[7:9] for row in one.sow("t", filter="/total > 50", order_by="/total")] == [b"k1", b"k3"]
            one.restart()


def test_records_go_with_another_key_and_another_type() -> None:
    for settings in (
        {"key": ["/region"]},
        {"key": ["/id"], "message_type": "json"},
        {"key_domain": "d", "key": ["/id"]},
    ):
        with later_broker(key=["/id"]) as one:
            one.publish("t", order_of(7))
            learn(one, **settings)
            for _ in range(2):
                assert len(one.sow("t")) == 0
                one.restart()


def test_records_stay_when_their_topic_has_a_schema_less() -> None:
    """As with a settings file that was written before the topic learned one."""
    with Broker(config={"topic": [{"name": "t", "message_type": avro({7: ORDER}), "key": ["/id"]}]}) as one:
        learn(one, key=["/id"])
        one.publish("t", order_of(7, id="a"))
        one.publish("t", order_of(9, id="b"))
        one.restart()
        assert [len(one.sow("t")), len(one.sow("t", filter="/id IS NOT NULL"))] == [2, 1]


@pytest.mark.parametrize("settings", [{}, {"key": ["/id"]}], ids=["no key", "key"])
@pytest.mark.parametrize("bookmark", [None, "EPOCH"], ids=["subscribed", "replayed"])
def test_who_has_a_filter_reads_schemas_that_its_topic_learns(settings: Any, bookmark: str | None) -> None:
    """It went on by the schemas of its beginning, to which a later body has no fields."""
    with later_broker(**settings) as one:
        high, low = (one.subscribe("t", bookmark=bookmark, filter=f"/total {sign} 8", max_backlog=9) for sign in "><")
        one.publish("t", order_of(7, id="a", total=9))
        assert [message.body[4] for message in high.take()] == [7]
        learn(one, **settings)
        one.publish("t", order_of(9, id="b", total=9))
        one.publish("t", order_of(9, id="c", total=5))
        assert [message.body[4] for message in high.take()] == [9]
        assert [message.body[4] for message in low.take()] == [9]
        late = one.subscribe("t", bookmark=bookmark, filter="/total > 8", max_backlog=9)
        one.publish("t", order_of(9, id="d", total=19))
        assert [message.body[7:8] for message in high.take()] == [b"d"]
        assert [message.body[7:8] for message in late.take()][-1] == b"d"


def test_a_replay_of_what_a_queue_shows_reads_schemas_that_the_queue_learns() -> None:
    with Broker(config={"queue": [{"name": "q", "message_type": avro({7: ORDER})}]}) as one:
        watch = one.subscribe("q", bookmark="EPOCH", filter="/total > 8", max_backlog=9)
        one.publish("q", order_of(9, total=9))
        assert watch.take() == []
        one.alter("q", message_type=avro({7: ORDER, 9: ORDER}))
        one.publish("q", order_of(9, total=9))
        assert [message.body[4] for message in watch.take()] == [9]


def test_records_of_schemas_that_their_topic_learns_have_a_focus_a_page_and_conflation() -> None:
    with later_broker(key=["/id"]) as one:
        focus = one.subscribe("t", filter="/total > 8", oof=True, max_backlog=9)
        page = one.subscribe("t", sow=True, oof=True, order_by="/total DESC", top_n=1, max_backlog=9)
        slow = one.subscribe("t", conflation="1s", conflation_key="/region", max_backlog=9)
        one.publish("t", order_of(7, id="a", total=9))
        one.advance(1.1)
        assert [len(some.take()) for some in (focus, page, slow)] == [1, 1, 1]
        learn(one, key=["/id"])
        one.publish("t", order_of(9, id="b", total=10, region="south"))
        one.publish("t", order_of(9, id="a", total=7, region="north"))
        one.advance(1.1)
        assert [message.body[7:8] for message in focus.take()] == [b"b", b"a"]
        assert [message.body[7:8] for message in page.take()] == [b"b", b"a"]
        assert [message.body[7:8] for message in slow.take()] == [b"b", b"a"]


def test_who_has_subscribed_reads_on_where_the_topic_has_a_schema_less() -> None:
    """What was asked for reads more than there is: it goes on."""
    with later_broker(key=["/id"]) as one:
        learn(one, key=["/id"])
        focus = one.subscribe("t", filter="/total > 8", oof=True, max_backlog=9)
        slow = one.subscribe("t", conflation="1s", conflation_key="/region", max_backlog=9)
        one.publish("t", order_of(9, id="a", total=9))
        learn(one, message_type=avro({7: ORDER}), key=["/id"])
        one.publish("t", order_of(7, id="b", total=10))
        one.advance(1.1)
        assert [message.body[7:8] for message in focus.take()] == [b"a", b"b"]
        assert [message.body[7:8] for message in slow.take()] == [b"b"]
