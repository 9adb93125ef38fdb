"""What a stranger, or a weak user, does over HTTP/1: words for `attacks`."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from random import Random

import orjson

from hostile.attacks import Attack, Mob, Piece, Target, broken
from hostile.words import HTTP

PUBLISH = "/api/exchanges/%2F/amq.default/publish"


def login(at: Target) -> bytes:
    return b"authorization: Basic " + base64.b64encode(f"{at.user}:{at.password}".encode()) + b"\r\n"


def asked(at: Target, line: str, body: bytes | None = None, more: bytes = b"") -> bytes:
    """A request of who has a login."""
    size = b"" if body is None else b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
    return f"{line} HTTP/1.1\r\nhost: x\r\n".encode() + login(at) + more + size + b"\r\n" + (body or b"")


def _message(chance: Random, payload: str) -> bytes:
    told = {"properties": {}, "routing_key": f"weak-{chance.randrange(40)}", "payload": payload}
    return orjson.dumps({**told, "payload_encoding": "string"})


def slow_bodies(at: Target, chance: Random) -> Iterator[Piece]:
    head = asked(at, f"POST {PUBLISH}", more=b"content-length: %d\r\n" % chance.choice((500, 20_000_000)))
    yield head
    for _ in range(100):
        yield b" "
        yield chance.choice((0.02, 0.5))


def chunks(at: Target, chance: Random) -> Iterator[Piece]:
    """Lengths that lie, chunks of one byte, chunks without an end."""
    yield asked(at, f"POST {PUBLISH}", more=b"transfer-encoding: chunked\r\n")
    body = _message(chance, "x")
    match chance.randrange(5):
        case 0:
            yield b"%x\r\n" % (len(body) - 3) + body + b"\r\n0\r\n\r\n"
        case 1:
            for at_byte in range(len(body)):
                yield b"1\r\n" + body[at_byte : at_byte + 1] + b"\r\n"
            yield b"0\r\n\r\n"
        case 2:
            yield b"ffffffffffffffff\r\n" + body
        case 3:
            for _ in range(500):
                yield b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        case _:
            yield b"5;x=" + b"y" * 5000 + b"\r\nabcde\r\n0\r\nx: y\r\n\r\n"


SMUGGLED = (
    b"content-length: 5\r\ntransfer-encoding: chunked\r\n",
    b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
    b"transfer-encoding : chunked\r\n",
    b"transfer-encoding: \x0bchunked\r\n",
    b"content-length: 0\r\ncontent-length: 44\r\n",
    b"content-length: +5\r\n",
    b"content-length: 5, 5\r\n",
    b"connection: content-length\r\ncontent-length: 5\r\n",
    b"expect: 100-continue\r\ncontent-length: 5\r\n",
    b"x: y\r\n z: folded\r\ncontent-length: 5\r\n",
    b"upgrade: h2c\r\nconnection: upgrade, http2-settings\r\nhttp2-settings: AAMAAABk\r\n",
)


def smuggling(at: Target, chance: Random) -> Iterator[Piece]:
    """One request that two readers would take for two."""
    inner = asked(at, "DELETE /api/queues/%2F/weak-1")
    for _ in range(5):
        line = f"POST {chance.choice((PUBLISH, '/healthz', '/api/overview'))}"
        yield asked(at, line, more=chance.choice(SMUGGLED)) + b"0\r\n\r\n" + inner
        yield 0.02


def pipelined(at: Target, chance: Random) -> Iterator[Piece]:
    """Thousands of requests, whose answers nobody reads."""
    paths = ("/api/queues", "/api/overview", "/api/definitions", "/metrics", "/api/queues/%2F/weak-0", "/", "/healthz")
    for _ in range(2000):
        yield asked(at, f"GET {chance.choice(paths)}") * 20


def _odd_json(chance: Random) -> bytes:
    match chance.randrange(8):
        case 0:
            return b"[" * 100_000
        case 1:
            return b'{"a":' * 10_000 + b"1" + b"}" * 10_000
        case 2:
            return b"[" + b"1," * 3_000_000 + b"1]"
        case 3:
            return b"[" + b"[]," * 4_000_000 + b"1]"
        case 4:
            return b'{"payload":"' + b"x" * (18 << 20) + b'"}'
        case 5:
            return b'{"x":' + b"9" * 500_000 + b"}"
        case 6:
            return b"{" + b",".join(b'"k%d":1' % n for n in range(500_000)) + b"}"
        case _:
            return b'{"payload":"' + b"\\ud83d\\ude00" * 200_000 + b'","routing_key":"weak-0"}'


def huge_json(at: Target, chance: Random) -> Iterator[Piece]:
    lines = (f"POST {PUBLISH}", "POST /api/definitions", "PUT /api/queues/%2F/weak-2", "POST /api/query")
    yield asked(at, chance.choice(lines), _odd_json(chance))
    yield 0.3


def huge_headers(at: Target, chance: Random) -> Iterator[Piece]:
    match chance.randrange(4):
        case 0:
            yield asked(at, "GET /api/overview", more=b"x: " + b"y" * 2_000_000 + b"\r\n")
        case 1:
            yield asked(at, "GET /api/overview", more=b"x: y\r\n" * 20_000)
        case 2:
            yield asked(at, "GET /api/queues?" + "a=b&" * 15_000)
        case _:
            yield asked(at, "GET /api/queues/" + "%2F" * 20_000)


def events(at: Target, chance: Random) -> Iterator[Piece]:
    """Streams that nobody reads."""
    yield asked(at, "GET /api/events" + chance.choice(("", "?vhost=%2F", "?queues=weak-0")))
    yield 5.0


STATEMENTS = (
    "SELECT count(*) FROM range(1000000000) a, range(1000000000) b",
    "SELECT string_agg(repeat('x', 1000), '') FROM range(500000)",
    "SELECT len(list(range)) FROM range(30000000)",
    "WITH RECURSIVE r(n, s) AS (SELECT 1, 'x' UNION ALL SELECT n + 1, s || s FROM r WHERE n < 40) SELECT max(s) FROM r",
    "SELECT * FROM range(100000) ORDER BY repeat('x', 100000) || range",
    "SELECT * FROM range(1000000000)",
    "SELECT len(regexp_replace(repeat('a', 10000000), 'a', repeat('b', 100), 'g'))",
    "SELECT " + "(" * 3000 + "1" + ")" * 3000,
    "SELECT * FROM 'weak-0'", 'SELECT * FROM "weak-0"', "COPY (SELECT 1) TO '/tmp/x'",
    "SELECT * FROM read_text('/etc/passwd')",
    "ATTACH '/tmp/y'", "INSTALL httpfs", "SET memory_limit='100GB'", "SELECT " + "'x' || " * 50_000 + "'y'",
    ";" * 50_000,
)  # fmt: skip


def statements(at: Target, chance: Random) -> Iterator[Piece]:
    """SQL that computes, and goes where it should not; some leave before the answer."""
    accept = chance.choice((b"", b"accept: application/vnd.apache.arrow.stream\r\n"))
    yield asked(at, "POST /api/query", orjson.dumps({"sql": chance.choice(STATEMENTS), "vhost": "/"}), accept)
    yield chance.choice((0.01, 0.5, 3.0))


PATHS = (
    "overview", "queues", "queues/%2F", "queues/%2F/weak-3", "queues/%2F/weak-3/contents", "queues/%2F/weak-3/get",
    "exchanges", "exchanges/%2F/weak-x", "bindings", "bindings/%2F/e/weak-x/q/weak-3", "connections", "channels",
    "consumers",
    "users", "users/guest", "users/weak", "permissions", "permissions/%2F/weak", "policies", "policies/%2F/p",
    "operator-policies/%2F/p", "definitions", "definitions/%2F", "vhosts", "vhosts/new", "vhosts/town", "parameters",
    "cluster",
    "limits", "nodes", "whoami", "topics", "query", "events", "health/checks/alarms", "queues/town/work",
    "openapi.json",
    "user-limits/weak", "global-parameters", "extensions", "../../etc/passwd", "%00", "queues/%2F/" + "x" * 300,
)  # fmt: skip


def requests(at: Target, chance: Random) -> Iterator[Piece]:
    """Any method on any path with whatever JSON."""
    values = (1, -1, "x", None, [], {}, True, "é\0", 1 << 63, [{}] * 50, {"x-max-length": -1}, 1e300)
    names = (
        "durable", "arguments", "type", "count", "ackmode", "encoding", "pattern", "definition", "value", "password",
        "tags", "configure", "write", "read", "routing_key", "payload", "payload_encoding", "properties", "name", "sql",
    )  # fmt: skip
    for _ in range(20):
        method = chance.choice(("GET", "GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "PATCH", "X"))
        path = "/api/" + chance.choice(PATHS)
        if chance.random() < 0.3:
            path += "?" + chance.choice(
                ("page=1&page_size=500", "page=-1", "columns=a,b", "sort=name&use_regex=true&name=(a%2B)%2B")
            )
        try:
            body = orjson.dumps({chance.choice(names): chance.choice(values) for _ in range(chance.randrange(6))})
        except TypeError:  # beyond what it writes
            body = b'{"count":9223372036854775808}'
        request = asked(at, f"{method} {path}", body if method not in {"GET", "HEAD"} else None)
        yield request if chance.random() < 0.8 else broken(chance, request)
        yield 0.01


def messages(at: Target, chance: Random) -> Iterator[Piece]:
    """As many as go through, large ones and small ones."""
    yield asked(at, f"PUT /api/queues/%2F/weak-{chance.randrange(40)}", b'{"durable":true}')
    for _ in range(200):
        payload = "x" * chance.choice((1, 1, 1, 1000, 200_000))
        yield asked(at, f"POST {PUBLISH}", _message(chance, payload))
        if chance.random() < 0.2:
            got = b'{"count":%d,"ackmode":"ack_requeue_true","encoding":"auto"}' % chance.choice((1, 5000))
            yield asked(at, f"POST /api/queues/%2F/weak-{chance.randrange(40)}/get", got)


def logins(at: Target, chance: Random) -> Iterator[Piece]:
    user = chance.choice((at.user, "guest", "nobody", "é" * 100))
    pair = base64.b64encode(f"{user}:wrong{chance.random()}".encode())
    kinds = (b"Basic " + pair, b"Basic " + pair[:-3], b"Bearer " + pair, b"Basic " + b"A" * 60_000, b"Negotiate x")
    yield b"GET /api/overview HTTP/1.1\r\nhost: x\r\nauthorization: " + chance.choice(kinds) + b"\r\n\r\n"
    yield 0.02


def half_requests(_: Target, chance: Random) -> Iterator[Piece]:
    """What clients say, byte by byte, and one behind the other."""
    said = b"".join(chance.choice(HTTP) for _ in range(3))
    for at in range(0, len(said), 7):
        yield said[at : at + 7]
        yield 0.002


ROWS = (
    Attack("logins", "http", Mob(logins, 20)),
    Attack("half requests", "http", Mob(half_requests, 20)),
    Attack("slow bodies", "http", Mob(slow_bodies, 150), login=True),
    Attack("chunks that lie", "http", Mob(chunks, 8), login=True),
    Attack("smuggling", "http", Mob(smuggling, 8), login=True),
    Attack("pipelined and unread", "http", Mob(pipelined, 20, deaf=True), login=True),
    Attack("huge JSON", "http", Mob(huge_json, 3), login=True),
    Attack("huge headers", "http", Mob(huge_headers, 6), login=True),
    Attack("events unread", "http", Mob(events, 60, deaf=True), login=True),
    Attack("statements", "http", Mob(statements, 8), login=True),
    Attack("requests", "http", Mob(requests, 4), login=True),
    Attack("messages", "http", Mob(messages, 4), login=True),
)
