"""Our own paths of a queue."""

from __future__ import annotations

import json

import pika
import pytest

from http_lab import Http


def test_peeking_leaves_everything_as_it_is(http: Http) -> None:
    for text in ("a", "b", "c"):
        http.publish("q", text, message_id=text)
    http.take("q", 1, "ack_requeue_true")
    seen = http.get("queues/%2F/q/peek?count=2")
    assert [(one["payload"], one["redelivered"], one["message_count"]) for one in seen] == [
        ("a", True, 2),
        ("b", False, 1),
    ]
    assert seen[0]["properties"] == {"message_id": "a"}
    assert seen[0]["bookmark"].count("|") == 2
    assert http.get("queues/%2F/q/peek") == [*seen, http.get("queues/%2F/q/peek")[2]]
    assert http.get("queues/%2F/q")["messages_ready"] == 3
    assert "count is '0', not a whole number from 1 to 1000" in http.refused("GET", "queues/%2F/q/peek?count=0")
    http.do("GET", "queues/%2F/none/peek", status=404)
    assert http.get("queues/%2F/q/leases") == []


def test_leases_say_who_holds_what(http: Http) -> None:
    http.publish("q", "a")
    connection = pika.BlockingConnection(pika.URLParameters(http.broker.amqp_url))
    channel = connection.channel()
    channel.basic_get("q")
    [lease] = http.get("queues/%2F/q/leases")
    assert lease["client"].startswith("127.0.0.1:")
    assert lease["deliveries"] == 1
    connection.close()


def test_a_queue_is_paused_explained_and_resumed(http: Http) -> None:
    http.publish("q", "a")
    paused = http.do("POST", "queues/%2F/q/pause", {"for": "5m"}, 200)
    assert paused["paused"] is True
    assert http.get("queues/%2F/q/explain")["reasons"][0]["code"] == "paused"
    assert http.do("POST", "queues/%2F/q/resume", {}, 200)["was_paused"] is True
    bookmark = http.get("queues/%2F/q/peek")[0]["bookmark"]
    told = http.get(f"queues/%2F/q/explain?bookmark={bookmark.replace('|', '%7C')}")
    assert told["queues"][0]["queue"] == "q"
    assert "for: " in http.refused("POST", "queues/%2F/q/pause", {"for": "soon"})
    assert "for is 0s, which is not between 1us" in http.refused("POST", "queues/%2F/q/pause", {"for": "0s"})
    assert "for: '' is not a duration" in http.refused("POST", "queues/%2F/q/pause", {"for": ""})
    http.do("POST", "queues/%2F/none/pause", {}, 404)


def test_messages_are_moved_and_dead_letters_redriven(http: Http) -> None:
    http.do("PUT", "queues/%2F/dead", {}, 201)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    http.do("PUT", "queues/%2F/work", {"arguments": arguments}, 201)
    for number in range(4):
        http.publish("work", f'{{"n": {number}}}')
    http.take("work", 2, "reject_requeue_false")
    assert http.get("queues/%2F/dead")["messages"] == 2
    http.do("POST", "queues/%2F/dead/redrive", {"dry": True}, 200)
    assert http.get("queues/%2F/dead")["messages"] == 2
    http.do("POST", "queues/%2F/dead/redrive", {}, 200)
    assert http.get("queues/%2F/work")["messages"] == 4
    http.do("POST", "queues/%2F/work/move", {"to": "q", "filter": "/n > 1"}, 200)
    assert [one["payload"] for one in http.take("q")] == ['{"n": 2}', '{"n": 3}']
    assert http.refused("POST", "queues/%2F/work/move", {}) == "to is missing"
    http.do("PUT", "users/ann", {"password": "ann", "tags": "management"}, 201)
    ann = Http(http.broker, "ann")
    for path in ("pause", "redrive"):
        ann.refused("POST", f"queues/%2F/work/{path}", {}, 401)
    ann.do("GET", "queues/%2F/work/peek", status=401)


def test_a_field_that_is_not_known_is_refused_before_anything_is_moved(http: Http) -> None:
    http.publish("q", "a")
    http.do("PUT", "queues/%2F/other", {}, 201)
    told = http.refused("POST", "queues/%2F/q/move", {"to": "other", "dry_run": True})
    assert told == "unknown field 'dry_run', not one of to, filter, count, after, dry"
    assert "unknown field 'dryrun'" in http.refused("POST", "queues/%2F/q/redrive", {"dryrun": True})
    assert http.refused("POST", "queues/%2F/q/pause", {"fo": "5m"}) == "unknown field 'fo', not one of for"
    assert http.refused("POST", "queues/%2F/q/resume", {"x": 1}) == "unknown field 'x', and none is known here"
    queue = http.get("queues/%2F/q")
    assert (queue["messages"], queue["state"]) == (1, "running")


@pytest.mark.parametrize("act", ["redrive", "move"])
@pytest.mark.parametrize("count", [0, 10_001, 2**53 + 1, True])
def test_a_count_has_one_limit_at_every_door(http: Http, act: str, count: int) -> None:
    told = http.refused(
        "POST", f"queues/%2F/q/{act}", {"to": "r", "count": count} if act == "move" else {"count": count}
    )
    assert told == f"count is {json.dumps(count)}, not a whole number from 1 to 10000"


def test_an_empty_filter_of_a_peek_is_none(http: Http) -> None:
    assert "the expression is empty" in http.refused("GET", "queues/%2F/q/peek?filter=")


@pytest.mark.parametrize("number", [10**20, 2**64, -(2**63) - 1, 10**300])
def test_a_whole_number_that_nobody_keeps_is_named_and_becomes_no_fraction(http: Http, number: int) -> None:
    for method, path, body, place in (
        ("PUT", "queues/%2F/long", {"arguments": {"x-message-ttl": number}}, "arguments/x-message-ttl"),
        ("PUT", "global-parameters/long", {"value": [0, {"a": number}]}, "value/1/a"),
        ("PUT", "policies/%2F/long", {"pattern": "x", "definition": {"max-length": number}}, "definition/max-length"),
    ):
        assert f"{place} is {number}, and numbers from -9223372036854775808 to" in http.refused(method, path, body)
    kept = {"value": [2**64 - 1, -(2**63), 0.1234567890123456789, "18446744073709551616"]}
    http.do("PUT", "global-parameters/long", kept, 201)
    assert http.get("global-parameters/long")["value"] == kept["value"]
    http.do("DELETE", "global-parameters/long", None, 204)
