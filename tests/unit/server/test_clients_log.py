"""What an operator reads in the log about clients: each mistake that closed something, and each end without a close."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from penstock.errors import MemoryShort
from penstock.server.amqp.door import OPEN_TIMEOUT_US, unread
from penstock.server.base.loading import OneLine
from penstock.server.sockets.strangers import MOST, TOLD_S
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.frames import METHOD, frame
from sim.serverkit import HANDSHAKE, Client, Life

WHO = "amqp: 'worker-7' (user 'guest', 127.0.0.1:5000): "

Lines = Callable[[], list[str]]


@pytest.fixture(params=[False, True], ids=["here", "door"], autouse=True)
def apart(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether clients come to a door beside the core."""
    monkeypatch.setattr("sim.serverkit.APART", request.param)
    return bool(request.param)


@pytest.fixture
def lines(life: Life, caplog: pytest.LogCaptureFixture) -> Lines:
    """What was written since it was asked last."""
    caplog.set_level(logging.INFO)
    beat(life, int(TOLD_S * 1e6))
    caplog.clear()

    def read() -> list[str]:
        life.run()
        told = [OneLine().format(one) for one in caplog.records]
        caplog.clear()
        return told

    return read


def beat(life: Life, micros: int) -> None:
    life.advance(micros)
    life.door.beat()
    for door in life.doors:
        door.host.beat()
    life.run()


@pytest.fixture
def worker(life: Life, lines: Lines) -> Client:
    return life.client(called="worker-7", heartbeat=10)


def test_a_refusal_is_told_with_its_method_and_an_ack_of_nothing_too(worker: Client, lines: Lines) -> None:
    worker.method(m.QueueDeclare(queue="none", passive=True))
    assert lines() == [WHO + "channel 1 was closed at queue.declare: NOT_FOUND - no queue 'none' in vhost '/'"]
    worker.channel(2)
    worker.ack(77, 2)
    assert lines() == [WHO + "channel 2 was closed at basic.ack: PRECONDITION_FAILED - unknown delivery tag 77"]


def test_what_the_reader_of_frames_refuses_is_told(worker: Client, lines: Lines) -> None:
    worker.method(m.QueueDeclare(queue="q"), 9)
    assert lines() == [WHO + "the connection was closed: CHANNEL_ERROR - expected 'channel.open'"]


def test_bytes_that_are_no_frames_are_told_with_whose_they_are(worker: Client, lines: Lines) -> None:
    worker.send(b"GET / HTTP/1.1\r\n\r\n")
    [line] = lines()
    assert line.startswith(WHO + "the connection was closed: FRAME_ERROR - ")


def test_a_vhost_that_is_not_there(life: Life, lines: Lines) -> None:
    client = Client(life, login=False)
    opened = frame(METHOD, 0, m.ConnectionOpen("nope").encode())
    for part in (*HANDSHAKE[:3], opened):
        client.send(part)
        life.run()
    client.lose()
    assert lines() == [
        "amqp: (user 'guest', 127.0.0.1:5000): the connection was closed: NOT_ALLOWED - vhost nope not found"
    ]


def test_who_closes_leaves_no_line_and_whose_socket_ends_leaves_one(life: Life, worker: Client, lines: Lines) -> None:
    good = life.client(called="good")
    good.method(m.ConnectionClose(200, "bye"), 0)
    life.run()
    good.lose()
    assert lines() == []
    worker.lose()
    assert lines() == [WHO + "the connection ended without a close"]


def test_who_is_silent_is_told_by_name(life: Life, worker: Client, lines: Lines) -> None:
    beat(life, 30_000_000)
    assert worker.closed
    worker.lose()
    assert lines() == [WHO + "the connection was cut off: nothing came from it for twice its heartbeat of 10 s"]


def test_who_opens_nothing_is_cut_off_with_a_reason(life: Life, lines: Lines) -> None:
    client = Client(life, login=False)
    for part in HANDSHAKE[:3]:
        client.send(part)
        life.run()
    beat(life, OPEN_TIMEOUT_US + 1_000_000)
    client.lose()
    assert lines() == ["amqp: (user 'guest', 127.0.0.1:5000): the connection was cut off: it opened no vhost in 30 s"]


def test_who_does_not_read_while_memory_is_short(life: Life, worker: Client, lines: Lines, apart: bool) -> None:
    worker.waiting = 1000
    if apart:
        life.doors[0].host.beat()
        life.run()
    [held] = unread([worker.session])
    held.cut(MemoryShort("what it does not read is wanted"))
    life.run()
    worker.lose()
    assert lines() == [WHO + "the connection was cut off: what it does not read is wanted"]


def test_an_operator_and_a_stop_leave_no_lines(life: Life, worker: Client, lines: Lines) -> None:
    worker.session.close_by_server("CONNECTION_FORCED - bye")
    life.run()
    worker.lose()
    assert lines() == []


def test_a_client_that_comes_again_and_again_has_one_line(life: Life, lines: Lines) -> None:
    for port in range(6000, 6030):
        client = life.client(called="again", peer=f"127.0.0.1:{port}")
        client.method(m.QueueDeclare(queue="none", passive=True))
        life.run()
        client.lose()
    first, second = lines()
    assert "6000): channel 1 was closed" in first
    assert "6000): the connection ended without a close" in second
    beat(life, int(TOLD_S * 1e6))
    assert lines() == [f"amqp: 58 more such lines about clients in {TOLD_S:g} s"]


def test_many_with_mistakes_of_their_own_have_a_bounded_number_of_lines(life: Life, lines: Lines) -> None:
    client = life.client()
    for one in range(3 * MOST):
        client.channel(one + 2)
        client.method(m.QueueDeclare(queue=f"none-{one}", passive=True), one + 2)
        life.run()
    assert len(lines()) == MOST
    beat(life, int(TOLD_S * 1e6))
    assert lines() == [f"amqp: {2 * MOST} more such lines about clients in {TOLD_S:g} s"]


def test_no_name_can_write_lines_of_its_own(life: Life, lines: Lines) -> None:
    client = life.client(called="a\nb" + "x" * 200)
    client.method(m.QueueDeclare(queue="a\nb\x1b[31m", passive=True))
    life.run()
    client.lose()
    refused, ended = lines()
    assert r"NOT_FOUND - no queue 'a\nb\x1b[31m' in vhost '/'" in refused
    assert refused.isprintable()
    assert ended.isprintable()
    assert len(ended) < 200
