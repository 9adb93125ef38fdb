"""pika: declaring, binding and routing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from conformance.test_management import Managed, Tool
from waiting import wait_for

pytestmark = pytest.mark.conformance

Connect = Callable[..., pika.BlockingConnection]


def drain(channel: BlockingChannel, queue: str) -> list[bytes]:
    """Everything that is ready, taken without ack."""
    out: list[bytes] = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return out
        out.append(body)


def test_declare_tells_what_is_there(channel: BlockingChannel, name: str) -> None:
    first = channel.queue_declare(name, durable=True).method
    assert (first.queue, first.message_count, first.consumer_count) == (name, 0, 0)
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", name, b"x")
    channel.basic_consume(name, lambda *_: None)
    channel.basic_qos(prefetch_count=0)
    again = channel.queue_declare(name, durable=True).method
    assert (again.message_count, again.consumer_count) == (0, 1)
    passive = channel.queue_declare(name, passive=True).method
    assert passive.consumer_count == 1


def test_a_server_named_queue_and_the_empty_name(channel: BlockingChannel) -> None:
    made = channel.queue_declare("", exclusive=True).method.queue
    assert made.startswith("amq.gen-")
    channel.basic_publish("", made, b"one")
    channel.queue_bind("", "amq.fanout")  # the last declared queue
    channel.basic_publish("amq.fanout", "", b"two")
    assert drain(channel, made) == [b"one", b"two"]


def test_redeclaring_otherwise_is_refused(channel: BlockingChannel, queue: str, connect: Connect) -> None:
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.queue_declare(queue, durable=False)
    assert refused.value.reply_code == 406
    assert refused.value.reply_text.startswith(
        f"PRECONDITION_FAILED - inequivalent arg 'durable' for queue '{queue}' in vhost '/': received"
    )
    fresh = connect().channel()
    with pytest.raises(ChannelClosedByBroker) as refused:
        fresh.queue_declare(queue, durable=True, arguments={"x-message-ttl": 5})
    assert refused.value.reply_code == 406
    assert "inequivalent arg 'x-message-ttl'" in refused.value.reply_text


@pytest.mark.parametrize("arguments", [{"x-message-ttl": "soon"}, {"x-max-length": -3}, {"x-dead-letter-exchange": 7}])
def test_a_bad_argument_is_refused(channel: BlockingChannel, name: str, arguments: dict[str, object]) -> None:
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.queue_declare(name, durable=True, arguments=arguments)
    assert refused.value.reply_code == 406
    assert f"invalid arg '{next(iter(arguments))}' for queue '{name}' in vhost '/'" in refused.value.reply_text


def test_direct_fanout_and_the_default_exchange(channel: BlockingChannel, queue: str, name: str) -> None:
    for kind in ("direct", "fanout"):
        channel.exchange_declare(f"{name}-{kind}", kind)
        channel.queue_bind(queue, f"{name}-{kind}", "key")
    for exchange, key in (
        ("", queue),
        ("", "nobody"),
        (f"{name}-direct", "key"),
        (f"{name}-direct", "Key"),
        (f"{name}-fanout", "any"),
    ):
        channel.basic_publish(exchange, key, f"{exchange}/{key}".encode())
    assert drain(channel, queue) == [f"/{queue}".encode(), f"{name}-direct/key".encode(), f"{name}-fanout/any".encode()]
    channel.queue_unbind(queue, f"{name}-direct", "key")
    channel.queue_unbind(queue, f"{name}-direct", "key")
    channel.basic_publish(f"{name}-direct", "key", b"nobody")
    assert drain(channel, queue) == []


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("#", ["", "a", "a.b"], []),
        ("*", ["a"], ["", "a.b"]),
        ("*.*", ["a.b", "a."], ["a", "a.b.c"]),
        ("a.#.b", ["a.b", "a.x.b", "a.x.y.b"], ["a", "a.b.c"]),
        ("a.*.c", ["a.b.c"], ["a.c", "a.b.b.c"]),
        ("a#", ["a#"], ["a", "ab", "a.b"]),
    ],
)
def test_topic_patterns(
    channel: BlockingChannel, queue: str, name: str, pattern: str, matching: list[str], others: list[str]
) -> None:
    channel.exchange_declare(name, "topic")
    channel.queue_bind(queue, name, pattern)
    for key in [*others, *matching]:
        channel.basic_publish(name, key, key.encode())
    assert drain(channel, queue) == [key.encode() for key in matching]


@pytest.mark.parametrize(
    ("arguments", "matching", "others"),
    [
        ({"x-match": "all", "a": 1, "b": "x"}, [{"a": 1, "b": "x", "c": 2}], [{"a": 1}, {"a": "1", "b": "x"}, {}]),
        ({"x-match": "any", "a": 1, "b": "x"}, [{"a": 1}, {"b": "x"}], [{"a": 2}, {}]),
        ({"a": 1}, [{"a": 1}], [{"a": 2}]),
        ({"x-match": "all", "a": None}, [{"a": 5}, {"a": None}], [{"b": 5}]),
        ({"x-match": "any"}, [], [{"a": 1}, {}]),
        ({}, [{"a": 1}, {}], []),
        ({"x-match": "all", "x-a": 1}, [{}], []),
        ({"x-match": "all-with-x", "x-a": 1}, [{"x-a": 1}], [{}]),
    ],
)
def test_headers(
    channel: BlockingChannel,
    queue: str,
    name: str,
    arguments: dict[str, object],
    matching: list[dict[str, object]],
    others: list[dict[str, object]],
) -> None:
    channel.exchange_declare(name, "headers")
    channel.queue_bind(queue, name, "", arguments)
    for headers in [*others, *matching]:
        channel.basic_publish(name, "", repr(headers).encode(), pika.BasicProperties(headers=headers))
    assert drain(channel, queue) == [repr(headers).encode() for headers in matching]


def test_a_wrong_x_match_is_refused(channel: BlockingChannel, queue: str, name: str) -> None:
    channel.exchange_declare(name, "headers")
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.queue_bind(queue, name, "", {"x-match": "some"})
    assert refused.value.reply_code == 406


def test_a_queue_gets_a_message_once_however_many_bindings_match(
    channel: BlockingChannel, queue: str, name: str
) -> None:
    channel.exchange_declare(name, "topic")
    channel.exchange_declare(f"{name}-next", "fanout")
    for pattern in ("a.*", "*.b", "#", "a.b", "a.b"):
        channel.queue_bind(queue, name, pattern)
    channel.exchange_bind(f"{name}-next", name, "#")
    channel.exchange_bind(name, f"{name}-next", "#")  # a cycle
    channel.queue_bind(queue, f"{name}-next")
    channel.basic_publish(name, "a.b", b"once")
    assert drain(channel, queue) == [b"once"]
    channel.exchange_unbind(f"{name}-next", name, "#")
    channel.exchange_unbind(f"{name}-next", name, "#")


def test_alternate_exchange(channel: BlockingChannel, queue: str, name: str) -> None:
    channel.exchange_declare(f"{name}-rest", "fanout")
    channel.queue_bind(queue, f"{name}-rest")
    channel.exchange_declare(name, "direct", arguments={"alternate-exchange": f"{name}-rest"})
    channel.confirm_delivery()
    channel.basic_publish(name, "nobody", b"kept", mandatory=True)
    assert drain(channel, queue) == [b"kept"]


def test_carbon_copies(channel: BlockingChannel, queue: str, name: str) -> None:
    others = [channel.queue_declare("", exclusive=True).method.queue for _ in range(2)]
    properties = pika.BasicProperties(headers={"CC": [others[0]], "BCC": [others[1]]})
    channel.basic_publish("", queue, b"copied", properties)
    assert [drain(channel, one) for one in (queue, *others)] == [[b"copied"]] * 3
    channel.basic_publish("", others[0], b"x", pika.BasicProperties(headers={"CC": [queue], "BCC": [others[1]]}))
    _, kept, _ = channel.basic_get(queue, auto_ack=True)
    assert kept.headers == {"CC": [queue]}  # who got a blind copy stays untold


def test_auto_delete_exchange_and_queue(channel: BlockingChannel, connect: Connect, name: str) -> None:
    channel.exchange_declare(f"{name}-x", "fanout", auto_delete=True)
    channel.queue_declare(name, auto_delete=True)
    channel.queue_bind(name, f"{name}-x")
    tag = channel.basic_consume(name, lambda *_: None)
    channel.basic_cancel(tag)
    for missing in ("queue", "exchange"):
        fresh = connect().channel()
        with pytest.raises(ChannelClosedByBroker) as refused:  # noqa: PT012
            if missing == "queue":
                fresh.queue_declare(name, passive=True)
            else:
                fresh.exchange_declare(f"{name}-x", passive=True)
        assert refused.value.reply_code == 404


def test_delete_and_purge(channel: BlockingChannel, queue: str) -> None:
    channel.confirm_delivery()
    for _ in range(5):
        channel.basic_publish("", queue, b"x")
    channel.basic_get(queue)
    assert channel.queue_purge(queue).method.message_count == 4
    channel.basic_publish("", queue, b"x")
    assert channel.queue_delete(queue).method.message_count == 1
    assert channel.queue_delete(queue).method.message_count == 0  # gone already


def test_delete_if_unused_and_if_empty(connect: Connect, queue: str, channel: BlockingChannel, name: str) -> None:
    channel.basic_publish("", queue, b"x")
    fresh = connect().channel()
    with pytest.raises(ChannelClosedByBroker) as refused:
        fresh.queue_delete(queue, if_empty=True)
    assert (refused.value.reply_code, refused.value.reply_text) == (
        406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' not empty",
    )  # fmt: skip
    channel.basic_consume(queue, lambda *_: None)
    fresh = connect().channel()
    with pytest.raises(ChannelClosedByBroker) as refused:
        fresh.queue_delete(queue, if_unused=True)
    assert (refused.value.reply_code, refused.value.reply_text) == (
        406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' in use",
    )  # fmt: skip
    channel.exchange_declare(f"{name}-x", "fanout")
    channel.queue_bind(queue, f"{name}-x")
    fresh = connect().channel()
    with pytest.raises(ChannelClosedByBroker) as refused:
        fresh.exchange_delete(f"{name}-x", if_unused=True)
    assert (refused.value.reply_code, refused.value.reply_text) == (
        406, f"PRECONDITION_FAILED - exchange '{name}-x' in vhost '/' in use",
    )  # fmt: skip
    channel.exchange_delete(f"{name}-x")
    channel.exchange_delete(f"{name}-x")


def test_exclusive_queue_is_for_its_connection(channel: BlockingChannel, connect: Connect, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    other = connect()
    for attempt in ("declare", "passive", "consume", "get", "bind", "delete", "purge"):
        fresh = other.channel()
        with pytest.raises(ChannelClosedByBroker) as refused:  # noqa: PT012
            match attempt:
                case "declare":
                    fresh.queue_declare(name, exclusive=True)
                case "passive":
                    fresh.queue_declare(name, passive=True)
                case "consume":
                    fresh.basic_consume(name, lambda *_: None)
                case "get":
                    fresh.basic_get(name)
                case "bind":
                    fresh.queue_bind(name, "amq.fanout")
                case "delete":
                    fresh.queue_delete(name)
                case _:
                    fresh.queue_purge(name)
        assert refused.value.reply_code == 405, attempt
        assert refused.value.reply_text.startswith(
            f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{name}' in vhost '/'"
        ), attempt
    channel.connection.close()
    with pytest.raises(ChannelClosedByBroker) as refused:
        other.channel().queue_declare(name, passive=True)
    assert refused.value.reply_code == 404


def test_vhosts_are_worlds_of_their_own(channel: BlockingChannel, connect: Connect, queue: str) -> None:
    other = connect(virtual_host="other").channel()
    with pytest.raises(ChannelClosedByBroker) as refused:
        other.queue_declare(queue, passive=True)
    assert refused.value.reply_text == f"NOT_FOUND - no queue '{queue}' in vhost 'other'"
    other = connect(virtual_host="other").channel()
    other.queue_declare(queue)
    other.basic_publish("", queue, b"there")
    assert drain(channel, queue) == []
    assert drain(other, queue) == [b"there"]


def test_of_a_queue_that_is_there_differences_are_told_before_what_cannot_be(
    connect: Callable[..., pika.BlockingConnection], queue: str
) -> None:
    for said, argument in (({"durable": False}, "durable"), ({"durable": True}, "x-max-length")):
        with pytest.raises(ChannelClosedByBroker) as refused:
            connect().channel().queue_declare(queue, arguments={"x-max-length": -1}, **said)
        assert refused.value.reply_text.startswith(f"PRECONDITION_FAILED - inequivalent arg '{argument}' for queue")


def _told(server: Managed, name: str) -> Mapping[str, Mapping[str, Any]]:
    """Headers by event, of an exchange, a queue, a binding and a policy of that name that come and go."""
    channel = server.connect().channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, "amq.rabbitmq.event", "#")
    other, tool = server.connect().channel(), Tool(server)
    other.queue_declare(name, durable=True)
    other.exchange_declare(name, "topic", durable=True)
    other.queue_bind(name, name, "k.#")
    other.queue_unbind(name, name, "k.#")
    policy = {"pattern": f"^{name}-none$", "definition": {"max-length": 5}, "apply-to": "queues"}
    assert tool.ask("PUT", f"policies/%2F/{name}", policy)[0] == 201
    assert tool.ask("DELETE", f"policies/%2F/{name}")[0] == 204
    other.exchange_delete(name)
    other.queue_delete(name)
    heard: dict[str, Mapping[str, Any]] = {}
    for method, properties, _ in channel.consume(queue, auto_ack=True, inactivity_timeout=30):
        assert method is not None, heard
        heard[method.routing_key] = properties.headers
        if method.routing_key == "queue.deleted":
            return heard
    return heard


ACCOUNTS: Sequence[tuple[str, str, object, Sequence[tuple[str, Mapping[str, Any]]]]] = (
    ("PUT", "vhosts/v", {"description": "d", "tags": "a,b"},
     [("vhost.created", {"name": "v", "description": "d", "tags": ["a", "b"]})]),
    ("PUT", "vhosts/v", {"description": "other"}, [("vhost.updated", {"name": "v", "description": "other"})]),
    ("PUT", "users/u", {"password": "p", "tags": "management"},
     [("user.created", {"name": "u"}), ("user.tags.set", {"name": "u", "tags": ["management"]})]),
    ("PUT", "users/u", {"password": "q", "tags": "management"}, [("user.password.changed", {"name": "u"})]),
    ("PUT", "users/u", {"password": "q", "tags": "monitoring,x"},
     [("user.password.changed", {"name": "u"}), ("user.tags.set", {"name": "u", "tags": ["monitoring", "x"]})]),
    ("PUT", "permissions/v/u", {"configure": "a", "write": "b", "read": "c"},
     [("permission.created", {"user": "u", "vhost": "v", "configure": "a", "write": "b", "read": "c"})]),
    ("PUT", "permissions/v/u", {"configure": "a", "write": "b", "read": ""},
     [("permission.created", {"user": "u", "vhost": "v", "configure": "a", "write": "b", "read": ""})]),
    ("PUT", "topic-permissions/v/u", {"exchange": "amq.topic", "write": "b", "read": "c"},
     [("topic.permission.created", {"user": "u", "vhost": "v", "exchange": "amq.topic", "write": "b", "read": "c"})]),
    ("DELETE", "topic-permissions/v/u", None, [("topic.permission.deleted", {"user": "u", "vhost": "v"})]),
    ("DELETE", "permissions/v/u", None, [("permission.deleted", {"user": "u", "vhost": "v"})]),
    ("PUT", "vhost-limits/v/max-connections", {"value": 5},
     [("vhost.limits.set", {"name": "limits", "max-connections": 5})]),
    ("PUT", "user-limits/u/max-connections", {"value": 5},
     [("user.limits.set", {"name": "limits", "username": "u", "max-connections": 5})]),
    ("DELETE", "user-limits/u/max-connections", None,
     [("user.limits.cleared", {"name": "limits", "username": "u"})]),
    ("PUT", "global-parameters/g", {"value": {"a": 1}},
     [("parameter.set", {"component": "global", "name": "g", "value": {"a": 1}})]),
    ("PUT", "permissions/v/u", {"configure": "a", "write": "b", "read": "c"},
     [("permission.created", {"user": "u", "vhost": "v"})]),
    ("DELETE", "users/u", None, [("user.deleted", {"name": "u"})]),
    ("PUT", "users/w", {"password": "p", "tags": ""}, [("user.created", {"name": "w"})]),
    ("PUT", "permissions/v/w", {"configure": "a", "write": "b", "read": "c"},
     [("permission.created", {"user": "w", "vhost": "v"})]),
    ("DELETE", "vhosts/v", None,
     [("permission.deleted", {"user": "w", "vhost": "v"}), ("vhost.deleted", {"name": "v"}),
      ("vhost.limits.cleared", {"name": "limits"})]),
    ("DELETE", "users/w", None, [("user.deleted", {"name": "w"})]),
)  # fmt: skip
"""What is asked over HTTP, and what RabbitMQ 3.10 was seen to tell of it, with who did it and its own exchanges."""


def test_changes_of_users_and_vhosts_are_told_as_rabbitmq_tells_them(tmp_path: Path) -> None:
    with Managed(tmp_path) as server:
        channel = server.connect().channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        for noun in ("vhost", "user", "permission", "topic", "parameter"):
            channel.queue_bind(queue, "amq.rabbitmq.event", f"{noun}.#")
        tool = Tool(server)
        for method, path, body, wanted in ACCOUNTS:
            status, said = tool.ask(method, path, body)
            assert status in {201, 204}, said
            heard = list[tuple[str, Mapping[str, Any]]]()
            for frame, properties, _ in channel.consume(queue, auto_ack=True, inactivity_timeout=30):
                assert frame is not None, (path, heard)
                heard.append((frame.routing_key, properties.headers))
                if len(heard) == len(wanted):
                    break
            assert [name for name, _ in heard] == [name for name, _ in wanted], path
            for (name, headers), (_, fields) in zip(heard, wanted, strict=True):
                assert fields.items() <= headers.items(), name
                assert not {key for key in headers if "password" in key or "hash" in key}
        channel.cancel()
        assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_what_changes_is_told_by_the_names_of_rabbitmq(tmp_path: Path) -> None:
    """Headers that consumers of its exchange of events read; as it was seen to send them."""
    name = "told"
    with Managed(tmp_path) as server:
        heard = _told(server, name)
    end = {"source_name": name, "source_kind": "exchange", "destination_name": name, "destination_kind": "queue",
           "routing_key": "k.#"}  # fmt: skip
    for event, wanted in {
        "queue.created": {"name": name, "vhost": "/", "durable": True, "exclusive": False, "auto_delete": False},
        "exchange.created": {"name": name, "type": "topic", "durable": True, "auto_delete": False, "internal": False},
        "binding.created": end,
        "binding.deleted": end,
        "policy.set": {"name": name, "pattern": f"^{name}-none$", "priority": 0, "apply-to": "queues",
                       "definition": {"max-length": 5}},
        "policy.cleared": {"name": name},
        "exchange.deleted": {"name": name},
        "queue.deleted": {"name": name},
    }.items():  # fmt: skip
        assert wanted.items() <= heard[event].items(), event


def test_what_changes_is_told_by_an_exchange(connect: Callable[..., pika.BlockingConnection], name: str) -> None:
    channel = connect().channel()
    heard: dict[str, list[Any]] = {}
    queue = channel.queue_declare("", exclusive=True).method.queue
    for key in ("queue.*", "exchange.*", "connection.created", "policy.#"):
        channel.queue_bind(queue, "amq.rabbitmq.event", key)

    def take(_: object, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        assert body == b""
        heard.setdefault(method.routing_key, []).append(properties)

    channel.basic_consume(queue, take, auto_ack=True)
    other = connect().channel()
    other.queue_declare(name)
    other.exchange_declare(name)
    other.queue_bind(name, name, "nobody asked for bindings")
    other.queue_delete(name)
    wait_for(channel, lambda: "queue.deleted" in heard)
    assert set(heard) == {"queue.created", "exchange.created", "connection.created", "queue.deleted"}
    made = heard["queue.created"][-1]
    assert (made.headers["queue"], made.headers["vhost"]) == (name, "/")
    assert made.timestamp == made.headers["timestamp_in_ms"] // 1000
    assert (made.headers["name"], made.headers["durable"]) == (name, False), "RabbitMQ's names, too"
    came = heard["connection.created"][-1].headers
    assert came["client_properties"]["product"] == "Pika Python Client Library"
    assert came["client_properties"]["capabilities"]["basic.nack"] is True
    assert (came["auth_mechanism"], came["frame_max"], came["ssl"]) == ("PLAIN", 131072, False)
    other.basic_publish("amq.rabbitmq.event", "queue.created", b"made up")
    with pytest.raises(ChannelClosedByBroker) as refused:
        other.queue_declare(name)
    assert refused.value.reply_code == 403
