"""Unmodified clients over TLS: AMQP, HTTP and Flight against one server, and those that it must send away."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aio_pika
import httpx
import pika
import pytest
from pika.exceptions import AMQPError

import penstock
from forked import penstock as command
from penstock.client.urls import UnverifiedServer
from tls_lab import Files, TlsServer, over_tls

REFUSED = (AMQPError, OSError)
"""What pika raises where a handshake or a login fails."""

DOORS = ("amqps", "https", "flight_tls")

HEADER = b"AMQP\x00\x00\x09\x01"

PATIENT = '[before_login]\ntime = "1m"\nper_address = 512\n'
"""Hundreds of handshakes at once of a client that has too little of its machine may take longer than ten seconds."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    folder = tmp_path_factory.mktemp("tls")
    with TlsServer(folder / "server", Files(folder / "files"), rest=PATIENT) as live:
        yield live
    assert live.process is not None
    assert live.process.returncode == 0, live.output()
    assert "Traceback" not in live.output(), live.output()


@pytest.fixture
def strangers(tmp_path: Path) -> Files:
    """Files of a CA that the server does not know."""
    return Files(tmp_path / "strangers")


def raw(server: TlsServer, door: str) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", server.port_of(door)), 20)
    found.settimeout(20)
    return found


def test_pika_publishes_and_consumes(server: TlsServer) -> None:
    channel = server.amqps().channel()
    channel.confirm_delivery()
    channel.queue_declare("over-tls", durable=True)
    bodies = [b"small", b"x" * 700_000, b""]
    for body in bodies:
        channel.basic_publish("", "over-tls", body, pika.BasicProperties(delivery_mode=2))
    seen = []
    for method, _, body in channel.consume("over-tls", inactivity_timeout=20):
        assert method is not None
        seen.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(seen) == len(bodies):
            break
    assert seen == bodies
    server.bury()


def test_both_ports_lead_to_the_same_queues(server: TlsServer) -> None:
    server.amqps().channel().queue_declare("both", durable=True)
    plain = server.connect().channel()
    plain.basic_publish("", "both", b"plain")
    server.wait_for(lambda: server.amqps().channel().basic_get("both", auto_ack=True)[2] == b"plain", "it did not come")
    server.bury()


async def test_aio_pika(server: TlsServer) -> None:
    url = f"amqps://guest:guest@localhost:{server.port_of('amqps')}/"
    async with await aio_pika.connect(url, ssl_context=server.context()) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("aio", durable=True)
        await channel.default_exchange.publish(aio_pika.Message(b"hello"), "aio")
        message = await queue.get(timeout=20)
        assert message.body == b"hello"
        await message.ack()


def test_what_is_read_at_once_is_cut_and_kept_in_order(server: TlsServer) -> None:
    channel = server.amqps().channel()
    channel.queue_declare("order", durable=True)
    for number in range(3000):
        channel.basic_publish("", "order", b"%d" % number + b"." * 300)
    seen = list[int]()
    for _, _, body in channel.consume("order", auto_ack=True, inactivity_timeout=20):
        seen.append(int(body.partition(b".")[0]))
        if len(seen) == 3000:
            break
    assert seen == list(range(3000))
    server.bury()


def test_http_shows_the_certificate(server: TlsServer) -> None:
    server.amqps()
    address = f"https://localhost:{server.port_of('https')}"
    with httpx.Client(base_url=address, verify=server.context(), auth=("guest", "guest"), timeout=20) as client:
        told = client.get("/api/overview").json()
        server.wait_for(lambda: len(client.get("/api/connections").json()) == 1, "those of former tests are there")
        [connection] = client.get("/api/connections").json()
        metrics = client.get("/metrics").text
        assert client.get("/api/health/checks/certificate-expiration/1/days").status_code == 503
        assert client.get("/api/health/checks/certificate-expiration/0/weeks").status_code == 200
        assert client.get("/api/health/checks/certificate-expiration/1/fortnights").status_code == 400
        assert client.get("/api/health/checks/protocol-listener/amqps").status_code == 200
    tls = told["penstock"]["tls"]
    assert tls["subject"] == "CN=localhost"
    assert 0.9 < tls["days_left"] <= 1
    assert {one["protocol"]: one["port"] for one in told["listeners"]} == {
        "amqp": server.port, "amqp/ssl": server.port_of("amqps"), "https": server.port_of("https"),
        "flight_tls": server.port_of("flight_tls"),
    }  # fmt: skip
    assert connection["ssl"] is True
    assert connection["ssl_protocol"] == "tlsv1.3"
    assert "peer_cert_subject" not in connection
    name = 'penstock_tls_certificate_seconds_left{of="doors"} '
    [left] = [line.removeprefix(name) for line in metrics.splitlines() if line.startswith(name)]
    assert 0 < float(left) <= 86_400
    server.bury()


def test_the_certificate_that_soon_ends_is_told_at_the_start(server: TlsServer) -> None:
    server.hears(f"warning: the certificate {server.files.certificate} ends on")


def test_flight(server: TlsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.connect(server.flight_url, ca=server.files.ca) as client:
        client.declare("flown")
        client.publish("flown", {"id": 1})
        for message in client.consume("flown", timeout="20s"):
            with message:
                assert message.json() == {"id": 1}
            break
    monkeypatch.setenv("PENSTOCK_TLS_CA", server.files.ca)
    with penstock.connect(server.flight_url) as client:
        assert client.health()


def test_a_command(server: TlsServer) -> None:
    listing = ["queue", "list", "--json", "--url", server.flight_url]
    done = command(*listing)
    assert done.returncode == 5
    assert "its certificate is not accepted" in done.stderr
    listing[-1] += f"?ca={server.files.ca}"
    done = command(*listing)
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)


async def test_flight_async(server: TlsServer) -> None:
    async with penstock.aio.connect(server.flight_url, ca=server.files.ca) as client:
        assert (await client.health())["origin"]


def test_a_ca_that_did_not_sign_is_told(server: TlsServer, strangers: Files) -> None:
    with pytest.raises(penstock.Unavailable, match=r"its certificate is not accepted \(unable to get local issuer"):
        penstock.connect(server.flight_url, ca=strangers.ca)
    with pytest.raises(penstock.Unavailable, match="its certificate is not accepted"):
        penstock.connect(server.flight_url)  # the CAs of the system do not know it either
    with pytest.raises(REFUSED):
        server.amqps(server.context(ca=strangers.ca))
    server.hears("was sent away: it does not know the CA of this server's certificate")


def test_no_verification_is_a_choice_with_a_warning(server: TlsServer) -> None:
    with pytest.warns(UnverifiedServer, match="is not verified"):
        penstock.connect(server.flight_url, verify=False).close()
    with pytest.warns(UnverifiedServer):
        penstock.connect(f"{server.flight_url}?verify=off").close()


def test_clients_that_do_not_match_the_port(server: TlsServer) -> None:
    """Each is closed and told of in the log, and the next one is served."""
    with raw(server, "amqps") as plain:
        plain.sendall(HEADER)
        with suppress(ConnectionResetError):
            while answer := plain.recv(100):
                assert b"AMQP" not in answer
    server.hears("was sent away: it does not speak TLS, and this port speaks nothing else")
    with raw(server, "https") as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    server.hears("was sent away: it speaks HTTP without TLS; this port wants https")
    with pytest.raises(ssl.SSLError):
        over_tls(server.context(), server.port_of("amqp"))
    server.hears("was sent away: it speaks TLS, and this port does not")
    with pytest.raises(penstock.Unavailable, match=r"if TLS is spoken there, the address is one of penstocks://"):
        penstock.connect(f"penstock://localhost:{server.port_of('flight_tls')}", timeout="30s")
    test_both_ports_lead_to_the_same_queues(server)


def test_slow_handshakes_stop_nobody(server: TlsServer) -> None:
    slow = [raw(server, door) for door in ("amqps", "https") for _ in range(40)]
    for one in slow:
        one.sendall(b"\x16\x03\x01\x02\x00\x01")  # a hello that does not go on
    server.amqps().channel().queue_declare("meanwhile", durable=True)
    address = f"https://localhost:{server.port_of('https')}/healthz"
    assert httpx.get(address, verify=server.context(), timeout=20).status_code == 200
    for one in slow:
        one.close()
    server.bury()


def test_a_client_that_resets_in_the_middle_does_no_harm(server: TlsServer) -> None:
    for door in ("amqps", "https", "flight_tls"):
        with raw(server, door) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.sendall(b"\x16\x03\x01")
    test_both_ports_lead_to_the_same_queues(server)


def test_what_waits_for_a_peer_that_does_not_read_is_counted(server: TlsServer) -> None:
    """The budget sees what lies above TLS and below it."""
    big = server.connect().channel()
    big.confirm_delivery()
    big.queue_declare("unread", durable=True)
    for _ in range(8):
        big.basic_publish("", "unread", b"x" * 1_000_000)
    channel = server.amqps().channel()
    channel.basic_consume("unread", lambda *_: None)  # sent; nothing is read after its answer
    address = f"https://localhost:{server.port_of('https')}"
    with httpx.Client(base_url=address, verify=server.context(), auth=("guest", "guest"), timeout=20) as client:

        def sending() -> int:
            return int(client.get("/api/overview").json()["penstock"]["memory"]["sending"])

        server.wait_for(lambda: sending() > 0, "nothing waits")
    server.bury()


def test_renewed_files_hold_from_the_next_client_on(tmp_path: Path) -> None:
    files = Files(tmp_path / "files")
    with TlsServer(tmp_path / "server", files) as server:
        amqp = server.amqps().channel()
        with penstock.connect(server.flight_url, ca=files.ca) as client:
            client.declare("stays")
            consumer = iter(client.consume("stays", timeout="20s"))
            client.publish("stays", b"before")
            next(consumer).ack()
            assert {shown(server, door) for door in DOORS} == {"localhost"}
            # another key alone: half of what must go together
            certificate, key = files.authority.server(("renewed", "localhost", "127.0.0.1"))
            Path(files.key).write_bytes(key)
            server.wait_for(lambda: "that was loaded before goes on" in server.looked(), "half of it was not told of")
            assert shown(server, "amqps") == "localhost"
            Path(files.certificate).write_bytes(certificate)
            server.wait_for(lambda: "is taken up: CN=renewed" in server.looked(), "it was not taken up")
            server.wait_for(lambda: shown_by_flight(server) == "renewed", "Flight goes on with the old one")
            server.wait_for(lambda: {shown(server, door) for door in DOORS} == {"renewed"}, "a door has the old one")
            # who was there before goes on
            amqp.queue_declare("amqp-stays", durable=True)
            client.publish("stays", b"after")
            assert next(consumer).body == b"after"
        # certificates that clients must refuse: they verify by themselves, and for the host of the address
        files.sign_server(("elsewhere",))
        server.wait_for(lambda: "is taken up: CN=elsewhere" in server.looked(), "it was not taken up")
        server.wait_for(lambda: is_refused(server), "AMQP's door goes on with the old one")
        server.wait_for(lambda: "not for 'localhost'" in refusal(server), "who is elsewhere was believed")
        files.sign_server(days=-1)
        server.wait_for(
            lambda: f"the certificate {files.certificate} ended on" in server.looked(), "it was not told of"
        )
        server.wait_for(lambda: is_refused(server), "AMQP's door goes on with the old one")
        server.wait_for(lambda: "certificate has expired" in refusal(server), "what has ended was believed")
        server.stop()
        assert "Traceback" not in server.output()


def is_refused(server: TlsServer) -> bool:
    """Whether a client of AMQP does not believe the server, whose doors hear of new files one after the other."""
    try:
        server.amqps()
    except REFUSED:
        return True
    return False


def shown(server: TlsServer, door: str) -> str:
    """The common name of what a door shows."""
    with over_tls(server.context(), server.port_of(door)) as tls:
        told: Any = tls.getpeercert()
    return str(dict(pair for [pair] in told["subject"])["commonName"])


def shown_by_flight(server: TlsServer) -> str | None:
    """None in the moment in which the port is closed (docs/tls.md): who waited there is reset, or told the end amid
    its handshake, who comes is refused.
    """
    try:
        return shown(server, "flight_tls")
    except (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
        return None


def refusal(server: TlsServer) -> str:
    """Why Flight's client does not connect; nothing where it does, as while its door goes on with the old files."""
    try:
        penstock.connect(server.flight_url, ca=server.files.ca).close()
    except penstock.Unavailable as error:
        return str(error)
    return ""


USERS = """
[[user]]
name = "shop"
password = "shop"
tags = ["administrator"]
[[user]]
name = "far"
password = "far"
"""


def test_mutual_tls(tmp_path: Path) -> None:
    files = Files(tmp_path / "files")
    tls = f'ca = "{files.ca}"\nverify = "peer"\nfail_if_no_peer_cert = true\ncert_login_from = "common_name"'
    shop, nobody, ended = files.client("shop"), files.client("nobody"), files.client("ended", days=-1)
    stranger = Files(tmp_path / "strangers").client("shop")
    with TlsServer(tmp_path / "server", files, tls, USERS) as server:
        # AMQP: the certificate is the login, and a password beside a certificate still is one
        server.amqps(server.context(shop), external=True).channel().queue_declare("mutual", durable=True)
        server.amqps(server.context(shop), user="far")
        with pytest.raises(REFUSED):
            server.amqps(server.context(nobody), external=True)  # it is good, but there is no such user
        for bad in (None, ended, stranger):
            with pytest.raises(REFUSED):
                server.amqps(server.context(bad), external=True)
        server.hears("it showed no certificate, and this port wants one (tls.fail_if_no_peer_cert)")
        server.hears("its certificate is not accepted: certificate has expired")
        server.hears("its certificate is not accepted: unable to get local issuer certificate")
        # HTTP
        address = f"https://localhost:{server.port_of('https')}"
        with httpx.Client(base_url=address, verify=server.context(shop), auth=("shop", "shop"), timeout=20) as client:
            shown = {one["user"]: one for one in client.get("/api/connections").json()}
        assert shown["shop"]["auth_mechanism"] == "EXTERNAL"
        assert shown["shop"]["peer_cert_subject"] == "CN=shop"
        assert shown["far"]["auth_mechanism"] == "PLAIN"
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{address}/healthz", verify=server.context(), timeout=20)
        # Flight
        url = server.flight_url.replace("//", "//shop:shop@")
        with penstock.connect(url, ca=files.ca, cert=shop[0], key=shop[1]) as client_:
            assert client_.health()
        for bad in (None, stranger):
            cert, key = bad or (None, None)
            with pytest.raises(penstock.Unavailable):
                penstock.connect(url, ca=files.ca, cert=cert, key=key, timeout="30s")
        # the port without TLS offers no such login
        with pytest.raises(REFUSED):
            server.connect(credentials=pika.credentials.ExternalCredentials())


async def test_many_clients_at_once(server: TlsServer) -> None:
    context = server.context()

    async def hello() -> bytes:
        reader, writer = await asyncio.open_connection("localhost", server.port_of("amqps"), ssl=context)
        writer.write(HEADER)
        first = await reader.readexactly(1)
        writer.close()
        await writer.wait_closed()
        return first

    assert set(await asyncio.gather(*(hello() for _ in range(300)))) == {b"\x01"}
