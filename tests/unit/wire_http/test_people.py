"""Users, permissions, vhosts and limits at run time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    AMQPConnectionError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
)

import penstock
from http_lab import Http
from penstock.errors import AccessRefused
from penstock.testing import Broker

ALL = {"configure": ".*", "write": ".*", "read": ".*"}


def connect(http: Http, user: str, vhost: str = "/", password: str | None = None) -> pika.BlockingConnection:
    address = pika.URLParameters(http.broker.amqp_url)
    login = pika.PlainCredentials(user, password or user)
    parameters = pika.ConnectionParameters("127.0.0.1", address.port, vhost, login, heartbeat=0)
    return pika.BlockingConnection(parameters)


def with_user(http: Http, name: str = "ann", tags: str = "management", vhost: str = "%2F") -> None:
    http.do("PUT", f"users/{name}", {"password": name, "tags": tags}, 201)
    http.do("PUT", f"permissions/{vhost}/{name}", ALL, 201)


def test_a_user_is_made_changed_and_deleted(http: Http) -> None:
    http.do("PUT", "users/ann", {"password": "one", "tags": "monitoring,management"}, 201)
    ann = http.get("users/ann")
    assert ann["tags"] == ["monitoring", "management"]
    assert ann["hashing_algorithm"] == "penstock_password_hashing_argon2id"
    assert Http(http.broker, "ann", "one").get("whoami") == {"name": "ann", "tags": ["monitoring", "management"]}
    http.do("PUT", "users/ann", {"password": "two", "tags": []})
    assert Http(http.broker, "ann", "one").ask("GET", "whoami").status_code == 401
    http.do("PUT", "users/ann", {"tags": "administrator"})
    assert Http(http.broker, "ann", "two").get("whoami")["tags"] == ["administrator"]
    http.do("PUT", "users/ann", {"password_hash": "", "tags": "administrator"})
    assert Http(http.broker, "ann", "two").ask("GET", "whoami").status_code == 401
    assert [one["name"] for one in http.get("users")] == ["guest", "ann"]
    assert [one["name"] for one in http.get("users/without-permissions")] == ["ann"]
    http.do("DELETE", "users/ann")
    http.do("DELETE", "users/ann", status=404)
    assert Http(http.broker, "ann", "two").ask("GET", "whoami").status_code == 401


def test_a_hash_of_rabbitmq_is_taken_as_it_is(http: Http) -> None:
    kept = http.get("auth/hash_password/secret")["ok"]
    http.do("PUT", "users/ann", {"password_hash": kept, "tags": "management"}, 201)
    assert Http(http.broker, "ann", "secret").get("whoami")["name"] == "ann"
    peers = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"  # of `test12`, from its documentation
    http.do("PUT", "users/bob", {"password_hash": peers, "tags": "management"}, 201)
    assert Http(http.broker, "bob", "test12").get("whoami")["name"] == "bob"
    http.do("PUT", "users/eve", {"password_hash": "", "tags": ""}, 201)
    assert Http(http.broker, "eve", "").ask("GET", "whoami").status_code == 401


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"password": "x"}, "tags is missing"),
        ({"password": "x", "tags": 3}, "tags is 3, not a list of texts"),
        ({"password": "x", "tags": [""]}, "tags holds '', which is no tag"),
        ({"password": "x", "tags": "impersonator"}, "not supported in this version"),
        ({"password": "x", "password_hash": "y", "tags": ""}, "both a password and a password_hash"),
        ({"password_hash": "???", "tags": ""}, "password_hash is not base64"),
        ({"password_hash": "aGk=", "tags": ""}, "password_hash has 2 bytes, rabbit_password_hashing_sha256 has 36"),
        ({"password": "x", "hashing_algorithm": "md5", "tags": ""}, "hashing_algorithm is 'md5', not one of"),
    ],
)
def test_what_cannot_be_a_user(http: Http, body: dict[str, object], reason: str) -> None:
    assert reason in http.refused("PUT", "users/ann", body)
    http.do("GET", "users/ann", status=404)


NO_RIGHT = "the tag 'administrater' gives no right; did you mean 'administrator'?"


def test_a_tag_that_gives_no_right_is_told_by_whichever_door_sets_it(http: Http) -> None:
    tags = ["management", "administrater"]
    for status, told, noted in ((201, tags, NO_RIGHT), (204, ",".join(tags), NO_RIGHT), (204, "management", None)):
        answer = http.ask("PUT", "users/ann", {"password": "one", "tags": told})
        assert answer.status_code == status
        assert answer.headers.get("warning") == (None if noted is None else f'199 penstock "{noted}"')
    odd = http.ask("PUT", "users/ann", {"password": "one", "tags": ["x\r\ny: \u20ac"]})
    assert (odd.status_code, odd.headers["warning"].isascii(), "y" in odd.headers) == (204, True, False)
    users = [{"name": "bob", "password_hash": "", "tags": tags}, {"name": "eve", "password_hash": "", "tags": ""}]
    told = http.do("POST", "definitions", {"users": users}, 200)["warnings"]
    assert (len(told), NO_RIGHT in told[0], "users[0]" in told[0]) == (1, True, True)
    with penstock.connect(http.broker.flight_url) as client:
        assert client.add_user("dan", "secret", tags=tags) == [NO_RIGHT]
        assert client.set_user_tags("dan", *tags, "monitoring") == [NO_RIGHT]
        assert client.set_user_tags("dan", "management") == []


def test_guest_may_be_replaced_and_deleted_and_users_of_the_settings_may_not(http: Http) -> None:
    with_user(http, "root", "administrator")
    root = Http(http.broker, "root")
    root.do("PUT", "users/guest", {"password": "other", "tags": "administrator"})
    assert http.ask("GET", "whoami").status_code == 401
    connect(http, "guest", password="other").close()
    root.do("DELETE", "users/guest")
    assert Http(http.broker, "guest", "other").ask("GET", "whoami").status_code == 401
    assert [one["name"] for one in root.get("users")] == ["root"]
    with Broker({"user": [{"name": "op", "password": "op", "tags": ["administrator"]}]}) as broker:
        op = Http(broker, "op")
        assert "settings file" in op.refused("PUT", "users/op", {"password": "x", "tags": ""})
        assert "settings file" in op.refused("DELETE", "users/op")
        assert op.get("permissions/%2F/op")["configure"] == ".*"


def test_users_and_vhosts_are_there_after_a_restart_and_a_crash(http: Http) -> None:
    with_user(http)
    http.do("PUT", "vhosts/late", {"description": "later"}, 201)
    http.do("PUT", "vhost-limits/late/max-queues", {"value": 1})
    for end in (http.broker.restart, http.broker.crash):
        end()
        if end == http.broker.crash:
            http.broker.restart()
        again = Http(http.broker)
        assert again.get("vhosts/late")["description"] == "later"
        assert again.get("vhost-limits") == [{"vhost": "late", "value": {"max-queues": 1}}]
        assert again.get("permissions/%2F/ann")["read"] == ".*"
        connect(again, "ann").close()


def test_a_user_opens_the_vhosts_that_are_permitted(http: Http) -> None:
    with_user(http)
    connect(http, "ann").close()
    with pytest.raises((ConnectionClosedByBroker, ProbableAccessDeniedError), match="access to vhost 'shop' refused"):
        connect(http, "ann", "shop")
    assert [one["name"] for one in Http(http.broker, "ann").get("vhosts")] == ["/"]
    http.do("DELETE", "permissions/%2F/ann")
    http.do("DELETE", "permissions/%2F/ann", status=404)
    with pytest.raises((ConnectionClosedByBroker, ProbableAccessDeniedError)):
        connect(http, "ann")


def test_permissions_hold_over_amqp(http: Http) -> None:
    """The table of access control, a row each."""
    http.do("PUT", "users/ann", {"password": "ann", "tags": ""}, 201)
    mine = {"configure": "^mine", "write": "^(mine|amq.topic)", "read": "^(mine|q$)"}
    http.do("PUT", "permissions/%2F/ann", mine, 201)
    connection = connect(http, "ann")

    def may(**call: Any) -> bool:
        channel: Any = connection.channel()
        [(name, values)] = call.items()
        try:
            result = getattr(channel, name)(**values)
            if name == "basic_publish":
                channel.queue_declare("q", passive=True)
            del result
        except ChannelClosedByBroker as closed:
            codes.add(closed.reply_code)
            return False
        channel.close()
        return True

    codes = set[int]()

    assert may(queue_declare={"queue": "mine"})
    assert not may(queue_declare={"queue": "other"})
    assert may(queue_declare={"queue": "mine.d", "arguments": {"x-dead-letter-exchange": "amq.topic"}})
    assert not may(queue_declare={"queue": "mine.e", "arguments": {"x-dead-letter-exchange": "amq.direct"}})
    assert may(exchange_declare={"exchange": "mine.x", "exchange_type": "topic"})
    assert not may(exchange_declare={"exchange": "x"})
    assert may(queue_bind={"queue": "mine", "exchange": "mine.x", "routing_key": "a"})
    assert not may(queue_bind={"queue": "mine", "exchange": "amq.topic", "routing_key": "a"})  # cannot read the source
    assert not may(queue_bind={"queue": "q", "exchange": "mine.x", "routing_key": "a"})  # cannot write the queue
    assert may(basic_publish={"exchange": "amq.topic", "routing_key": "a", "body": b""})
    assert not may(basic_publish={"exchange": "", "routing_key": "mine", "body": b""})
    assert may(basic_get={"queue": "q"})
    assert may(queue_purge={"queue": "q"})
    assert not may(queue_delete={"queue": "q"})
    assert may(queue_delete={"queue": "mine"})
    assert not may(exchange_delete={"exchange": "amq.fanout"})
    http.do("PUT", "permissions/%2F/ann", {**mine, "read": ""})
    assert not may(basic_get={"queue": "q"})  # at once, on an open connection
    connection.close()
    assert codes == {403}


def test_permissions_hold_over_flight_and_http(http: Http) -> None:
    with_user(http, vhost="shop")
    address = http.broker.flight_url.replace("guest:guest", "ann:ann")
    address = address if "ann" in address else address.replace("penstock://", "penstock://ann:ann@")
    with penstock.connect(address) as client:
        for act in (
            lambda: client.declare("other"),
            lambda: client.publish("q", b"x"),
            lambda: client.peek("q"),
            lambda: client.action("declare_exchange", exchange="e"),
        ):
            with pytest.raises(AccessRefused):
                act()
    ann = Http(http.broker, "ann")
    assert ann.get("queues") == []
    ann.refused("PUT", "queues/%2F/z", {}, 401)
    ann.refused("PUT", "exchanges/%2F/z", {}, 401)
    body = {"routing_key": "q", "payload": "x", "payload_encoding": "string"}
    ann.refused("POST", "exchanges/%2F/amq.default/publish", body, 401)
    ann.refused("POST", "queues/%2F/q/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}, 401)
    ann.do("PUT", "queues/shop/z", {}, 201)
    ann.do("PUT", "exchanges/shop/z", {"type": "topic"}, 201)
    ann.do("POST", "bindings/shop/e/z/q/z", {}, 201)
    ann.do("DELETE", "queues/shop/z")


def test_tags_say_what_may_be_administered(http: Http) -> None:
    for tag in ("", "management", "policymaker", "monitoring"):
        with_user(http, f"u{tag}", tag)
        user = Http(http.broker, f"u{tag}")
        if not tag:
            assert user.refused("GET", "whoami", status=401) == "Not management user"
            continue
        assert user.ask("GET", "queues").status_code == 200
        user.do("PUT", f"queues/%2F/{tag}", {}, 201)
        assert "for users with the tag 'administrator'" in user.refused("PUT", "users/x", {"tags": ""}, 401)
        user.do("GET", "users", status=401)


def test_vhosts_come_and_go_with_what_is_in_them(http: Http) -> None:
    http.do("PUT", "vhosts/late", {"tags": "a,b"}, 201)
    http.do("PUT", "vhosts/late", {"description": "d"}, 204)
    late = http.get("vhosts/late?columns=name,description,tags,tracing,default_queue_type,metadata,cluster_state")
    assert late == {
        "name": "late",
        "description": "d",
        "tags": ["a", "b"],
        "tracing": False,
        "default_queue_type": "classic",
        "metadata": {"description": "d", "tags": ["a", "b"]},
        "cluster_state": {http.get("overview")["node"]: "running"},
    }
    http.do("PUT", "queues/late/q", {}, 201)
    http.do("PUT", "exchanges/late/x", {"type": "fanout"}, 201)
    http.do("POST", "bindings/late/e/amq.topic/e/amq.fanout", {}, 201)
    connection = connect(http, "guest", "late")
    connection.channel().queue_declare("mine", exclusive=True)
    http.do("DELETE", "vhosts/late")
    with pytest.raises(AMQPConnectionError):
        connection.channel()
    http.do("GET", "vhosts/late", status=404)
    http.do("GET", "queues/late", status=404)
    http.do("PUT", "vhosts/late", {}, 201)
    assert (http.get("queues/late"), http.get("bindings/late")) == ([], [])
    assert len(http.get("exchanges/late")) == 8
    assert "always there" in http.refused("DELETE", "vhosts/%2F")
    assert "settings file" in http.refused("DELETE", "vhosts/shop")
    assert "one of classic, quorum, stream" in http.refused("PUT", "vhosts/x", {"default_queue_type": "square"})


def test_the_type_of_queues_that_name_none_is_their_vhosts(http: Http) -> None:
    http.do("PUT", "vhosts/late", {"default_queue_type": "quorum"}, 201)
    http.do("PUT", "vhosts/late", {"description": "d"}, 204)
    assert http.get("vhosts/late")["default_queue_type"] == "quorum"
    http.do("PUT", "queues/late/by-http", {"durable": True}, 201)
    http.do("PUT", "queues/late/passing", {"durable": False}, 201)
    with connect(http, "guest", "late") as connection:
        channel = connection.channel()
        for _ in range(2):  # and the second finds an equal one
            channel.queue_declare("by-amqp", durable=True)
            channel.queue_declare("by-amqp", durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_declare("plain", durable=True, arguments={"x-queue-type": "classic"})
        channel.queue_declare("short", auto_delete=True)
        channel.queue_declare("")
        kinds = {one["name"]: one["type"] for one in http.get("queues/late") if not one["name"].startswith("amq.gen")}
    assert kinds == {
        "by-http": "quorum", "by-amqp": "quorum", "plain": "classic", "short": "classic", "passing": "classic",
    }  # fmt: skip
    http.do("PUT", "vhosts/late", {"default_queue_type": "classic"}, 204)
    http.do("PUT", "queues/late/now", {"durable": True}, 201)
    assert http.get("queues/late/now")["type"] == "classic"
    exported = {one["name"]: one for one in http.get("definitions")["vhosts"]}
    assert exported["late"]["default_queue_type"] == "classic"


def test_limits_of_a_vhost(http: Http) -> None:
    http.do("PUT", "vhost-limits/shop/max-queues", {"value": 1})
    http.do("PUT", "queues/shop/one", {}, 201)
    http.do("PUT", "queues/shop/one", {}, 204)
    text = "cannot declare queue 'two': queue limit in vhost 'shop' (1) is reached"
    assert http.refused("PUT", "queues/shop/two", {}) == text
    http.do("PUT", "vhost-limits/shop/max-connections", {"value": 1})
    first = connect(http, "guest", "shop")
    with pytest.raises((ConnectionClosedByBroker, ProbableAccessDeniedError), match=r"connection limit \(1\)"):
        connect(http, "guest", "shop")
    first.close()
    connect(http, "guest", "shop").close()
    http.do("DELETE", "vhost-limits/shop/max-queues")
    http.do("PUT", "queues/shop/two", {}, 201)
    assert http.get("vhost-limits/shop") == [{"vhost": "shop", "value": {"max-connections": 1}}]
    assert "'max-fun' is no limit: max-connections or max-queues" in http.refused(
        "PUT", "vhost-limits/shop/max-fun", {"value": 1}
    )
    assert "value is -2" in http.refused("PUT", "vhost-limits/shop/max-queues", {"value": -2})


def test_limits_of_a_user(http: Http) -> None:
    with_user(http)
    http.do("PUT", "user-limits/ann/max-channels", {"value": 2})
    http.do("PUT", "user-limits/ann/max-connections", {"value": 1})
    connection = connect(http, "ann")
    with pytest.raises((ConnectionClosedByBroker, ProbableAccessDeniedError), match=r"user connection limit \(1\)"):
        connect(http, "ann")
    connection.channel()
    connection.channel()
    with pytest.raises(ConnectionClosedByBroker, match=r"user's limit \(2\)"):
        connection.channel()
    assert http.get("user-limits/ann") == [{"user": "ann", "value": {"max-channels": 2, "max-connections": 1}}]


def test_a_deleted_user_is_put_out(http: Http) -> None:
    with_user(http)
    connection = connect(http, "ann")
    http.do("POST", "users/bulk-delete", {"users": ["ann"]})
    with pytest.raises(ConnectionClosedByBroker) as closed:
        connection.channel()
    assert closed.value.reply_code == 320
    assert http.get("permissions") == [{"user": "guest", "vhost": vhost, **ALL} for vhost in ("/", "shop")]


def test_patterns_that_are_none(http: Http) -> None:
    with_user(http)
    assert "read '(' is no regular expression" in http.refused("PUT", "permissions/%2F/ann", {**ALL, "read": "("})
    assert "write is missing" in http.refused("PUT", "permissions/%2F/ann", {"configure": ".*"})
    http.do("PUT", "permissions/nowhere/ann", ALL, 404)
    http.do("PUT", "permissions/%2F/nobody", ALL, 404)
    topic = {"exchange": "amq.topic", "write": "(", "read": ".*"}
    assert "write '(' is no regular expression" in http.refused("PUT", "topic-permissions/%2F/ann", topic)
    http.do("PUT", "topic-permissions/nowhere/ann", {**topic, "write": "^a"}, 404)
    assert "exchange is missing" in http.refused("PUT", "topic-permissions/%2F/ann", {"write": "", "read": ""})
    every = {"exchange": "amq.topic", "write": ".*", "read": ".*"}
    http.do("PUT", "topic-permissions/%2F/guest", every, 204)
    assert "guest" in http.refused("PUT", "topic-permissions/%2F/guest", {**every, "read": "^a"})
    assert http.get("topic-permissions") == []


def test_permissions_of_the_settings_are_told_as_they_hold() -> None:
    op = {"user": "op", "vhost": "/", **ALL}
    shop = {"user": "shop", "vhost": "/", "configure": "^$", "write": "^orders$", "read": "^to-"}
    topic = {"user": "shop", "vhost": "/", "exchange": "amq.topic", "write": "^order", "read": ".*"}
    settings = {
        "user": [{"name": "op", "password": "op", "tags": ["administrator"]}, {"name": "shop", "password": "shop"}],
        "vhost": [{"name": "other"}],
        "permission": [op, shop],
        "topic_permission": [topic],
    }
    with Broker(settings) as broker:
        http = Http(broker, "op")
        assert http.get("permissions") == [op, shop]
        assert http.get("permissions/%2F/shop") == shop
        assert http.get("users/shop/permissions") == [shop]
        assert http.get("vhosts/other/permissions") == []
        assert http.get("topic-permissions") == [topic]
        http.do("PUT", "permissions/%2F/shop", {name: shop[name] for name in ("configure", "write", "read")}, 204)
        assert "settings file" in http.refused("PUT", "permissions/%2F/shop", ALL)
        every = {"exchange": "amq.topic", "write": ".*", "read": ".*"}
        assert "settings file" in http.refused("PUT", "topic-permissions/%2F/shop", every)
        told = http.get("definitions")
        assert (told["permissions"], told["topic_permissions"]) == ([], [])


def refused_by(http: Http, user: str, act: Callable[[BlockingChannel], object]) -> str:
    """What closes the channel; empty: nothing does."""
    with connect(http, user) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        try:
            act(channel)
        except ChannelClosedByBroker as closed:
            return f"{closed.reply_code} {closed.reply_text}"
    return ""


def test_topic_permissions_narrow_what_is_published_and_bound(http: Http) -> None:
    with_user(http)
    topic = {"exchange": "amq.topic", "write": r"^a\.", "read": r"^{username}\."}
    http.do("PUT", "topic-permissions/%2F/ann", {**topic, "write": ""}, 201)
    http.do("PUT", "topic-permissions/%2F/ann", topic, 204)
    told = [{"user": "ann", "vhost": "/", **topic}]
    for path in ("topic-permissions", "topic-permissions/%2F/ann", "users/ann/topic-permissions",
                 "vhosts/%2F/topic-permissions"):  # fmt: skip
        assert http.get(path) == told, path
    assert http.get("definitions")["topic_permissions"] == told

    def publishes(key: str, exchange: str = "amq.topic", **headers: object) -> Callable[[BlockingChannel], object]:
        properties = pika.BasicProperties(headers=headers)
        return lambda channel: channel.basic_publish(exchange, key, b"", properties)

    def binds(key: str, exchange: str = "amq.topic") -> Callable[[BlockingChannel], object]:
        return lambda channel: channel.queue_bind("q", exchange, key)

    for allowed in (
        publishes("a.b"), publishes("b", "amq.direct"), publishes("q", ""), binds("ann.#"), binds("b", "amq.direct"),
        lambda channel: channel.queue_unbind("q", "amq.topic", "ann.#"),
    ):  # fmt: skip
        assert refused_by(http, "ann", allowed) == ""
    for refused in (publishes("b.a"), publishes("a.b", CC=["b"]), binds("#"), binds("xann.#"),
                    lambda channel: channel.queue_unbind("q", "amq.topic", "#"),
                    lambda channel: channel.exchange_bind("amq.fanout", "amq.topic", "bob.*")):  # fmt: skip
        assert refused_by(http, "ann", refused).startswith("403 ACCESS_REFUSED")
    ann = Http(http.broker, "ann")
    assert "topic 'bob'" in ann.ask("POST", "bindings/%2F/e/amq.topic/q/q", {"routing_key": "bob"}).text
    assert "topic 'b'" in ann.ask(
        "POST", "exchanges/%2F/amq.topic/publish",
        {"routing_key": "b", "payload": "", "payload_encoding": "string", "properties": {}},
    ).text  # fmt: skip
    with penstock.connect(http.broker.flight_url, user="ann", password="ann") as client:
        client.bind("q", "amq.topic", "ann.b")
        client.unbind("q", "amq.topic", "ann.b")
        client.publish("a.b", b"", exchange="amq.topic")
        for act in (
            lambda: client.bind("q", "amq.topic", "bob"), lambda: client.unbind("q", "amq.topic", "bob"),
            lambda: client.publish("b", b"", exchange="amq.topic"),
            lambda: client.declare("view", underlying_topic="bob", exchange="amq.topic"),
        ):  # fmt: skip
            with pytest.raises(AccessRefused, match="topic '"):
                act()
    http.do("DELETE", "topic-permissions/%2F/ann")
    assert http.get("topic-permissions") == []
    assert refused_by(http, "ann", publishes("b.a")) == ""
    assert refused_by(http, "ann", binds("#")) == ""


def test_topic_permissions_go_with_their_user_and_come_with_definitions(http: Http) -> None:
    with_user(http)
    topic = {"exchange": "amq.topic", "write": "", "read": ""}
    http.do("PUT", "topic-permissions/%2F/ann", topic, 201)
    exported = http.get("definitions")
    http.do("DELETE", "users/ann")
    assert http.get("topic-permissions") == []
    http.do("POST", "definitions", exported)
    assert http.get("topic-permissions/%2F/ann") == [{"user": "ann", "vhost": "/", **topic}]
    assert "topic 'a'" in refused_by(http, "ann", lambda channel: channel.basic_publish("amq.topic", "a", b""))


def test_the_cluster_may_be_named(http: Http) -> None:
    before = http.get("cluster-name")
    assert before == {"name": http.get("overview")["cluster_name"]}
    http.do("PUT", "cluster-name", {"name": "orders"})
    assert http.get("cluster-name") == {"name": "orders"}
    assert http.get("overview")["cluster_name"] == "orders"
    assert http.get("overview")["node"] == before["name"]
    assert "name is missing" in http.refused("PUT", "cluster-name", {})
    assert "name is empty" in http.refused("PUT", "cluster-name", {"name": ""})
    http.do("DELETE", "global-parameters/cluster_name")
    assert http.get("cluster-name") == before


def test_global_parameters(http: Http) -> None:
    http.do("PUT", "global-parameters/colour", {"value": {"of": ["sky", 1]}}, 201)
    http.do("PUT", "global-parameters/colour", {"value": "blue"}, 204)
    assert http.get("global-parameters") == [{"name": "colour", "value": "blue"}]
    http.do("DELETE", "global-parameters/colour")
    http.do("GET", "global-parameters/colour", status=404)


def test_a_damaged_file_stops_the_start(http: Http) -> None:
    http.do("PUT", "vhosts/late", {}, 201)
    disk = http.broker.disk
    file = disk.open("accounts.json")
    file.pwrite(b"?", file.size() - 3)
    file.close()
    from penstock.errors import SettingsError
    from penstock.server.people.accounts import Accounts

    with pytest.raises(SettingsError, match=r"accounts\.json of the data folder is damaged"):
        Accounts().load(disk)
