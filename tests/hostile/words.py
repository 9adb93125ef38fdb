"""Words of HTTP/1.1, HTTP/2 and AMQP as clients say them, and each of them broken by one number.

`said(seed)` is always the same: which door, the bytes, and whether they were broken.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from hostile.strangers import AMQP, CALL, HEARTBEAT, PING, PREFACE, SETTINGS, h2_frame

LOGIN = b"authorization: Basic " + base64.b64encode(b"guest:guest") + b"\r\n"
WRONG = b"authorization: Basic " + base64.b64encode(b"guest:wrong") + b"\r\n"


def _request(line: bytes, *headers: bytes, body: bytes = b"") -> bytes:
    return line + b" HTTP/1.1\r\nhost: localhost\r\n" + b"".join(headers) + b"\r\n" + body


_QUEUE = b'{"durable":true,"arguments":{"x-max-length":10}}'
_PUBLISH = b'{"properties":{},"routing_key":"fuzzed","payload":"x","payload_encoding":"string"}'

HTTP: Sequence[bytes] = (
    _request(b"GET /healthz"),
    _request(b"GET /metrics"),
    _request(b"GET /"),
    _request(b"GET /api/overview", LOGIN, b"accept: application/json\r\n", b"connection: keep-alive\r\n"),
    _request(b"GET /api/overview", WRONG),
    _request(b"GET /api/queues/%2F?page=1&page_size=5&name=x", LOGIN),
    _request(b"PUT /api/queues/%2F/fuzzed", LOGIN, b"content-length: %d\r\n" % len(_QUEUE), body=_QUEUE),
    _request(b"PUT /api/queues/%2F/fuzzed", b"content-length: %d\r\n" % len(_QUEUE), body=_QUEUE),
    _request(
        b"POST /api/exchanges/%2F/amq.default/publish", LOGIN, b"transfer-encoding: chunked\r\n",
        body=b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in (_PUBLISH[:20], _PUBLISH[20:])) + b"0\r\n\r\n",
    ),
    _request(b"POST /api/x", b"transfer-encoding: chunked\r\n", body=b"1\r\nx\r\n0\r\n\r\n"),
    _request(b"GET /healthz", b"transfer-encoding: chunked\r\n", body=b"5\r\nabcde\r\n0\r\n\r\n"),
    _request(b"GET /healthz", b"expect: 100-continue\r\n", b"content-length: 3\r\n", body=b"abc"),
    _request(b"GET /healthz", b"connection: upgrade\r\n", b"upgrade: h2c\r\n", b"http2-settings: AAMAAABk\r\n"),
    _request(b"HEAD /healthz") + _request(b"GET /readyz") + _request(b"OPTIONS /api/overview", LOGIN),
    _request(b"CONNECT localhost:5672"),
    PREFACE + SETTINGS,
)  # fmt: skip

_MESSAGE = b"\x00\x00\x00\x00\x09" + b"\x0a\x07streams"
_HEADED = h2_frame(1, 4, 1, CALL)

HTTP2: Sequence[bytes] = (
    PREFACE + SETTINGS,
    PREFACE + h2_frame(4, 0, 0, struct.pack(">HIHI", 3, 100, 4, 65_535)) + PING,
    PREFACE + SETTINGS + h2_frame(8, 0, 0, struct.pack(">I", 99)),
    PREFACE + SETTINGS + _HEADED + h2_frame(0, 1, 1, _MESSAGE),
    PREFACE + SETTINGS + _HEADED + h2_frame(0, 0, 1, _MESSAGE) + h2_frame(3, 0, 1, struct.pack(">I", 8)),
    PREFACE + SETTINGS + h2_frame(1, 0, 1, CALL[:20]) + h2_frame(9, 4, 1, CALL[20:]) + h2_frame(0, 1, 1, _MESSAGE),
    PREFACE + SETTINGS + b"".join(h2_frame(1, 5, one, CALL) for one in range(1, 21, 2)),
    PREFACE + SETTINGS + _HEADED + h2_frame(7, 0, 0, struct.pack(">II", 1, 0)),
    PREFACE + SETTINGS + h2_frame(2, 0, 1, struct.pack(">IB", 0, 16)) + _HEADED,
)  # fmt: skip


def _method(class_id: int, method_id: int, rest: bytes, channel: int = 0) -> bytes:
    payload = struct.pack(">HH", class_id, method_id) + rest
    return struct.pack(">BHI", 1, channel, len(payload)) + payload + b"\xce"


def _short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def _long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _start_ok(password: bytes) -> bytes:
    table = _short(b"product") + b"S" + _long(b"fuzz") + _short(b"capabilities") + b"F" + _long(_short(b"x") + b"t\x01")
    return _method(10, 11, _long(table) + _short(b"PLAIN") + _long(b"\0guest\0" + password) + _short(b"en_US"))


_TUNED = AMQP + _start_ok(b"guest") + _method(10, 31, struct.pack(">HIH", 10, 131_072, 0))
_OPENED = _TUNED + _method(10, 40, b"\x01/\0\0")

AMQPS: Sequence[bytes] = (
    AMQP + _start_ok(b"guest"),
    AMQP + HEARTBEAT + _start_ok(b"guest"),
    AMQP + _start_ok(b"guest") + _method(10, 31, struct.pack(">HIH", 0, 0, 0)),
    _OPENED,
    _OPENED + _method(20, 10, b"\0", 1) + _method(10, 50, struct.pack(">H", 200) + b"\0" + bytes(4)),
)  # fmt: skip

WORDS: Mapping[str, Sequence[bytes]] = {"http": HTTP, "flight": HTTP2, "amqp": AMQPS}
"""By door."""

Breaks = Callable[[Random, bytes], bytes]


def _flipped(rng: Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _changed(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + rng.choice((b"\0", b"\xff", b"\n", b"\r", b"\r\n", b" ", b"\t", b":", b"\x7f")) + data[at + 1 :]


def _cut(rng: Random, data: bytes) -> bytes:
    return data[: rng.randrange(1, max(2, len(data)))]


def _without(rng: Random, data: bytes) -> bytes:
    start = rng.randrange(len(data))
    return data[:start] + data[start + rng.randrange(1, 40) :] or b"\0"


def _twice(rng: Random, data: bytes) -> bytes:
    start = rng.randrange(len(data))
    piece = data[start : start + rng.randrange(1, 60)]
    return data[:start] + piece * rng.choice((2, 3, 50)) + data[start + len(piece) :]


def _longer(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + rng.choice((b"A", b"\x00", b"\r\n", b"\xff")) * rng.choice((10, 1000, 40_000)) + data[at:]


def _numbered(rng: Random, data: bytes) -> bytes:
    at, width = rng.randrange(len(data)), rng.choice((1, 2, 3, 4, 8))
    value = rng.choice((0, 1, 127, 128, 255, 16_384, 65_535, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 62))
    return data[:at] + (value & (1 << 8 * width) - 1).to_bytes(width, "big") + data[at + width :]


_HEADERS = (
    b"content-length: 3\r\n", b"content-length: 0\r\n", b"transfer-encoding: chunked\r\n", b"host: a\r\n",
    b" folded\r\n",
    b"x: 1\ny: 2\r\n", b"content-length: 99999999999999999999\r\n", b"connection: close\r\n", b"upgrade: websocket\r\n",
    b"transfer-encoding: gzip\r\n", b"expect: 100-continue\r\n", b"authorization: Basic !!!\r\n", b"x: \xff\xfe\r\n",
)  # fmt: skip


def _headed(rng: Random, data: bytes) -> bytes:
    """A header more, for HTTP/1; for others it is rubbish like any."""
    lines = data.split(b"\r\n")
    at = rng.randrange(1, len(lines)) if len(lines) > 1 else 0
    return b"\r\n".join(lines[:at]) + b"\r\n" + rng.choice(_HEADERS) + b"\r\n".join(lines[at:])


BREAKS: Sequence[Breaks] = (_flipped, _changed, _cut, _without, _twice, _longer, _numbered, _headed)


@dataclass(frozen=True, slots=True)
class Said:
    """What is sent to a door."""

    door: str
    data: bytes
    broken: bool


def said(seed: int) -> Said:
    """One of them; one in sixteen is whole, and some are followed by another."""
    rng = Random(seed)
    door = sorted(WORDS)[seed % len(WORDS)]
    data = rng.choice(WORDS[door])
    if rng.random() < 0.1:
        data += rng.choice(WORDS[door])
    if rng.random() < 1 / 16:
        return Said(door, data, broken=False)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = rng.choice(BREAKS)(rng, data)
    return Said(door, data, broken=True)
