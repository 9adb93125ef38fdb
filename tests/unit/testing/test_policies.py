"""Policies through every door of a running broker: the settings file, Flight, AMQP, HTTP's facts; and after a crash."""

from __future__ import annotations

import json
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

import penstock
from penstock.config.queue_arguments import parse_definition, read_policy
from penstock.errors import AccessRefused, InvalidArgument, NotFound, SettingsError
from penstock.testing import Broker

CAP = {"name": "cap", "pattern": "^jobs", "definition": {"message-ttl": 5000}}


def stats(broker: Broker, name: str = "jobs") -> dict[str, Any]:
    with penstock.connect(broker.flight_url) as client:
        return client.queue(name)


def test_a_policy_of_the_file_rules_and_goes_with_the_file() -> None:
    with Broker(config={"queue": [{"name": "jobs"}], "policy": [CAP]}) as broker:
        broker.publish("jobs", b"one")
        broker.advance(6.0)
        assert broker.stats("jobs")["ready"] == 0
        told = stats(broker)
        assert (told["policy"], told["effective_policy_definition"]) == ("cap", {"message-ttl": 5000})
        assert told["settings"]["message_ttl"] == {"value": "5s", "from": "policy cap"}
        broker.restart(config={"queue": [{"name": "jobs"}]})
        broker.publish("jobs", b"two")
        broker.advance(6.0)
        assert broker.stats("jobs")["ready"] == 1
        assert stats(broker)["policy"] is None


def test_a_policy_set_over_flight_survives_a_crash_and_is_undone() -> None:
    with Broker(config={"queue": [{"name": "jobs", "message_ttl": "9s"}]}) as broker:
        with penstock.connect(broker.flight_url) as client:
            assert client.set_policy("cap", "^jobs", {"message-ttl": 5000, "delivery-limit": 1}, priority=3)
            assert not client.set_policy("cap", "^jobs", {"message-ttl": 5000}, priority=3)
            assert client.set_policy("floor", "", {"message-ttl": 2000}, operator=True)
            [policy] = client.policies()
            assert policy == {
                "vhost": "/", "name": "cap", "pattern": "^jobs", "apply-to": "all", "definition": {"message-ttl": 5000},
                "priority": 3, "origin": "command",
            }  # fmt: skip
            assert [one["name"] for one in client.policies(operator=True)] == ["floor"]
        broker.crash()
        broker.restart()
        settings = stats(broker)["settings"]
        assert settings == {"message_ttl": {"value": "2s", "from": "operator policy floor"}}
        with penstock.connect(broker.flight_url) as client:
            client.delete_policy("floor", operator=True)
            client.delete_policy("cap")
            with pytest.raises(NotFound, match="no policy 'cap'"):
                client.delete_policy("cap")
        assert stats(broker)["settings"] == {"message_ttl": {"value": "9s", "from": "argument"}}


@pytest.mark.parametrize(
    ("pattern", "definition", "why"),
    [
        ("^a", {"max-lenght": 3}, "max-lenght: no key of a policy; did you mean 'max-length'"),
        ("^a", {}, "it is empty"),
        ("^a", {"message-ttl": "3"}, "message-ttl: '3' is not a whole number"),
        ("^a", {"message-ttl": -1}, "-1 is not in 0"),
        ("^a", {"expires": 0}, "expires: 0 is not in 1"),
        ("(", {"message-ttl": 3}, "cannot be used"),
        ("(?=a)", {"message-ttl": 3}, "look-ahead"),
        ("^a", {"underlying-topic": "b"}, "belongs to the declare of a queue"),
        ("^a", {"ha-mode": "all"}, "no mirrors"),
        ("^a", {"max-age": "7D"}, "max-age: that of a stream comes with its declare (x-max-age)"),
        ("^a", {"federation-upstream-set": "all"}, "federation-upstream-set: there is no federation"),
        ("^a", {"stream-max-segment-size-bytes": "1"}, "'1' is not a whole number from 0 on"),
        ("^a", {"queue-mode": "eager"}, "'eager' is not one of default, lazy"),
        ("^a", {"dead-letter-exchange": 3}, "3 is not text"),
    ],
)
def test_what_a_policy_cannot_say_is_refused_with_a_reason(
    pattern: str, definition: dict[str, object], why: str
) -> None:
    with Broker() as broker, penstock.connect(broker.flight_url) as client:
        with pytest.raises(InvalidArgument) as refused:
            client.set_policy("p", pattern, definition)
        assert why in str(refused.value)
        assert client.policies() == []


def test_an_operator_policy_may_say_limits_alone() -> None:
    with pytest.raises(InvalidArgument, match="dead-letter-exchange: an operator policy may not say it"):
        read_policy("/", "p", "", {"dead-letter-exchange": "x"}, operator=True)


def test_a_key_twice_is_no_definition() -> None:
    with pytest.raises(InvalidArgument, match="the key 'message-ttl' twice"):
        parse_definition('{"message-ttl": 1, "message-ttl": 2}')


def test_policies_take_a_tag_and_operator_policies_the_administrators() -> None:
    users = [
        {"name": "guest", "password": "guest", "tags": ["administrator"]},
        {"name": "maker", "password": "m", "tags": ["policymaker"]},
        {"name": "nobody", "password": "n"},
    ]
    with Broker(config={"user": users}) as broker:
        with penstock.connect(broker.flight_url.replace("guest:guest", "maker:m")) as client:
            client.set_policy("p", "", {"message-ttl": 1})
            with pytest.raises(AccessRefused, match="policy_set: for users with the tag 'administrator'"):
                client.set_policy("p", "", {"message-ttl": 1}, operator=True)
        nobody = penstock.connect(broker.flight_url.replace("guest:guest", "nobody:n"))
        with nobody, pytest.raises(AccessRefused, match="policy_delete: for users with the tag 'policymaker'"):
            nobody.delete_policy("p")


def test_over_amqp_a_redeclare_compares_arguments_whatever_policies_say() -> None:
    with Broker(config={"policy": [{**CAP, "definition": {"message-ttl": 100, "max-length": 1}}]}) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        channel = connection.channel()
        for _ in range(2):
            channel.queue_declare("jobs", durable=True, arguments={"x-message-ttl": 500})
        settings = stats(broker)["settings"]
        assert settings["message_ttl"] == {"value": "100ms", "from": "policy cap"}
        for body in (b"1", b"2"):
            channel.basic_publish("", "jobs", body)
        assert channel.queue_declare("jobs", passive=True).method.message_count == 1
        with pytest.raises(ChannelClosedByBroker, match="x-message-ttl"):  # what the policy made of it
            channel.queue_declare("jobs", durable=True, arguments={"x-message-ttl": 100})
        connection.close()


def test_lowering_a_limit_by_a_policy_trims_at_once_oldest_first() -> None:
    with Broker(config={"queue": [{"name": "jobs"}]}) as broker, penstock.connect(broker.flight_url) as client:
        for body in (b"1", b"2", b"3"):
            broker.publish("jobs", body)
        client.set_policy("cap", "^jobs", {"max-length": 2})
        assert broker.stats("jobs")["ready"] == 2
        client.set_policy("cap", "^jobs", {"max-length": 1})
        assert [one.body for one in broker.subscribe("jobs", max_backlog=None).take()] == [b"3"]


def test_a_policy_that_rejects_and_limits_at_once_trims_nothing() -> None:
    with Broker(config={"queue": [{"name": "jobs"}]}) as broker, penstock.connect(broker.flight_url) as client:
        for body in (b"1", b"2", b"3"):
            broker.publish("jobs", body)
        client.set_policy("cap", "^jobs", {"max-length": 2, "overflow": "reject-publish"})
        assert broker.stats("jobs")["ready"] == 3
        with pytest.raises(penstock.PenstockError):
            broker.publish("jobs", b"4")


def test_an_explicit_default_is_an_argument_too() -> None:
    queues = [{"name": "jobs", "overflow": "drop-head"}, {"name": "jobs2"}]
    with Broker(config={"queue": queues}) as broker, penstock.connect(broker.flight_url) as client:
        client.set_policy("cap", "^jobs", {"max-length": 1, "overflow": "reject-publish"})
        assert client.queue("jobs")["settings"]["overflow"] == {"value": "drop-head", "from": "argument"}
        assert client.queue("jobs2")["settings"]["overflow"] == {"value": "reject-publish", "from": "policy cap"}
        client.alter("jobs", overflow=None)
        assert client.queue("jobs")["settings"]["overflow"]["from"] == "policy cap"


def test_address_settings_of_the_file_rule_live_queues_and_are_undone() -> None:
    address = [{"pattern": "jobs.#", "max_delivery_attempts": 2, "dead_letter_address": "dead"}]
    queues = [{"name": "jobs.a"}, {"name": "dead"}, {"name": "jobs.b", "max_deliveries": 5}]
    with Broker(config={"queue": queues, "address": address}) as broker:
        broker.publish("jobs.a", b"x")
        subscription = broker.subscribe("jobs.a")
        for _ in range(2):
            [message] = subscription.take()
            message.cancel()
        assert broker.stats("dead")["ready"] == 1
        assert stats(broker, "jobs.b")["settings"]["max_deliveries"] == {"value": 5, "from": "argument"}
        assert stats(broker, "jobs.a")["settings"]["max_deliveries"] == {"value": 2, "from": "address jobs.#"}
        broker.restart(config={"queue": queues})
        assert stats(broker, "jobs.a")["settings"] == {}


@pytest.mark.parametrize(
    ("settings", "expired", "rejected"),
    [
        ({"dead_letter_address": "dead"}, None, "dead"),
        ({"dead_letter_address": "dead", "expiry_address": "late"}, "late", "dead"),
        ({"expiry_address": "late"}, "late", None),
    ],
)
def test_expired_messages_have_an_address_of_their_own(
    settings: dict[str, str], expired: str | None, rejected: str | None
) -> None:
    queues = [{"name": "jobs"}, {"name": "dead"}, {"name": "late"}]
    with Broker(config={"queue": queues, "address": [{"pattern": "jobs", **settings}]}) as broker:
        broker.publish("jobs", b"late", expiration=1.0)
        broker.advance(2.0)
        broker.publish("jobs", b"bad")
        [message] = broker.subscribe("jobs").take()
        message.expire()
        found = {name: [one.body for one in broker.subscribe(name).take()] for name in ("dead", "late")}
    wanted: dict[str, list[bytes]] = {"dead": [], "late": []}
    for name, body in ((expired, b"late"), (rejected, b"bad")):
        if name is not None:
            wanted[name].append(body)
    assert found == wanted


def test_a_default_ring_size_is_for_queues_that_do_not_say_their_own() -> None:
    queues = [{"name": "ticker.a"}, {"name": "ticker.b", "ring_size": 1}]
    address = [{"pattern": "ticker.#", "default_ring_size": 2}]
    with Broker(config={"queue": queues, "address": address}) as broker:
        for name in ("ticker.a", "ticker.b"):
            for body in (b"1", b"2", b"3"):
                broker.publish(name, body)
        assert (broker.stats("ticker.a")["ready"], broker.stats("ticker.b")["ready"]) == (2, 1)
        broker.restart(config={"queue": queues})
        broker.publish("ticker.a", b"4")
        assert broker.stats("ticker.a")["ready"] == 3


def test_a_full_address_drops_what_comes() -> None:
    settings = {"max_size_messages": 1, "address_full_policy": "DROP"}
    with Broker(config={"queue": [{"name": "jobs"}], "address": [{"pattern": "#", **settings}]}) as broker:
        broker.publish("jobs", b"1")
        broker.publish("jobs", b"2")
        assert (broker.stats("jobs")["ready"], broker.stats("jobs")["dropped"]) == (1, 1)


def test_address_settings_of_consumers_and_full_addresses() -> None:
    settings = {
        "default_exclusive_queue": True, "default_max_consumers": 3, "max_size_messages": 1,
        "address_full_policy": "FAIL", "expiry_delay": "5s",
    }  # fmt: skip
    with Broker(config={"queue": [{"name": "jobs"}], "address": [{"pattern": "#", **settings}]}) as broker:
        assert {key: row["value"] for key, row in stats(broker)["settings"].items()} == {
            "single_active_consumer": True, "max_consumers": 3, "max_length": 1, "overflow": "reject-publish",
            "expiration": "5s",
        }  # fmt: skip
        broker.publish("jobs", b"1")
        with pytest.raises(penstock.PenstockError):
            broker.publish("jobs", b"2")
        broker.advance(6.0)
        assert broker.stats("jobs")["ready"] == 0


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"address": [{"pattern": "a.#.b"}]}, "'#' stands for the rest of an address"),
        ({"address": [{"pattern": "a*"}]}, "mixes a wildcard with text"),
        ({"address": [{"pattern": "a", "redelivery_delay": 5}]}, "'5s'"),
        ({"address": [{"pattern": "a"}, {"pattern": "a"}]}, "'a' is there twice"),
        ({"policy": [{**CAP, "definition": {"x": 1}}]}, "no key of a policy"),
        ({"policy": [CAP, CAP]}, "'cap' is there twice"),
        ({"policy": [{**CAP, "vhost": "v"}]}, "there is no [[vhost]] 'v'"),
        ({"operator_policy": [{**CAP, "definition": {"lease-period": 1}}]}, "an operator policy may not say it"),
    ],
)
def test_sections_that_cannot_be(config: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError) as refused, Broker(config=config):
        pass
    assert why in str(refused.value)


def test_http_shows_the_policy_of_a_queue() -> None:
    import base64
    from urllib.request import Request, urlopen

    with Broker(config={"queue": [{"name": "jobs"}], "policy": [CAP]}) as broker:
        login = base64.b64encode(b"guest:guest").decode()
        request = Request(f"{broker.http_url}/api/queues/%2F/jobs", headers={"authorization": f"Basic {login}"})
        with urlopen(request) as reply:
            item = json.load(reply)
    assert item["policy"] == "cap"
    assert item["operator_policy"] is None
    assert item["effective_policy_definition"] == {"message-ttl": 5000}
