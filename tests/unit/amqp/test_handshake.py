"""The start of a connection: every way in, and every way to be refused."""

from __future__ import annotations

import tracemalloc

import pytest

from penstock.records.field_tables import encode_table
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.conversation import Phase
from penstock.wire.amqp.events import ConnectionClosed, ConnectionFailed, LoginAsked, OpenAsked
from penstock.wire.amqp.frames import HEARTBEAT_FRAME, OLD_PROTOCOL_HEADER, PROTOCOL_HEADER, Limits
from penstock.wire.amqp.machine import ServerConnection
from unit.amqp.peer import LOGIN, frames_in, method, opened, sent, tune_ok


def started(header: bytes = PROTOCOL_HEADER) -> ServerConnection:
    connection = ServerConnection(version="1.2.3")
    assert connection.receive(header) == []
    return connection


@pytest.mark.parametrize("header", [PROTOCOL_HEADER, OLD_PROTOCOL_HEADER])
def test_server_introduces_itself(header: bytes) -> None:
    [(channel, start)] = sent(started(header))
    assert channel == 0
    assert isinstance(start, m.ConnectionStart)
    assert (start.version_major, start.version_minor) == (0, 9)
    assert start.mechanisms == b"PLAIN AMQPLAIN"
    assert start.locales == b"en_US"
    assert start.server_properties["version"] == "1.2.3"
    capabilities = start.server_properties["capabilities"]
    assert isinstance(capabilities, dict)
    assert capabilities.pop("publisher_confirms") is True
    assert len(capabilities) == 8
    assert all(value is True for value in capabilities.values())


@pytest.mark.parametrize(
    ("header", "spoken"),
    [
        (b"AMQP\x00\x01\x00\x00", "AMQP 1.0"),
        (b"AMQP\x03\x01\x00\x00", "AMQP 1.0"),
        (b"GET / HT", "HTTP"),
        (b"OPTIONS ", "HTTP"),
        (b"CONNECT ", "HTTP"),
        (b"CONNECT\n", "STOMP"),
        (b"STOMP\r\na", "STOMP"),
        (b"PROXY TC", "the PROXY protocol"),
        (b"\r\n\r\n\x00\r\nQ", "the PROXY protocol"),
        (b"\x10\x0c\x00\x04MQTT", "MQTT"),
        (b"\x10\x8c\x01\x00\x04MQT", "MQTT"),
        (b"\x00\x00\x01\x0a\x00\x11\x00\x01", "RabbitMQ's stream protocol"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "TLS"),
        (b"AMQP\x00\x00\x08\x00", None),
        (b"\n\n\n\n\n\n\n\n", None),
    ],
)
def test_other_protocols_are_told_ours(header: bytes, spoken: str | None) -> None:
    connection = ServerConnection()
    assert connection.receive(header[:3]) == []
    [event] = connection.receive(header[3:] + b"more")
    assert isinstance(event, ConnectionFailed)
    assert event.drop
    said = f"it speaks {spoken}, and this port does not"
    assert event.text == (said if spoken else f"what begins with {header!r} is not AMQP 0-9-1")
    assert connection.take_output() == PROTOCOL_HEADER
    assert connection.finished
    assert connection.receive(b"anything") == []


def test_plain_login_tune_and_open() -> None:
    connection = ServerConnection(Limits(heartbeat=30))
    assert connection.receive(LOGIN) == [LoginAsked("PLAIN", "guest", "secret")]
    connection.take_output()
    connection.accept_login()
    assert sent(connection) == [(0, m.ConnectionTune(2047, 131072, 30))]
    assert connection.receive(tune_ok(connection.limits, frame_max=8192, channel_max=10, heartbeat=7)) == []
    assert connection.receive(method(0, m.ConnectionOpen("v"))) == [OpenAsked("v")]
    connection.accept_open()
    assert sent(connection) == [(0, m.ConnectionOpenOk())]
    assert (connection.frame_max, connection.channel_max, connection.heartbeat) == (8192, 10, 7)
    assert connection.phase is Phase.RUNNING


def test_amqplain_login_and_client_capabilities() -> None:
    connection = started()
    response = encode_table({"LOGIN": "u", "PASSWORD": "p"})[4:]
    properties = {"capabilities": {"connection.blocked": True, "basic.nack": False}, "product": "test"}
    events = connection.receive(method(0, m.ConnectionStartOk(properties, "AMQPLAIN", response)))
    assert events == [LoginAsked("AMQPLAIN", "u", "p")]
    assert connection.client_capabilities == {"connection.blocked"}
    assert connection.client_properties["product"] == "test"


def test_what_a_client_says_of_itself_costs_about_its_bytes() -> None:
    """As values the 8 KiB of a first frame took 156 KiB, before anybody had logged in."""
    names = [f"{n:x}" for n in range(1650)]
    first = method(0, m.ConnectionStartOk(dict.fromkeys(names), response=b"\0guest\0guest"))
    second = method(0, m.ConnectionStartOk({"capabilities": dict.fromkeys(names[:1200], True)}, response=b"\0u\0p"))
    for said in (first, second):
        assert len(said) <= Limits().handshake_frame
        tracemalloc.start()
        try:
            connection = started()
            assert isinstance(connection.receive(said)[0], LoginAsked)
            connection.take_output()
            assert tracemalloc.get_traced_memory()[0] < 24 << 10
        finally:
            tracemalloc.stop()
        assert len(connection.client_properties) in {1, len(names)}


@pytest.mark.parametrize(
    ("start", "code"),
    [
        (m.ConnectionStartOk(mechanism="EXTERNAL"), 503),
        (m.ConnectionStartOk(response=b"guest"), 502),
        (m.ConnectionStartOk(response=b"someone\0guest\0guest"), 502),
        (m.ConnectionStartOk(response=b"\0\xff\0guest"), 502),
        (m.ConnectionStartOk(mechanism="AMQPLAIN", response=b""), 502),
        (m.ConnectionStartOk(mechanism="AMQPLAIN", response=b"\x05LOGIN"), 501),
        (m.ConnectionTuneOk(0, 0, 0), 504),
        (m.ConnectionOpen("/"), 504),
    ],
)
def test_logins_without_form_close_the_connection(start: m.Method, code: int) -> None:
    connection = started()
    connection.take_output()
    [event] = connection.receive(method(0, start))
    assert isinstance(event, ConnectionFailed)
    [(_, close)] = sent(connection)
    assert isinstance(close, m.ConnectionClose)
    assert (close.reply_code, event.code) == (code, code)
    assert close.class_id << 16 | close.method_id == start.ID


def test_refused_login_says_403_only_to_those_who_can_take_it() -> None:
    connection = ServerConnection()
    connection.receive(LOGIN)
    connection.take_output()
    connection.refuse_login()
    assert connection.take_output() == b""
    assert connection.finished

    connection = started()
    able = {"capabilities": {"authentication_failure_close": True}}
    connection.receive(method(0, m.ConnectionStartOk(able, response=b"\0a\0b")))
    connection.take_output()
    connection.refuse_login()
    text = "Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
    assert sent(connection) == [(0, m.ConnectionClose(403, f"ACCESS_REFUSED - {text}", 10, 11))]
    assert connection.receive(method(0, m.ConnectionCloseOk())) == [ConnectionClosed(0, "")]
    assert connection.finished


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"frame_max": 0}, "negotiated frame_max = 0 (no limit) is higher than the maximum allowed value (131072)"),
        ({"frame_max": 200_000}, "negotiated frame_max = 200000 is higher than the maximum allowed value (131072)"),
        ({"frame_max": 4095}, "negotiated frame_max = 4095 is lower than the minimum allowed value (4096)"),
        ({"channel_max": 0}, "negotiated channel_max = 0 (no limit) is higher than the maximum allowed value (2047)"),
        ({"channel_max": 2048}, "negotiated channel_max = 2048 is higher than the maximum allowed value (2047)"),
    ],
)
def test_tune_beyond_the_offer_is_refused(changes: dict[str, int], text: str) -> None:
    connection = ServerConnection()
    connection.receive(LOGIN)
    connection.accept_login()
    connection.take_output()
    [event] = connection.receive(tune_ok(connection.limits, **changes))
    assert event == ConnectionFailed(530, f"NOT_ALLOWED - {text}")
    assert sent(connection) == [(0, m.ConnectionClose(530, f"NOT_ALLOWED - {text}", 10, 31))]


def test_refused_vhost() -> None:
    connection = ServerConnection()
    connection.receive(LOGIN)
    connection.accept_login()
    connection.receive(tune_ok(connection.limits) + method(0, m.ConnectionOpen("nope")))
    connection.take_output()
    connection.fail_connection(530, "vhost nope not found", m.ConnectionOpen)
    assert sent(connection) == [(0, m.ConnectionClose(530, "NOT_ALLOWED - vhost nope not found", 10, 40))]


def test_what_comes_before_an_answer_waits_for_it() -> None:
    connection = ServerConnection()
    rest = tune_ok(connection.limits) + method(0, m.ConnectionOpen("/"))
    assert connection.receive(LOGIN + rest[:10]) == [LoginAsked("PLAIN", "guest", "secret")]
    assert connection.receive(rest[10:]) == []
    assert not connection.unread
    connection.accept_login()
    assert connection.unread
    assert connection.receive(b"") == [OpenAsked("/")]
    assert not connection.unread


def test_frames_before_open_are_small() -> None:
    connection = started()
    connection.take_output()
    [event] = connection.receive(b"\x01\x00\x00" + (8185).to_bytes(4, "big"))
    assert event == ConnectionFailed(501, "FRAME_ERROR - type 1, channel 0: frame of 8193 bytes, limit 8192", drop=True)
    assert connection.finished


def test_bytes_before_open_have_a_budget() -> None:
    connection = started()
    for _ in range(8192):
        connection.receive(HEARTBEAT_FRAME)
    assert connection.finished
    [(_, _), (_, close)] = sent(connection)
    assert isinstance(close, m.ConnectionClose)
    assert close.reply_code == 501


def test_client_may_close_during_the_handshake() -> None:
    connection = started()
    connection.take_output()
    assert connection.receive(method(0, m.ConnectionClose(200, "bye"))) == [ConnectionClosed(200, "bye")]
    connection.send(0, m.ConnectionCloseOk())
    assert sent(connection) == [(0, m.ConnectionCloseOk())]
    assert connection.finished


def test_a_shell_that_gives_up_before_the_header_writes_nothing() -> None:
    connection = ServerConnection()
    connection.fail_connection(501, "no header")
    assert connection.take_output() == b""
    assert connection.finished


def test_running_connection_takes_large_frames() -> None:
    connection = opened()
    assert list(frames_in(connection.take_output())) == []
    assert connection.receive(b"\x08\x00\x00") == []
