"""Framing of HTTP/1.1: every form that two readers may read differently is refused, however its bytes arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import h11
import pytest
from uvicorn.protocols.websockets import auto

from penstock.server.http.calls import PARAMETERS_MOST
from penstock.server.http.connections import CHUNK_LEAST, CHUNKS_MOST, LINES_MOST, HttpServer, StrictConnection

HEAD = b"POST /api/x HTTP/1.1\r\nhost: a\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"

REFUSED: dict[str, tuple[bytes, int]] = {
    "a length beside chunks": (HEAD + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunks beside a length": (HEAD + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n", 400),
    "two lengths": (HEAD + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd", 400),
    "the same length twice": (HEAD + b"content-length: 3\r\ncontent-length: 3\r\n\r\nabc", 400),
    "a list of lengths": (HEAD + b"content-length: 3, 3\r\n\r\nabc", 400),
    "a signed length": (HEAD + b"content-length: +3\r\n\r\nabc", 400),
    "a length in hex": (HEAD + b"content-length: 0x3\r\n\r\nabc", 400),
    "a length of many digits": (HEAD + b"content-length: " + b"9" * 30 + b"\r\n\r\n", 400),
    "a negative length": (HEAD + b"content-length: -1\r\n\r\n", 400),
    "chunks in 1.0": (b"POST /x HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunks twice": (HEAD + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n", 501),
    "another coding": (HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n", 501),
    "identity": (HEAD + b"transfer-encoding: identity\r\n\r\n", 501),
    "chunks in disguise": (HEAD + b"transfer-encoding: \x0bchunked\r\n\r\n", 400),
    "a space before the colon": (HEAD + b"transfer-encoding : chunked\r\n\r\n", 400),
    "a folded line": (HEAD + b"x: 1\r\n transfer-encoding: chunked\r\n\r\n", 400),
    "a folded line with a tab": (HEAD + b"x: 1\r\n\ty\r\n\r\n", 400),
    "a first header that is folded": (b"GET / HTTP/1.1\r\n host: a\r\n\r\n", 400),
    "a bare LF after the request line": (b"GET / HTTP/1.1\nhost: a\r\n\r\n", 400),
    "a bare LF after a header": (HEAD + b"x: 1\ny: 2\r\n\r\n", 400),
    "a bare LF at the end": (b"GET / HTTP/1.1\r\nhost: a\r\n\n", 400),
    "bare LFs alone": (b"GET / HTTP/1.1\nhost: a\n\n", 400),
    "a bare CR": (HEAD + b"x: 1\ry: 2\r\n\r\n", 400),
    "a CR too many": (b"GET / HTTP/1.1\r\r\nhost: a\r\n\r\n", 400),
    "a zero byte": (HEAD + b"x: 1\x002\r\n\r\n", 400),
    "no colon": (HEAD + b"nothing\r\n\r\n", 400),
    "an empty name": (HEAD + b": x\r\n\r\n", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
    "HTTP/0.9": (b"GET /\r\n\r\n", 400),
    "HTTP/1.2": (b"GET / HTTP/1.2\r\nhost: a\r\n\r\n", 505),
    "HTTP/2's preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "AMQP": (b"AMQP\x00\x00\x09\x01", 400),
    "an empty line first": (b"\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    "two spaces": (b"GET  / HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    "a chunk with an extension": (CHUNKED + b"3;x=y\r\nabc\r\n0\r\n\r\n", 400),
    "an extension with a bare CR": (CHUNKED + b"3;\rx\r\nabc\r\n0\r\n\r\n", 400),
    "a size with a space": (CHUNKED + b"3 \r\nabc\r\n0\r\n\r\n", 400),
    "a size in hex": (CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n", 400),
    "a negative size": (CHUNKED + b"-3\r\nabc\r\n0\r\n\r\n", 400),
    "a size of many digits": (CHUNKED + b"0" * 17 + b"3\r\nabc\r\n0\r\n\r\n", 400),
    "a bare LF after a size": (CHUNKED + b"3\nabc\r\n0\r\n\r\n", 400),
    "other bytes after a chunk": (CHUNKED + b"3\r\nabcXX0\r\n\r\n", 400),
    "a bare LF after each line of the chunks": (CHUNKED + b"3\nabc\n0\n\n", 400),
    "bare LFs after the last size": (CHUNKED + b"3\r\nabc\r\n0\n\n", 400),
    "a bare LF after a chunk": (CHUNKED + b"3\r\nabc\n0\r\n\r\n", 400),
    "a bare LF after the last chunk": (CHUNKED + b"3\r\nabc\r\n0\r\n\n", 400),
    "an extension of the last chunk": (CHUNKED + b"3\r\nabc\r\n0;x\r\n\r\n", 400),
    "a trailer": (CHUNKED + b"3\r\nabc\r\n0\r\nx: 1\r\n\r\n", 400),
    "a trailer with bare LFs": (CHUNKED + b"3\r\nabc\r\n0\r\nx: 1\n\n", 400),
    "a large head": (HEAD + b"x: " + b"y" * 5000 + b"\r\n\r\n", 431),
    "a large head without an end": (HEAD + b"x: " + b"y" * 5000, 431),
    "many headers": (HEAD + b"x: 1\r\n" * LINES_MOST + b"\r\n", 431),
    "no path": (b"GET api/x HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    "a star": (b"GET * HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    "a host without a path": (b"CONNECT a:80 HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    "an address of another kind": (b"GET ftp://a/x HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    "an address without a host": (b"GET http:///x HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    "an address with a user": (b"GET http://u:p@a/x HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    "two logins": (HEAD + b"authorization: Basic YTph\r\nAuthorization: Basic Yjpi\r\n\r\n", 400),
    "a path that is no UTF-8": (b"GET /api/queues/%2F/%ff HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    "half of a pair in a path": (b"GET /api/queues/%2F/%ED%A0%80 HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    "a slash in two bytes": (b"GET /api/queues/%2F/%C0%AF HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    "a query that is no UTF-8": (b"GET /api/events?queue=%fe HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    "many parameters": (b"GET /?" + b"&" * PARAMETERS_MOST + b" HTTP/1.1\r\nhost: a\r\n\r\n", 414),
}

TAKEN: dict[str, tuple[bytes, bytes]] = {
    "no body": (b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", b""),
    "a length of nothing": (HEAD + b"content-length: 0\r\n\r\n", b""),
    "a length": (HEAD + b"content-length: 3\r\n\r\nabc", b"abc"),
    "line ends in a body": (HEAD + b"content-length: 6\r\n\r\na\nb\r c", b"a\nb\r c"),
    "chunks": (CHUNKED + b"3\r\nabc\r\n2\r\n\r\n\r\n0\r\n\r\n", b"abc\r\n"),
    "chunks in capitals": (HEAD + b"Transfer-Encoding: CHUNKED\r\n\r\nA\r\n0123456789\r\n0\r\n\r\n", b"0123456789"),
    "no chunk": (CHUNKED + b"0\r\n\r\n", b""),
    "1.0": (b"GET / HTTP/1.0\r\n\r\n", b""),
    "names in UTF-8": (b"GET /%C3%A9%00?%F0%9F%98%80=%2F%25ff HTTP/1.1\r\nhost: a\r\n\r\n", b""),
    "as many parameters as may be": (b"GET /?a" + b"&a" * (PARAMETERS_MOST - 1) + b" HTTP/1.1\r\nhost: a\r\n\r\n", b""),
    "as many headers as may be": (HEAD + b"x: 1\r\n" * (LINES_MOST - 1) + b"\r\n", b""),
}


def whole(data: bytes) -> Iterable[bytes]:
    return [data]


def bytewise(data: bytes) -> Iterable[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def read(pieces: Iterable[bytes]) -> bytes:
    """The body of the only request; RemoteProtocolError as it is raised."""
    connection, body = StrictConnection(4096), b""
    connection.trusted = True
    for piece in pieces:
        connection.receive_data(piece)
        while (event := connection.next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert connection.their_state in {h11.DONE, h11.MUST_CLOSE}
                return body
    raise EOFError


@pytest.mark.parametrize("split", [whole, bytewise])
@pytest.mark.parametrize("name", REFUSED)
def test_what_two_may_read_differently_is_refused(name: str, split: object) -> None:
    data, status = REFUSED[name]
    with pytest.raises(h11.RemoteProtocolError) as refused:
        read(split(data))  # type: ignore[operator]
    assert refused.value.error_status_hint == status


@pytest.mark.parametrize("split", [whole, bytewise])
@pytest.mark.parametrize("name", TAKEN)
def test_what_is_meant_is_taken(name: str, split: object) -> None:
    data, body = TAKEN[name]
    assert read(split(data)) == body  # type: ignore[operator]


@pytest.mark.parametrize(
    ("asked", "target", "host"),
    [
        (b"/x?y=1", b"/x?y=1", b"a"),
        (b"http://b:80/x/%2F?y=http://c/", b"/x/%2F?y=http://c/", b"b:80"),
        (b"HTTPS://[::1]/", b"/", b"[::1]"),
        (b"http://b", b"/", b"b"),
        (b"http://b?y", b"/?y", b"b"),
        (b"//b/x", b"//b/x", b"a"),
    ],
)
def test_a_target_may_name_its_host(asked: bytes, target: bytes, host: bytes) -> None:
    """RFC 9112, 3.2.2."""
    connection = StrictConnection(4096)
    connection.receive_data(b"GET " + asked + b" HTTP/1.1\r\nx: 1\r\nhost: a\r\n\r\n")
    request = connection.next_event()
    assert isinstance(request, h11.Request)
    assert request.target == target
    assert sorted(request.headers) == [(b"host", host), (b"x", b"1")]


def test_no_package_that_happens_to_be_there_takes_a_connection_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `websockets` anybody's connection got another protocol, before a login and behind the guard's back."""
    monkeypatch.setattr(auto, "AutoWebSocketsProtocol", asyncio.Protocol)
    config = HttpServer(None, 4096)._uvicorn.config
    config.load()
    assert config.ws_protocol_class is None


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nhost: a\r\nAuthorization : Basic c2VjcmV0\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nAuthorization: Basic \x0bc2VjcmV0\r\n\r\n",
        b"GET /c2VjcmV0 x HTTP/1.1\r\nhost: a\r\n\r\n",
        CHUNKED + b"3'\"\r\nc2VjcmV0\r\n",
        CHUNKED + b"3\r\nabcc2VjcmV0\r\n",
    ],
)
def test_a_refusal_quotes_nothing_that_may_be_a_secret(said: bytes) -> None:
    """It becomes a line of the server's log."""
    with pytest.raises(h11.RemoteProtocolError) as refused:
        read(bytewise(said))
    told = str(refused.value)
    assert told
    assert not set(told) & set("'\"(")
    assert "c2" not in told


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            HEAD + b"content-length: " + b"9" * 20 + b"\r\n\r\n",
            f"Content-Length has 20 digits, {'9' * 12}..., 19 are allowed",
        ),
        (
            HEAD + b"Content-Length:" + b"1" * 900 + b" \r\n\r\n",
            f"Content-Length has 900 digits, {'1' * 12}..., 19 are allowed",
        ),
        (HEAD + b"content-length: 3x\r\n\r\n", "Content-Length is no whole number of bytes"),
        (HEAD + b"content-length:\r\n\r\n", "Content-Length is no whole number of bytes"),
        (CHUNKED + b"F" * 17, f"the size of a chunk has 17 digits or more, {'F' * 12}..., 16 are allowed"),
        (
            CHUNKED + b"1\r\nx\r\n" + b"0" * 17,
            f"the size of a chunk has 17 digits or more, {'0' * 12}..., 16 are allowed",
        ),
        (CHUNKED + b"x", "the size of a chunk is no number in hexadecimal digits"),
        (CHUNKED + b"\r\n0\r\n\r\n", "the size of a chunk is no number in hexadecimal digits"),
        (CHUNKED + b"1;", "a chunk has more than a size"),
        (CHUNKED + b"1\r\nxy", "a chunk is longer than its size"),
        (CHUNKED + b"1\r\nx\r\n0\r\n" + b"y", "what follows the last chunk is no empty line"),
    ],
)
@pytest.mark.parametrize("split", [whole, bytewise])
def test_a_length_that_is_none_is_refused_in_our_words_once_it_is_seen(split: object, said: bytes, told: str) -> None:
    with pytest.raises(h11.RemoteProtocolError) as refused:
        read(split(said))  # type: ignore[operator]
    assert str(refused.value) == told


def test_a_request_that_was_refused_is_the_last() -> None:
    connection = StrictConnection(4096)
    connection.receive_data(REFUSED["a length beside chunks"][0] + TAKEN["no body"][0])
    for _ in range(3):
        with pytest.raises(h11.RemoteProtocolError, match="Content-Length stands beside Transfer-Encoding"):
            connection.next_event()


def test_a_body_waits_until_its_sender_is_trusted() -> None:
    connection = StrictConnection(4096)
    connection.receive_data(TAKEN["chunks"][0])
    assert isinstance(connection.next_event(), h11.Request)
    assert connection.next_event() is h11.NEED_DATA
    assert connection.withheld
    connection.trusted = True
    assert isinstance(connection.next_event(), h11.Data)
    assert not connection.withheld


def test_requests_one_after_the_other_are_each_judged() -> None:
    connection = StrictConnection(4096)
    connection.trusted = True
    connection.receive_data(TAKEN["chunks"][0] + TAKEN["no body"][0] + REFUSED["a bare CR"][0])
    for _ in range(2):
        assert isinstance(connection.next_event(), h11.Request)
        while not isinstance(connection.next_event(), h11.EndOfMessage):
            pass
        connection.send(h11.Response(status_code=204, headers=[]))
        connection.send(h11.EndOfMessage())
        connection.start_next_cycle()
    assert connection.begun
    with pytest.raises(h11.RemoteProtocolError):
        connection.next_event()


def test_a_body_of_very_many_chunks_is_refused_unless_they_have_something() -> None:
    """Each takes the loop as long as a kilobyte: a body in bytes took it seconds, and others waited."""

    def body(size: int, count: int) -> bytes:
        return CHUNKED + (b"%x\r\n" % size + b"x" * size + b"\r\n") * count + b"0\r\n\r\n"

    more = CHUNKS_MOST + 500
    assert len(read(whole(body(1, CHUNKS_MOST)))) == CHUNKS_MOST
    with pytest.raises(h11.RemoteProtocolError, match=r"bytes of the body came in 10,\d+ chunks: 10,000 are allowed"):
        read(whole(body(1, more)))
    large = body(CHUNK_LEAST, more)
    parts = (large[at : at + 100] for at in range(0, len(large), 100))  # a chunk that comes in parts is one
    assert len(read(parts)) == more * CHUNK_LEAST


def test_chunks_are_counted_anew_for_each_body() -> None:
    connection = StrictConnection(4096)
    connection.trusted = True
    one = CHUNKED + b"1\r\nx\r\n" * (CHUNKS_MOST * 2 // 3) + b"0\r\n\r\n"
    connection.receive_data(one + one)
    for _ in range(2):
        while not isinstance(connection.next_event(), h11.EndOfMessage):
            pass
        connection.send(h11.Response(status_code=204, headers=[]))
        connection.send(h11.EndOfMessage())
        connection.start_next_cycle()
