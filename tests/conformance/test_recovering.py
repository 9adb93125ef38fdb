"""A real server while it recovers a long log: what HTTP says, and clients that come too early."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pika
import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

import penstock
from live_server import START_S, LiveServer
from penstock.errors import Unavailable
from ports import free_ports
from waiting import eventually

MESSAGES = 60_000
"""More than a held server folds in one piece."""
BATCH = 10_000
TESTS = Path(__file__).resolve().parents[1]


class HeldServer(LiveServer):
    """A server on ports that are known before it says them, whose recovery stops half-way until `go`."""

    program = (str(TESTS / "held_server.py"),)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, flight=True)
        self.amqp_port, self.http_port, self.flight_port = free_ports(3)
        self.http, self.flight = f"127.0.0.1:{self.http_port}", f"127.0.0.1:{self.flight_port}"

    def start(self, amqp: str = "") -> None:
        super().start(amqp)

    def spawn(self, amqp: str = "") -> Path:
        return super().spawn(amqp or f"127.0.0.1:{self.amqp_port}")

    def hold(self) -> None:
        """The next start will stop half-way."""
        (self.folder / "go").unlink(missing_ok=True)

    def go(self) -> None:
        """Let it recover to the end."""
        (self.folder / "go").touch()

    def half_way(self) -> dict[str, object]:
        """What `/healthz` says once the fold has begun."""
        health = dict[str, object]()

        def folds() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.output()
            status, body = self.ask("/healthz")
            health.clear()
            health.update(json.loads(body or b"{}"))
            assert not health.get("records_folded") or status == 200
            return bool(health.get("records_folded"))

        eventually(folds, "nothing is folded", 2 * START_S)
        return health

    def ask(self, path: str) -> tuple[int, bytes]:
        """Status and body of a page; 0 when nobody answers."""
        request = Request(
            f"http://127.0.0.1:{self.http_port}{path}", headers={"authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}
        )
        try:
            with urlopen(request, timeout=30) as answer:
                return answer.status, answer.read()
        except HTTPError as error:
            with error:
                return error.code, error.read()
        except OSError:
            return 0, b""

    @property
    def url(self) -> str:
        return f"penstock://guest:guest@127.0.0.1:{self.flight_port}"


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeldServer]:
    """A server that was killed with so many messages waiting, and has no checkpoint of them."""
    folder = tmp_path_factory.mktemp("recovering")
    before = os.getcwd()
    folder.joinpath("go").touch()
    os.chdir(folder)
    try:
        with HeldServer(folder) as server:
            with penstock.connect(server.url) as client:
                client.declare("deep")
                for first in range(0, MESSAGES, BATCH):
                    bodies = pa.array([b"%099d" % row for row in range(first, first + BATCH)], pa.binary())
                    assert client.publish_table("deep", pa.table({"body": bodies})).stored == BATCH
            server.kill()
            for checkpoint in (server.data / "checkpoints").glob("*.state"):
                checkpoint.unlink()
            yield server
    finally:
        os.chdir(before)


def early_pika(server: HeldServer) -> tuple[int, bytes | None]:
    """Connect with pika as everybody does, but for its patience; messages in the queue, and the first one."""
    parameters = pika.ConnectionParameters("127.0.0.1", server.amqp_port, stack_timeout=120)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        count = channel.queue_declare("deep", passive=True).method.message_count
        _, _, body = channel.basic_get("deep")
        return int(count), body


def early_sdk(server: HeldServer) -> bytes:
    """Consume one message with our own client."""
    with penstock.connect(server.url, timeout=120) as client, client.consume("deep", backlog=1) as consumer:
        message = consumer.take(120)
        assert message is not None
        return message.body


def is_gone(sock: socket.socket) -> bool:
    """Whether the other side has ended this connection."""
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True


def test_clients_that_come_early_get_through_and_http_says_how_far_it_is(killed: HeldServer) -> None:
    killed.hold()
    ready = killed.spawn()
    with ThreadPoolExecutor(2) as pool:
        health = killed.half_way()
        assert (health["status"], health["doing"]) == ("recovering", "folding records")
        share, folded, records = health["share"], health["records_folded"], health["records"]
        assert isinstance(share, float)
        assert 0 < share < 1
        assert isinstance(folded, int)
        assert isinstance(records, int)
        assert 0 < folded < records
        assert isinstance(health["seconds_left"], float)
        by_pika, by_sdk = pool.submit(early_pika, killed), pool.submit(early_sdk, killed)
        assert killed.ask("/readyz")[0] == 503
        status, refusal = killed.ask("/api/queues")
        assert status == 503
        assert b"recovering" in refusal
        assert killed.ask("/api/whoami")[0] == 200
        metrics = {
            sample.name: sample.value
            for family in text_string_to_metric_families(killed.ask("/metrics")[1].decode())
            for sample in family.samples
        }
        assert metrics["penstock_recovering"] == 1
        assert metrics["penstock_recovery_records"] == folded
        assert metrics["penstock_recovery_records_expected"] == records
        assert metrics["penstock_recovery_share"] == pytest.approx(share, abs=1e-4)
        assert not ready.exists()
        assert not by_pika.done()
        assert not by_sdk.done()
        killed.go()
        count, body = by_pika.result(120)
        assert MESSAGES - 1 <= count <= MESSAGES
        assert {body, by_sdk.result(120)} <= {b"%099d" % row for row in (0, 1)}  # neither of them acknowledges
    while not ready.exists():
        assert killed.process is not None
        assert killed.process.poll() is None
    assert killed.ask("/readyz")[0] == 200
    assert json.loads(killed.ask("/healthz")[1])["status"] == "ok"
    assert b"penstock_recovering 0.0" in killed.ask("/metrics")[1]
    assert killed.output().count("penstock is recovering") < 60  # a line a second, and no more
    killed.kill()


def test_a_stop_while_it_recovers_is_prompt_and_clean(killed: HeldServer) -> None:
    killed.hold()
    killed.spawn()
    killed.half_way()
    with socket.create_connection(("127.0.0.1", killed.amqp_port)) as waiting:
        assert killed.process is not None
        killed.process.send_signal(signal.SIGTERM)
        assert killed.process.wait(60) == 0
        waiting.settimeout(60)
        assert is_gone(waiting)
    with pytest.raises(Unavailable):
        penstock.connect(killed.url, timeout="2s")
    killed.go()
    killed.start()
    assert early_pika(killed)[0] >= MESSAGES - 2
    killed.stop()


def test_an_address_that_is_taken_is_told_at_once(killed: HeldServer) -> None:
    killed.hold()
    with socket.create_server(("127.0.0.1", killed.amqp_port)):
        killed.spawn()
        assert killed.process is not None
        assert killed.process.wait(60) == 2
    assert f"listen.amqp: cannot bind 127.0.0.1:{killed.amqp_port}" in killed.output()
