"""Tokens over the doors: logins that end at once when they end, over Flight and HTTP, for what they were made for."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

import penstock
from http_lab import NO_TLS
from penstock.errors import AccessRefused, InvalidArgument, NotFound, PenstockError
from penstock.spark.options import read_options
from penstock.spark.tokens import Token
from penstock.testing import Broker
from waiting import eventually

pytestmark = pytest.mark.conformance


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        with penstock.connect(broker.flight_url) as client:
            for queue in ("orders", "large", "private"):
                client.declare(queue)
        yield broker


@pytest.fixture
def guest(broker: Broker) -> Iterator[penstock.Client]:
    with penstock.connect(broker.flight_url) as client:
        yield client


def by(broker: Broker, token: str) -> penstock.Client:
    return penstock.connect(broker.flight_url, user="whoever", password=token)


def asked(broker: Broker, token: str, path: str, method: str = "GET") -> int:
    given = {"authorization": f"Bearer {token}"}
    return httpx.request(method, f"{broker.http_url}/api/{path}", headers=given, verify=NO_TLS, timeout=20).status_code


def test_a_token_reads_and_writes_what_it_is_for_and_nothing_else(broker: Broker, guest: penstock.Client) -> None:
    made = guest.issue_token("10m", read="orders", write="large")
    guest.publish("orders", {"id": 1})
    with by(broker, made["token"]) as client:
        client.publish("large", {"id": 1})
        assert client.queue("orders")["ready"] == 1
        for refused in (
            lambda: client.publish("orders", {"id": 2}),
            lambda: client.purge("private"),
            lambda: client.delete("large"),
            lambda: client.declare("new"),
            client.users,
            client.issue_token,
            lambda: client.close_connection("none"),
            lambda: client.renew_token(made["id"]),
            lambda: next(iter(client.replay(".*", "EPOCH", follow=False))),
            lambda: next(iter(client.replay("private", "EPOCH", follow=False))),
            lambda: client.action("stats", queue="private"),
        ):
            with pytest.raises(AccessRefused):
                refused()
        with pytest.raises(AccessRefused, match="token '.*' of user 'guest' is not made for read"):
            next(iter(client.replay("private", "EPOCH", follow=False)))
        assert {one["queue"] for one in client.queues()} == {"orders", "large"}
        assert len(list(client.replay("orders", "EPOCH", follow=False))) == 1
    guest.revoke_token(made["id"])


def test_a_revoked_token_is_none_with_the_next_call(broker: Broker, guest: penstock.Client) -> None:
    made = guest.issue_token("10m", tags=["administrator"])
    token = str(made["token"])
    with by(broker, token) as client:
        assert client.health()["status"] == "ok"
        assert asked(broker, token, "overview") == 200
        assert [one["id"] for one in guest.tokens()] == [made["id"]]
        guest.revoke_token(made["id"])
        with pytest.raises(PenstockError, match="may not log in .*: it has ended, was revoked, or is none"):
            client.health()
        assert asked(broker, token, "overview") == 401
    with pytest.raises(NotFound):
        guest.renew_token(made["id"])


def test_http_makes_tokens_and_has_their_rights(broker: Broker, guest: penstock.Client) -> None:
    login = "guest", "guest"
    made = httpx.post(
        f"{broker.http_url}/api/tokens", json={"lasts_s": 600, "read": "orders", "tags": ["management"]}, auth=login,
        verify=NO_TLS, timeout=20,
    ).json()  # fmt: skip
    assert "token" in made, made
    token = made["token"]
    assert asked(broker, token, "queues/%2F/orders") == 200
    assert asked(broker, token, "queues/%2F/private") in {200, 404}, "names of a vhost that it may write to are shown"
    told = httpx.get(f"{broker.http_url}/api/tokens", auth=login, verify=NO_TLS, timeout=20).json()
    assert [one["user"] for one in told if one["id"] == made["id"]] == ["guest"]
    assert asked(broker, token, "users") in {401, 403}
    assert asked(broker, token, "tokens", "POST") in {401, 403}
    assert asked(broker, token[:-1] + ("A" if token[-1] != "A" else "B"), "overview") == 401
    guest.revoke_token(made["id"])


def test_a_driver_renews_its_token_and_ends_it(broker: Broker, guest: penstock.Client) -> None:
    url = broker.flight_url
    with Token(url, lasts=6, read="orders") as token:
        assert "guest" not in repr(token.options)
        options = read_options({**token.options, "topic": "orders"})
        assert options.where.password is not None
        [first] = guest.tokens()
        eventually(lambda: [one["ends"] for one in guest.tokens()] > [first["ends"]])
        with penstock.connect(token.options["url"], password=token.options["token"]) as client:
            assert client.health()["status"] == "ok"
    assert guest.tokens() == []


@pytest.mark.parametrize(
    ("given", "told"),
    [({"token": "penstock_no"}, "is none"), ({"token": "t", "password": "p"}, "one or the others")],
)
def test_an_option_that_is_no_token_is_told(given: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        read_options({"url": "penstock://localhost", "topic": "orders", **given})
