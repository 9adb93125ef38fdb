"""Queues, exchanges and bindings over HTTP, path by path."""

from __future__ import annotations

import httpx
import pika
import pytest

import penstock
from http_lab import NO_TLS, Http
from penstock.core.broker import Core


def test_a_queue_is_made_found_and_deleted(http: Http) -> None:
    http.do("PUT", "queues/%2F/jobs", {"durable": "true", "arguments": {"x-message-ttl": 60000}}, 201)
    http.do("PUT", "queues/%2F/jobs", {"durable": True, "arguments": {"x-message-ttl": 60000}}, 204)
    assert http.get("queues/%2F/jobs")["arguments"] == {"x-message-ttl": 60000}
    assert "inequivalent arg 'durable'" in http.refused("PUT", "queues/%2F/jobs", {"durable": False})
    http.do("DELETE", "queues/%2F/jobs?if-unused=true&if-empty=true")
    http.do("GET", "queues/%2F/jobs", status=404)
    http.do("DELETE", "queues/%2F/jobs", status=404)


def test_what_is_asked_of_one_queue_looks_at_no_other(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among ten thousand one took 4 ms of the loop; an exporter asks for each of them."""
    connection = pika.BlockingConnection(pika.URLParameters(http.broker.amqp_url))
    connection.channel().basic_consume("q", lambda *_: None, consumer_tag="mine")
    http.do("PUT", "vhost-limits/%2F/max-queues", {"value": 3})
    monkeypatch.setattr(Core, "queues", None)
    assert [one["consumer_tag"] for one in http.get("queues/%2F/q")["consumer_details"]] == ["mine"]
    assert http.get("streams") == []
    http.get("cluster-name")
    http.do("PUT", "queues/%2F/second", {}, 201)
    http.do("PUT", "queues/shop/other", {}, 201)
    http.do("PUT", "queues/%2F/third", {}, 201)
    assert "queue limit in vhost '/' (3) is reached" in http.refused("PUT", "queues/%2F/fourth", {})
    connection.close()


def test_an_empty_body_and_null_ask_for_a_durable_queue(http: Http) -> None:
    assert http.ask("PUT", "queues/shop/a%2Fb", content=b"").status_code == 201
    assert http.ask("PUT", "queues/shop/c", content=b"null").status_code == 201
    assert [(one["name"], one["durable"]) for one in http.get("queues/shop")] == [("a/b", True), ("c", True)]


def test_what_a_queue_cannot_be_is_400_with_the_reason(http: Http) -> None:
    bad = {"arguments": {"x-message-ttl": "soon"}}
    assert "'x-message-ttl' for queue 'z' in vhost '/': 'soon'" in http.refused("PUT", "queues/%2F/z", bad)
    assert http.refused("PUT", "queues/%2F/z", {"durable": 3}) == "durable is 3, not true or false"
    assert http.refused("PUT", "queues/%2F/z", {"arguments": [1]}) == "arguments is [1], not an object"
    deep: object = 1
    for _ in range(40):
        deep = {"a": deep}
    assert http.refused("PUT", "queues/%2F/z", {"arguments": deep}) == "arguments nests deeper than 32"
    assert "'amq.x' contains reserved prefix" in http.refused("PUT", "queues/%2F/amq.x", {}, 401)
    http.do("PUT", "queues/nowhere/z", {}, 404)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "is not JSON"),
        (b'"{}"', "is a text, not a JSON object"),
        (b"[1]", "is a list, not a JSON object"),
        (b'{"durable": 1e999}', "is not JSON"),
        (b" " * (1 << 20) + b"{}", "1 MiB are allowed"),
    ],
)
def test_a_body_that_cannot_be_read_is_400(http: Http, body: bytes, reason: str) -> None:
    answer = http.ask("PUT", "queues/%2F/z", content=body)
    assert answer.status_code == 400
    assert reason in answer.json()["reason"]


def test_a_body_without_a_length_is_bounded_too(http: Http) -> None:
    answer = http.ask("PUT", "queues/%2F/z", content=(b" " * 4096 for _ in range(1000)))
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")


def test_purging_empties_and_if_empty_asks(http: Http) -> None:
    assert http.publish("q", "one")
    assert "not empty" in http.refused("DELETE", "queues/%2F/q?if-empty=true")
    http.do("DELETE", "queues/%2F/q/contents")
    assert http.get("queues/%2F/q")["messages"] == 0
    http.do("DELETE", "queues/%2F/none/contents", status=404)


def test_exchanges(http: Http) -> None:
    names = [one["name"] for one in http.get("exchanges/%2F")]
    assert names == [
        "", "amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match", "amq.rabbitmq.trace",
        "amq.rabbitmq.event",
    ]  # fmt: skip
    assert len(http.get("exchanges")) == 16
    http.do("PUT", "exchanges/%2F/x", {"type": "topic", "arguments": {"alternate-exchange": "amq.fanout"}}, 201)
    http.do("PUT", "exchanges/%2F/x", {"type": "topic", "arguments": {"alternate-exchange": "amq.fanout"}}, 204)
    assert http.get("exchanges/%2F/x")["type"] == "topic"
    assert http.get("exchanges/%2F/amq.default")["name"] == ""
    assert "inequivalent arg 'type'" in http.refused("PUT", "exchanges/%2F/x", {"type": "direct"})
    assert "'odd'" in http.refused("PUT", "exchanges/%2F/y", {"type": "odd"})
    assert "default exchange" in http.refused("PUT", "exchanges/%2F/amq.default", {"type": "direct"}, 401)
    assert "system exchange" in http.refused("DELETE", "exchanges/%2F/amq.topic", status=401)
    http.do("POST", "bindings/%2F/e/x/q/q", {"routing_key": "#"}, 201)
    assert "in use" in http.refused("DELETE", "exchanges/%2F/x?if-unused=true")
    http.do("DELETE", "exchanges/%2F/x")
    http.do("DELETE", "exchanges/%2F/x", status=404)
    http.do("GET", "exchanges/%2F/x", status=404)


def test_a_binding_is_named_by_its_key_and_a_digest_of_its_arguments(http: Http) -> None:
    answer = http.ask("POST", "bindings/%2F/e/amq.topic/q/q", {"routing_key": "a b.#"})
    assert (answer.status_code, answer.headers["location"]) == (
        201,
        "/api/bindings/%2F/e/amq.topic/q/q/a%2Bb.%2523",
    )
    http.do("POST", "bindings/%2F/e/amq.topic/q/q", {"routing_key": "a b.#", "arguments": {"x": 1}}, 201)
    http.do("POST", "bindings/%2F/e/amq.topic/q/q", {"routing_key": ""}, 201)
    http.do("POST", "bindings/%2F/e/amq.topic/q/q", {}, 201)
    between = http.get("bindings/%2F/e/amq.topic/q/q")
    keys = [one["properties_key"] for one in between]
    assert keys[0] == "a+b.%23"
    assert keys[1].startswith("a+b.%23~")
    assert keys[2:] == ["~"]
    assert http.ask("GET", answer.headers["location"].removeprefix("/api/")).json() == between[0]
    assert http.get(f"bindings/%2F/e/amq.topic/q/q/{keys[1].replace('%', '%25')}")["arguments"] == {"x": 1}
    assert len(http.get("queues/%2F/q/bindings")) == 4
    assert [one["source"] for one in http.get("bindings/%2F")] == ["", *["amq.topic"] * 3]
    http.do("DELETE", "bindings/%2F/e/amq.topic/q/q/~")
    http.do("DELETE", "bindings/%2F/e/amq.topic/q/q/~", status=404)
    assert len(http.get("exchanges/%2F/amq.topic/bindings/source")) == 2


def test_exchanges_are_bound_to_exchanges(http: Http) -> None:
    http.do("POST", "bindings/%2F/e/amq.topic/e/amq.fanout", {"routing_key": "news"}, 201)
    [one] = http.get("exchanges/%2F/amq.fanout/bindings/destination")
    assert (one["destination_type"], one["routing_key"]) == ("exchange", "news")
    http.do("DELETE", "bindings/%2F/e/amq.topic/e/amq.fanout/news")
    assert http.get("bindings/%2F/e/amq.topic/e/amq.fanout") == []


def test_ends_of_bindings_that_are_missing_are_404(http: Http) -> None:
    assert http.refused("POST", "bindings/%2F/e/none/q/q", {}, 404) == "no exchange 'none' in vhost '/'"
    assert http.refused("POST", "bindings/%2F/e/amq.topic/q/none", {}, 404) == "no queue 'none' in vhost '/'"
    http.do("GET", "bindings/%2F/e/none/q/q", status=404)
    http.do("GET", "queues/%2F/none/bindings", status=404)
    assert "default exchange" in http.refused("POST", "bindings/%2F/e/amq.default/q/q", {}, 401)


def test_lists_are_sorted_cut_and_paged(http: Http) -> None:
    for number in range(5):
        http.do("PUT", f"exchanges/shop/x{number}", {"type": "fanout"}, 201)
    page = http.get("exchanges/shop?name=^x&use_regex=true&sort=name&sort_reverse=true&page=1&page_size=2&columns=name")
    assert page["items"] == [{"name": "x4"}, {"name": "x3"}]
    assert (page["filtered_count"], page["total_count"], page["page_count"]) == (5, 13, 3)


def test_methods_that_a_path_does_not_have(http: Http) -> None:
    answer = http.ask("POST", "queues/%2F/q")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, PUT, DELETE, HEAD, OPTIONS")
    assert http.ask("OPTIONS", "queues/%2F/q").headers["allow"] == "GET, PUT, DELETE, HEAD, OPTIONS"
    http.do("GET", "nothing", status=404)


def test_declares_are_counted(http: Http) -> None:
    def counts() -> list[int]:
        text = httpx.get(f"{http.broker.http_url}/metrics", verify=NO_TLS, timeout=20).text
        names = [f"rabbitmq_queues_{what}_total " for what in ("declared", "created", "deleted")]
        return [int(float(line.split()[1])) for name in names for line in text.splitlines() if line.startswith(name)]

    before = counts()
    http.do("PUT", "queues/%2F/counted", {}, 201)
    http.do("PUT", "queues/%2F/counted", {})
    http.do("DELETE", "queues/%2F/counted")
    assert [now - then for now, then in zip(counts(), before, strict=True)] == [2, 1, 1]


def test_the_check_of_alarms_tells_of_memory(http: Http) -> None:
    assert http.get("health/checks/alarms") == {"status": "ok"}
    http.broker.command(lambda one: setattr(one.engine.bodies, "tight", True))  # until something is given back
    failed = http.do("GET", "health/checks/alarms", status=503)
    assert http.do("GET", "healthchecks/node", status=503) == failed
    assert (failed["reason"], failed["alarms"][0]["resource"]) == (
        "server.memory is used up: publishers wait",
        "memory",
    )


SERVING = ("virtual-hosts", "is-in-service", "ready-to-serve-clients")


def test_on_a_full_disk_the_alarm_is_told_and_the_server_is_in_service(http: Http) -> None:
    """Whoever restarts what is not in service would only lose the consumers, who make room."""
    http.broker.command(lambda one: setattr(one.engine.log.room, "full", True))
    try:
        assert http.do("GET", "health/checks/alarms", status=503)["alarms"][0]["resource"] == "disk"
        assert [http.get(f"health/checks/{check}") for check in SERVING] == [{"status": "ok"}] * 3
    finally:
        http.broker.command(lambda one: setattr(one.engine.log.room, "full", False))


def test_who_drains_has_its_vhosts_and_is_not_in_service(http: Http) -> None:
    http.broker.command(lambda one: setattr(one.engine.core, "draining", True))
    assert http.get("health/checks/virtual-hosts") == {"status": "ok"}
    for check in SERVING[1:]:
        assert http.do("GET", f"health/checks/{check}", status=503)["reason"] == "the server is draining"


NO_FIELDS = [
    ({"x": 2**63}, "field 'x': 9223372036854775808 is not in -9223372036854775808..9223372036854775807"),
    ({"x": {"y": [1, 2**64 - 1]}}, "field 'x.y': 18446744073709551615 is not in"),
    ({"k" * 256: 1}, f"field name '{'k' * 40}' has 256 bytes, 255 are allowed"),
]


@pytest.mark.parametrize(("arguments", "why"), NO_FIELDS)
def test_arguments_that_amqp_has_no_room_for_are_refused_at_every_door(
    http: Http, arguments: dict[str, object], why: str
) -> None:
    for method, path, more, what in (
        ("PUT", "exchanges/%2F/e", {"type": "headers"}, "exchange 'e' in vhost '/'"),
        ("PUT", "queues/%2F/new", {}, "queue 'new' in vhost '/'"),
        (
            "POST",
            "bindings/%2F/e/amq.headers/q/q",
            {},
            "the binding of queue 'q' to exchange 'amq.headers' in vhost '/'",
        ),
    ):
        told = http.refused(method, path, {**more, "arguments": arguments})
        assert told.startswith(f"arguments of {what}: {why}")
    with penstock.connect(http.broker.flight_url) as client:
        for act in (
            lambda: client.declare_exchange("e", "headers", arguments=arguments),
            lambda: client.bind("q", "amq.headers", "", arguments),
        ):
            with pytest.raises(penstock.InvalidArgument, match="arguments of"):
                act()
    http.do("POST", "bindings/%2F/e/amq.headers/q/q", {"arguments": {"x": 2**63 - 1, "k" * 255: -(2**63)}}, 201)
