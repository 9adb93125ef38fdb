"""Dead letters over AMQP and by the broker of tests, sentence by sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from penstock.errors import QueueFull
from penstock.records.field_tables import FieldValue
from penstock.testing import Broker
from penstock.testing.inbox import Message

Declare = Callable[..., None]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(config={"queue": [{"name": "dead"}]}) as broker:
        yield broker


@pytest.fixture
def channel(broker: Broker) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        yield connection.channel()


@pytest.fixture
def declare(channel: BlockingChannel) -> Declare:
    def declared(name: str, **arguments: Any) -> None:
        told = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        channel.queue_declare(name, durable=True, arguments=told)

    return declared


def reject(broker: Broker, queue: str, count: int = 1) -> None:
    """Take so many and refuse them for good."""
    subscription = broker.subscribe(queue, max_backlog=count)
    taken = subscription.take()
    assert len(taken) == count
    for message in taken:
        message.expire()
    subscription.close()


def dead(broker: Broker, queue: str = "dead", count: int = 9) -> list[Message]:
    """What has come to a queue of dead letters; it goes back."""
    subscription = broker.subscribe(queue, max_backlog=count)
    taken = subscription.take()
    subscription.close()
    return taken


def story(message: Message) -> list[dict[str, Any]]:
    found: FieldValue = message.headers["x-death"]
    assert isinstance(found, list)
    return [dict(one) for one in found if isinstance(one, dict)]


def ready(broker: Broker, *queues: str) -> list[object]:
    return [broker.stats(queue)["ready"] for queue in queues]


# -- why a message dies


def test_rejected(broker: Broker, declare: Declare) -> None:
    declare("q", dead_letter_exchange="", dead_letter_routing_key="dead")
    broker.publish("q", b"1")
    reject(broker, "q")
    [message] = dead(broker)
    [death] = story(message)
    assert (message.body, death["reason"], death["queue"], death["exchange"]) == (b"1", "rejected", "q", "")


def test_expired(broker: Broker, declare: Declare) -> None:
    declare("q", dead_letter_exchange="", dead_letter_routing_key="dead", message_ttl=1000)
    broker.publish("q", b"1")
    broker.advance(1.001)
    [message] = dead(broker)
    assert story(message)[0]["reason"] == "expired"


def test_maxlen(broker: Broker, declare: Declare) -> None:
    declare("q", dead_letter_exchange="", dead_letter_routing_key="dead", max_length=1)
    broker.publish("q", b"1")
    broker.publish("q", b"2")
    [message] = dead(broker)
    assert (message.body, story(message)[0]["reason"]) == (b"1", "maxlen")


def test_delivery_limit(broker: Broker, declare: Declare) -> None:
    declare("q", dead_letter_exchange="", dead_letter_routing_key="dead", max_deliveries=2)
    broker.publish("q", b"1")
    subscription = broker.subscribe("q")
    for _ in range(2):
        [message] = subscription.take()
        message.cancel()
    [message] = dead(broker)
    assert story(message)[0]["reason"] == "delivery_limit"


def test_purging_deleting_and_expiring_a_queue_dead_letters_nothing(
    broker: Broker, declare: Declare, channel: BlockingChannel
) -> None:
    for name in ("purged", "deleted"):
        declare(name, dead_letter_exchange="", dead_letter_routing_key="dead")
    declare("unused", dead_letter_exchange="", dead_letter_routing_key="dead", expires=1000)
    for name in ("purged", "deleted", "unused"):
        broker.publish(name, b"1")
    channel.queue_purge("purged")
    channel.queue_delete("deleted")
    broker.advance(2)
    assert ready(broker, "dead") == [0]


def test_without_an_exchange_for_them_there_are_none(broker: Broker, declare: Declare) -> None:
    declare("q")
    broker.publish("q", b"1")
    reject(broker, "q")
    assert ready(broker, "q", "dead") == [0, 0]


# -- where it goes


def test_a_routing_key_without_an_exchange_is_406(channel: BlockingChannel) -> None:
    with pytest.raises(ChannelClosedByBroker) as closed:
        channel.queue_declare("q", arguments={"x-dead-letter-routing-key": "dead"})
    assert closed.value.reply_code == 406
    assert "routing_key_but_no_dlx_defined" in closed.value.reply_text


def test_its_own_key_and_those_in_cc_unless_another_is_configured(
    broker: Broker, declare: Declare, channel: BlockingChannel
) -> None:
    declare("own", dead_letter_exchange="amq.direct")
    declare("other", dead_letter_exchange="amq.direct", dead_letter_routing_key="configured")
    for key in ("own", "other", "copy", "configured"):
        declare(f"at-{key}")
        channel.queue_bind(f"at-{key}", "amq.direct", key)
    for name in ("own", "other"):
        broker.publish(name, b"1", headers={"CC": ["copy"]})
        reject(broker, name)
    assert ready(broker, "at-own", "at-copy") == [1, 1]
    assert ready(broker, "at-other", "at-configured") == [0, 1]
    [message] = dead(broker, "at-configured")
    assert "CC" not in message.headers  # nor does it count when the letter dies


def test_bcc_is_shown_to_nobody_and_a_configured_key_takes_its_place(broker: Broker, declare: Declare) -> None:
    declare("q", dead_letter_exchange="", dead_letter_routing_key="dead")
    declare("hidden")
    broker.publish("q", b"1", headers={"BCC": ["hidden"], "mine": 1})
    assert ready(broker, "q", "hidden") == [1, 1]
    reject(broker, "q")
    [message] = dead(broker)
    assert "BCC" not in message.headers
    assert story(message)[0]["routing-keys"] == ["q"]
    assert ready(broker, "hidden") == [1]


@pytest.mark.parametrize("start", ["none", "restart", "crash", "crash without checkpoint"])
def test_dead_letters_go_to_the_keys_of_bcc_too_over_any_start(
    broker: Broker, declare: Declare, channel: BlockingChannel, start: str
) -> None:
    declare("q", dead_letter_exchange="amq.direct")
    declare("blind", dead_letter_exchange="amq.topic")
    declare("shown")
    declare("again")
    for name, exchange, key in (
        ("shown", "amq.direct", "q"), ("shown", "amq.direct", "copy"), ("blind", "amq.direct", "secret"),
        ("again", "amq.topic", "secret"),
    ):  # fmt: skip
        channel.queue_bind(name, exchange, key)
    broker.publish("q", b"1", headers={"CC": ["copy"], "BCC": ["secret", "nowhere"], "mine": 1})
    broker.publish("q", b"2")
    channel.connection.close()
    if start == "crash without checkpoint":
        broker.crash()
        broker.restart()
        broker.crash()
    elif start == "crash":
        broker.crash()
    if start != "none":
        broker.restart()
    reject(broker, "q", 2)
    assert [one.body for one in dead(broker, "shown")] == [b"1", b"2"]
    [hidden] = dead(broker, "blind")
    assert hidden.body == b"1"
    assert set(hidden.headers) == {
        "CC", "mine", "x-death", *(f"x-{which}-death-{what}" for which in ("first", "last") for what in
        ("reason", "queue", "exchange")),
    }  # fmt: skip
    assert hidden.topic == "amq.direct/q"
    assert story(hidden)[0]["routing-keys"] == ["q", "copy"]
    reject(broker, "blind")  # and again, with the same keys
    [again] = dead(broker, "again")
    assert [death["routing-keys"] for death in story(again)] == [["q", "copy"], ["q", "copy"]]


def test_a_refused_newcomer_goes_to_its_bcc_keys_and_does_not_show_them(
    broker: Broker, declare: Declare, channel: BlockingChannel
) -> None:
    declare("q", dead_letter_exchange="amq.direct", max_length=0, overflow="reject-publish-dlx")
    declare("shown")
    declare("blind")
    channel.queue_bind("shown", "amq.direct", "q")
    channel.queue_bind("blind", "amq.direct", "secret")
    with pytest.raises(QueueFull):
        broker.publish("q", b"1", headers={"BCC": ["secret"]})
    for name in ("shown", "blind"):
        [message] = dead(broker, name)
        assert story(message)[0]["routing-keys"] == ["q"]
        assert "BCC" not in message.headers


def test_beyond_a_bound_bcc_keys_are_not_remembered(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.core.topology.register.BLIND_BYTES", 600)
    broker.crash()
    broker.restart()
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True, arguments={"x-dead-letter-exchange": "amq.topic"})
        channel.queue_declare("blind", durable=True)
        channel.queue_bind("blind", "amq.topic", "k.#")
        for number in range(6):
            properties = pika.BasicProperties(headers={"BCC": [f"k.{number % 3}"]}, delivery_mode=2)
            channel.basic_publish("", "q", str(number).encode(), properties)
        channel.queue_declare("q", passive=True)
    reject(broker, "q", 6)
    assert [one.body for one in dead(broker, "blind")] == [b"0", b"1", b"3", b"4"]


def test_a_dead_letter_that_nobody_wants_is_gone(broker: Broker, declare: Declare) -> None:
    declare("q", dead_letter_exchange="", dead_letter_routing_key="nobody")
    broker.publish("q", b"1")
    reject(broker, "q")
    assert broker.stats("q")["queue_depth"] == 0


# -- what it says


def test_the_same_pair_again_counts_and_moves_to_the_front(broker: Broker, declare: Declare) -> None:
    declare("a", dead_letter_exchange="", dead_letter_routing_key="b")
    declare("b", dead_letter_exchange="", dead_letter_routing_key="a", message_ttl=1000)
    broker.publish("a", b"1")
    reject(broker, "a")
    first = story(dead(broker, "b")[0])[0]["time"]
    broker.advance(2)
    reject(broker, "a")
    [message] = dead(broker, "b")
    deaths = story(message)
    assert [(one["queue"], one["reason"], one["count"]) for one in deaths] == [
        ("a", "rejected", 2),
        ("b", "expired", 1),
    ]
    assert deaths[0]["time"] == first  # of the first of them
    assert (message.headers["x-first-death-queue"], message.headers["x-last-death-queue"]) == ("a", "a")


def test_first_is_written_once_and_last_each_time(broker: Broker, declare: Declare) -> None:
    declare("a", dead_letter_exchange="", dead_letter_routing_key="b")
    declare("b", dead_letter_exchange="", dead_letter_routing_key="dead", message_ttl=0)
    broker.publish("a", b"1")
    reject(broker, "a")
    broker.advance(0.001)
    [message] = dead(broker)
    told = {
        which: [message.headers[f"x-{which}-death-{what}"] for what in ("reason", "queue")]
        for which in ("first", "last")
    }
    assert told == {"first": ["rejected", "a"], "last": ["expired", "b"]}


def test_an_expiration_of_its_own_does_not_count_again(
    broker: Broker, declare: Declare, channel: BlockingChannel
) -> None:
    declare("q", dead_letter_exchange="", dead_letter_routing_key="dead")
    channel.basic_publish("", "q", b"1", pika.BasicProperties(expiration="1000", delivery_mode=2))
    channel.queue_declare("q", passive=True)  # it has come
    broker.advance(1.5)
    [message] = dead(broker)
    assert message.properties.expiration is None
    assert story(message)[0]["original-expiration"] == "1000"
    broker.advance(3600)
    assert ready(broker, "dead") == [1]


def test_a_history_that_a_client_sends_starts_from_nothing(broker: Broker, declare: Declare) -> None:
    declare("q", dead_letter_exchange="", dead_letter_routing_key="dead")
    broker.publish("q", b"1")
    reject(broker, "q")
    [message] = dead(broker)
    broker.publish("q", b"again", headers=dict(message.headers))
    reject(broker, "q")
    assert [one["count"] for one in story(dead(broker)[1])] == [1]


# -- cycles and order


def test_rejections_may_go_round_for_ever(broker: Broker, declare: Declare) -> None:
    declare("q", dead_letter_exchange="", dead_letter_routing_key="q")
    broker.publish("q", b"1")
    for _ in range(50):
        reject(broker, "q")
    [message] = dead(broker, "q")
    assert [(one["reason"], one["count"]) for one in story(message)] == [("rejected", 50)]


def test_a_short_queue_with_itself_as_target_keeps_the_newest(broker: Broker, declare: Declare) -> None:
    declare("q", dead_letter_exchange="", dead_letter_routing_key="q", max_length=1)
    for n in range(5):
        broker.publish("q", b"%d" % n)
    assert [message.body for message in dead(broker, "q")] == [b"4"]
    assert broker.stats("q")["queue_depth"] == 1


def test_two_times_to_live_into_each_other_make_one_trip(broker: Broker, declare: Declare) -> None:
    declare("a", dead_letter_exchange="", dead_letter_routing_key="b", message_ttl=1000)
    declare("b", dead_letter_exchange="", dead_letter_routing_key="a", message_ttl=1000)
    broker.publish("a", b"1")
    broker.advance(1.5)
    assert ready(broker, "a", "b") == [0, 1]
    broker.advance(1)
    assert ready(broker, "a", "b") == [0, 0]


def test_they_leave_in_the_order_they_died(broker: Broker, declare: Declare, channel: BlockingChannel) -> None:
    declare("q", dead_letter_exchange="", dead_letter_routing_key="dead")
    for n in range(100):
        broker.publish("q", b"%d" % n)
    tags = [channel.basic_get("q")[0].delivery_tag for _ in range(100)]  # type: ignore[union-attr]
    channel.basic_nack(tags[49], multiple=True, requeue=False)
    for tag in reversed(tags[50:]):
        channel.basic_reject(tag, requeue=False)
    for _ in range(10_000):  # they are written a few at a time
        if channel.queue_declare("dead", passive=True).method.message_count == 100:
            break
    wanted = [*range(50), *range(99, 49, -1)]
    assert [int(message.body) for message in dead(broker, count=200)] == wanted


def test_a_message_is_in_one_place_after_a_crash_at_any_moment() -> None:
    short = {"name": "q", "dead_letter_exchange": "", "dead_letter_routing_key": "dead", "message_ttl": "1s"}
    with Broker(config={"queue": [short, {"name": "dead"}]}) as broker:
        broker.publish("q", b"1")
        for _ in range(3):
            broker.crash()
            broker.restart()
            assert sum(int(str(count)) for count in ready(broker, "q", "dead")) == 1
            broker.advance(0.6)
        assert ready(broker, "q", "dead") == [0, 1]
