"""Super streams over HTTP: an exchange with its partitions, and an answer that names them."""

from __future__ import annotations

import pytest

from http_lab import Http

PATH = "stream/super-streams/%2F/invoices"


@pytest.mark.parametrize(
    ("asked", "keys"), [({"partitions": 3}, ["0", "1", "2"]), ({"binding-keys": "emea, apac"}, ["emea", "apac"])]
)
def test_the_answer_names_the_partitions(http: Http, asked: dict[str, object], keys: list[str]) -> None:
    parts = [{"name": f"invoices-{key}", "routing_key": key} for key in keys]
    told = {"name": "invoices", "vhost": "/", "type": "direct", "partitions": parts}
    answer = http.ask("PUT", PATH, asked)
    assert (answer.status_code, answer.json()) == (201, told)
    again = http.ask("PUT", PATH, asked)
    assert (again.status_code, again.json()) == (200, told)
    for one in parts:
        assert http.get(f"queues/%2F/{one['name']}")["arguments"]["x-queue-type"] == "stream"
    bound = http.get("exchanges/%2F/invoices/bindings/source")
    assert [(one["destination"], one["routing_key"]) for one in bound] == [tuple(one.values()) for one in parts]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({}, "either partitions, a number, or binding-keys"),
        ({"partitions": 2, "binding-keys": "a"}, "either partitions, a number, or binding-keys"),
        ({"partitions": 0}, "partitions"),
        ({"binding-keys": "a,a"}, "2 keys, 1 different"),
        ({"binding-keys": "k" * 250}, "the name of a partition"),
        ({"partitions": 2, "arguments": {"x-max-age": "5X"}}, "age '5X'"),
        ({"partitions": 2, "arguments": {"x-max-length-bytes": -5}}, "-5 is not in 0"),
        ({"partitions": 2, "arguments": {"x-queue-type": "classic"}}, "x-queue-type is 'classic'"),
        ({"binding-keys": "eu,taken"}, "inequivalent arg 'x-queue-type'"),
    ],
)
def test_what_is_refused_leaves_nothing_behind(http: Http, asked: dict[str, object], why: str) -> None:
    http.do("PUT", "queues/%2F/invoices-taken", {"durable": True}, 201)
    assert why in http.refused("PUT", PATH, asked)
    http.do("GET", "exchanges/%2F/invoices", status=404)
    assert [one["name"] for one in http.get("queues/%2F") if "invoices" in one["name"]] == ["invoices-taken"]


def test_what_was_there_before_a_refusal_stays(http: Http) -> None:
    http.do("PUT", PATH, {"binding-keys": "eu"}, 201)
    http.do("PUT", "queues/%2F/invoices-taken", {"durable": True}, 201)
    http.do("PUT", "queues/%2F/invoices-old", {"durable": True, "arguments": {"x-queue-type": "stream"}}, 201)
    http.refused("PUT", PATH, {"binding-keys": "eu,us,old,taken"})
    bound = http.get("exchanges/%2F/invoices/bindings/source")
    assert [one["destination"] for one in bound] == ["invoices-eu"]


def test_a_stream_is_a_partition_of_one_super_stream(http: Http) -> None:
    """`invoices-eu` with the key 0 and `invoices` with the key eu-0 would both name `invoices-eu-0`."""
    http.do("PUT", "stream/super-streams/%2F/invoices-eu", {"partitions": 2}, 201)
    told = http.refused("PUT", PATH, {"binding-keys": "us,eu-0"})
    assert "'invoices-eu-0' is a partition of the super stream 'invoices-eu'" in told
    http.do("GET", "exchanges/%2F/invoices", status=404)
    assert [one["name"] for one in http.get("queues/%2F") if "invoices" in one["name"]] == [
        "invoices-eu-0",
        "invoices-eu-1",
    ]
    http.do("PUT", "queues/%2F/invoices-old", {"durable": True, "arguments": {"x-queue-type": "stream"}}, 201)
    http.do("PUT", PATH, {"binding-keys": "us,old"}, 201)  # a stream that is nobody's
