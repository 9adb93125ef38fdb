"""A vhost that has the name of one that is gone begins empty: nothing of whoever had it before is seen there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

import penstock
from http_lab import Http
from penstock.errors import AccessRefused, NotFound
from penstock.testing import Broker
from scenario import broker_of
from waiting import eventually

pytestmark = pytest.mark.conformance

FILL_S, LATER_S = 60, 120
KEYED = "keyed"


def client_of(broker: Broker, vhost: str) -> penstock.Client:
    return penstock.connect(f"{broker.flight_url}/{vhost}")


def lasting(client: penstock.Client) -> None:
    """What lasts, under the names that both vhosts have."""
    client.declare_exchange("late", "x-delayed-message", arguments={"x-delayed-type": "direct"})
    client.declare_exchange("remembers", "x-recent-history")
    client.declare("work")
    client.declare("waits")
    client.bind("work", "late", "work")
    client.declare_topic(KEYED, key=["/id"])


def filled(broker: Broker, http: Http) -> None:
    """Of everything that lasts something."""
    http.do("PUT", "vhosts/t1", {}, 201)
    with client_of(broker, "t1") as old:
        lasting(old)
        old.bind("work", "amq.topic", "#")
        for topic in ("work", KEYED):
            old.publish(topic, {"id": 1, "secret": "old"})
        old.publish("waits", {"id": 2, "secret": "old"}, delay=FILL_S)
        old.publish("k", {"id": 3, "secret": "old"}, exchange="amq.topic")
        old.publish("work", {"id": 4}, publisher="p", sequence=7)
        old.set_policy("p", ".*", {"max-length": 1000})
        for fields in ({"topic": "work", "mode": "log"}, {"queue": "work"}, {"queue": "work", "mode": "changes"}):
            old.action("stream_open", stream=f"s-{fields.get('mode')}", **fields)
    letter = {"routing_key": "work", "payload": "old", "payload_encoding": "string"}
    http.do("POST", "exchanges/t1/late/publish", {**letter, "properties": {"headers": {"x-delay": FILL_S * 1000}}}, 200)


def sees_nothing(broker: Broker, http: Http) -> None:
    assert http.get("queues/t1") == []
    assert http.get("policies/t1") == []
    assert [one["name"] for one in http.get("exchanges/t1") if not one["name"].startswith("amq.")] == [""]
    with client_of(broker, "t1") as new:
        assert not [one for one in new.streams() if str(one["stream"]).startswith("s-")]
        for exchange in ("", "amq.topic", "late"):
            assert list(new.replay(pattern=".*", exchange=exchange, bookmark="EPOCH")) == []
        assert list(new.replay("work", "EPOCH")) == []
        assert new.query("SELECT count(*) FROM topic.work").scalar() == 0
        with pytest.raises(NotFound):
            list(new.sow(KEYED))
        new.declare("again", underlying_topic="work", recovery_point="epoch")
        broker.advance(1)
        assert new.queue("again")["ready"] == 0
        new.delete("again")


def has_none_of_it_later(broker: Broker, http: Http) -> None:
    """Under the same names."""
    with client_of(broker, "t1") as new:
        lasting(new)
        new.bind("work", "remembers", "")
        broker.advance(LATER_S)
        assert (new.queue("work")["ready"], new.queue("waits")["ready"]) == (0, 0)
        assert list(new.sow(KEYED)) == []
        receipt = new.publish("work", {"id": 1, "new": True}, publisher="p", sequence=1)
        assert receipt.outcome == "stored"
        assert [one.json() for one in new.replay("work", "EPOCH")] == [{"id": 1, "new": True}]
        assert new.queue("work")["ready"] == 1


def deleted(broker: Broker, http: Http) -> None:
    http.do("DELETE", "vhosts/t1")
    http.do("PUT", "vhosts/t1", {}, 201)


def forget(broker: Broker) -> None:
    """The server ended when nobody came in any more, and all that was there was still there."""
    doors = broker._doors
    assert doors is not None
    doors.accounts.forget_vhost("t1")
    doors.accounts.tell()


def deleted_in_part(broker: Broker, http: Http) -> None:
    forget(broker)
    http.do("PUT", "vhosts/t1", {}, 201)


def by_definitions(broker: Broker, http: Http) -> None:
    forget(broker)
    http.do("POST", "definitions", {"vhosts": [{"name": "t1"}]})


@pytest.mark.parametrize("made", [deleted, deleted_in_part, by_definitions])
def test_nothing_is_left_of_the_one_before(made: Callable[[Broker, Http], None]) -> None:
    """Its topics were read by whoever got the name; with a delayed exchange it was not deleted, and was his."""
    with broker_of() as broker:
        http = Http(broker)
        filled(broker, http)
        made(broker, http)
        sees_nothing(broker, http)
        broker.restart()
        sees_nothing(broker, http)
        has_none_of_it_later(broker, http)


GATHERED = {"projection": "/id, ANY(/of) AS /of", "grouping": "/id"}
FOLLOWED: dict[str, Callable[[penstock.Client], Iterable[penstock.Message]]] = {
    "replay": lambda client: client.replay("plain", follow=True, timeout=60),
    "replay of several": lambda client: client.replay(pattern=".*", follow=True, timeout=60),
    "records": lambda client: client.sow_and_subscribe("keyed", timeout=60),
    "messages": lambda client: client.sow_and_subscribe("plain", timeout=60),
    "gathered records": lambda client: client.sow_and_subscribe("keyed", timeout=60, **GATHERED),  # type: ignore[arg-type]
    "gathered messages": lambda client: client.sow_and_subscribe("work", timeout=60, **GATHERED),  # type: ignore[arg-type]
    "consumer": lambda client: client.consume("work", timeout=60),
}


def declared(client: penstock.Client) -> None:
    client.declare("work")
    client.declare_topic("plain")
    client.declare_topic(KEYED, key=["/id"])


def put(client: penstock.Client, number: int, of: str) -> None:
    for topic in ("plain", KEYED, "work"):
        client.publish(topic, {"id": number, "of": of})


@pytest.mark.parametrize("user", ["ann", "guest"])
def test_who_reads_on_in_a_vhost_does_not_read_on_in_the_next_of_its_name(user: str) -> None:
    """Replays and subscriptions went on with what others published there, also of who had no right to that vhost."""
    seen = {what: list[str]() for what in FOLLOWED}
    with broker_of() as broker, ExitStack() as stack:
        http = Http(broker)
        http.do("PUT", "vhosts/t1", {}, 201)
        with penstock.connect(broker.flight_url) as root:
            root.add_user("ann", password="ann")
            root.set_permissions("ann", ".*", ".*", ".*", vhost="t1")
        old = stack.enter_context(client_of(broker, "t1"))
        declared(old)

        def follow(what: str) -> type[BaseException] | None:
            url = f"{broker.flight_url.replace('guest:guest', f'{user}:{user}')}/t1"
            try:
                with penstock.connect(url) as client:
                    for message in FOLLOWED[what](client):
                        seen[what].append(message.json()["of"])
            except penstock.errors.PenstockError as error:
                return type(error)
            return None

        pool = stack.enter_context(ThreadPoolExecutor(len(FOLLOWED)))
        ends = {what: pool.submit(follow, what) for what in FOLLOWED}

        def each_reads() -> bool:
            put(old, 1, "old")
            return all(seen.values())

        eventually(each_reads)
        deleted(broker, http)
        with client_of(broker, "t1") as new:
            declared(new)
            put(new, 2, "new")
            for what, end in ends.items():
                assert end.result(60) in {AccessRefused, NotFound}, what
                put(new, 3, "new")
        assert {of for found in seen.values() for of in found} == {"old"}
