"""A login that ends while calls of it are open: a user who is deleted, a token that is revoked.

What comes later is nobody's whose login is over, and what was not settled waits for others.
"""

from __future__ import annotations

import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

import penstock
from flight_house import FlightHouse
from http_lab import NO_TLS
from penstock.errors import AccessRefused, PenstockError
from penstock.server.flight.calls import Caller
from penstock.testing.process import ServerProcess
from waiting import eventually

pytestmark = pytest.mark.conformance

SETTINGS = """
[[topic]]
name = "records"
key = ["/id"]
"""

Login = tuple[str, str, Callable[[], object]]
"""User, password, and what ends it."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("logins")
    settings = folder / "penstock.toml"
    settings.write_text(SETTINGS)
    with ServerProcess(folder / "data", settings) as process:
        yield process


@pytest.fixture
def guest(server: ServerProcess) -> Iterator[penstock.Client]:
    with penstock.connect(server.flight_url) as client:
        client.declare("orders")
        yield client
        client.delete("orders")


def consume(client: penstock.Client) -> Iterator[bytes]:
    with client.consume("orders") as consumer:
        yield from (message.body for message in consumer)


def replay(client: penstock.Client) -> Iterator[bytes]:
    return (message.body for message in client.replay("orders", "NOW", follow=True))


def subscribe(client: penstock.Client) -> Iterator[bytes]:
    return (message.body for message in client.sow_and_subscribe("records", sow=False))


def by_deletion(guest: penstock.Client) -> Login:
    guest.add_user("ann", "secret-of-ann", tags=["management"])
    guest.set_permissions("ann", "", ".*", ".*")
    return "ann", "secret-of-ann", lambda: guest.delete_user("ann")


def by_revocation(guest: penstock.Client) -> Login:
    made = guest.issue_token("1h", tags=["management"])
    return "whoever", made["token"], lambda: guest.revoke_token(made["id"])


ENDS = pytest.mark.parametrize("ends", [by_deletion, by_revocation])


class Reader(threading.Thread):
    """Somebody who reads for as long as he is let."""

    def __init__(self, client: penstock.Client, way: Callable[[penstock.Client], Iterator[bytes]]) -> None:
        super().__init__(daemon=True)
        self._client, self._way = client, way
        self.came = list[bytes]()
        self.why: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            for body in self._way(self._client):
                self.came.append(body)
        except PenstockError as error:
            self.why = error


@ENDS
@pytest.mark.parametrize("way", [consume, replay, subscribe])
def test_who_reads_is_told_and_gets_nothing_more(
    server: ServerProcess, guest: penstock.Client, way: Callable[[penstock.Client], Iterator[bytes]],
    ends: Callable[[penstock.Client], Login],
) -> None:  # fmt: skip
    user, password, end = ends(guest)
    with penstock.connect(server.flight_url, user=user, password=password) as client:
        reader = Reader(client, way)

        def publish() -> bool:
            guest.publish("records" if way is subscribe else "orders", {"id": 1})
            return len(reader.came) > 1 or not reader.is_alive()

        eventually(publish)  # a replay from now on has no word that it has begun
        end()
        eventually(lambda: not reader.is_alive(), lambda: f"it goes on after {len(reader.came)}")
        assert isinstance(reader.why, AccessRefused), repr(reader.why)
    if way is consume:
        eventually(lambda: guest.queue("orders")["leased"] == 0)  # he may be told before it has gone back
        assert guest.queue("orders")["ready"] >= len(reader.came)


@ENDS
def test_who_publishes_is_refused(
    server: ServerProcess, guest: penstock.Client, ends: Callable[[penstock.Client], Login]
) -> None:
    user, password, end = ends(guest)
    with penstock.connect(server.flight_url, user=user, password=password) as client:
        client.publish("orders", b"1")
        end()
        with pytest.raises(AccessRefused):
            client.publish("orders", b"2")
    assert guest.queue("orders")["ready"] == 1


def test_who_may_publish_no_more_is_refused_where_he_has_published(
    server: ServerProcess, guest: penstock.Client
) -> None:
    user, password, end = by_deletion(guest)
    with penstock.connect(server.flight_url, user=user, password=password) as client:
        client.publish("orders", b"1")
        with client.transaction() as transaction:
            transaction.publish("orders", b"2")
            guest.set_permissions(user, "", "", ".*")
            with pytest.raises(AccessRefused):
                transaction.commit()
        with pytest.raises(AccessRefused):
            client.publish("orders", b"3")
    assert guest.queue("orders")["ready"] == 1
    end()


def test_over_amqp_a_message_of_a_transaction_is_judged_as_it_is_published(
    server: ServerProcess, guest: penstock.Client
) -> None:
    user, password, end = by_deletion(guest)
    parameters = pika.URLParameters(server.amqp_url)
    parameters.credentials = pika.PlainCredentials(user, password)
    with closing(pika.BlockingConnection(parameters)) as connection:
        channel = connection.channel()
        channel.tx_select()
        channel.basic_publish("", "orders", b"1")
        channel.queue_declare("orders", passive=True)  # answered once the message is with the server
        guest.set_permissions(user, "", "", ".*")
        channel.tx_commit()
        assert [one.body for one in guest.peek("orders")] == [b"1"]
        channel.basic_publish("", "orders", b"2")
        with pytest.raises(ChannelClosedByBroker, match="ACCESS_REFUSED"):
            channel.tx_commit()
    assert guest.queue("orders")["ready"] == 1
    end()


def test_who_waits_for_room_is_refused_and_nothing_of_it_is_stored_later(
    house: FlightHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waiting() -> int:
        return house.run(lambda: house.engine.rooms.waiting)

    with penstock.connect(house.url) as client, ThreadPoolExecutor(1) as pool:
        client.declare("full", max_length=1, overflow="block")
        client.publish("full", b"first")
        waits = pool.submit(client.publish, "full", b"second")
        eventually(lambda: waiting() == 1)
        with monkeypatch.context() as patch:
            patch.setattr(Caller, "refusal", lambda _: AccessRefused("user 'guest' may not log in any more"))
            with pytest.raises(AccessRefused, match="may not log in any more"):
                waits.result(30)
        eventually(lambda: waiting() == 0, "it still waits for room")
        client.purge("full")
        client.publish("full", b"later")
        assert [one.body for one in client.peek("full")] == [b"later"]


@ENDS
def test_who_looks_on_is_told(
    server: ServerProcess, guest: penstock.Client, ends: Callable[[penstock.Client], Login]
) -> None:
    user, password, end = ends(guest)
    login = b64encode(f"{user}:{password}".encode()).decode()
    given = {"authorization": f"Basic {login}" if ends is by_deletion else f"Bearer {password}"}
    with httpx.stream("GET", f"{server.http_url}/api/events", verify=NO_TLS, timeout=30, headers=given) as answer:
        lines = answer.iter_lines()
        assert next(line for line in lines if line.startswith("event:")) == "event: hello"
        end()
        assert "may not look on any more" in "".join(lines)
