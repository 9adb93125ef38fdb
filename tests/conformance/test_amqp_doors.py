"""AMQP doors that are processes: what holds over all of them, and what becomes of one that ends.

Everything else that holds of AMQP holds with doors, too: `PENSTOCK_SERVER__DOORS=2` has the tests of this folder ask.
"""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest
from pika import spec
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker

from choices import EFFORT, SEED
from forked import beside, of_the_product
from live_server import LiveServer, Mortal
from rawlink import RawLink
from waiting import eventually

PERSISTENT = pika.BasicProperties(delivery_mode=2)


pytestmark = pytest.mark.usefixtures("as_the_files_say")

KILLS = 2 if EFFORT == 1 else 20 * EFFORT

OF_TWO_DOORS = 8
"""Descriptors of ways that had not begun yet when they were counted first."""


class Doors(LiveServer):
    """A server with two doors."""

    http = "127.0.0.1:0"

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Of the HTTP door."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.ready['http']}{path}", data, method=method)
        request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=20) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def doors(self) -> list[int]:
        """The processes of doors that run."""
        assert self.process is not None
        return beside(self.process.pid, "penstock.server.amqp.front")

    def whole(self, killed: Iterable[int] = ()) -> bool:
        """Whether all doors run, those that were killed not among them, and one is open."""
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
        except OSError:
            return False
        doors = self.doors()
        return len(doors) == 2 and not set(doors) & set(killed)


@pytest.fixture(scope="module")
def running(as_the_files_say: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    folder = tmp_path_factory.mktemp("doors")
    config = folder / "penstock.toml"
    config.write_text("[server]\ndoors = 2\n")
    with Doors(folder, [str(config)]) as server:
        yield server
        server.bury()
        server.stop()
        assert "Traceback" not in server.output(), server.output()


@pytest.fixture
def server(running: Doors) -> Iterator[Doors]:
    yield running
    running.bury()


def filled(server: Doors, queue: str, count: int) -> set[bytes]:
    """Messages that were confirmed."""
    channel = server.connect().channel()
    channel.confirm_delivery()
    channel.queue_declare(queue, durable=True)
    bodies = [b"%d" % number for number in range(count)]
    for body in bodies:
        channel.basic_publish("", queue, body, PERSISTENT, mandatory=True)
    return set(bodies)


def closed_with(connection: pika.BlockingConnection, seconds: int = 0) -> int:
    """The code with which the server has closed it; 0: it has not."""
    try:
        connection.process_data_events(seconds)
    except ConnectionClosedByBroker as closed:
        return int(closed.reply_code)
    return 0


def test_limits_and_lists_are_over_all_doors(server: Doors) -> None:
    before = len(server.ask("GET", "/api/connections"))
    connections = [server.connect() for _ in range(8)]
    assert len(server.ask("GET", "/api/connections")) == before + 8
    server.ask("PUT", "/api/user-limits/guest/max-connections", {"value": before + 8})
    try:
        with RawLink(server.port) as link:
            link.open()
            assert link.expect(spec.Connection.Close).reply_code == 530
        name = server.ask("GET", "/api/connections")[0]["name"]
        server.ask("DELETE", f"/api/connections/{quote(name)}")
        told = list[int]()

        def heard() -> bool:
            told.extend(code for one in connections if one.is_open and (code := closed_with(one)))
            return bool(told)

        eventually(heard)
        assert told == [320]
        eventually(lambda: len(server.ask("GET", "/api/connections")) == before + 7)
    finally:
        server.ask("DELETE", "/api/user-limits/guest/max-connections")


def test_an_exclusive_queue_is_its_connections_whatever_door_that_has(server: Doors) -> None:
    owner = server.connect()
    name = owner.channel().queue_declare("", exclusive=True).method.queue
    for _ in range(6):
        channel = server.connect().channel()
        with pytest.raises(ChannelClosedByBroker) as refused:
            channel.queue_declare(name, passive=True)
        assert refused.value.reply_code == 405
    owner.close()
    eventually(lambda: name not in [one["name"] for one in server.ask("GET", "/api/queues")])


def test_doors_that_are_killed_lose_nothing_confirmed_and_hold_no_lease(server: Doors) -> None:
    bodies = filled(server, "kept", 40)
    holder = server.connect().channel()
    holder.basic_qos(prefetch_count=10)
    got = [next(holder.consume("kept")) for _ in range(5)]
    holder.basic_ack(got[0][0].delivery_tag)  # type: ignore[union-attr]
    holder.queue_declare("barrier")  # what it said has been heard
    own = server.connect().channel().queue_declare("", exclusive=True).method.queue
    before = server.doors()
    assert len(before) == 2
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: server.whole(before))
    channel = server.connect().channel()
    found = dict[bytes, bool]()
    for method, _, body in channel.consume("kept", inactivity_timeout=20):
        assert body is not None
        assert method is not None
        found[body] = method.redelivered
        channel.basic_ack(method.delivery_tag)
        if len(found) == 39:
            break
    assert set(found) == bodies - {got[0][2]}
    assert found[got[1][2]]  # type: ignore[index]
    assert own not in [one["name"] for one in server.ask("GET", "/api/queues")]
    facts = dict[str, int]()

    def acknowledged() -> bool:
        """The last acks come by another door than the question."""
        facts.update(server.ask("GET", "/api/queues/%2F/kept"))
        return facts["messages"] == 0

    eventually(acknowledged, lambda: f"{facts}")
    assert facts["consumers"] == 1


def test_a_door_that_ends_takes_no_other_with_it(server: Doors) -> None:
    filled(server, "beside", 1)
    connections = [server.connect() for _ in range(12)]
    first = server.doors()[0]
    os.kill(first, signal.SIGKILL)
    gone = 0
    for one in connections:
        try:
            assert one.channel().queue_declare("beside", passive=True).method.message_count == 1
        except (AMQPError, OSError):
            gone += 1
    assert gone < len(connections)
    eventually(lambda: server.whole([first]))


class Busy(threading.Thread):
    """A client that goes on by itself, with another connection whenever one has ended."""

    def __init__(self, server: Doors, work: Callable[[BlockingChannel, Busy], None]) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.over = threading.Event()
        self.told = set[bytes]()  # what was confirmed, or acknowledged
        self.tried = set[bytes]()
        self._work = work
        self.start()

    def run(self) -> None:
        while not self.over.is_set():
            with suppress(AMQPError, OSError), closing(Mortal(self.server.parameters())) as connection:
                channel = connection.channel()
                while not self.over.is_set():
                    self._work(channel, self)


def _publishes(channel: BlockingChannel, busy: Busy) -> None:
    body = b"%d-%d" % (busy.ident or 0, len(busy.tried))
    busy.tried.add(body)
    channel.confirm_delivery()
    channel.basic_publish("", "busy", body, PERSISTENT, mandatory=True)
    busy.told.add(body)


def _consumes(channel: BlockingChannel, busy: Busy) -> None:
    method, _, body = channel.basic_get("busy")
    if method is None or body is None:
        channel.connection.process_data_events(0.01)
        return
    busy.tried.add(body)
    channel.basic_ack(method.delivery_tag)


def test_doors_are_killed_one_after_the_other_under_load(server: Doors) -> None:
    chance = random.Random(SEED)
    server.connect().channel().queue_declare("busy", durable=True)
    server.bury()
    before = server.descriptors()
    publishers = [Busy(server, _publishes) for _ in range(3)]
    consumer = Busy(server, _consumes)
    for _ in range(KILLS):
        sent = sum(len(one.told) for one in publishers)
        eventually(lambda sent=sent: sum(len(one.told) for one in publishers) > sent + 30)
        victim = chance.choice(server.doors())
        os.kill(victim, signal.SIGKILL)
        eventually(lambda victim=victim: server.whole([victim]))
    for one in (*publishers, consumer):
        one.over.set()
    for one in (*publishers, consumer):
        one.join(60)
    channel = server.connect().channel()
    left = set[bytes]()
    while (found := channel.basic_get("busy", auto_ack=True))[0] is not None:
        left.add(found[2] or b"")
    confirmed = set[bytes]().union(*(one.told for one in publishers))
    assert len(confirmed) > 30 * KILLS
    assert confirmed <= left | consumer.tried
    assert left | consumer.tried <= set[bytes]().union(*(one.tried for one in publishers))
    server.bury()
    eventually(lambda: server.ask("GET", "/api/queues/%2F/busy")["messages"] == 0)
    eventually(lambda: server.descriptors() <= before + OF_TWO_DOORS)


def test_the_address_is_taken_for_others(server: Doors, tmp_path: Path) -> None:
    config = tmp_path / "other.toml"
    config.write_text("[server]\ndoors = 1\n")
    command = [sys.executable, "-m", "penstock", "serve", str(config), "--data", str(tmp_path / "data")]
    command += ["--http", "off", "--flight", "off", "--amqp", server.ready["amqp"]]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=of_the_product(), check=False)
    assert ended.returncode
    assert "cannot bind" in ended.stdout + ended.stderr


def test_a_stop_tells_everybody(tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text("[server]\ndoors = 2\n")
    with Doors(tmp_path / "server", [str(config)]) as server:
        bodies = filled(server, "kept", 10)
        connections = [server.connect() for _ in range(4)]
        doors = server.doors()
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        for one in connections:
            assert closed_with(one, 60) == 320
        assert server.process.wait(60) == 0
        assert not [pid for pid in doors if Path(f"/proc/{pid}").exists()]
        server.bury()
        server.start()
        facts = server.connect().channel().queue_declare("kept", passive=True).method
        assert facts.message_count == len(bodies)
