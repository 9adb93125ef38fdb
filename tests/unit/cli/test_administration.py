"""Connections, exchanges, bindings, vhosts, users and policies by `penstock`, against a broker in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from pika.exceptions import AMQPConnectionError, ConnectionClosedByBroker

import penstock
from penstock import aio
from penstock.errors import AccessRefused, NotFound
from penstock.testing import Broker

Run = Callable[..., tuple[int, str, str]]
Does = Callable[..., str]
Gives = Callable[..., Any]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(
        {
            "queue": [{"name": "q"}, {"name": "r"}],
            "user": [{"name": "root", "password": "r", "tags": ["administrator"]}, {"name": "plain", "password": "p"}],
        }
    ) as broker:
        yield broker


@pytest.fixture
def url(broker: Broker) -> str:
    return broker.flight_url.replace("guest:guest", "root:r")


@pytest.fixture
def does(run: Run, url: str) -> Does:
    """What a command that is done prints."""

    def does(*words: str) -> str:
        status, out, err = run(*words, "--url", url)
        assert (status, err) == (0, ""), (out, err)
        return out

    return does


@pytest.fixture
def gives(does: Does) -> Gives:
    """The same as JSON."""
    return lambda *words: json.loads(does(*words, "--json"))


def connected(broker: Broker, user: str, password: str, vhost: str = "/") -> pika.BlockingConnection:
    port = pika.URLParameters(broker.amqp_url).port
    login = pika.PlainCredentials(user, password)
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, vhost, login, heartbeat=0))


def as_user(url: str, user: str, password: str) -> str:
    return url.replace("root:r@", f"{user}:{password}@")


def test_connections_are_listed_and_closed(broker: Broker, run: Run, does: Does, gives: Gives, url: str) -> None:
    assert does("connection", "list").split()[:2] == ["name", "user"]
    mine, other = connected(broker, "plain", "p"), connected(broker, "root", "r")
    mine.channel()
    [first, second] = sorted(gives("connection", "list"), key=lambda one: one["user"])  # its clock stands still
    assert (first["user"], first["vhost"], first["channels"], second["user"]) == ("plain", "/", 1, "root")
    assert "Pika Python Client Library" in does("connection", "list", "--user", "plain")
    plain = ("--url", as_user(url, "plain", "p"))
    assert [one["user"] for one in json.loads(run("connection", "list", "--json", *plain)[1])] == ["plain"]
    status, _, err = run("connection", "close", second["name"], "--yes", *plain)
    assert (status, "no connection" in err) == (1, True)  # of others nothing is shown
    status, _, err = run("connection", "close", "--user", "root", "--yes", *plain)
    assert (status, "PS102" in err) == (1, True)
    status, _, err = run("connection", "close", first["name"], "--url", url)
    assert (status, "with 1 channel: close?" in err, "say --yes" in err) == (2, True, True)
    assert does("connection", "close", first["name"], "--reason", "out", "--yes") == "1 connection closed\n"
    with pytest.raises(ConnectionClosedByBroker) as closed:
        mine.process_data_events(60)
    assert (closed.value.reply_code, closed.value.reply_text) == (320, "CONNECTION_FORCED - out")
    assert gives("connection", "close", "--user", "root", "--yes") == {"closed": [second["name"]]}
    with pytest.raises(ConnectionClosedByBroker):
        other.process_data_events(60)
    assert run("connection", "close", "--url", url)[0] == 2


def test_exchanges_and_bindings(broker: Broker, run: Run, does: Does, gives: Gives, url: str) -> None:
    assert does("exchange", "declare", "shop", "--type", "topic", "--argument", "alternate-exchange=amq.fanout") == (
        "exchange shop declared\n"
    )
    does("exchange", "declare", "inner", "--type", "headers", "--internal", "--transient")
    found = {one["name"]: one for one in gives("exchange", "list")}
    assert (found["shop"]["type"], found["shop"]["arguments"]) == ("topic", {"alternate-exchange": "amq.fanout"})
    assert (found["inner"]["internal"], found["inner"]["durable"]) == (True, False)
    assert "amq.default" in does("exchange", "list")
    status, _, err = run("exchange", "declare", "shop", "--type", "direct", "--url", url)
    assert (status, "PS104" in err) == (1, True)
    does("binding", "declare", "shop", "q", "orders.#")
    does("binding", "declare", "shop", "inner", "--to-exchange")
    does("binding", "declare", "inner", "r", "--argument", 'x-match="any"', "--argument", "n=1")
    [bound] = gives("binding", "list", "--queue", "r")[1:]
    assert (bound["source"], bound["arguments"]) == ("inner", {"x-match": "any", "n": 1})
    assert [one["destination"] for one in gives("binding", "list", "--source", "shop")] == ["inner", "q"]
    assert [one["source"] for one in gives("binding", "list", "--destination", "inner")] == ["shop"]
    assert "orders.#" in does("binding", "list")
    with penstock.connect(url) as client:
        assert client.publish("orders.1", b"one", exchange="shop").outcome == "stored"
    status, _, err = run("binding", "delete", "shop", "q", "orders.*", "--yes", "--url", url)
    assert (status, "not bound to exchange shop by key 'orders.*'" in err) == (1, True)
    assert run("binding", "delete", "shop", "q", "orders.#", "--url", url)[0] == 2  # nobody is there to ask
    assert does("binding", "delete", "shop", "q", "orders.#", "--yes").endswith("no more\n")
    does("binding", "delete", "shop", "inner", "--to-exchange", "--yes")
    assert gives("binding", "list", "--source", "shop") == []
    status, _, err = run("exchange", "delete", "inner", "--if-unused", "--yes", "--url", url)
    assert status == 1
    assert does("exchange", "delete", "inner", "--yes") == "exchange inner deleted with 1 binding\n"
    status, _, err = run("exchange", "delete", "inner", "--yes", "--url", url)
    assert (status, "no exchange 'inner' in vhost '/'" in err) == (1, True)
    assert broker.stats("q")["ready"] == 1


def test_vhosts(broker: Broker, run: Run, does: Does, gives: Gives, url: str) -> None:
    assert does("vhost", "add", "shop", "--description", "parcels", "--tag", "blue") == "vhost shop added\n"
    status, _, err = run("vhost", "add", "shop", "--url", url)
    assert (status, "vhost 'shop' is there already" in err) == (1, True)
    [_, shop] = gives("vhost", "list")
    assert (shop["name"], shop["description"], shop["tags"]) == ("shop", "parcels", ["blue"])
    does("vhost", "set-limit", "shop", "max-queues", "2")
    assert gives("vhost", "list-limits") == [{"vhost": "shop", "value": {"max-queues": 2}}]
    assert "max-queues" in does("vhost", "list-limits")
    with penstock.connect(url.removesuffix("/") + "/shop") as client:
        client.declare("a")
        client.publish("a", b"1")
        client.declare("b")
        with pytest.raises(penstock.PenstockError, match="max-queues|limit"):
            client.declare("c")
    does("vhost", "clear-limit", "shop", "max-queues")
    assert does("vhost", "list-limits").split()[:3] == ["vhost", "limit", "value"]
    status, _, err = run("vhost", "delete", "shop", "--url", url)
    assert (status, "vhost shop has 2 queues, 1 message, 0 connections" in err) == (2, True)
    status, _, err = run("vhost", "delete", "shop", "--yes", "--url", as_user(url, "plain", "p"))
    assert (status, "administrator" in err) == (1, True)
    assert gives("vhost", "delete", "shop", "--yes") == {
        "deleted": "shop", "queues": 2, "messages": 1, "connections": 0,
    }  # fmt: skip
    assert run("vhost", "delete", "shop", "--yes", "--url", url)[0] == 1
    status, _, err = run("vhost", "delete", "/", "--yes", "--url", url)
    assert (status, "always there" in err) == (2, True)


def test_users_and_what_they_may_do(
    broker: Broker, run: Run, does: Does, gives: Gives, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("one\n"))
    assert "user ann added" in does("user", "add", "ann", "--tag", "monitoring")
    assert gives("user", "list")[-1] == {"name": "ann", "tags": ["monitoring"], "limits": {}}
    assert run("user", "add", "ann", "two", "--url", url)[0] == 1  # another one of that name
    ann = as_user(url, "ann", "one")
    with penstock.connect(ann) as client, pytest.raises(AccessRefused):
        client.users()
    assert connection_refused(broker, "ann", "one")
    set_to = gives("user", "set-permissions", "ann", "^ann-", "^ann-|^amq.default$", ".*")
    assert (set_to["user"], set_to["vhost"]) == ("ann", "/")
    connected(broker, "ann", "one").close()
    [permission] = gives("user", "list-permissions", "ann")
    assert permission == {
        "user": "ann",
        "vhost": "/",
        "configure": "^ann-",
        "write": "^ann-|^amq.default$",
        "read": ".*",
    }
    with penstock.connect(ann) as client:
        client.declare_exchange("ann-x", "fanout")
        client.declare("ann-q")
        client.bind("ann-q", "ann-x")
        with pytest.raises(AccessRefused):
            client.bind("q", "ann-x")
        with pytest.raises(AccessRefused):
            client.delete_exchange("amq.fanout")
    does("user", "set-tags", "ann", "administrator")
    does("user", "change-password", "ann", "three")
    with penstock.connect(as_user(url, "ann", "three")) as client:
        assert client.users()[-1]["tags"] == ["administrator"]  # kept with the new password
    does("user", "set-limit", "ann", "max-connections", "1")
    held = connected(broker, "ann", "three")
    assert connection_refused(broker, "ann", "three")
    assert gives("user", "list-limits") == [{"user": "ann", "value": {"max-connections": 1}}]
    does("user", "clear-limit", "ann", "max-connections")
    does("user", "clear-permissions", "ann", "--yes")
    assert gives("user", "list-permissions", "ann") == []
    does("user", "clear-password", "ann", "--yes")
    assert connection_refused(broker, "ann", "three")
    status, _, err = run("user", "delete", "ann", "--url", url)
    assert (status, "may open 0 vhosts and has 1 connection" in err) == (2, True)
    assert gives("user", "delete", "ann", "--yes") == {"deleted": "ann", "connections": 1}
    with pytest.raises(ConnectionClosedByBroker):
        held.process_data_events(60)
    for words in (
        ("change-password", "ann", "x"),
        ("set-tags", "ann"),
        ("delete", "ann", "--yes"),
        ("list-permissions", "ann"),
    ):
        status, _, err = run("user", *words, "--url", url)
        assert (status, "no user 'ann'" in err) == (1, True), words
    status, _, err = run("user", "set-tags", "plain", "administrator", "--url", url)
    assert (status, "settings file" in err) == (2, True)


def connection_refused(broker: Broker, user: str, password: str) -> bool:
    try:
        connected(broker, user, password).close()
    except AMQPConnectionError:
        return True
    return False


def test_the_same_from_asyncio(broker: Broker, url: str) -> None:
    async def work() -> None:
        async with aio.connect(url) as client:
            await client.declare_exchange("e", "fanout")
            await client.bind_exchange("e", "amq.topic", "a.*")
            assert [one["source"] for one in await client.bindings(destination="e")] == ["amq.topic"]
            await client.unbind_exchange("e", "amq.topic", "a.*")
            assert "e" in [one["name"] for one in await client.exchanges()]
            await client.add_vhost("v")
            await client.add_user("bob", "b")
            await client.set_permissions("bob", "", "", ".*", vhost="v")
            assert len(await client.permissions(vhost="v")) == 3  # those of the settings open every vhost
            with pytest.raises(NotFound):
                await client.close_connection("nobody")

    asyncio.run(work())


def test_lists_are_in_an_order_that_a_person_finds_things_in(run: Run, does: Does, gives: Gives) -> None:
    """They were in that in which things were made, or in none."""
    for name in ("zoe", "ann"):
        does("user", "add", name, "secret")
        does("vhost", "add", name)
        does("exchange", "declare", name)
        does("queue", "declare", name)
        for key in ("y", "x"):
            does("binding", "declare", "amq.topic", name, key)
    for user, vhost in (("zoe", "zoe"), ("zoe", "ann"), ("ann", "zoe"), ("ann", "ann")):
        does("user", "set-permissions", user, ".*", ".*", ".*", "--vhost", vhost)
    assert [one["name"] for one in gives("vhost", "list")] == ["/", "ann", "zoe"]
    names = [one["name"] for one in gives("exchange", "list")]
    assert names == ["", *sorted(one for one in names if one.startswith("amq.")), "ann", "zoe"]
    rights = [(one["user"], one["vhost"]) for one in gives("user", "list-permissions")]
    assert rights == sorted(rights)
    assert len(rights) >= 4
    bound = [(one["destination"], one["routing_key"]) for one in gives("binding", "list", "--source", "amq.topic")]
    assert bound == [("ann", "x"), ("ann", "y"), ("zoe", "x"), ("zoe", "y")]


def test_policies_are_set_listed_shown_and_deleted(run: Run) -> None:
    with Broker(config={"queue": [{"name": "jobs", "lease_period": "30s"}]}) as broker:
        url = ("--url", broker.flight_url)
        told = run("policy", "set", "cap", "^jobs", '{"message-ttl": 60000}', "--priority", "2", *url)
        assert told == (0, "policy cap set\n", "")
        assert run("policy", "set", "cap", "^jobs", '{"message-ttl": 5000}', *url)[1] == "policy cap changed\n"
        assert run("operator-policy", "set", "all", "", '{"max-length": 9}', "--json", *url)[0] == 0
        assert "cap" in run("policy", "list", *url)[1]
        [policy] = json.loads(run("operator-policy", "list", "--json", *url)[1])
        assert (policy["name"], policy["apply-to"]) == ("all", "queues")
        shown = " ".join(run("queue", "show", "jobs", *url)[1].split())
        assert "message_ttl 5s policy cap" in shown
        assert "max_length 9 operator policy all" in shown
        assert "lease_period 30s argument" in shown
        asked = "policy cap says message-ttl 5000 for what matches '^jobs': delete it?"
        status, _, err = run("policy", "delete", "cap", *url)
        assert (status, asked in err) == (2, True)
        assert run("policy", "delete", "cap", "--yes", *url)[1] == "policy cap deleted, and what it did is undone\n"
        status, _, err = run("policy", "delete", "cap", *url)
        assert (status, "no policy 'cap'" in err) == (1, True)


def test_a_token_is_revoked_by_who_says_so(run: Run) -> None:
    with Broker() as broker:
        url = ("--url", broker.flight_url)
        made = json.loads(run("token", "issue", "nightly", "--json", *url)[1])
        status, _, err = run("token", "revoke", made["id"], *url)
        assert status == 2
        assert f"token {made['id']} of guest, called nightly, lasts until {made['ends']}: end it now?" in err
        assert len(json.loads(run("token", "list", "--json", *url)[1])) == 1
        assert run("token", "revoke", made["id"], "--yes", *url)[0] == 0
        assert run("token", "list", "--json", *url)[1] == "[]\n"
        assert run("token", "revoke", made["id"], *url)[0] == 1  # there is nothing to ask about


LIMITED = [
    ({}, "max_length=3", "and may have 3 then"),
    ({}, "max_length_bytes=4B", "and may have 4 bytes then"),
    ({"max_length": 9}, "max_length=3", "and may have 3 then"),
    ({"max_length": 3, "overflow": "reject-publish"}, "overflow=drop-head", "and may have 3 then"),
    ({"max_length": 3, "overflow": "reject-publish"}, "--unset overflow", "and may have 3 then"),
    ({}, "max_length=5", ""),
    ({}, "max_length_bytes=10B", ""),
    ({}, "ring_size=3", ""),  # which comes down as messages come
    ({"overflow": "reject-publish", "max_length": 8}, "max_length=3", ""),
    ({"max_length": 5}, "--unset max_length", ""),
    ({"max_length": 5}, "lease_period=1m", ""),
]


@pytest.mark.parametrize(("before", "change", "asked"), LIMITED)
def test_a_limit_that_would_drop_messages_asks(before: dict[str, object], change: str, asked: str, run: Run) -> None:
    with Broker(config={"queue": [{"name": "q"}]}) as broker:
        words = change.split() if change.startswith("--") else ["--set", change]
        line = ("queue", "alter", "q", *words, "--url", broker.flight_url)
        for number in range(5):
            broker.publish("q", b"%02d" % number)
        broker.alter("q", **before)
        status, _, err = run(*line)
        assert broker.stats("q")["ready"] == 5
        if not asked:
            assert (status, err) == (0, "")
            return
        assert status == 2
        assert f"queue q has 5 ready messages of 10 bytes, {asked}: drop the oldest above that?" in err
        assert run(*line, "--yes")[0] == 0
        assert broker.stats("q")["ready"] == (2 if "bytes" in change else 3)


def test_a_limit_that_a_policy_says_counts_as_well(run: Run) -> None:
    with Broker(config={"queue": [{"name": "q", "overflow": "reject-publish"}]}) as broker:
        url = ("--url", broker.flight_url)
        for number in range(5):
            broker.publish("q", b"%02d" % number)
        assert run("policy", "set", "cap", "", '{"max-length": 2}', *url)[0] == 0
        status, _, err = run("queue", "alter", "q", "--set", "max_length=8", "--set", "overflow=drop-head", *url)
        assert (status, "and may have 2 then" in err) == (2, True)
        assert run("queue", "alter", "q", "--set", "max_length=8", *url)[0] == 0
        assert broker.stats("q")["ready"] == 5
        status, _, err = run("queue", "alter", "q", "--set", "max_length=many", *url)
        assert (status, "max_length of queue 'q': 'many' is not a whole number" in err) == (2, True)


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        ("{", "the definition '{' is not JSON"),
        ("[]", "not a JSON object"),
        ('{"max-length": 1, "max-length": 2}', "the key 'max-length' twice"),
        ('{"max-lengt": 1}', "did you mean 'max-length'"),
    ],
)
def test_definitions_that_cannot_be(run: Run, definition: str, why: str) -> None:
    with Broker() as broker:
        status, _, err = run("policy", "set", "p", "", definition, "--url", broker.flight_url)
    assert status in (1, 2)
    assert why in err
