"""The last words of a connection reach the client, whoever ends it, and whatever the client is still writing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pika import frame, spec

from live_server import LiveServer
from rawlink import RawLink, raw_frame

pytestmark = pytest.mark.conformance

MORE = raw_frame(3, 1, bytes(100_000)) * 80
"""8 MB of a body: more than the sockets between two ends hold."""

LESS = MORE[: len(MORE) * 3 // 80]
"""300 kB, which are sent three times: whoever has not logged in is not listened to for longer than 1 MiB."""

Last = tuple[type[Any], int] | bytes | None
"""A method and its reply code, bytes that are no frame, or nothing."""


def _closes(link: RawLink) -> None:
    link.ready()
    link.method(spec.Connection.Close(200, "", 0, 0), 0)


def _errs(link: RawLink) -> None:
    link.ready()
    link.method(spec.Basic.Qos(), 5)


def _breaks_a_frame(link: RawLink) -> None:
    link.ready()
    link.send(raw_frame(7, 1, b"x"))


def _has_a_wrong_password(link: RawLink) -> None:
    link.greet()
    link.log_in("wrong")


def _is_old_and_has_a_wrong_password(link: RawLink) -> None:
    link.greet()
    link.log_in("wrong", capabilities={})


def _wants_a_missing_vhost(link: RawLink) -> None:
    link.open("nope")


def _speaks_http(link: RawLink) -> None:
    link.send(b"GET / HTTP/1.1\r\n\r\n")


SLOW = (_has_a_wrong_password, _is_old_and_has_a_wrong_password)
"""They are answered late, and until then so many bytes are a mistake of their own."""

STRANGE = (*SLOW, _speaks_http)


@pytest.mark.parametrize(
    ("act", "last"),
    [
        (_closes, (spec.Connection.CloseOk, 0)),
        (_errs, (spec.Connection.Close, 504)),
        (_breaks_a_frame, (spec.Connection.Close, 501)),
        (_has_a_wrong_password, (spec.Connection.Close, 403)),
        (_is_old_and_has_a_wrong_password, None),
        (_wants_a_missing_vhost, (spec.Connection.Close, 530)),
        (_speaks_http, b"AMQP\x00\x00\x09\x01"),
    ],
)
def test_a_client_that_goes_on_writing_hears_the_last_words(
    server: LiveServer, act: Callable[[RawLink], None], last: Last
) -> None:
    """A socket that is closed with bytes nobody has read is reset, and what was said last is lost with it."""
    more_bytes = LESS if act in STRANGE else MORE
    with RawLink(server.port) as link:
        act(link)
        if act not in SLOW:
            link.send(more_bytes)
        if isinstance(last, tuple):
            told = link.expect(last[0])
            assert getattr(told, "reply_code", 0) == last[1]
            if last[0] is spec.Connection.Close:
                link.send(more_bytes + frame.Method(0, spec.Connection.CloseOk()).marshal() + more_bytes)
        rest = link.buffer
        while more := link.socket.recv(65_536):
            rest += more
        assert rest == (last if isinstance(last, bytes) else b"")
        link.send(more_bytes)  # also after the server has said that nothing follows
