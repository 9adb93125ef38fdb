"""Whoever waits for a server that says nothing is heard when he has had enough: Ctrl-C, or any handler that raises."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from penstock.client.client import Client, connect
from penstock.client.link import Link
from penstock.client.urls import parse_url
from penstock.client.waiting import IDLE_MOST, attended, begun, come
from penstock.errors import Unavailable
from penstock.testing import Broker

GIVEN_UP_S = 20.0
"""After which the server hangs up, so that a deaf client is a failed test and none that hangs."""


class Silent:
    """A server that takes connections and says nothing."""

    def __init__(self) -> None:
        self._listens = socket.create_server(("127.0.0.1", 0))
        self.port = self._listens.getsockname()[1]
        self.over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        taken, _ = self._listens.accept()
        taken.recv(1)  # the client is connected as far as it knows, and waits
        os.kill(os.getpid(), signal.SIGINT)
        self.over.wait(GIVEN_UP_S)
        self.over.set()
        taken.close()

    def close(self) -> None:
        self.over.set()
        self._thread.join()
        self._listens.close()


@pytest.fixture
def silent() -> Iterator[Silent]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # another test may have left its own
    server = Silent()
    yield server
    server.close()
    signal.signal(signal.SIGINT, before)


CALLS: dict[str, Callable[[Client], object]] = {
    "action": lambda client: client.health(),
    "list": lambda client: client.queues(),
    "query": lambda client: client.query("SELECT 1").rows(),
    "peek": lambda client: list(client.peek("q")),
    "replay": lambda client: list(client.replay("q", follow=True)),
    "replay_timeout": lambda client: list(client.replay("q", follow=True, timeout=300)),
    "batches": lambda client: list(client.replay_batches("q")),
    "subscribe": lambda client: list(client.sow_and_subscribe("q")),
    "publish": lambda client: client.publish("q", b"x"),
    "consume": lambda client: list(client.consume("q")),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_waits_for_its_server_hears_ctrl_c(silent: Silent, call: str) -> None:
    client = Client(Link(parse_url(f"penstock://127.0.0.1:{silent.port}"), None))
    with pytest.raises(KeyboardInterrupt):
        CALLS[call](client)
    assert not silent.over.is_set(), f"{call} heard it when the server was gone"
    client.close()
    assert not silent.over.is_set(), f"{call}: closing waited for the server"


def test_a_server_that_says_nothing_is_told_as_that_with_the_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listens:
        port = listens.getsockname()[1]
        with pytest.raises(
            Unavailable, match=rf"at penstock://guest@127\.0\.0\.1:{port}/: nothing was heard from .* 0.2 s$"
        ):
            connect(f"penstock://127.0.0.1:{port}", timeout=0.2)


def test_calls_that_others_make_give_back_what_came_of_them() -> None:
    assert attended(lambda: 7) == 7
    assert attended(threading.current_thread) is not threading.main_thread()
    with pytest.raises(StopIteration):
        attended(lambda: next(iter(())))
    made = begun(threading.Event().wait)
    assert not come(made, 0)


def test_threads_that_made_calls_make_the_next_ones_and_few_stay() -> None:
    assert len({attended(threading.get_ident) for _ in range(50)}) == 1
    go = threading.Event()
    calls = [begun(go.wait) for _ in range(4 * IDLE_MOST)]
    go.set()
    assert all(come(one, 60) for one in calls)
    threads = [one for one in threading.enumerate() if one.name == "penstock-call"]
    for one in threads[IDLE_MOST:]:
        one.join(0.01)
    assert attended(threading.get_ident)


def test_a_call_of_another_thread_is_made_there() -> None:
    found = list[int]()
    thread = threading.Thread(target=lambda: found.append(attended(threading.get_ident)))
    thread.start()
    thread.join()
    assert found == [thread.ident]


def test_a_call_while_python_ends_waits_for_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads stand still then: a `__del__` that published, or asked, kept its process for ever."""
    attended(threading.get_ident)  # whose thread waits for the next
    monkeypatch.setattr(sys, "is_finalizing", lambda: True)
    assert attended(threading.get_ident) == threading.get_ident()


WHILE_PYTHON_ENDS = """if True:
    import signal, sys
    import penstock

    class Late:
        def __init__(self, *calls):
            self.calls = calls

        def __del__(self, wrong=penstock.PenstockError):
            assert sys.is_finalizing()
            signal.alarm(20)  # what waits for ever is killed
            for call in self.calls:
                try:
                    told = call()
                except wrong as error:
                    told = type(error).__name__, str(error)
                print(told, flush=True)

    client = penstock.connect(sys.argv[1])
    consumer = client.consume("q", backlog=2)
    first = consumer.take()
    consumer.catch_up()
    replay = client.replay("q", follow=True)
    next(replay)
    late = Late(
        lambda: client.consume("q"),
        lambda: consumer.take().body,
        lambda: consumer.take(),
        lambda: consumer.take(3),
        lambda: consumer.replace(max_backlog=5),
        lambda: [next(replay) for _ in range(9)],
        lambda: first.ack(),
        lambda: consumer.flush(),
        lambda: (consumer.close(), client.close()),
    )
"""


def test_who_waits_for_what_comes_while_python_ends_is_told_and_what_is_settled_then_is() -> None:
    with Broker({"queue": [{"name": "q"}]}) as broker:
        broker.publish("q", b"1")
        broker.publish("q", b"2")
        done = subprocess.run(
            [sys.executable, "-c", WHILE_PYTHON_ENDS, broker.flight_url],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        ends = str(("PreconditionFailed", "Python ends, and nothing that a server sends is heard: wait for it before"))
        assert (done.stdout.splitlines(), done.returncode) == (
            [ends, "b'2'", ends, ends, ends, ends, "True", ends, "(None, None)"],
            0,
        ), done.stderr
        assert broker.stats("q")["ready"] == 1
