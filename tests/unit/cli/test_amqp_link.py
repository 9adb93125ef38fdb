"""What the command line says of an AMQP broker that ends its connection."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest

from http_lab import Http
from penstock.cli import amqp_link
from penstock.cli.amqp_link import Link, read_address
from penstock.client.urls import Trust
from penstock.errors import InvalidArgument, Unavailable
from penstock.testing import Broker

Run = Callable[..., tuple[int, str, str]]


def test_who_is_cut_off_is_told_to_try_again() -> None:
    """As by a broker that stops: nothing is wrong with what was asked."""
    with Broker() as broker, Link(read_address(broker.amqp_url)) as link:
        http = Http(broker)
        [connection] = http.get("connections")
        http.do("DELETE", f"connections/{quote(connection['name'], safe='')}")
        with pytest.raises(Unavailable, match="CONNECTION_FORCED"):
            link.read(20.0)


def test_who_is_told_that_it_is_closed_hangs_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """RabbitMQ answers and keeps its end open: a migration waited there for five seconds, twice for each queue."""
    monkeypatch.setattr(amqp_link, "CLOSE_S", 600.0)
    with Broker() as broker, socket.create_server(("127.0.0.1", 0)) as door:
        server = read_address(broker.amqp_url)
        hung_up = threading.Event()

        def between() -> None:
            client, _ = door.accept()
            with client, socket.create_connection((server.host, server.port)) as ahead:
                threading.Thread(target=answers, args=(ahead, client), daemon=True).start()
                while data := client.recv(1 << 16):
                    ahead.sendall(data)
                hung_up.set()

        def answers(ahead: socket.socket, client: socket.socket) -> None:
            with suppress(OSError):  # the client has hung up
                while data := ahead.recv(1 << 16):
                    client.sendall(data)  # and its end is not passed on

        threading.Thread(target=between, daemon=True).start()
        link = Link(server._replace(port=door.getsockname()[1]))
        closing = threading.Thread(target=link.close, daemon=True)
        closing.start()
        assert hung_up.wait(20)
        closing.join(20)
        assert not closing.is_alive()


def test_an_address_names_whom_it_trusts(tmp_path: Path) -> None:
    """What stood behind a question mark was passed over, and nobody could name a CA of his own."""
    trust = read_address("amqps://old/v?ca=a.pem&cert=b.pem&key=c.key").trust
    assert (trust.ca, trust.cert, trust.key) == ("a.pem", "b.pem", "c.key")
    with pytest.raises(InvalidArgument, match="'cacert' of 'cacert=a.pem' is not one of ca, cert, key"):
        read_address("amqps://old?cacert=a.pem")
    (tmp_path / "none.pem").write_text("none")
    for name in ("none.pem", "missing.pem"):
        with pytest.raises(InvalidArgument, match=f"ca: .*{name} "):
            Trust(ca=str(tmp_path / name)).context()


@pytest.mark.parametrize(
    "url",
    [
        "amqp://me:s3cret@a..b",
        "amqp://me:s3cret@old b",
        "http://me:s3cret@old/v",
        "amqp://me:s3cret@",
        "amqp://me:s3/cret@old",
        "me:s3cret@old",
    ],
)
def test_the_password_of_a_wrong_address_is_not_shown(url: str) -> None:
    with pytest.raises(InvalidArgument, match="write amqp://user:password@host:port/vhost") as refused:
        read_address(url)
    assert "s3" not in str(refused.value)


@pytest.mark.parametrize("http", ["http://u:s3cret@[::1", "http://h:x", "127.0.0.1", "{amqp}", "http://a..b"])
def test_a_place_without_a_management_api_is_told(http: str, run: Run, tmp_path: Path) -> None:
    """What is no address, and what speaks no HTTP, ended with a traceback."""
    with Broker() as broker:
        place = http.format(amqp=broker.amqp_url.replace("amqp", "http"))
        state = str(tmp_path / "migrate.state")
        status, _, told = run("migrate", broker.amqp_url, broker.flight_url, "--old-http", place, "--state", state)
        assert (status, "s3cret" in told) == (5, False)
        assert "no answer from " in told
        assert "is its management API on?" in told
