"""The examples of the documents of RabbitMQ and Artemis about lengths and rings, as they stand there."""

from __future__ import annotations

from pathlib import Path

import httpx
import pika
import pytest
from pika.exceptions import NackError

from http_lab import NO_TLS
from penstock.testing import Broker
from scenario import amqp, bodies, get, publish

PERSISTENT = pika.BasicProperties(delivery_mode=2)
MIB = 1_048_576


def set_policy(broker: Broker, name: str, pattern: str, definition: dict[str, object]) -> None:
    """`rabbitmqctl set_policy`, by the address that its plugin has."""
    told = {"pattern": pattern, "definition": definition, "apply-to": "queues"}
    answer = httpx.put(
        f"{broker.http_url}/api/policies/%2F/{name}", verify=NO_TLS, timeout=20, json=told, auth=("guest", "guest")
    )
    assert answer.status_code in {201, 204}, answer.text


def figures(broker: Broker, queue: str) -> tuple[int, int]:
    """What would be limited."""
    told = httpx.get(
        f"{broker.http_url}/api/queues/%2F/{queue}", verify=NO_TLS, timeout=20, auth=("guest", "guest")
    ).json()
    return told["messages_ready"], told["message_bytes_ready"]


def test_my_pol_keeps_one_meg_at_one_mib() -> None:
    with Broker() as broker, amqp(broker) as channel:
        channel.queue_declare("one-meg", durable=True)
        channel.queue_declare("one-meg-more", durable=True)
        set_policy(broker, "my-pol", "^one-meg$", {"max-length-bytes": MIB})
        for queue in ("one-meg", "one-meg-more"):
            for number in range(5):
                channel.basic_publish("", queue, b"%d" % number + b"x" * (MIB // 4 - 1), PERSISTENT)
        assert figures(broker, "one-meg") == (4, MIB)
        assert figures(broker, "one-meg-more") == (5, 5 * MIB // 4)
        found = get(channel, "one-meg")
        assert found is not None
        assert found[:1] == b"1"  # the oldest is gone


def test_my_pol_keeps_two_messages_at_two_and_others_are_nacked() -> None:
    with Broker() as broker, amqp(broker) as channel:
        channel.queue_declare("two-messages", durable=True)
        set_policy(broker, "my-pol", "^two-messages$", {"max-length": 2, "overflow": "reject-publish"})
        publish(channel, "two-messages", "1", "2")
        for text in (b"3", b"4"):
            with pytest.raises(NackError):
                channel.basic_publish("", "two-messages", text, PERSISTENT)
        assert figures(broker, "two-messages") == (2, 2)
        assert get(channel, "two-messages") == b"1"
        publish(channel, "two-messages", "5")
        assert [get(channel, "two-messages") for _ in range(3)] == [b"2", b"5", None]


def test_a_declare_with_an_argument_makes_a_queue_of_ten() -> None:
    with Broker() as broker, amqp(broker) as channel:
        arguments = {"x-max-length": 10}
        channel.queue_declare("myqueue", durable=False, exclusive=False, auto_delete=False, arguments=arguments)
        publish(channel, "myqueue", *map(str, range(12)))
        assert figures(broker, "myqueue") == (10, 12)
        assert get(channel, "myqueue") == b"2"


RINGS = """<configuration><core>
<address-settings>
   <address-setting match="ring.#">
      <default-ring-size>3</default-ring-size>
   </address-setting>
   <address-setting match="#"><max-delivery-attempts>-1</max-delivery-attempts></address-setting>
</address-settings>
<addresses>
   <address name="myRing">
      <anycast>
         <queue name="myRing" ring-size="3" />
      </anycast>
   </address>
   <address name="ring.other"><anycast><queue name="ring.other"/></anycast></address>
   <address name="other.ring"><anycast><queue name="other.ring"/></anycast></address>
</addresses>
</core></configuration>"""


def test_ring_size_and_default_ring_size_of_a_broker_xml(tmp_path: Path) -> None:
    settings = tmp_path / "broker.xml"
    settings.write_text(RINGS)
    with Broker(config=settings) as broker:
        for queue, left in (("myRing", b"BCD"), ("ring.other", b"BCD"), ("other.ring", b"ABCD")):
            for text in (b"A", b"B", b"C", b"D"):
                broker.publish(queue, text)
            found = broker.subscribe(queue, max_backlog=9).take()
            assert b"".join(bodies(found)) == left, queue
