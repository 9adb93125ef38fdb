"""HTTP's door, a process of its own: what becomes of its clients, of the server and of others when it ends."""

from __future__ import annotations

import http.client
import json
import os
import resource
import signal
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from choices import EFFORT
from forked import beside
from live_server import LiveServer
from waiting import eventually

pytestmark = pytest.mark.usefixtures("as_the_files_say")

KILLS = 2 if EFFORT == 1 else 20 * EFFORT
BACK_S = 1.0
"""For a process that was killed; the machine of a test may be busy, so it has some more."""

STOPPED_S = 6.0
SLACK_S = 15.0

LOGIN = {"authorization": "Basic " + b64encode(b"guest:guest").decode(), "content-type": "application/json"}

FAILED = (OSError, http.client.HTTPException)


class Server(LiveServer):
    http = "127.0.0.1:0"

    def door(self) -> int | None:
        """The process of HTTP's door."""
        assert self.process is not None
        return next(iter(beside(self.process.pid, "penstock.server.http.front")), None)

    def link(self, timeout: float = 60.0) -> http.client.HTTPConnection:
        host, _, port = self.ready["http"].rpartition(":")
        return http.client.HTTPConnection(host, int(port), timeout=timeout)

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        with closing(self.link()) as link:
            link.request(method, path, None if body is None else json.dumps(body), LOGIN)
            answer = link.getresponse()
            return answer.status, answer.read()

    def is_back(self, killed: int) -> bool:
        try:
            return self.ask("GET", "/healthz")[0] == 200 and self.door() not in (None, killed)
        except FAILED:
            return False

    def taken(self) -> dict[str, int]:
        """What requests hold of what users share; the one that asks is one of them."""
        shares = json.loads(self.ask("GET", "/api/overview")[1])["penstock"]["shares"]
        return {name: shares[name]["taken"] for name in ("http_requests", "event_streams") if name in shares}


@pytest.fixture(scope="module")
def server(as_the_files_say: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("http")) as server:
        yield server
        server.stop()
        assert "Traceback" not in server.output(), server.output()


def killed(server: Server, door: int) -> None:
    os.kill(door, signal.SIGKILL)


def stopped(server: Server, door: int) -> None:
    os.kill(door, signal.SIGSTOP)


def starved(server: Server, door: int) -> None:
    """It may have a mebibyte more than it has, and strangers send it more than that."""
    told = Path(f"/proc/{door}/status").read_text()
    has = next(int(line.split()[1]) << 10 for line in told.splitlines() if line.startswith("VmData"))
    resource.prlimit(door, resource.RLIMIT_DATA, (has + (1 << 20),) * 2)
    host, _, port = server.ready["http"].rpartition(":")
    with ExitStack() as stack, suppress(OSError):
        for _ in range(400):
            sock = stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
            sock.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 60_000)


def half_an_upload(server: Server) -> http.client.HTTPConnection:
    """A body of which a part has come, from somebody who has logged in."""
    link = server.link()
    link.putrequest("POST", "/api/definitions")
    for name, value in {**LOGIN, "content-length": "10000000"}.items():
        link.putheader(name, value)
    link.endheaders(b"{" + b" " * 200_000)
    return link


def publishing(server: Server, queue: str, ended: threading.Event, taken: list[int]) -> None:
    """Publish until told to end, and note what was answered: it is on the disk."""
    number = 0
    while not ended.is_set():
        number += 1
        body = {
            "properties": {"delivery_mode": 2}, "routing_key": queue, "payload": str(number),
            "payload_encoding": "string",
        }  # fmt: skip
        with suppress(*FAILED):
            status, told = server.ask("POST", "/api/exchanges/%2F/amq.default/publish", body)
            assert (status, told) == (200, b'{"routed":true}')
            taken.append(number)


@pytest.mark.parametrize("end", [killed, stopped, starved])
def test_a_door_that_ends_takes_its_clients_alone_and_is_back(
    server: Server, end: Callable[[Server, int], None]
) -> None:
    """Nothing that was answered is lost, AMQP's clients notice nothing, and nothing is left behind in the server."""
    queue = f"kept-{end.__name__}"
    channel = server.connect().channel()
    channel.confirm_delivery()
    channel.queue_declare(queue, durable=True)
    ended, taken = threading.Event(), list[int]()
    publisher = threading.Thread(target=publishing, args=(server, queue, ended, taken))
    publisher.start()
    before = 0
    try:
        for turn in range(KILLS if end is killed else 1):
            link = server.link()
            link.request("GET", "/api/events", headers=LOGIN)  # a stream that goes on
            answer = link.getresponse()
            assert answer.readline() == b": penstock\n"
            eventually(lambda: len(taken) > 5 * (turn + 1), "nothing was published")  # noqa: B023
            if turn == 0:
                before = server.descriptors()
            door = server.door()
            assert door is not None
            upload = half_an_upload(server)
            began = time.monotonic()
            end(server, door)
            channel.basic_publish("", "nowhere", b"beside it")  # confirmed meanwhile
            eventually(lambda: server.is_back(door), "it did not come back")  # noqa: B023
            took = time.monotonic() - began
            assert took < (STOPPED_S if end is stopped else BACK_S) + SLACK_S
            with closing(link), closing(upload), closing(answer), suppress(*FAILED):
                while answer.readline():
                    pass
        eventually(lambda: len(taken) > 10, "nothing was published behind it")
    finally:
        ended.set()
        publisher.join()
    got = set[int]()
    while (found := channel.basic_get(queue, auto_ack=True))[0] is not None:
        assert found[2] is not None
        got.add(int(found[2]))
    assert set(taken) <= got
    eventually(lambda: server.descriptors() <= before, lambda: f"{server.descriptors()} descriptors, {before} before")
    eventually(lambda: server.taken() == {"http_requests": 1, "event_streams": 0}, lambda: str(server.taken()))


@pytest.mark.parametrize("end", [killed, stopped])
def test_who_comes_while_there_is_no_door_waits_for_the_next_one(
    server: Server, end: Callable[[Server, int], None]
) -> None:
    """The server holds the address: nobody is refused, and nobody has to come again."""
    door = server.door()
    assert door is not None
    end(server, door)
    eventually(lambda: end is stopped or server.door() != door, "it was not killed")
    with ExitStack() as stack:
        links = [stack.enter_context(closing(server.link())) for _ in range(20)]
        for link in links:
            link.connect()
            link.request("GET", "/api/whoami", headers=LOGIN)
        assert {link.getresponse().status for link in links} == {200}
    assert server.door() != door


def test_nobody_gets_round_what_is_counted_by_address(server: Server) -> None:
    """Wrong logins from this machine, each of which says that it comes from somewhere else, are of one address."""
    wrong = "Basic " + b64encode(b"nobody:wrong").decode()
    with ExitStack() as stack:
        links = [stack.enter_context(closing(server.link())) for _ in range(40)]
        for turn, link in enumerate(links):
            link.request("GET", "/api/whoami", headers={"authorization": wrong, "x-forwarded-for": f"192.0.2.{turn}"})
        statuses = {link.getresponse().status for link in links}
    assert statuses == {401, 429}
    assert "192.0.2." not in server.output()


def test_what_the_processes_are_is_told(server: Server) -> None:
    """By /metrics, one for each process, and by the overview's page of processes."""
    status, told = server.ask("GET", "/metrics")
    assert status == 200
    lines = [line for line in told.decode().splitlines() if "penstock_process" in line and 'process="http"' in line]
    assert any("resident" in line and float(line.rpartition(" ")[2]) > 1 << 20 for line in lines), lines


def test_a_second_server_is_told_that_the_address_is_taken(server: Server, tmp_path: Path) -> None:
    class Second(Server):
        http = server.ready["http"]

    second = Second(tmp_path)
    with pytest.raises(AssertionError, match=r"listen\.http: cannot bind"):
        second.start()


def test_strangers_of_the_door_are_counted(server: Server) -> None:
    host, _, port = server.ready["http"].rpartition(":")
    with closing(http.client.HTTPConnection(host, int(port))) as silent:
        silent.connect()

        def told() -> bool:
            _, text = server.ask("GET", "/metrics")
            found = [line for line in text.decode().splitlines() if line.startswith("penstock_strangers{")]
            return any('"http"' in line and float(line.rpartition(" ")[2]) >= 1 for line in found)

        eventually(told, "nobody is counted")
