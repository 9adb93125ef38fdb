"""Words at the HTTP door that once ended the server, or left a traceback in its log: each by its name."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence

import httpx
import pytest

from http_lab import NO_TLS
from live_server import LiveServer
from waiting import eventually

pytestmark = pytest.mark.usefixtures("as_the_files_say")


class HttpServer(LiveServer):
    http = "127.0.0.1:0"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with HttpServer(tmp_path_factory.mktemp("cases")) as server:
        yield server


GET = b"GET /healthz HTTP/1.1\r\nhost: x\r\n"

CASES: dict[str, Sequence[bytes]] = {
    "a chunk that is none after the answer": (GET + b"transfer-encoding: chunked\r\n\r\n", b"zz\r\n"),
    "a body that goes on after the answer": (GET + b"content-length: 9\r\n\r\n", b"abc"),
    "a version that is none behind a HEAD": (
        b"HEAD /healthz HTTP/1.1\r\nhost: x\r\n\r\nHEAD /healthz HTTP/1.9\r\nhost: x\r\n\r\n",
    ),
    "rubbish behind a request": (GET + b"\r\n\x00\x00\x00",),
    "an upgrade that nobody wants": (GET + b"connection: upgrade\r\nupgrade: h2c\r\n\r\n", b"rest"),
    "a tunnel that nobody digs": (b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n", b"rest"),
    "the preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", bytes(9)),
}


@pytest.mark.parametrize("name", CASES)
def test_it_costs_one_connection(server: LiveServer, name: str) -> None:
    address = server.ready["http"]
    host, _, port = address.rpartition(":")
    first, *rest = CASES[name]
    with socket.create_connection((host, int(port)), timeout=20) as sock:
        sock.sendall(first)
        assert sock.recv(65_536).startswith(b"HTTP/1.1 ")
        try:
            for part in rest:
                sock.sendall(part)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65_536):
                pass
        except TimeoutError:
            raise AssertionError("the connection did not end") from None
        except OSError:  # it was sent away meanwhile
            pass
    assert httpx.get(f"http://{address}/healthz", verify=NO_TLS, timeout=20).json()["status"] == "ok"
    assert server.process is not None
    assert server.process.poll() is None
    assert "Traceback" not in server.output()


def test_who_resets_before_it_is_taken_leaves_no_word_in_the_log(server: LiveServer) -> None:
    host, _, port = server.ready["http"].rpartition(":")
    for _ in range(100):
        with socket.create_connection((host, int(port)), timeout=20) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.sendall(GET + b"\r\n")
    assert httpx.get(f"http://{host}:{port}/healthz", verify=NO_TLS, timeout=20).json()["status"] == "ok"
    assert "Traceback" not in server.output()


def test_a_head_that_is_too_large_is_counted_among_the_bytes_of_strangers(server: LiveServer) -> None:
    address = server.ready["http"]
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 70_000)
        assert sock.recv(65_536).startswith(b"HTTP/1.1 431 ")

    def told() -> bool:
        text = httpx.get(f"http://{address}/metrics", verify=NO_TLS, timeout=20).text
        return 'penstock_strangers_closed_total{door="http",reason="bytes"}' in text

    eventually(told)
