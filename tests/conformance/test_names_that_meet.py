"""Queues, topics with a key and views may have one name: a read gives what the right that was asked is about."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain, combinations, product

import pytest

import penstock
from penstock.errors import AccessRefused, InvalidArgument, NotFound
from penstock.testing import Broker

pytestmark = pytest.mark.conformance

THINGS = ("queue", "topic", "of exchange", "view")
WORLDS = [some for some in chain(*(combinations(THINGS, n) for n in (1, 2, 3))) if {"topic", "view"} - {*some}]
"""Which of them there are; a view takes the name of a topic with a key, and no name has both here."""

GATHERED = {"projection": ["/is", "COUNT(/id) AS /n"], "grouping": ["/is"]}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """In world N the name is `eN/k`: of each thing that is there, and one user may read all things of one kind."""
    config: dict[str, list[dict[str, object]]] = {
        "user": [{"name": "root", "password": "root", "tags": ["administrator"]}],
        "exchange": [{"name": f"e{number}", "type": "direct"} for number in range(len(WORLDS))],
        "topic": [{"name": "source", "key": ["/id"]}],
        "view": [],
        "entitlement": [
            {"tag": "administrator", "read": True, "write": True},
            {"user": "queue", "queue": "^e[0-9]+/k$", "read": True},
            {"user": "topic", "topic": "^e[0-9]+/k$", "read": True},
            {"user": "view", "topic": "^e[0-9]+/k$", "read": True},
        ],
    }
    config["user"] += [{"name": name, "password": name} for name in THINGS]
    for number, there in enumerate(WORLDS):
        name = f"e{number}/k"
        config["entitlement"].append({"user": "of exchange", "exchange": f"e{number}", "topic": "^k$", "read": True})
        if "topic" in there:
            config["topic"].append({"name": name, "key": ["/id"]})
        if "of exchange" in there:
            config["topic"].append({"name": "k", "exchange": f"e{number}", "key": ["/id"]})
        if "view" in there:
            config["view"].append({"name": name, "source": "source", "select": "/id, /is", "group_by": ["/id", "/is"]})
    with Broker(config) as broker, penstock.connect(broker.flight_url.replace("guest:guest", "root:root")) as root:
        for number, there in enumerate(WORLDS):
            if "queue" in there:  # the settings would not have one with the name of a view
                root.declare(f"e{number}/k", underlying_topic=f"behind-{number}")
        root.publish("source", json.dumps({"id": 1, "is": "view"}))
        for number, there in enumerate(WORLDS):
            for thing, name in (("queue", f"behind-{number}"), ("topic", f"e{number}/k")):
                if thing in there:
                    root.publish(name, json.dumps({"id": 1, "is": thing}))
            if "of exchange" in there:
                root.publish("k", json.dumps({"id": 1, "is": "of exchange"}), exchange=f"e{number}")
        broker.advance(1)
        yield broker


def read(client: penstock.Client, how: tuple[bool, bool, bool], number: int) -> set[str]:
    """What is read: whose it says that it is.  how: gathered; followed; with the exchange apart."""
    gathered, followed, apart = how
    name, where = ("k", {"exchange": f"e{number}"}) if apart else (f"e{number}/k", {})
    options: dict[str, object] = {**where, **(GATHERED if gathered else {})}
    if not followed:
        return {row.json()["is"] for row in client.sow(name, **options)}  # type: ignore[arg-type]
    with client.sow_and_subscribe(name, timeout=0.5, **options) as rows:  # type: ignore[arg-type]
        first = rows.take()
        return set() if first is None else {first.json()["is"]}


def test_what_is_read_by_a_name_is_what_its_right_is_about(broker: Broker) -> None:
    """Whoever could read, or declare, a queue `E/K` read the topic K of exchange E, and the other way about."""
    seen = set[tuple[str, tuple[bool, bool, bool]]]()
    for user in THINGS:
        with penstock.connect(f"penstock://{user.replace(' ', '%20')}:{user.replace(' ', '%20')}@"
                              f"{broker.flight_url.rpartition('@')[2]}") as client:  # fmt: skip
            for (number, there), how in product(enumerate(WORLDS), product((False, True), repeat=3)):
                try:
                    found = read(client, how, number)
                except (AccessRefused, NotFound, InvalidArgument):
                    continue  # InvalidArgument: a queue is not followed, but gathered
                of = {"topic", "view"} if user in {"topic", "view"} else {user}  # both are topics to a right
                assert found <= of, (user, there, how, found)
                seen |= {(one, how) for one in found}
    assert {thing for thing, _ in seen} == {*THINGS}


def test_a_subscription_does_not_go_on_with_what_comes_to_have_the_name(broker: Broker) -> None:
    """What is gathered for a subscriber followed the name to a topic that he may not read."""
    where = broker.flight_url.rpartition("@")[2]
    with ExitStack() as stack:
        root, user = (
            stack.enter_context(penstock.connect(f"penstock://{one}:{one}@{where}")) for one in ("root", "queue")
        )
        with user.sow_and_subscribe("e0/k", timeout=30, oof=True, **GATHERED) as rows:  # type: ignore[arg-type]
            first = rows.take()
            assert first is not None
            assert first.json()["is"] == "queue"
            root.declare_topic("k", exchange="e0", key=["/id"])
            root.publish("k", {"id": 1, "is": "hidden"}, exchange="e0")
            broker.advance(1)
            told = rows.take()
            assert told is not None
            assert (told.event, told.json()["is"]) == ("oof", "queue")
            root.delete_topic("k", exchange="e0")
            broker.advance(1)
            told = rows.take()
            assert told is not None
            assert (told.event, told.json()["is"]) == ("publish", "queue")
