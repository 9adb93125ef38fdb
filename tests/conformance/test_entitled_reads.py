"""Somebody who may read a part tries to see the rest: by views, aggregates, records, replays, settling, other names."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from urllib.parse import urlparse

import pika
import pika.exceptions
import pytest

import penstock
from penstock.errors import AccessRefused, ExpressionError, InvalidArgument, PenstockError
from penstock.testing import Broker

pytestmark = pytest.mark.conformance

TOPICS = ("mine", "part", "secret")
GROUPED = {"projection": ["/owner", "COUNT(/id) AS /n", "GROUP_CONCAT(/text) AS /all"], "grouping": ["/owner"]}


@pytest.fixture
def broker() -> Iterator[Broker]:
    keyed = [{"name": name, "key": ["/id"]} for name in TOPICS]
    config = {
        "user": [
            {"name": "root", "password": "root", "tags": ["administrator"]},
            *({"name": name, "password": name} for name in ("ann", "bob")),
        ],
        "exchange": [{"name": "x", "type": "direct"}],
        "topic": [*keyed, {"name": "secret", "exchange": "x", "key": ["/id"]}, {"name": "part", "exchange": "x"}],
        "queue": [
            {"name": "work", "underlying_topic": "^(mine|part|secret)$", "default_publish_target": "mine"},
            {"name": "all", "underlying_topic": "secret"},
            {"name": "part-of-all", "underlying_topic": "^part$", "default_publish_target": "part"},
        ],
        "view": [
            {"name": "of-secret", "source": "secret", "select": "/owner, COUNT(/id) AS /n", "group_by": ["/owner"]},
            {"name": "of-part", "source": "part", "select": "/owner, COUNT(/id) AS /n", "group_by": ["/owner"]},
        ],
        "action": [
            {"name": "copy", "on": {"topic": "secret", "event": "publish"}, "do": {"publish": {"topic": "part"}}}
        ],
        "entitlement": [
            {"tag": "administrator", "read": True, "write": True},
            {"user": "ann", "topic": "^secret$|^of-secret$", "read": False},
            {"user": "ann", "topic": "^part$", "read": "/owner = USER()", "write": "/owner = USER()"},
            {"user": "ann", "topic": "^of-part$", "read": "/owner = USER()"},
            {"user": "ann", "topic": ".*", "read": True},  # in the default exchange
            {"user": "ann", "queue": "^work$", "read": "/owner = USER() AND TOPIC_NAME() != 'secret'"},
            {"user": "ann", "queue": "^part-of-all$", "read": True},
            {"user": "bob", "topic": "^mine$", "write": True},
        ],
    }
    with Broker(config) as broker:
        number = 0
        for topic in (*TOPICS, "x/secret"):
            for owner in ("ann", "bob"):
                number += 1
                broker.publish(topic, json.dumps({"id": number, "owner": owner, "text": f"{topic} of {owner}"}))
        broker.advance(1)
        yield broker


def client(broker: Broker, user: str) -> penstock.Client:
    return penstock.connect(f"penstock://{user}:{user}@{broker.flight_url.rpartition('@')[2]}")


def owners(bodies: list[bytes]) -> list[str]:
    return sorted(str(json.loads(body)["owner"]) for body in bodies)


def taken(take: Callable[[], penstock.Message | None], count: int) -> list[bytes]:
    """Bodies of so many that come."""
    found = [take() for _ in range(count)]
    assert None not in found
    return [one.body for one in found if one is not None]


def last(broker: Broker, topic: str) -> None:
    """One that ann may not see, and behind it the last one that she may."""
    for number, owner in enumerate(("bob", "ann"), 98):
        broker.publish(topic, json.dumps({"id": number, "owner": owner, "text": "last"}))


def refused(*acts: Callable[[], object]) -> None:
    for act in acts:
        with pytest.raises(AccessRefused, match="refused for user|may read a part|no right"):
            act()


def test_records_and_what_is_gathered_of_them_are_narrowed(broker: Broker) -> None:
    with client(broker, "ann") as ann:
        assert owners([one.body for one in ann.sow("part")]) == ["ann", "ann"]  # one by the action that copies
        assert [json.loads(row.body)["owner"] for row in ann.sow("part", **GROUPED)] == ["ann"]  # type: ignore[arg-type]
        assert owners([one.body for one in ann.sow("part", filter="/owner = 'bob' OR 1 = 1")]) == ["ann", "ann"]
        assert list(ann.sow("part", filter="/owner = 'bob'")) == []
        assert [json.loads(row.body) for row in ann.sow("of-part")] == [{"owner": "ann", "n": 2}]
        with pytest.raises(ExpressionError):  # no text of a filter gets out of its brackets
            list(ann.sow("part", filter="1 = 1) OR (1 = 1"))
        followed = ann.sow_and_subscribe("part", timeout=60)
        rows = ann.sow_and_subscribe("part", timeout=60, **GROUPED)  # type: ignore[arg-type]
        assert owners(taken(followed.take, 2)) == ["ann", "ann"]
        assert owners(taken(rows.take, 1)) == ["ann"]
        last(broker, "part")
        assert owners(taken(followed.take, 1)) == ["ann"], "nothing else came before it"
        assert owners(taken(rows.take, 1)) == ["ann"]


def test_what_is_not_read_is_not_gathered_by_another_name_either(broker: Broker) -> None:
    with client(broker, "ann") as ann:
        refused(
            lambda: list(ann.sow("secret")),
            lambda: list(ann.sow("secret", **GROUPED)),  # type: ignore[arg-type]
            lambda: list(ann.sow("of-secret")),
            lambda: list(ann.sow("of-secret", **GROUPED)),  # type: ignore[arg-type]
            lambda: list(ann.sow("x/secret", **GROUPED)),  # type: ignore[arg-type]  # exchange x, in one name
            lambda: list(ann.sow("secret", exchange="x")),
            lambda: list(ann.sow("secret", exchange="x", **GROUPED)),  # type: ignore[arg-type]
            lambda: list(ann.sow("all")),
            lambda: list(ann.sow("all", **GROUPED)),  # type: ignore[arg-type]
            lambda: list(ann.sow_and_subscribe("secret", timeout=30)),
            lambda: list(ann.sow_and_subscribe("of-secret", timeout=30)),
            lambda: list(ann.sow_and_subscribe("x/secret", timeout=30, **GROUPED)),  # type: ignore[arg-type]
            lambda: list(ann.sow_and_subscribe("all", timeout=30, **GROUPED)),  # type: ignore[arg-type]
            lambda: list(ann.delta_subscribe("secret", timeout=30)),
            lambda: list(ann.replay("secret", "EPOCH")),
            lambda: list(ann.replay("secret", "EPOCH", exchange="x")),
        )


def test_a_queue_over_many_topics_shows_what_its_own_right_lets_through(broker: Broker) -> None:
    with client(broker, "ann") as ann:
        assert owners([one.body for one in ann.sow("work")]) == ["ann", "ann", "ann"]
        grouped = ann.sow("work", **GROUPED)  # type: ignore[arg-type]
        [row] = [json.loads(row.body) for row in grouped]
        assert row["owner"] == "ann"
        assert "secret" not in row["all"].replace("secret of ann", "", 1)  # the copy in `part` alone
        with ann.consume("work", backlog=100, timeout=60) as consumer:
            last(broker, "mine")
            seen = list[tuple[str | None, str]]()
            for message in consumer:
                seen.append((message.topic, message.json()["owner"]))
                if message.json()["text"] == "last":
                    break
        assert {owner for _, owner in seen} == {"ann"}
        assert "secret" not in {topic for topic, _ in seen}
        # the queue's name with a bookmark is its topics: each by its own right
        bodies = [one.body for one in ann.replay("work", "EPOCH")]
        assert not any(json.loads(body)["text"] == "secret of bob" for body in bodies)
        assert b"mine of bob" in b"".join(bodies), "this topic may be read whole"
        assert list(ann.replay("part-of-all", "EPOCH", filter="/owner = 'bob'")) == []


def test_settling_reaches_no_further_than_reading(broker: Broker) -> None:
    ready = broker.stats("work")["ready"]
    held = broker.subscribe("work", filter="/owner = 'bob'", max_backlog=None, name="victim").take()
    with client(broker, "ann") as ann, client(broker, "bob") as bob:
        refused(
            lambda: ann.ack("work", [held[0].bookmark]),
            lambda: bob.ack_filter("work", "1 = 1"),
            lambda: bob.ack_filter("all", "1 = 1"),
            lambda: ann.purge("work"),
        )
        assert ann.ack_filter("work", "/owner = 'bob'") == 0
        assert ann.ack_filter("work", "/owner = 'bob' OR 1 = 1", by="victim") == 3
    assert broker.stats("work")["leased"] == len(held)
    assert broker.stats("work")["ready"] == int(str(ready)) - len(held) - 3
    assert all(message.ack() for message in held)


def test_records_are_written_and_removed_by_who_may_write_them(broker: Broker) -> None:
    with client(broker, "ann") as ann, client(broker, "bob") as bob:
        refused(
            lambda: ann.sow_delete("part", filter="1 = 1"),
            lambda: ann.sow_delete("secret", filter="1 = 1"),
            lambda: bob.sow_delete("part", filter="1 = 1"),
            lambda: bob.publish("x/secret", {"id": 1}),
        )
        for body in ({"id": 3, "owner": "bob"}, {"id": 3}):
            with pytest.raises(PenstockError, match="may write|refused"):
                ann.publish("part", body)
            with pytest.raises(PenstockError, match="may write|refused"):
                ann.delta_publish("part", body)
        assert ann.publish("part", {"id": 90, "owner": "ann"}).bookmark


def test_amqp_narrows_by_the_user_and_refuses_the_rest(broker: Broker) -> None:
    address = urlparse(broker.amqp_url)
    login = pika.PlainCredentials("ann", "ann")
    connection = pika.BlockingConnection(pika.ConnectionParameters(address.hostname, address.port, credentials=login))
    for queue, arguments in (("all", {}), ("all", {"x-bookmark": "EPOCH"}), ("secret", {"x-bookmark": "EPOCH"})):
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
            connection.channel().basic_consume(queue, lambda *_: None, arguments=arguments)
        assert closed.value.reply_code == 403
    channel = connection.channel()
    seen: list[bytes] = []
    channel.basic_consume("^(work|all)$", lambda c, m, p, body: seen.append(body), arguments={"x-filter": "/id > 0"})
    until = time.monotonic() + 20
    while len(seen) < 3:
        assert time.monotonic() < until
        connection.process_data_events(0.05)
    channel.basic_cancel(next(iter(channel.consumer_tags)))  # what was granted before comes before the answer
    assert owners(seen) == ["ann", "ann", "ann"]
    connection.close()


def test_a_queue_is_not_altered_to_show_what_it_could_not_be_declared_for() -> None:
    """Who had a permission for all of the vhost, and a topic permission, read the other topics so."""
    everything = {"vhost": "/", **dict.fromkeys(("configure", "write", "read"), ".*")}
    config = {
        "user": [{"name": "root", "password": "root", "tags": ["administrator"]}, {"name": "ann", "password": "ann"}],
        "permission": [{"user": name, **everything} for name in ("root", "ann")],
        "topic_permission": [{"user": "ann", "vhost": "/", "exchange": "x", "read": "^mine$", "write": "^mine$"}],
        "exchange": [{"name": "x", "type": "topic"}],
        "queue": [{"name": "work", "exchange": "x", "underlying_topic": "mine"}],
    }
    with Broker(config) as broker, client(broker, "ann") as ann, client(broker, "root") as root:
        for topic in ("secret", "mine|secret"):
            with pytest.raises(AccessRefused, match="of exchange 'x' .* no right to read"):
                ann.alter("work", underlying_topic=topic, default_publish_target="mine")
        ann.alter("work", max_length=5)
        root.alter("work", underlying_topic="secret")
        ann.alter("work", max_length=6)
        assert root.queue("work")["topic"] == "secret"


ONE_ROW = {"name": "shown", "source": "keyed", "select": "/id, /owner, /text", "group_by": ["/id"]}
FOLLOWED = {
    "records": ("keyed", {}),
    "chosen": ("keyed", {"filter": "/id > 0"}),
    "a page": ("keyed", {"top_n": 5, "order_by": "/id"}),
    "changes": ("keyed", {"delta": True}),
    "rows": ("shown", {}),
    "conflated": ("keyed", {"conflation": "100ms"}),
}


@pytest.mark.parametrize("what", FOLLOWED)
def test_what_leaves_a_focus_by_a_right_is_told_as_it_was_read_last(what: str) -> None:
    """The record that the right keeps back came itself, to say that it had gone."""
    topic, options = FOLLOWED[what]
    config = {
        "user": [{"name": "root", "password": "root", "tags": ["administrator"]}, {"name": "ann", "password": "ann"}],
        "topic": [{"name": "keyed", "key": ["/id"]}],
        "view": [ONE_ROW],
        "entitlement": [
            {"tag": "administrator", "read": True, "write": True},
            {"user": "ann", "topic": ".*", "read": "/owner = USER()"},
        ],
    }
    mine, other = ({"id": 1, "owner": name, "text": f"of {name}"} for name in ("ann", "bob"))
    with Broker(config) as broker, client(broker, "ann") as ann:
        broker.publish("keyed", json.dumps(mine))
        broker.advance(1)
        with ann.sow_and_subscribe(topic, oof=True, timeout=30, **options) as records:  # type: ignore[arg-type]
            assert [json.loads(body) for body in taken(records.take, 1)] == [mine]
            for body in (other, {**other, "text": "hidden"}, mine):
                broker.publish("keyed", json.dumps(body))
                broker.advance(1)
            gone, back = records.take(), records.take()
            assert gone is not None
            assert back is not None
            assert (gone.event, gone.reason, json.loads(gone.body)) == ("oof", "match", mine)
            assert (back.event, json.loads(back.body)) == ("publish", mine)


def test_a_change_from_what_was_not_read_is_the_whole_record(broker: Broker) -> None:
    """It had the fields alone that differ from the record that was there, which told the others."""
    with client(broker, "ann") as ann, ann.delta_subscribe("part", timeout=30) as changes:
        for number, owner in enumerate(("bob", "ann", "ann")):
            broker.publish("part", json.dumps({"id": 77, "owner": owner, "text": "same", "n": number}))
        told = [json.loads(body) for body in taken(changes.take, 2)]
        assert told == [{"id": 77, "owner": "ann", "text": "same", "n": 1}, {"id": 77, "n": 2}]


def test_why_a_message_waits_does_not_tell_what_stands_in_it() -> None:
    """Who sees a queue, to write to it or to read a part, was told keys of messages, and what a worker said of one."""
    queues = [
        {"name": "lines", "group_key": "/key"},
        {"name": "shares", "fairness_key": "/key", "max_leased": {"queue": 9, "key": 1}},
    ]
    entitlements = [
        {"tag": "administrator", "read": True, "write": True},
        {"user": "ann", "queue": ".*", "read": "/owner = USER()"},
        {"user": "bob", "queue": ".*", "write": True},
    ]
    people = [{"name": "root", "password": "root", "tags": ["administrator"]}]
    people += [{"name": name, "password": name} for name in ("ann", "bob")]
    with ExitStack() as stack:
        broker = stack.enter_context(Broker({"user": people, "queue": queues, "entitlement": entitlements}))
        root, ann, bob = (stack.enter_context(client(broker, name)) for name in ("root", "ann", "bob"))
        for queue in ("lines", "shares"):
            for _ in range(2):
                broker.publish(queue, b'{"key": "hidden", "owner": "root"}')
            _, second = root.peek(queue)
            with root.consume(queue, timeout=30, backlog=1) as consumer:
                first = consumer.take()
                assert first is not None
                assert "hidden" in str(root.explain(queue, bookmark=second.bookmark))
                for one in (ann, bob):
                    told = one.explain(queue, bookmark=second.bookmark)
                    assert "hidden" not in str(told)
                    assert "the message at LSN" in str(told) or "its tenant" in str(told)
                first.reject("it was hidden")
            assert "hidden" in str(root.explain(queue, bookmark=first.bookmark))
            for one in (ann, bob):
                assert "rejected" in str(told := one.explain(queue, bookmark=first.bookmark))
                assert "hidden" not in str(told)


READS = {
    "queue": lambda client, text: client.peek("q", filter=text),
    "records": lambda client, text: list(client.sow("keyed", filter=text)),
    "records of a queue": lambda client, text: list(client.sow("q", filter=text)),
    "rows": lambda client, text: list(client.sow("shown", filter=text)),
    "gathered rows": lambda client, text: list(client.sow("shown", filter=text, **GATHERED)),
    "gathered records": lambda client, text: list(client.sow("keyed", filter=text, **GATHERED)),
    "replay": lambda client, text: list(client.replay("t", filter=text)),
    "replay of several": lambda client, text: list(client.replay(pattern="^t$", filter=text)),
    "live replay": lambda client, text: list(client.replay("t", filter=text, follow=True, timeout=1)),
    "subscription": lambda client, text: list(client.sow_and_subscribe("keyed", filter=text, timeout=1)),
    "consumer": lambda client, text: client.consume("q", filter=text, timeout=1).take(),
    "acks": lambda client, text: client.ack_filter("q", text),
}
GATHERED = {"projection": ["/id", "COUNT(/id) AS /n"], "grouping": ["/id"]}


def test_a_filter_does_not_say_as_what_a_right_reads_the_bodies() -> None:
    """`[xml] 1 = 1` had a right read JSON as XML, in which nothing is: what it kept back for a field was told."""
    allowed = [{"user": "ann", key: ".*", "read": "/private IS NULL"} for key in ("topic", "queue")]
    config = {
        "user": [{"name": "root", "password": "root", "tags": ["administrator"]}, {"name": "ann", "password": "ann"}],
        "topic": [{"name": "t"}, {"name": "keyed", "key": ["/id"]}],
        "queue": [{"name": "q"}],
        "view": [{"name": "shown", "source": "keyed", "select": "/id, /private", "group_by": ["/id"]}],
        "entitlement": [{"tag": "administrator", "read": True, "write": True}, *allowed],
    }
    with Broker(config) as broker:
        for name in ("t", "keyed", "q"):
            broker.publish(name, b'{"id": 1, "private": 1}')
        broker.advance(1)
        with client(broker, "ann") as ann:
            for what, read in READS.items():
                for kind in ("xml", "msgpack", "binary"):
                    with pytest.raises(InvalidArgument, match=f"reads {kind}, and the bodies here are json") as refused:
                        read(ann, f"[{kind}] 1 = 1")
                    assert "private" not in str(refused.value), what
                assert not read(ann, "[json] 1 = 1"), what
