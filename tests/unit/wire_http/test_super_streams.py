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
    ],
)
def test_what_is_refused_leaves_nothing_behind(http: Http, asked: dict[str, object], why: str) -> None:
    assert why in http.refused("PUT", PATH, asked)
    http.do("GET", "exchanges/%2F/invoices", status=404)
