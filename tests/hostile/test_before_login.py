"""Before login every door keeps the same table: time, bytes, connections in all and from one address, and work.

One server with all doors, 256 descriptors and bounded memory is pressed row by row; while it is, others go on to
publish, ask and call.  What a row wants is the same for all doors, and what a door does about it is not asked.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Self

import httpx
import pika
import pytest
from pika.exceptions import AMQPError

import penstock
from hostile.strangers import HELLO, JUNK, PROTOCOLS, STATES, UNDER_TLS, Crowd, State, Stranger, addresses, floods, pour
from hostile.watching import MIB, Bounds, Watched
from http_lab import NO_TLS
from penstock.config.sections import DOORS
from tls_lab import Files, TlsServer
from waiting import eventually

FILES = 256
MEMORY = 3072
"""MiB of addresses: a server at rest has half of it, nearly all of them stacks of threads."""

TIME_S = 1.5
GRACE_S = 6.5
"""A busy machine looks later; together with the time less than doors give without a setting, which is 10 s."""

FLIGHT_BYTES = 1 * MIB

SERVED_S = 15.0
"""Whoever has a login is served within this time, whatever strangers do."""

SETTINGS = f"""
[before_login]
time = "{TIME_S:g}s"
flight_bytes = "{FLIGHT_BYTES // MIB}MiB"

[log]
segment = "64KiB"
"""

SILENT = 60
"""Connections at each door that say nothing: 360 in all, where there are 192 descriptors for everybody."""

WORK_S = 0.01
"""CPU for a stranger's word; a TLS handshake is the most of it."""

QUIET = Bounds(memory=96 * MIB)
"""What all rows together may cost: bodies of messages are among it."""

LINES_A_SECOND = 2
"""Of the log, about strangers, where a row takes long; beside 60."""


class LimitedServer(TlsServer):
    """All six doors, few descriptors."""

    loads = True  # its memory is judged
    program = (str(Path(__file__).parents[1] / "limited_server.py"),)
    http = "127.0.0.1:0"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Files(folder / "files"), rest=SETTINGS)
        self.with_flight = True

    @property
    def ports(self) -> Mapping[str, int]:
        """Of all doors."""
        return {door: self.port_of(door) for door in PROTOCOLS}

    def cpu(self) -> float:
        """Seconds that it has worked."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


WAYS = ("publish", "ask", "ask_over_tls", "call")


class Served:
    """People with a login, at every door, one time after the other, until `stop`."""

    def __init__(self, server: LimitedServer, ways: Sequence[str]) -> None:
        self.server = server
        self.slowest = dict[str, float]()
        self.failed = list[str]()
        self.published = 0
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._go_on, args=(getattr(self, one),), daemon=True) for one in ways]

    def __enter__(self) -> Self:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for one in self._threads:
            one.join(60)

    def judge(self) -> None:
        """AssertionError when somebody was not served, or too late."""
        assert not self.failed, self.failed[:5]
        late = {way: round(took, 2) for way, took in self.slowest.items() if took > SERVED_S}
        assert not late, f"served late, in seconds: {late}"
        assert len(self.slowest) == len(self._threads), f"served at all: {sorted(self.slowest)}"

    def _go_on(self, way: Callable[[], None]) -> None:
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                way()
            except (AMQPError, httpx.HTTPError, penstock.PenstockError, OSError, AssertionError) as error:
                self.failed.append(f"{way.__name__}: {error!r}")
            took = time.monotonic() - began
            self.slowest[way.__name__] = max(took, self.slowest.get(way.__name__, 0.0))
            self._stopped.wait(0.1)

    def publish(self) -> None:
        """Connect, publish, be confirmed, leave."""
        with contextlib.closing(pika.BlockingConnection(self.server.parameters(heartbeat=0))) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish("", "kept", b"x" * 3000, pika.BasicProperties(delivery_mode=2), mandatory=True)
        self.published += 1

    def ask(self) -> None:
        """HTTP."""
        address = f"http://127.0.0.1:{self.server.port_of('http')}/api/whoami"
        assert httpx.get(address, verify=NO_TLS, auth=("guest", "guest"), timeout=30).status_code == 200

    def ask_over_tls(self) -> None:
        """HTTP over TLS."""
        address = f"https://localhost:{self.server.port_of('https')}/api/whoami"
        assert httpx.get(address, auth=("guest", "guest"), timeout=30, verify=self.server.context()).status_code == 200

    def call(self) -> None:
        """Flight: what fails before it was sent may be tried again, as any of its clients does."""
        address = f"penstock://127.0.0.1:{self.server.port_of('flight')}"
        for _ in range(20):
            with contextlib.suppress(penstock.Unavailable), penstock.connect(address) as client:
                client.stats("kept")
                return
            time.sleep(0.1)
        raise AssertionError("Flight served nobody in 20 tries")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LimitedServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIMITED_FILES", str(FILES))
        patch.setenv("LIMITED_MEMORY", str(MEMORY))
        with LimitedServer(tmp_path_factory.mktemp("limited")) as server:
            server.connect().channel().queue_declare("kept", durable=True)
            server.bury()
            yield server


# -- the rows


def time_of_the_header(server: LimitedServer) -> None:
    """Whoever does not come to its end with saying who it is has `time`, however it begins and however it goes on."""
    begun = list[tuple[str, State, Stranger]]()
    for door, protocol in PROTOCOLS.items():
        tls = context(server, door)
        begun += [(door, state, Stranger(server.ports[door], tls=tls)) for state in STATES[protocol]]
        begun += [(door, state, Stranger(server.ports[door])) for state in UNDER_TLS if tls is not None]
    for _, state, one in begun:
        one.send(state.begin)
    until = time.monotonic() + TIME_S + GRACE_S
    while time.monotonic() < until and any(one.look() for _, _, one in begun):
        for _, state, one in begun:
            one.send(state.drip)
        time.sleep(0.1)
    left = [f"{door}: {state.name}" for door, state, one in begun if one.look()]
    for *_, one in begun:
        one.close()
    assert not left, f"open after {TIME_S + GRACE_S} s: {left}"


BYTES_MOST = {"amqp": 16 * MIB, "http": 16 * MIB, "http2": 64 * MIB}
"""What may leave a stranger: the door's own bound, and what the kernel takes on both sides; of Flight what comes
between two looks."""


def bytes_before_login(server: LimitedServer) -> None:
    """Whoever sends without an end is cut off; nothing of it is kept."""
    too_much = list[str]()
    for door, protocol in PROTOCOLS.items():
        tls = context(server, door)
        for name, flood in floods(protocol).items():
            one = Stranger(server.ports[door], tls=tls)
            sent = pour(one, flood, TIME_S + GRACE_S)
            if sent > BYTES_MOST[protocol] or one.look():
                too_much.append(f"{door}, {name}: {sent / MIB:.1f} MiB, {'open' if one.open else 'closed'}")
            one.close()
    assert not too_much, too_much


def connections_in_all(server: LimitedServer) -> None:
    """Silent ones from everywhere, at all doors at once: they take each other's places and nobody else's."""
    with Crowd() as crowd:
        for number, door in enumerate(PROTOCOLS):
            crowd.add(SILENT, server.ports[door], addresses(10 + number))
        eventually(lambda: crowd.open() == 0, "strangers were not sent away")


def connections_of_one_address(server: LimitedServer) -> None:
    """From one address they are few soon, long before their time is over."""
    for door in PROTOCOLS:
        with Crowd() as crowd:
            crowd.add(30, server.ports[door], repeat("127.9.9.9"))
            eventually(lambda crowd=crowd: crowd.open() <= 5, f"{door}: many of one address stayed")


def work_of_strangers(server: LimitedServer) -> None:
    """Words that are no beginning are turned away at once, and cost little."""
    for door, protocol in PROTOCOLS.items():
        said = [one for one in JUNK[protocol] * 10 if not (one == HELLO and with_tls(door))]
        before, late = server.cpu(), list[bytes]()
        for junk in said:
            with contextlib.closing(Stranger(server.ports[door])) as one:
                one.send(junk)
                began = time.monotonic()
                eventually(lambda one=one: not one.look(), f"{door}: {junk[:20]!r} was not turned away")
                if time.monotonic() - began > TIME_S / 2:
                    late.append(junk[:20])
        assert len(late) < len(said) / 4, f"{door}: turned away when their time was over, and not at once: {late}"
        spent = (server.cpu() - before) / len(said)
        assert spent < WORK_S, f"{door}: {spent * 1000:.1f} ms of CPU for each word of a stranger"


ROWS = (time_of_the_header, bytes_before_login, connections_in_all, connections_of_one_address, work_of_strangers)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
def test_every_door_keeps_the_table(server: LimitedServer, row: Callable[[LimitedServer], None]) -> None:
    assert server.process is not None
    began = time.monotonic()
    with Watched(server.process.pid, server.folder / "output.txt") as seen:
        with Served(server, () if row is work_of_strangers else WAYS) as served:
            row(server)
        served.judge()
        eventually(seen.settled(12), "descriptors were not given back")
        seen.judge(replace(QUIET, lines=60 + int(LINES_A_SECOND * (time.monotonic() - began))))


def test_what_was_done_about_strangers_is_counted(server: LimitedServer) -> None:
    def lacks() -> list[str]:
        """Doors that are processes tell of it once a second."""
        text = httpx.get(f"http://127.0.0.1:{server.port_of('http')}/metrics", verify=NO_TLS, timeout=30).text
        wanted = [f'penstock_strangers{{door="{door}"}}' for door in PROTOCOLS]
        reasons = ("time", "bytes", "sockets")
        closed = [f'closed_total{{door="{door}",reason="{why}"}}' for door in PROTOCOLS for why in reasons]
        wanted += [f"penstock_strangers_{one}" for one in closed]
        return [one for one in (*wanted, f"rabbitmq_process_max_fds {FILES - FILES // 4}.0") if one not in text]

    eventually(lambda: not lacks(), lambda: f"{lacks()}")


def test_what_was_confirmed_meanwhile_is_there_and_the_log_went_on(server: LimitedServer) -> None:
    channel = server.connect().channel()
    assert channel.queue_declare("kept", passive=True).method.message_count > 0
    output = server.output()
    for word in ("broken", "Traceback", "Too many open files"):
        assert word not in output, output[output.index(word) :][:2000]
    server.bury()


def with_tls(door: str) -> bool:
    """Whether a handshake comes first."""
    return door in DOORS


def context(server: LimitedServer, door: str) -> ssl.SSLContext | None:
    """For its handshake, where there is one: gRPC ends it at once unless HTTP/2 is asked for (RFC 9113, 3.2)."""
    if not with_tls(door):
        return None
    made = server.context()
    if PROTOCOLS[door] == "http2":
        made.set_alpn_protocols(["h2"])
    return made
