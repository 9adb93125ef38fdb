"""Server-sent events over a real socket: what is told, to whom, from where on, and how a stream ends.

`amq.rabbitmq.event`: what changes, as messages, whatever those who change it have said.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pika
import pytest

import penstock
import penstock.server.http.events as places
import penstock.server.watch as watch
import penstock.wire.http.events as streams
from event_stream import Event, EventReader
from http_lab import Http
from penstock.records.queue_settings import QueueSettings
from penstock.records.tokens import login_of
from penstock.server.notices import TEXT_MOST, Feed
from penstock.server.own_messages import AT_RABBITMQ
from penstock.server.people.access import Terms
from penstock.testing.broker_life import Doors
from scenario import amqp, get
from waiting import eventually


def reader(http: Http, query: str = "interval=off", **more: Any) -> EventReader:
    return EventReader(http.broker.http_url, query, **more)


def doors_of(http: Http) -> Doors:
    doors = http.broker._doors
    assert doors is not None
    return doors


def places_of(http: Http) -> list[places.Place]:
    door = doors_of(http)._http
    assert door is not None
    return list(door._events.places)


def test_changes_come_with_what_they_are_about(http: Http) -> None:
    with reader(http) as stream:
        assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
        events = stream.events()
        assert next(events).name == "hello"
        http.do("PUT", "queues/%2F/%3Cb%3Ejobs", {"durable": True}, 201)
        http.do(
            "PUT", "policies/%2F/cap", {"pattern": "jobs$", "definition": {"max-length": 5}, "apply-to": "queues"}, 201
        )
        http.do("POST", "queues/%2F/%3Cb%3Ejobs/pause", {"for": "5m"}, 200)
        http.do("POST", "queues/%2F/%3Cb%3Ejobs/resume", {}, 200)
        http.publish("<b>jobs", "one")
        http.do("DELETE", "queues/%2F/%3Cb%3Ejobs/contents")
        http.do("DELETE", "policies/%2F/cap")
        http.do("DELETE", "queues/%2F/%3Cb%3Ejobs")
        names, found = list[str](), list[Event]()
        while not names or names[-1] != "queue.deleted":
            found.append(next(events))
            names.append(found[-1].name)
    assert names == [
        "queue.created", "policy.set", "queue.altered", "queue.paused", "queue.resumed", "queue.purged",
        "policy.cleared", "queue.altered", "queue.deleted",
    ]  # fmt: skip
    assert {one.data["queue"] for one in found if "queue" in one.data} == {"<b>jobs"}
    assert found[0].data["vhost"] == "/"
    assert found[1].data == {**found[1].data, "policy": "cap", "pattern": "jobs$"}
    assert found[2].data["changed"] == ["max_length"]
    assert found[3].data["by"] == "guest"
    assert found[3].data["until"] > 0
    ids = [int(one.id.partition("-")[2]) for one in found]
    assert ids == list(range(ids[0], ids[0] + len(ids)))


@pytest.mark.parametrize("only", ["nope", "queue,nope", "queuex", "queue.created,QUEUE", " queue"])
def test_events_that_there_are_not_are_refused(http: Http, only: str) -> None:
    wrong = next(one for one in only.split(",") if one not in {"queue", "queue.created"})
    assert f"begins with {wrong!r}, but with address_setting, alarm" in http.refused("GET", f"events?only={only}")


def test_every_event_of_the_page_can_be_asked_for() -> None:
    page = (Path(__file__).parents[3] / "docs" / "http.md").read_text()
    rows = page.partition("| event | when |")[2].partition("\n\n")[0].splitlines()[2:]
    told = {name for row in rows for name in re.findall(r"`([a-z_]+)[.`*]", row.split("|")[1])}
    assert told - {"hello", "end", "gap"} <= {*streams.NOUNS}
    assert {one.partition(".")[0] for one in AT_RABBITMQ} <= {*streams.NOUNS}


def test_connections_and_consumers_come_and_go(http: Http) -> None:
    with reader(http, "interval=off&only=connection,consumer") as stream:
        stream.until("hello")
        asked = pika.URLParameters(http.broker.amqp_url)
        asked.client_properties = {"connection_name": "billing", "odd": b"\xff"}
        connection = pika.BlockingConnection(asked)
        channel = connection.channel()
        channel.basic_consume("q", lambda *_: None, consumer_tag="mine", arguments={"x-priority": 3})
        connection.process_data_events()
        channel.basic_get("q")  # looks once: no consumer
        opened = stream.until("connection.created")
        assert opened.data["user"] == "guest"
        assert (opened.data["auth_mechanism"], opened.data["protocol"]) == ("PLAIN", "AMQP 0-9-1")
        assert opened.data["user_provided_name"] == opened.data["client_properties"]["connection_name"] == "billing"
        came = stream.until("consumer.created").data
        assert (came["consumer_tag"], came["by"], came["arguments"]) == ("mine", "guest", {"x-priority": 3})
        connection.close()
        gone = stream.until("consumer.deleted").data
        assert (gone["queue"], gone["by"]) == ("q", "guest")
        closed = stream.until("connection.closed").data
        assert [key for key in opened.data if closed[key] != opened.data[key] and key != "time"] == []


def test_a_deleted_queue_ends_its_consumers(http: Http) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(http.broker.amqp_url))
    connection.channel().basic_consume("q", lambda *_: None)
    with reader(http) as stream:
        stream.until("hello")
        http.do("DELETE", "queues/%2F/q")
        assert {next(one).name for one in [stream.events()] for _ in range(2)} == {"consumer.deleted", "queue.deleted"}
    connection.close()


def test_a_client_goes_on_after_the_last_event_it_saw(http: Http) -> None:
    with reader(http) as stream:
        http.do("PUT", "queues/%2F/one", {}, 201)
        last = stream.until("queue.created").id
    http.do("PUT", "queues/%2F/two", {}, 201)
    with reader(http, last=last) as stream:
        events = stream.events()
        assert [next(events).name, next(events).data["queue"]] == ["hello", "two"]
    with reader(http, f"interval=off&last_event_id={last}") as stream:
        assert stream.until("queue.created").data["queue"] == "two"


def test_a_vhost_that_has_the_name_of_another_tells_nothing_of_that(http: Http) -> None:
    with reader(http) as everything:
        http.do("PUT", "vhosts/t1", {}, 201)
        last = everything.until("vhost.created").id
    http.do("PUT", "queues/t1/secret", {}, 201)
    http.do("DELETE", "vhosts/t1")
    http.do("PUT", "vhosts/t1", {}, 201)
    http.do("PUT", "users/looker", {"password": "looker", "tags": "management"}, 201)
    http.do("PUT", "permissions/t1/looker", {"configure": "", "write": "", "read": ".*"}, 201)
    http.do("PUT", "queues/t1/own", {}, 201)
    for user, first in (("looker", "own"), ("guest", "secret")):
        with reader(http, user=user, last=last) as stream:
            assert stream.until("queue.created").data["queue"] == first


def test_a_client_of_another_run_is_told_that_it_missed_something(http: Http) -> None:
    http.do("PUT", "queues/%2F/one", {}, 201)
    with reader(http, last="0badcafe-7") as stream:
        assert "started anew" in stream.until("gap").data["reason"]
        assert stream.until("queue.created", queue="one")


def test_what_the_ring_has_lost_is_a_gap(http: Http) -> None:
    with reader(http) as stream:
        last = stream.until("hello").id
    doors = doors_of(http)
    feed = doors.engine.notices.feed
    doors.run(lambda: [feed.tell("alarm.set", 0, {"alarm": str(n)}) for n in range(5000)])
    with reader(http, last=last) as stream:
        assert stream.until("gap").data["reason"] == f"{5000 - 4096} events are not kept any more"
        assert stream.until("alarm.set").data["alarm"] == str(5000 - 4096)


def test_stats_have_totals_and_the_queues_that_were_named(http: Http) -> None:
    for name in ("deep", "deeper", "shallow"):
        http.do("PUT", f"queues/%2F/{name}", {}, 201)
    for name, count in (("deep", 2), ("deeper", 3), ("shallow", 1)):
        for _ in range(count):
            http.publish(name, "x")
    with reader(http, "interval=250ms&top=1&queue=shallow&queue=absent") as stream:
        first = stream.until("stats").data
        assert first["totals"]["messages_ready"] == 6
        assert first["totals"]["queues"] == 4
        assert [one["name"] for one in first["queues"]] == ["deeper", "shallow"]
        assert first["alarms"] == []
        assert first["log"]["durable_lsn"] > 0
        assert first["memory"]["limit"] > first["memory"]["used"]
        http.take("deeper", 2)
        http.publish("shallow", "y")
        later, rates = first, list[float]()
        while later["totals"]["messages"] != 5:
            later = stream.until("stats").data
            rates.append(later["totals"]["publish_rate"])
        assert max(rates) > 0
        http.do("DELETE", "queues/%2F/deep")
        while later["totals"]["queues"] != 3:
            later = stream.until("stats").data
        assert later["totals"]["messages"] == 3


def test_what_all_onlookers_see_is_worked_out_once_a_count(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 5,000 queues 32 of one user, four times a second, kept each confirm for half a second."""
    counts, looks = list[int](), list[int]()
    for name, told in (("_count", counts), ("_deepest", looks)):
        done = getattr(watch.Census, name)
        monkeypatch.setattr(watch.Census, name, lambda *given, done=done, told=told: (told.append(1), done(*given))[1])
    http.do("PUT", "queues/%2F/deep", {}, 201)
    http.publish("deep", "x")
    with ExitStack() as stack:
        some = [stack.enter_context(reader(http, "interval=250ms&top=1")) for _ in range(4)]
        for _ in range(3):
            for one in some:
                assert [row["name"] for row in one.until("stats").data["queues"]] == ["deep"]
    assert 0 < len(looks) <= len(counts)


def test_a_queue_that_comes_while_somebody_looks_on_is_counted(http: Http) -> None:
    with reader(http, "interval=250ms") as stream:
        assert stream.until("stats").data["totals"]["queues"] == 1
        http.do("PUT", "queues/%2F/late", {}, 201)
        assert 2 in {stream.until("stats").data["totals"]["queues"] for _ in range(6)}


def test_limits_and_dead_letters_are_told_as_numbers(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "QUIET_S", 0.5)
    http.do("PUT", "queues/%2F/dead", {}, 201)
    arguments = {"x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    http.do("PUT", "queues/%2F/small", {"arguments": arguments}, 201)
    with reader(http, "interval=250ms&only=queue.limited,dead_letters") as stream:
        http.publish("small", "0")
        while stream.until("stats").data["totals"]["messages"] != 1:
            pass
        for n in range(6):
            http.publish("small", str(n))
        found = {"dropped": 0, "dead": 0}
        while found != {"dropped": 6, "dead": 6}:
            event = next(stream.events())
            found["dropped"] += event.data.get("dropped", 0)
            found["dead"] += event.data["count"] if event.name == "dead_letters" else 0
    assert http.broker.stats("small")["ready"] == 1


def test_rights_say_what_is_shown(http: Http) -> None:
    for name, tags in (("looker", "management"), ("watcher", "monitoring"), ("nobody", "")):
        http.do("PUT", f"users/{name}", {"password": name, "tags": tags}, 201)
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    http.do("PUT", "permissions/shop/looker", {"configure": "", "write": "", "read": "^mine"}, 201)
    http.do("PUT", "permissions/%2F/watcher", everything, 201)
    with reader(http, user="nobody") as refused:
        assert refused.status == 401
    with reader(http, user="looker") as own, reader(http, user="watcher") as other:
        own.until("hello")
        other.until("hello")
        for vhost in ("%2F", "shop"):
            for name in ("mine", "yours"):
                http.do("PUT", f"queues/{vhost}/{name}", {}, 201)
        policy = {"pattern": "none", "definition": {"max-length": 5}}
        http.do("PUT", "policies/%2F/hidden", policy, 201)
        http.do("PUT", "policies/shop/shown", policy, 201)
        found = list[tuple[str, str]]()
        for event in own.events():
            assert event.data["vhost"] == "shop"
            found.append((event.name, event.data.get("queue", event.data.get("policy"))))
            if event.name == "policy.set":
                break
        assert found == [("queue.created", "mine"), ("queue.created", "yours"), ("policy.set", "shown")]
        assert other.until("policy.set").data["policy"] == "hidden"
    with reader(http, "interval=250ms", user="looker") as own:
        seen = {own.until("stats").data["totals"]["queues"] for _ in range(4)}  # the first may be a count of before
        assert max(seen) == 2  # of his vhost, as in the list of queues


def test_a_user_who_has_the_name_of_another_does_not_look_on_for_him(http: Http) -> None:
    made = {"password": "looker", "tags": "management"}
    http.do("PUT", "users/looker", made, 201)
    with reader(http, user="looker") as stream:
        stream.until("hello")
        http.do("DELETE", "users/looker")
        http.do("PUT", "users/looker", made, 201)
        assert "may not look on any more" in str(stream.until("end").data)


@pytest.mark.parametrize("key", ["alternate-exchange", "dead-letter-exchange"])
@pytest.mark.parametrize("exchange", ["amq.rabbitmq.event", "amq.rabbitmq.trace"])
def test_who_sets_policies_does_not_have_events_made_up(http: Http, key: str, exchange: str) -> None:
    """A policy named the exchange of events for dead letters: with a key of theirs these were events."""
    http.do("PUT", "users/ruler", {"password": "ruler", "tags": "policymaker"}, 201)
    http.do("PUT", "permissions/shop/ruler", {"configure": ".*", "write": ".*", "read": ".*"}, 201)
    policy = {"pattern": ".*", "definition": {key: exchange}}
    answer = Http(http.broker, "ruler").ask("PUT", "policies/shop/p", policy)
    assert answer.status_code == 401
    assert f"access to exchange '{exchange}' in vhost 'shop' refused" in answer.text
    assert http.do("GET", "policies/shop", status=200) == []
    http.do("PUT", "policies/shop/p", policy, 201)  # as an administrator


def test_a_user_who_loses_his_tag_is_shown_no_more(http: Http) -> None:
    http.do("PUT", "users/looker", {"password": "looker", "tags": "management"}, 201)
    with reader(http, user="looker") as stream:
        stream.until("hello")
        http.do("PUT", "users/looker", {"password": "looker", "tags": ""})
        http.do("PUT", "queues/%2F/one", {}, 201)
        assert "may not look on any more" in stream.until("end").data["reason"]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("interval=5", "interval"),
        ("interval=10ms", "interval is 10ms, not 'off' or a duration from 250ms to 1h"),
        ("top=501", "top is '501', not a whole number from 0 to 500"),
        ("&".join(["queue=q"] * 2 + [f"queue={n}" for n in range(500)]), "queue is there 501 times"),
    ],
)
def test_what_cannot_be_asked_is_refused(http: Http, query: str, reason: str) -> None:
    assert reason in http.refused("GET", f"events?{query}")


def test_clients_are_bounded(http: Http) -> None:
    """guest is an administrator, and finds 8 more than there are."""
    with reader(http) as one, reader(http) as two:
        one.until("hello")
        two.until("hello")
        share = doors_of(http).shares.of("event_streams")
        share._terms = Terms("clients", "look on", 0, kept=2)
        share.bound(0)
        assert "2 clients look on, and 2 are allowed" in http.refused("GET", "events?interval=off", status=503)
    eventually(lambda: not places_of(http))
    with reader(http) as again:
        again.until("hello")


def test_who_looks_on_with_a_token_gives_back_what_his_user_took(http: Http) -> None:
    told = http.do("POST", "tokens", {"lasts_s": 60, "tags": ["management"]}, 200)
    login = login_of(told["token"])
    assert login is not None
    with reader(http, user=login[0], password=login[1]) as stream:
        stream.until("hello")
        assert doors_of(http).shares.of("event_streams").largest() == ("guest", 1)
    eventually(lambda: not places_of(http))
    assert doors_of(http).shares.of("event_streams").largest() is None


def test_who_does_not_read_is_cut_off_with_a_sentence(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    cut, end = threading.Event(), streams.EventStream._end

    async def ends(stream: streams.EventStream, *said: Any) -> None:
        cut.set()
        await end(stream, *said)

    monkeypatch.setattr(streams.EventStream, "_end", ends)
    monkeypatch.setattr(streams, "SLOW_S", 0.2)
    monkeypatch.setattr(streams, "LOOK_S", 0.02)
    monkeypatch.setattr(streams, "UNSENT_MOST", 4096)
    monkeypatch.setattr(streams, "GOODBYE_S", 60.0)
    with reader(http, receive_buffer=4096) as slow:
        slow.until("hello")
        flood(http, cut.is_set)
        assert "nothing was read for" in slow.until("end").data["reason"]
    monkeypatch.setattr(streams, "GOODBYE_S", 0.05)
    with reader(http, receive_buffer=4096) as dead:
        dead.until("hello")
        flood(http, lambda: not places_of(http))  # without having read a byte


def flood(http: Http, over: Callable[[], bool]) -> None:
    """Tell the only client more than the kernel holds for it, until this is so."""
    doors, fields = doors_of(http), {"alarm": "x", "reason": "y" * TEXT_MOST}
    feed = doors.engine.notices.feed

    def more() -> bool:
        doors.run(lambda: [feed.tell("alarm.set", 0, fields) for _ in range(200)])
        return over()

    eventually(more, look=0.005)


def test_a_quiet_stream_has_heartbeats(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.05)
    with reader(http) as stream:
        lines = stream._lines()
        while stream.comments < 4:  # the first comes at once
            stream.comments += next(lines).startswith(b":")


def test_the_end_of_the_server_is_told(http: Http) -> None:
    with reader(http) as stream:
        stream.until("hello")
        http.broker.close()
        assert stream.until("end").data["reason"] == "the server stops"


def test_the_feed_keeps_so_many_and_no_more() -> None:
    rung = list[int]()
    feed = Feed(lambda ring: ring(), most=10)
    feed.listeners.add(lambda: rung.append(feed.last))
    for n in range(25):
        feed.tell("x", n, {"n": n, "text": "a" * 2000})
    assert (feed.first, feed.last) == (16, 25)
    assert [one.number for one in feed.since(0, 3)] == [16, 17, 18]
    assert [one.number for one in feed.since(22, 10)] == [23, 24, 25]
    assert [one.number for one in feed.since(15, 10)] == list(range(16, 26))
    assert feed.since(25, 10) == []
    assert len(str(feed.since(24, 1)[0].fields["text"])) == TEXT_MOST + 1
    assert rung == list(range(1, 26))
    feed.tell("x", 25, {"arguments": {"x": "ä" * 5000}, "definition": {"x": "b" * 5000}})
    cut = feed.since(25, 1)[0].fields
    assert cut["arguments"] == '{"x":"' + "ä" * (TEXT_MOST - 6) + "…"
    assert cut["definition"] == {"x": "b" * 5000}


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


def test_arguments_are_told_as_they_were_given(http: Http) -> None:
    """Of queues, exchanges and bindings, those that go with their queue too, as RabbitMQ tells them."""
    with amqp(http.broker) as channel:
        channel.queue_declare("heard", durable=True)
        for key in ("queue.*", "exchange.created", "binding.*", "consumer.*"):
            channel.queue_bind("heard", "amq.rabbitmq.event", key)
        limits, way, more = (
            {"x-max-length": 7},
            {"alternate-exchange": "amq.fanout"},
            {"n": b"\xff", "deep": {"a": [1]}},
        )
        channel.exchange_declare("ex", "headers", arguments=way)
        channel.queue_declare("told", arguments=limits)
        channel.queue_bind("told", "ex", "k", arguments=more)
        channel.basic_qos(prefetch_count=3)
        asked = {"x-priority": 7, "mine": {"deep": [b"\xff"]}}
        channel.basic_consume("told", lambda *_: None, consumer_tag="me", arguments=asked)
        [shown] = http.get("consumers")
        assert (shown["consumer_tag"], shown["arguments"]["x-priority"]) == ("me", 7)
        channel.queue_delete("told")
        wanted: list[tuple[str, object]] = [
            ("exchange.created", way), ("queue.created", limits), ("binding.created", more),
            ("consumer.created", asked), ("consumer.deleted", 3), ("binding.deleted", more),
        ]  # fmt: skip
        heard = list[tuple[str, object]]()

        def told() -> bool:
            method, properties, _ = channel.basic_get("heard", auto_ack=True)
            said = {} if method is None else properties.headers
            if method is not None and method.routing_key != "queue.deleted" and "heard" not in said.values():
                heard.append((method.routing_key, said.get("arguments", said.get("prefetch_count"))))
            return len(heard) >= len(wanted)

        eventually(told)
        assert sorted(heard, key=str) == sorted(wanted, key=str)


def test_a_definition_is_told_as_it_was_given(http: Http) -> None:
    definition = {"weights": {"a": 2.0}, "fairness-key": "/k", "max-length": 2**53 - 1}
    with amqp(http.broker) as channel:
        channel.queue_declare("heard", durable=True)
        channel.queue_bind("heard", "amq.rabbitmq.event", "policy.*")
        http.do("PUT", "policies/%2F/p", {"pattern": "^a", "definition": definition}, 201)
        eventually(lambda: http.broker.stats("heard")["ready"] == 1)
        _, properties, _ = channel.basic_get("heard", auto_ack=True)
        assert properties.headers["definition"] == definition


def heard(channel: Any, count: int) -> list[tuple[str, dict[str, Any]]]:
    """So many events that were told to the queue `heard`: key and headers."""
    found = list[tuple[str, dict[str, Any]]]()

    def more() -> bool:
        while (came := channel.basic_get("heard", auto_ack=True))[0] is not None:
            found.append((came[0].routing_key, came[1].headers))
        return len(found) >= count

    eventually(more, lambda: f"only {found} are told")
    return found


def test_who_did_it_is_told_whatever_door_he_came_by(http: Http) -> None:
    http.do("PUT", "users/maker", {"password": "maker", "tags": "management"}, 201)
    http.do("PUT", "permissions/%2F/maker", {"configure": ".*", "write": ".*", "read": ".*"}, 201)
    with amqp(http.broker) as channel:
        channel.queue_declare("heard", durable=True)
        for key in ("queue.#", "exchange.#", "binding.#", "policy.#", "user.created"):
            channel.queue_bind("heard", "amq.rabbitmq.event", key)
        heard(channel, 3)  # the bindings themselves, from the third on
        url = http.broker.amqp_url.replace("guest:guest", "maker:maker")
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            theirs = connection.channel()
            theirs.exchange_declare("x")
            theirs.queue_declare("by-amqp", auto_delete=True)
            theirs.queue_bind("by-amqp", "x", "k")
            theirs.queue_declare("private", exclusive=True)
            theirs.queue_delete("by-amqp")
        Http(http.broker, "maker").do("PUT", "queues/%2F/by-http", {}, 201)
        with penstock.connect(http.broker.flight_url.replace("guest:guest", "maker:maker")) as client:
            client.declare("by-flight")
        http.do("PUT", "policies/%2F/p", {"pattern": "^none", "definition": {"max-length": 5}}, 201)
        http.do("PUT", "users/other", {"password": "other", "tags": ""}, 201)
        told = [
            (name, headers.get("name", headers.get("queue")), headers["user_who_performed_action"])
            for name, headers in heard(channel, 11)
        ]
    assert sorted(told, key=str) == sorted(
        [
            ("exchange.created", "x", "maker"), ("queue.created", "by-amqp", "maker"),
            ("binding.created", None, "maker"), ("queue.created", "private", "maker"),
            ("binding.deleted", None, "maker"), ("queue.deleted", "by-amqp", "maker"),
            ("queue.deleted", "private", "rmq-internal"), ("queue.created", "by-http", "maker"),
            ("queue.created", "by-flight", "maker"), ("policy.set", "p", "guest"), ("user.created", "other", "guest"),
        ],
        key=str,
    )  # fmt: skip


def test_who_did_it_is_told_to_himself_and_to_who_sees_others(http: Http) -> None:
    for user, tags in (("maker", "management"), ("looker", "management"), ("watcher", "monitoring")):
        http.do("PUT", f"users/{user}", {"password": user, "tags": tags}, 201)
        http.do("PUT", f"permissions/%2F/{user}", {"configure": ".*", "write": ".*", "read": ".*"}, 201)
    with reader(http) as stream:
        last = stream.until("hello").id
    Http(http.broker, "maker").do("PUT", "queues/%2F/one", {}, 201)
    for user, by in (("maker", "maker"), ("looker", None), ("watcher", "maker")):
        with reader(http, user=user, last=last) as stream:
            assert stream.until("queue.created").data.get("by") == by


def test_a_turn_of_several_users_has_each_of_them_told_of_his_own(http: Http) -> None:
    def decide() -> None:
        core, now = engine.core, engine.now()
        for user in ("ann", "", "bob"):
            with engine.notices.by(user):
                core.declare_queue(now, "/", f"of-{user}", QueueSettings())
        with engine.notices.by("nobody"):
            pass
        core.declare_queue(now, "/", "of-none", QueueSettings())
        engine.arm()

    with reader(http) as stream:
        stream.until("hello")
        doors = doors_of(http)
        engine = doors.engine
        doors.run(decide)
        told = [stream.until("queue.created").data for _ in range(4)]
    assert [(one["queue"], one.get("by", "")) for one in told] == [
        ("of-ann", "ann"), ("of-", ""), ("of-bob", "bob"), ("of-none", ""),
    ]  # fmt: skip
    assert engine.notices.asked == []


def test_channels_and_logins_are_told_while_somebody_wants_them(http: Http) -> None:
    with amqp(http.broker) as channel:
        channel.queue_declare("heard", durable=True)
        channel.queue_bind("heard", "amq.rabbitmq.event", "channel.*")
        channel.queue_bind("heard", "amq.rabbitmq.event", "user.authentication.*")
        with pika.BlockingConnection(pika.URLParameters(http.broker.amqp_url)) as connection:
            connection.channel(7).close()
        with pytest.raises(pika.exceptions.AMQPError):
            pika.BlockingConnection(pika.URLParameters(http.broker.amqp_url.replace("guest:guest", "guest:wrong")))
        assert Http(http.broker, "ghost").ask("GET", "overview").status_code == 401
        login, opened, closed, wrong, unknown = heard(channel, 5)
        for key in ("channel.*", "user.authentication.*"):
            channel.queue_unbind("heard", "amq.rabbitmq.event", key)
        pika.BlockingConnection(pika.URLParameters(http.broker.amqp_url)).close()
        assert get(channel, "heard") is None
    assert login[0] == "user.authentication.success"
    assert {**login[1], "name": "guest", "auth_mechanism": "PLAIN", "protocol": "AMQP 0-9-1", "ssl": False} == login[1]
    assert (opened[0], closed[0]) == ("channel.created", "channel.closed")
    assert opened[1] == {**opened[1], "number": 7, "user": "guest", "vhost": "/", "user_who_performed_action": "guest"}
    assert opened[1]["name"] == f"{login[1]['connection_name']} (7)"
    assert wrong == ("user.authentication.failure", {**wrong[1], "name": "guest", "protocol": "AMQP 0-9-1"})
    assert "its password is another" in wrong[1]["error"]
    assert unknown == ("user.authentication.failure", {**unknown[1], "name": "ghost", "protocol": "http"})
    assert "wrong" not in str(wrong) + str(unknown)


def test_consumers_come_behind_their_queue_and_go_before_it(http: Http) -> None:
    with amqp(http.broker) as channel:
        channel.queue_declare("heard", durable=True)
        for key in ("queue.*", "consumer.*"):
            channel.queue_bind("heard", "amq.rabbitmq.event", key)
        channel.queue_declare("brief", auto_delete=True)
        channel.basic_cancel(channel.basic_consume("brief", lambda *_: None))
        told = [name for name, _ in heard(channel, 4)]
    assert told == ["queue.created", "consumer.created", "consumer.deleted", "queue.deleted"]


class Full:
    """A place of which much has happened, and which then ends."""

    def __init__(self, count: int) -> None:
        self._rest = [streams.Told("queue.created", {"number": number}) for number in range(count)]

    @property
    def ended(self) -> str:
        return "" if self._rest else "that was all"

    def news(self, most: int) -> list[streams.Told]:
        some, self._rest = self._rest[:most], self._rest[most:]
        return some

    async def stats(self) -> streams.Told:
        raise AssertionError("nobody asked")

    async def wait(self, seconds: float) -> None:
        raise AssertionError("there is more")

    def close(self) -> None: ...


def test_where_many_look_on_one_of_them_is_told_much_in_a_round() -> None:
    """All of them at once were one turn of the server's loop, and everybody else waited for it."""
    numbers, rounds, crowd = 1000, dict[int, int](), 60

    async def run() -> list[list[int]]:
        bodies, now = [list[bytes]() for _ in range(crowd)], 0

        async def look_on(place: int) -> None:
            async def send(message: Any) -> None:
                body = message.get("body", b"")
                rounds[now] = rounds.get(now, 0) + body.count(b"queue.created")
                bodies[place].append(body)

            async def receive() -> Any:
                await asyncio.Event().wait()

            await streams.EventStream(Full(numbers), 0)({"type": "http"}, receive, send)

        working = [asyncio.ensure_future(look_on(place)) for place in range(crowd)]
        while not all(one.done() for one in working):
            await asyncio.sleep(0)
            now += 1
        return [[int(found) for found in re.findall(rb'"number":(\d+)', b"".join(some))] for some in bodies]

    assert asyncio.run(run()) == [[*range(numbers)]] * crowd
    assert max(rounds.values()) <= streams.AT_ONCE + streams.FEW
