"""AMQPStorm: confirms, a message that nobody takes, consuming, transactions, and its client of the management."""

from __future__ import annotations

import json
import sys
from typing import Any

import amqpstorm
from amqpstorm import Message
from amqpstorm.management import ApiError, ManagementApi

COUNT = 20
HEADERS = {"k": 1, "f": 1.5, "none": None, "list": [1, "a", {"x": True}]}


def work(port: int) -> dict[str, Any]:
    """By AMQP."""
    said = dict[str, Any]()
    with amqpstorm.Connection("127.0.0.1", "guest", "guest", port=port) as connection:
        channel = connection.channel()
        channel.queue.declare("storm", durable=True)
        channel.exchange.declare("storm-x", "topic", durable=True)
        channel.queue.bind("storm", "storm-x", "a.#")
        channel.confirm_deliveries()
        properties = {"headers": HEADERS, "priority": 3, "content_type": "text/plain"}
        made = [Message.create(channel, f"é {n}", {**properties, "message_id": str(n)}) for n in range(COUNT)]
        said["told"] = [one.publish("a.b", "storm-x", mandatory=True) for one in made]
        try:
            Message.create(channel, "nobody's").publish("nowhere", "storm-x", mandatory=True)
        except amqpstorm.AMQPMessageError as error:
            said["returned"] = str(error)
        other = connection.channel()
        other.basic.qos(10)
        other.basic.consume(queue="storm", consumer_tag="storm")
        got = list[str]()
        for n, message in enumerate(other.build_inbound_messages(break_on_empty=True)):
            got.append(message.body)
            assert message.properties["headers"] == HEADERS
            if n % 3:
                (message.reject if n % 3 == 1 else message.nack)(requeue=False)
            else:
                message.ack()
        said["got"] = got
        other.basic.cancel("storm")
        other.tx.select()
        other.basic.publish("undone", "storm")
        other.tx.rollback()
    return said


def administer(port: int) -> dict[str, Any]:
    """By HTTP."""
    api, said = ManagementApi(f"http://127.0.0.1:{port}", "guest", "guest"), dict[str, Any]()
    said["alive"] = api.aliveness_test("/")
    said["I"] = api.whoami()["name"]
    said["published"] = api.basic.publish("via http", "storm", properties={"delivery_mode": 2})
    said["got by http"] = [one["payload"] for one in api.basic.get("storm", requeue=False, to_dict=True)]
    api.queue.declare("storm-made", durable=True, arguments={"x-max-length": 5})
    api.exchange.declare("storm-y", "direct", durable=True)
    api.queue.bind("storm-made", "storm-y", "q")
    api.exchange.bind("storm-x", "storm-y", "r.#")
    said["queue"] = {name: api.queue.get("storm-made")[name] for name in ("arguments", "durable", "vhost")}
    said["bindings"] = sorted(one["routing_key"] for one in api.queue.bindings("storm-made"))
    said["from"] = [one["destination"] for one in api.exchange.bindings("storm-x")]
    api.queue.unbind("storm-made", "storm-y", "q")
    api.queue.purge("storm-made")
    api.queue.delete("storm-made")
    api.exchange.delete("storm-y")
    api.user.create("storm", "secret", "management")
    api.user.set_permission("storm", "/", "a", "b", "c")
    said["permission"] = {name: api.user.get_permission("storm", "/")[name] for name in ("configure", "write", "read")}
    api.user.delete("storm")
    api.virtual_host.create("storm")
    said["vhosts"] = sorted(one["name"] for one in api.virtual_host.list() if one["name"] in {"/", "storm"})
    api.virtual_host.delete("storm")
    try:
        api.queue.get("storm-made")
    except ApiError as error:
        said["missing"] = [error.error_code, error.error_type]
    return said


if __name__ == "__main__":
    print(json.dumps({**work(int(sys.argv[1])), **administer(int(sys.argv[2]))}))
