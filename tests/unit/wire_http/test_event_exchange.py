"""`amq.rabbitmq.event`: what changes, as messages, whatever those who change it have said."""

from __future__ import annotations

import orjson

from http_lab import Http
from scenario import amqp, get
from waiting import eventually


def test_a_definition_that_amqp_has_no_form_for_is_told_as_json(http: Http) -> None:
    definition = {"weights": {"k" * 256: 1.0}, "fairness-key": "/k"}
    with amqp(http.broker) as channel:
        channel.queue_declare("heard", durable=True)
        channel.queue_bind("heard", "amq.rabbitmq.event", "policy.*")
        http.do("PUT", "policies/%2F/p", {"pattern": "^a", "definition": definition}, 201)
        eventually(lambda: http.broker.stats("heard")["ready"] == 1)
        method, properties, _ = channel.basic_get("heard", auto_ack=True)
        assert (method.routing_key, properties.headers["policy"]) == ("policy.set", "p")
        assert orjson.loads(properties.headers["definition"])["fairness-key"] == "/k"
        http.do("DELETE", "policies/%2F/p")
        eventually(lambda: get(channel, "heard") is not None)


def test_a_definition_is_told_as_it_was_given(http: Http) -> None:
    definition = {"weights": {"a": 2.0}, "fairness-key": "/k", "max-length": 2**53 - 1}
    with amqp(http.broker) as channel:
        channel.queue_declare("heard", durable=True)
        channel.queue_bind("heard", "amq.rabbitmq.event", "policy.*")
        http.do("PUT", "policies/%2F/p", {"pattern": "^a", "definition": definition}, 201)
        eventually(lambda: http.broker.stats("heard")["ready"] == 1)
        _, properties, _ = channel.basic_get("heard", auto_ack=True)
        assert properties.headers["definition"] == definition
