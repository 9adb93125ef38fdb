"""Calls without number on one connection to the Flight door, taken in by gRPC before anybody hears of them."""

from __future__ import annotations

import base64
import itertools
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from choices import EFFORT, spread
from hostile.arrow_streams import valid_streams
from hostile.flight_wire import action
from hostile.strangers import PREFACE, SETTINGS, h2_frame
from hostile.test_flight_door import USERS, another_door, door_of, serving, url_of
from live_server import LiveServer
from penstock.errors import PenstockError
from waiting import eventually

CALLS, AT_ONCE = 150_000, 200
FLOODS_S = 20.0
"""Whoever floods is cut long before; on a slow machine it is over then."""

RESET = struct.pack(">I", 8)


def head(method: bytes, login: str | None) -> tuple[bytes, bytes]:
    """The headers of a call, as they are written once, and as they are said again: a byte each (RFC 7541, 6.1)."""
    said = [
        (b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"), (b"te", b"trailers"),
        (b":path", b"/arrow.flight.protocol.FlightService/" + method), (b"content-type", b"application/grpc"),
    ]  # fmt: skip
    if login is not None:
        said.append((b"authorization", b"Basic " + base64.b64encode(login.encode())))
    first = b"".join(b"\x40" + bytes([len(n)]) + n + bytes([len(v)]) + v for n, v in said)
    return first, bytes(0x80 | 61 + len(said) - place for place in range(len(said)))


def call(number: int, head: bytes, told: bytes) -> bytes:
    """A call, and all that it has to say, if it says anything."""
    return h2_frame(1, 4, number, head) + (h2_frame(0, 1, number, told) if told else b"")


def message(told: bytes) -> bytes:
    """As gRPC frames it."""
    return b"\0" + struct.pack(">I", len(told)) + told


def flooded(
    address: str,
    method: bytes,
    login: str | None,
    *,
    reset: bool = False,
    reads: bool = True,
    whole: bool = False,
    behind: int = 0,
) -> None:
    """Calls as fast as they are taken, until the connection is cut, or all have been begun.

    whole: each says all that it has to say, so that it is let in, and answered.  behind: so many uploads stay open.
    """
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as link, suppress(OSError):  # it is cut
        first, _ = head(b"DoAction", login)
        told = message(action(b"health", b"{}"))
        link.sendall(PREFACE + SETTINGS + call(1, first, told))
        _answered(link)  # a connection that is known is not looked at as strangers are
        first, again = head(method, login)
        rest = told if whole else b""
        until, begun = time.monotonic() + FLOODS_S, 0
        numbers = itertools.count(3, 2)
        schema, batch, *_ = valid_streams()["publish bodies"].frames()
        for number in itertools.islice(numbers, behind):
            upload = h2_frame(0, 0, number, message(schema) + message(batch))
            link.sendall(h2_frame(1, 4, number, head(b"DoPut", login)[0]) + upload)
            _answered(link, number)
        if reads:
            threading.Thread(target=_read, args=(link,), daemon=True).start()
        link.sendall(h2_frame(1, 4, next(numbers), first))
        while begun < CALLS and time.monotonic() < until:
            some = itertools.islice(numbers, AT_ONCE)
            link.sendall(b"".join(call(n, again, rest) + h2_frame(3, 0, n, RESET) * reset for n in some))
            begun += AT_ONCE


def _answered(link: socket.socket, number: int = 1) -> None:
    """Read what comes until a call has its answer, or its first one, or the connection is cut."""
    came = bytearray()
    while some := link.recv(1 << 16):
        came += some
        while len(came) >= 9 and len(came) >= (size := 9 + int.from_bytes(came[:3], "big")):
            kind, flags, stream = came[3], came[4], int.from_bytes(came[5:9], "big")
            del came[:size]
            if stream == number and (kind in (0, 3) or flags & 1):
                return


def _read(link: socket.socket) -> None:
    with suppress(OSError):
        while link.recv(1 << 16):
            pass


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One for all crowds: each comes to a door that has had others, and goes on as if there had been none."""
    with serving(tmp_path_factory.mktemp("crowds"), USERS) as server:
        yield server


@pytest.fixture
def door(server: LiveServer) -> int:
    """The one there is, or the next where a crowd has ended it."""
    assert server.process is not None
    pid, found = server.process.pid, list[int]()

    def there() -> bool:
        with suppress(ValueError, OSError):
            found.append(door_of(pid))
        return bool(found)

    eventually(there, "there is no door")
    return found[0]


def served(url: str) -> bool:
    with suppress(penstock.Unavailable), penstock.connect(url) as client:
        client.publish("q", b"x", mandatory=False)
        return True
    return False


OPEN = 3
"""Uploads that stay open before a flood."""


def test_uploads_that_stay_open_excuse_no_flood_behind_them(server: LiveServer, door: int) -> None:
    """Each excused a batch that might be on its way, so that who made the calls was not found before the door ended."""
    assert server.process is not None
    for _ in range(1 if EFFORT == 1 else 2):  # the first to a door that nobody has called yet
        flooded(server.ready["flight"], b"DoPut", "guest:guest", reads=False, behind=OPEN)
        assert not another_door(server.process.pid, door), server.output()
    eventually(lambda: served(url_of(server).replace("guest:guest", "other:other")), "nobody else is served")
    assert door_of(server.process.pid) == door, server.output()


@pytest.mark.parametrize(
    ("method", "login", "reset", "reads"),
    spread(
        [
            (b"DoPut", "guest:guest", True, True),
            (b"DoPut", "guest:guest", False, True),
            (b"DoAction", "guest:guest", False, False),
            (b"DoPut", "guest:wrong", False, True),
            (b"DoPut", None, False, False),
        ],
        2,
    ),
)
def test_calls_without_number_on_a_connection_do_not_end_the_door(
    server: LiveServer, door: int, method: bytes, login: str | None, reset: bool, reads: bool
) -> None:
    """30,000 of them, 4 MB on the wire, ended it within two seconds: each has 14 KiB, and a stack if it can."""
    assert server.process is not None
    flooded(server.ready["flight"], method, login, reset=reset, reads=reads)
    assert not another_door(server.process.pid, door), server.output()
    eventually(lambda: served(url_of(server).replace("guest:guest", "other:other")), "nobody else is served")
    assert door_of(server.process.pid) == door, server.output()


BODIES = pa.table({"body": [bytes(1 << 20)] * 32})


def test_small_calls_that_are_let_in_are_a_flood_and_a_large_upload_is_none(tmp_path: Path) -> None:
    """Each gave its connection more than it took, so that others were cut: first of all who had a batch on its way."""
    with serving(tmp_path, USERS) as server:
        assert server.process is not None
        door, over = door_of(server.process.pid), threading.Event()
        uploaded, failed = list[int](), list[PenstockError]()

        def upload() -> None:
            try:
                with penstock.connect(url_of(server).replace("guest:guest", "other:other"), timeout=60) as client:
                    while not over.is_set():
                        uploaded.append(client.publish_table("q", BODIES, mandatory=False).rows)
            except PenstockError as error:
                failed.append(error)

        thread = threading.Thread(target=upload, daemon=True)
        thread.start()
        eventually(lambda: bool(uploaded or failed), "nothing is uploaded")
        flooded(server.ready["flight"], b"DoAction", "guest:guest", whole=True)
        over.set()
        thread.join(90)
        assert not failed, server.output()
        assert door_of(server.process.pid) == door, server.output()
