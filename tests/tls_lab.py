"""A server with TLS for tests, and the files of its people: made anew for each lab, good for a day unless asked."""

from __future__ import annotations

import logging
import os
import signal
import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

import pika
from pika.credentials import ExternalCredentials

from live_server import LiveServer
from penstock.server.sockets.certificates import Authority
from waiting import eventually

WAIT_S = 60.0

logging.getLogger("pika").setLevel(logging.CRITICAL)  # it reports each refusal that a test asks for


def over_tls(
    context: ssl.SSLContext, port: int, host: str = "localhost", *, source: str = "", seconds: float = WAIT_S
) -> ssl.SSLSocket:
    """A connection to a port of this machine, whose handshake is over; what fails leaves no socket behind.

    `wrap_socket` of one that is connected loses it where the other side has reset it before it looks.
    """
    sock = context.wrap_socket(socket.socket(), server_hostname=host)
    try:
        sock.settimeout(seconds)
        if source:
            sock.bind((source, 0))
        sock.connect(("127.0.0.1", port))
    except BaseException:
        sock.close()
        raise
    return sock


class Files:
    """A CA and what it signs, in one folder."""

    def __init__(self, folder: Path, hosts: Sequence[str] = ("localhost", "127.0.0.1"), days: float = 1) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.authority = Authority(days=2)
        self.ca = self._write("ca.pem", self.authority.pem)
        self.certificate, self.key = self.sign_server(hosts, days)

    def sign_server(self, hosts: Sequence[str] = ("localhost", "127.0.0.1"), days: float = 1) -> tuple[str, str]:
        """New ones in the place of those before."""
        certificate, key = self.authority.server(hosts, days)
        return self._write("server.pem", certificate), self._write("server.key", key)

    def client(self, name: str, days: float = 1) -> tuple[str, str]:
        certificate, key = self.authority.client(name, days)
        return self._write(f"{name}.pem", certificate), self._write(f"{name}.key", key)

    def put(self, name: str, data: bytes) -> None:
        """Other content for one of them."""
        Path(name).write_bytes(data)

    def _write(self, name: str, data: bytes) -> str:
        part = self.folder / f".{name}"
        part.write_bytes(data)
        part.replace(self.folder / name)
        return str(self.folder / name)


class TlsServer(LiveServer):
    """With AMQP, HTTP and Flight over TLS beside AMQP without."""

    def __init__(self, folder: Path, files: Files, tls: str = "", rest: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "penstock.toml"
        config.write_text(
            '[listen]\namqps = "127.0.0.1:0"\nhttps = "127.0.0.1:0"\nflight_tls = "127.0.0.1:0"\n'
            f'[tls]\ncertificate = "{files.certificate}"\nkey = "{files.key}"\n{tls}\n{rest}'
        )
        super().__init__(folder, [str(config)])
        self.files = files

    def port_of(self, door: str) -> int:
        return int(self.ready[door].rpartition(":")[2])

    @property
    def flight_url(self) -> str:
        return f"penstocks://localhost:{self.port_of('flight_tls')}"

    def context(self, cert: tuple[str, str] | None = None, ca: str | None = None) -> ssl.SSLContext:
        """A client's."""
        context = ssl.create_default_context(cafile=ca or self.files.ca)
        if cert is not None:
            context.load_cert_chain(*cert)
        return context

    def amqps(
        self, context: ssl.SSLContext | None = None, *, external: bool = False, host: str = "localhost", user: str = ""
    ) -> pika.BlockingConnection:
        """A pika connection over TLS."""
        login = ExternalCredentials() if external else pika.PlainCredentials(user or "guest", user or "guest")
        connection = pika.BlockingConnection(
            pika.ConnectionParameters(
                host, self.port_of("amqps"), credentials=login, heartbeat=30, blocked_connection_timeout=WAIT_S,
                ssl_options=pika.SSLOptions(context or self.context(), "localhost"),
            )
        )  # fmt: skip
        self.connections.append(connection)
        return connection

    def wait_for(self, what: Callable[[], bool], why: str) -> None:
        """Until it holds."""
        eventually(what, lambda: f"{why}:\n{self.output()}", WAIT_S)

    def looked(self) -> str:
        """What it has printed; it looks at its files again."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGHUP)
        return self.output()
