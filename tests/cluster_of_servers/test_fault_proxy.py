"""The proxy of the tests does to connections what it says, to the callers it is told of."""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from fault_proxy import Fault, Network, Way, caller_of

WAIT_S = 20.0


@pytest.fixture
def way() -> Iterator[Way]:
    """To a server that says everything again."""
    with socket.create_server(("127.0.0.1", 0)) as echo, Network() as network:
        threading.Thread(target=serve, args=(echo,), daemon=True).start()
        yield network.way(echo.getsockname()[1], lambda: [os.getpgid(0)])


def serve(echo: socket.socket) -> None:
    while True:
        try:
            one, _ = echo.accept()
        except OSError:
            return
        threading.Thread(target=answer, args=(one,), daemon=True).start()


def answer(one: socket.socket) -> None:
    with one:
        try:
            while data := one.recv(100):
                one.sendall(data)
        except OSError:
            pass


def call(way: Way) -> socket.socket:
    return socket.create_connection(("127.0.0.1", way.port), WAIT_S)


def said(one: socket.socket, text: bytes) -> bytes:
    """What comes back, within a while."""
    one.sendall(text)
    return one.recv(100)


def silent(one: socket.socket, text: bytes) -> bool:
    """Whether nothing comes back, not even an end."""
    one.sendall(text)
    one.settimeout(0.2)
    try:
        one.recv(100)
    except TimeoutError:
        return True
    else:
        return False
    finally:
        one.settimeout(WAIT_S)


def test_all_passes_and_the_caller_is_known(way: Way) -> None:
    with call(way) as one:
        assert said(one, b"a") == b"a"
        here = one.getsockname()[1]
        assert caller_of(here, way.port, [os.getpgid(0)]) == os.getpgid(0)
        assert caller_of(here, way.port, [1]) == 0


@pytest.mark.parametrize("fault", [Fault.SILENT, Fault.TOWARDS, Fault.BACK])
def test_what_was_held_comes_when_it_heals(way: Way, fault: Fault) -> None:
    with call(way) as one:
        assert said(one, b"a") == b"a"
        way.fault(fault, os.getpgid(0))
        assert silent(one, b"b")
        way.heal()
        assert one.recv(100) == b"b"


def test_a_cut_is_told_at_once(way: Way) -> None:
    with call(way) as one:
        assert said(one, b"a") == b"a"
        way.fault(Fault.CUT)
        try:
            assert one.recv(100) == b""
        except ConnectionError:
            pass
        with call(way) as other:
            assert other.recv(1) == b""
        way.heal()
        with call(way) as other:
            assert said(other, b"b") == b"b"


def test_a_caller_of_a_half_open_connection_is_never_told(way: Way) -> None:
    with call(way) as one:
        assert said(one, b"a") == b"a"
        way.fault(Fault.HALF_OPEN)
        assert silent(one, b"b")
        way.heal()
        assert silent(one, b"c")


def test_whoever_comes_at_the_very_end_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    left, held, hold = list[object](), threading.Event(), threading.Event()
    monkeypatch.setattr(sys, "unraisablehook", left.append)

    def stand() -> None:
        held.set()
        hold.wait(WAIT_S)

    with socket.create_server(("127.0.0.1", 0)) as echo, ExitStack() as stack:
        with Network() as network:
            way = network.way(echo.getsockname()[1])
            network._loop.call_soon_threadsafe(stand)
            assert held.wait(WAIT_S)
            for _ in range(3):
                stack.enter_context(call(way))  # the kernel has taken it
            threading.Timer(0.05, hold.set).start()  # the network's thread is asked to end, and then finds them
        gc.collect()
    assert left == []


def test_a_fault_is_of_those_it_was_set_for(way: Way) -> None:
    way.fault(Fault.SILENT, 1)
    with call(way) as one:
        assert said(one, b"a") == b"a"
