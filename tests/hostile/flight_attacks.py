"""What a stranger, or a weak user, does at the Flight door: HTTP/2 by hand, and gRPC calls whose content is made up.

For `attacks`; gRPC's own client is used where the streams shall come through, over doors without TLS.
"""

from __future__ import annotations

import base64
import itertools
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from random import Random

import grpc
import numpy as np
import orjson
import pyarrow as pa
from pyarrow import flight

from hostile.arrow_streams import Message, Stream, command, messages_of, valid_streams
from hostile.attacks import Attack, Bout, Mob, Piece, Target, broken, with_tls
from hostile.flight_wire import FlightWire, action, flight_data, ticket
from hostile.flight_words import made_up
from hostile.http_attacks import STATEMENTS
from hostile.mutations import mutated
from hostile.strangers import PING, PREFACE, SETTINGS, h2_frame, literal
from penstock.records.schema import CARRIED

WAIT_S = 3.0
"""A call that takes longer is given up in the middle."""

MIB = 1 << 20


# -- HTTP/2


def head(at: Target, method: str = "DoAction", *, login: bool = True) -> bytes:
    """The headers of a call."""
    pair = base64.b64encode(f"{at.user}:{at.password}".encode())
    said = [
        (b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"), (b"te", b"trailers"),
        (b":path", b"/arrow.flight.protocol.FlightService/" + method.encode()), (b"content-type", b"application/grpc"),
    ]  # fmt: skip
    if login:
        said.append((b"authorization", b"Basic " + pair))
    return b"".join(literal(name, value) for name, value in said)


def _logged_in(at: Target) -> bytes:
    """A preface, and one call that is let in."""
    message = action(b"health", b"{}")
    return (
        PREFACE
        + SETTINGS
        + h2_frame(1, 4, 1, head(at))
        + h2_frame(0, 1, 1, b"\0" + struct.pack(">I", len(message)) + message)
    )


def _window(stream: int, size: int) -> bytes:
    return h2_frame(8, 0, stream, struct.pack(">I", size))


def frames(at: Target, chance: Random) -> Iterator[Piece]:
    """One of the known floods behind a call that was let in."""
    yield _logged_in(at)
    yield 0.1
    kind = chance.randrange(9)
    numbers = itertools.count(3, 2)
    for _ in range(300):
        if kind == 0:
            yield PING * 500
        elif kind == 1:
            yield h2_frame(4, 0, 0, struct.pack(">HI", 4, chance.getrandbits(31)) * 10) * 50
        elif kind == 2:  # rapid reset
            yield b"".join(
                h2_frame(1, 4, n, head(at)) + h2_frame(3, 0, n, struct.pack(">I", 8))
                for n in itertools.islice(numbers, 50)
            )
        elif kind == 3:
            yield _window(0, chance.choice((0, 1, (1 << 31) - 1))) * 500
        elif kind == 4:
            yield h2_frame(1, 0, 3, head(at)) + h2_frame(9, 0, 3, literal(b"x", b"y" * 100) * 100) * 20
        elif kind == 5:  # calls that come to nothing
            yield b"".join(h2_frame(1, 4, n, head(at, "DoPut")) for n in itertools.islice(numbers, 50))
        elif kind == 6:
            yield h2_frame(2, 0, 1, struct.pack(">IB", 3, 16)) * 500
        elif kind == 7:  # a message of a gibibyte, in small pieces
            yield h2_frame(1, 4, 3, head(at)) + h2_frame(0, 0, 3, b"\0" + struct.pack(">I", 1 << 30))
            yield h2_frame(0, 0, 3, bytes(16_000)) * 4
        else:
            yield h2_frame(0, 8, 3, b"\xff" + bytes(100)) * 200


def broken_frames(at: Target, chance: Random) -> Iterator[Piece]:
    login = chance.random() < 0.5
    yield _logged_in(at) if login else PREFACE + SETTINGS
    said = h2_frame(1, 4, 3, head(at, login=login)) + h2_frame(0, 1, 3, b"\0\0\0\0\x09" + b"\x0a\x07streams") + PING
    yield broken(chance, said)
    yield 0.05


# -- calls


@lru_cache(1)
def _streams() -> dict[str, Stream]:
    return valid_streams()


def _wire(bout: Bout) -> FlightWire:
    return FlightWire(f"127.0.0.1:{bout.port}", bout.at.user, bout.at.password)


def _at_once(bout: Bout, threads: int, one: Callable[[Bout, FlightWire], object]) -> None:
    """So many connections, each of which does it again and again."""
    if with_tls(bout.door):
        return

    def go_on(mine: Bout) -> None:
        while not mine.over:
            with (
                suppress(grpc.RpcError, ValueError, flight.FlightError, pa.ArrowException, OSError),
                _wire(mine) as wire,
            ):
                for _ in range(20):
                    if not mine.over:
                        one(mine, wire)

    running = [
        threading.Thread(target=go_on, args=(bout._replace(chance=Random(bout.chance.random())),), daemon=True)
        for _ in range(threads)
    ]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(max(0.0, bout.until - time.monotonic()) + 3 * WAIT_S)


def calls(threads: int, one: Callable[[Bout, FlightWire], object]) -> Callable[[Bout], None]:
    """An attack of gRPC's client."""
    return lambda bout: _at_once(bout, threads, one)


def _send(wire: FlightWire, stream: Stream, sent: list[bytes]) -> None:
    (wire.put if stream.call == "put" else wire.exchange)(sent, timeout=WAIT_S)


def streams(bout: Bout, wire: FlightWire) -> None:
    """Arrow that lies."""
    stream = _streams()[bout.chance.choice(sorted(_streams()))]
    _send(wire, stream, mutated(bout.chance, stream)[1])


_described = dict[str, str]()


def words(bout: Bout, wire: FlightWire) -> None:
    """Commands that are made up."""
    if not _described:
        with flight.FlightClient(f"grpc://127.0.0.1:{bout.port}") as client:
            token = client.authenticate_basic_token(bout.at.user, bout.at.password)
            told = client.list_actions(flight.FlightCallOptions(headers=[token]))
            _described.update({one.type: one.description for one in told})
    method, _, message = made_up(bout.chance, _described)
    wire.one(method, message, timeout=WAIT_S)


def bombs(bout: Bout, wire: FlightWire) -> None:
    """What becomes a thousand times as large."""
    size = bout.chance.choice((50, 300, 1200)) * MIB
    offsets = pa.py_buffer(np.array([0, size], np.int32))
    body = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(np.zeros(size, np.uint8))])
    sent = messages_of([pa.record_batch({"body": body})], compression=bout.chance.choice(("zstd", "lz4")))
    stream = Stream("put", command("publish", topic="hostile"), [*sent, Message(metadata=b'{"end": {"rows": 1}}')])
    _send(wire, stream, stream.frames())


def half_open(bout: Bout, wire: FlightWire) -> None:
    """Exchanges and uploads that are begun, and go on as they like or not at all."""
    kind = bout.chance.choice(("DoExchange", "DoPut", "DoPut"))
    names = [name for name, one in _streams().items() if (one.call == "exchange") is (kind == "DoExchange")]
    sent = _streams()[bout.chance.choice(names)].frames()
    left = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield from sent[: bout.chance.randrange(1, len(sent) + 1)]
        while not left.wait(0.2) and not bout.over:
            if bout.chance.random() < 0.2:
                yield sent[-1]

    begun = [wire.opened(kind, pieces()) for _ in range(10)]
    left.wait(min(1.0, max(0.0, bout.until - time.monotonic())))
    left.set()
    for one in begun:
        one.cancel()


def endless(bout: Bout, wire: FlightWire) -> None:
    """An upload that comes to no end, as fast as it is taken."""
    first, *rest = _streams()["publish one large body"].frames()
    until = min(bout.until, time.monotonic() + WAIT_S)

    def pieces() -> Iterator[bytes]:
        yield first
        while time.monotonic() < until:
            yield rest[0]

    wire.put(pieces(), timeout=WAIT_S)


READS = (
    {"queue": {"name": "weak-0"}}, {"log": {"from": 1}}, {"sow": {"topic": "hostile"}}, {"sql": STATEMENTS[5]},
    {"replay": {"topic": "hostile", "bookmark": "EPOCH", "follow": True}}, {"subscribe": {"topic": "hostile"}},
    {"replay": {"pattern": ".*", "bookmark": "EPOCH", "filter": "/a LIKE '(a+)+$'"}}, {"sql": STATEMENTS[0]},
    {"subscribe": {"topic": "(a|b)+", "sow": True, "oof": True, "conflation": "1s"}},
)  # fmt: skip


def unread(bout: Bout, wire: FlightWire) -> None:
    """Reads of which nothing is read."""
    method = FlightWireRead(wire)
    begun = [method(ticket(orjson.dumps(bout.chance.choice(READS)))) for _ in range(10)]
    time.sleep(min(bout.chance.choice((0.1, 2.0)), max(0.0, bout.until - time.monotonic())))
    for one in begun:
        one.cancel()


class FlightWireRead:
    """DoGet, begun and left."""

    def __init__(self, wire: FlightWire) -> None:
        self.wire = wire

    def __call__(self, message: bytes) -> grpc.Call:
        return self.wire.opened("DoGet", iter((message,)))  # type: ignore[no-any-return]


def large(bout: Bout, wire: FlightWire) -> None:
    """An action of many megabytes."""
    wire.one("DoAction", action(b"health", bytes(bout.chance.choice((1, 20, 150)) * MIB)), timeout=2 * WAIT_S)


def links(bout: Bout, wire: FlightWire) -> None:
    """A site that nobody knows, which tells what it likes."""
    chance = bout.chance
    told = {
        "name": "weak",
        "site": chance.choice(("penstock-1", "else", "")),
        "origin": chance.getrandbits(40),
        "group": "main",
    }
    empty = CARRIED.empty_table().to_batches() or [pa.RecordBatch.from_pylist([], schema=CARRIED)]
    said = (
        b'{"say":"beat"}',
        b'{"say":"level"}',
        b'{"say":"ask","ask":[{}]}',
        chance.randbytes(30),
        b'{"first":1,"last":9}',
    )
    rows = messages_of(empty, CARRIED)
    sent = [Message(one.header, one.body, chance.choice(said)) for one in rows] + [
        Message(metadata=one) for one in said
    ]
    stream = Stream("exchange", orjson.dumps({"link": told}), sent)
    _send(wire, stream, mutated(chance, stream)[1] if chance.random() < 0.5 else stream.frames())


def logins(bout: Bout, _: FlightWire) -> None:
    """Wrong ones, with a message behind them; then another connection."""
    user = bout.chance.choice((bout.at.user, "guest", "nobody"))
    with FlightWire(f"127.0.0.1:{bout.port}", user, f"wrong{bout.chance.random()}") as wire:
        if bout.chance.random() < 0.7:
            wire.one("DoAction", action(b"health", bytes(bout.chance.choice((10, MIB)))), timeout=WAIT_S)
        else:
            wire.put([flight_data(bytes(1000), bytes(MIB))] * 5, timeout=WAIT_S)


ROWS = (
    Attack("logins", "http2", calls(4, logins)),
    Attack("frames", "http2", Mob(frames, 6), login=True),
    Attack("broken frames", "http2", Mob(broken_frames, 10), login=True),
    Attack("streams", "http2", calls(3, streams), login=True),
    Attack("words", "http2", calls(3, words), login=True),
    Attack("bombs", "http2", calls(2, bombs), login=True),
    Attack("half open", "http2", calls(4, half_open), login=True),
    Attack("endless uploads", "http2", calls(3, endless), login=True),
    Attack("unread", "http2", calls(4, unread), login=True),
    Attack("large", "http2", calls(1, large), login=True),
    Attack("links", "http2", calls(2, links), login=True),
)
