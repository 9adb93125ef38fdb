"""The Flight door's process: whatever ends it, stops it or fills it, all others go on, and it is back.

pyarrow's server does much before any code of ours sees it, and some of that ends the process it is in.
"""

from __future__ import annotations

import base64
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from pika.adapters.blocking_connection import BlockingChannel

import penstock
from choices import EFFORT
from forked import beside
from hostile.arrow_streams import Message, valid_streams
from hostile.greedy import greedy
from hostile.pressing import BOUNDS, Pressed
from hostile.strangers import PREFACE, SETTINGS, h2_frame, literal
from hostile.watching import MIB
from live_server import LiveServer
from penstock import PenstockError
from penstock.server.flight.front import BEHIND
from waiting import eventually

BACK_S = 20.0
"""It is back within a second of its end (`benchmarks/bench_doors.py`); a busy machine may take longer."""

MESSAGES = 300
WAITING = 100


def door_of(pid: int | None) -> int:
    """The process of a server's Flight door."""
    assert pid is not None
    [door] = beside(pid, "penstock.server.flight.front")
    return door


class OwnDoor(LiveServer):
    """Its door is a child of its own, in the eyes of the system."""

    children_load = True


class SmallDoor(LiveServer):
    """Its door is full with less: who fills one has several times as much."""

    program = (str(Path(__file__).parents[1] / "small_door_server.py"),)


def another_door(pid: int | None, door: int) -> bool:
    with suppress(ValueError, OSError):
        return door_of(pid) != door
    return False


@contextmanager
def serving(folder: Path, settings: str = "", kind: type[LiveServer] = LiveServer) -> Iterator[LiveServer]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.toml").write_text(settings)
    with kind(folder, [str(folder / "settings.toml")], flight=True) as server:
        try:
            yield server
        except Exception as error:
            error.add_note(server.output())
            raise
        assert "Traceback" not in server.output(), server.output()
        assert server.process is not None
        assert server.process.poll() is None, server.output()


def url_of(server: LiveServer) -> str:
    return f"penstock://guest:guest@{server.ready['flight']}"


def until_back(server: LiveServer) -> float:
    """Seconds until the door answers."""
    began = time.monotonic()

    def answers() -> bool:
        with suppress(PenstockError), penstock.connect(url_of(server), timeout=10.0) as client:
            return bool(client.overview())
        return False

    eventually(answers, "the door does not answer")
    return time.monotonic() - began


@pytest.fixture(scope="module")
def pressed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pressed]:
    """One server for both, of which the second ends the door."""
    with Pressed(tmp_path_factory.mktemp("pressed")) as pressed:
        yield pressed


def test_a_message_of_any_size_after_a_login_does_not_take_the_memory(pressed: Pressed) -> None:
    """gRPC reads it whole and pyarrow gives it no limit: it is refused in the door, and nothing of it leaves that."""
    done = greedy(pressed.server.ready["flight"], "guest", 100, "known")
    assert done.returncode == 0, done.stderr
    assert "bytes of JSON; at most" in done.stdout
    pressed.bounds = replace(BOUNDS, memory=80 * MIB)
    pressed.judge()


def test_a_dictionary_and_a_word_after_it_do_not_end_the_process(pressed: Pressed) -> None:
    """pyarrow's reader follows a null pointer when a message without data comes where it waits for dictionaries."""
    stream = valid_streams()["settle dictionary"]
    _, schema, dictionary, *_ = stream.messages
    sent = replace(stream, messages=[schema, dictionary, Message(metadata=b'{"heartbeat": true}')])
    pressed.bounds = replace(BOUNDS, lines=1)  # the end of the door is told
    door = door_of(pressed.watched.pid)
    pressed.wire.exchange(sent.frames())
    eventually(lambda: another_door(pressed.watched.pid, door), "the door was not ended, or is not back")
    until_back(pressed.server)
    pressed.wire.again()
    pressed.judge()


SMALL = """
[server]
memory = "64MiB"
"""


def test_a_message_that_takes_all_of_a_doors_memory_is_cut_and_the_door_goes_on(tmp_path: Path) -> None:
    """Nobody can say how long a message gRPC reads; the door ended, with the calls of all others."""
    with serving(tmp_path, SMALL, SmallDoor) as server:
        assert server.process is not None
        door = door_of(server.process.pid)
        greedy(server.ready["flight"], "guest", 350, "known")
        until_back(server)
        assert door_of(server.process.pid) == door, server.output()
        server.hears("is cut")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One that outlives door after door."""
    with serving(tmp_path_factory.mktemp("doors")) as server:
        yield server


@pytest.mark.parametrize("strangers", [True, False])
def test_a_door_that_has_no_memory_for_its_guards_ends_and_is_back(server: LiveServer, strangers: bool) -> None:
    """One that went on would look after no stranger, and fail every call, for as long as the server runs."""
    assert server.process is not None
    door = door_of(server.process.pid)
    told = Path(f"/proc/{door}/status").read_text().splitlines()
    has = next(int(line.split()[1]) << 10 for line in told if line.startswith("VmData"))
    resource.prlimit(door, resource.RLIMIT_DATA, (has, has))
    host, _, port = server.ready["flight"].rpartition(":")
    with ExitStack() as stack, suppress(OSError):
        for _ in range(60 if strangers else 0):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
    eventually(lambda: another_door(server.process and server.process.pid, door), "it went on")
    until_back(server)


def publishing(client: penstock.Client) -> None:
    for number in range(MESSAGES):
        client.publish("kept", {"n": number})


def uploading(client: penstock.Client) -> None:
    import pyarrow as pa

    for _ in range(20):
        client.publish_table("kept", pa.table({"body": [b"x" * 1000] * 5000}))


def consuming(client: penstock.Client) -> None:
    for message in client.consume("kept", backlog=20, reconnect=0):
        message.ack()


STATES: dict[str, Callable[[penstock.Client], None]] = {
    "a_publish": publishing,
    "an_upload": uploading,
    "a_delivery": consuming,
}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_door_that_ends_gives_back_what_it_held(server: LiveServer, how: signal.Signals) -> None:
    """Its clients' leases return, what was confirmed is there, and the other doors notice nothing; door after door."""
    channel = server.connect().channel()
    channel.confirm_delivery()
    for state in STATES if how is signal.SIGKILL or EFFORT > 1 else ("a_delivery",):
        door_ends(server, channel, state, how)


def door_ends(server: LiveServer, channel: BlockingChannel, state: str, how: signal.Signals) -> None:
    """While somebody does this."""
    assert server.process is not None
    pid = server.process.pid
    channel.queue_declare("kept", durable=True)
    for number in range(WAITING):
        channel.basic_publish("", "kept", b"%d" % number)
    door, failed = door_of(pid), list[BaseException]()

    def work() -> None:
        try:
            with penstock.connect(url_of(server)) as client:
                STATES[state](client)
        except PenstockError as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def begun() -> bool:
        return bool(channel.queue_declare("kept", passive=True).method.message_count != WAITING)

    eventually(begun, f"{state}: the door does nothing yet")
    os.kill(door, how)
    began = time.monotonic()
    for number in range(WAITING, WAITING + 50):
        channel.basic_publish("", "kept", b"%d" % number)
    eventually(lambda: another_door(pid, door), f"{state}: no other door began")
    spent = time.monotonic() - began
    assert spent < (BACK_S if how is signal.SIGKILL else 5.0 + BACK_S), state
    until_back(server)
    with penstock.connect(url_of(server)) as client:
        thread.join(60)
        assert not thread.is_alive(), state
        eventually(lambda: client.queue("kept")["leased"] == 0, f"{state}: leases stayed behind")
        assert client.publish("kept", b"again").outcome == "stored"
        eventually(lambda: client.queue("kept")["consumers"] == 0, f"{state}: consumers stayed behind")
    channel.queue_delete("kept")


def test_where_cores_are_few_a_server_comes_before_its_door_which_ends_with_it(tmp_path: Path) -> None:
    """What strangers keep busy there made everybody at the other doors wait for half a second."""
    with serving(tmp_path, kind=OwnDoor) as server:
        assert server.process is not None
        pid, door = server.process.pid, door_of(server.process.pid)
        threads = [int(one.name) for one in Path(f"/proc/{door}/task").iterdir()]
        behind = {os.getpriority(os.PRIO_PROCESS, one) for one in threads}
        assert behind == {min(19, os.getpriority(os.PRIO_PROCESS, pid) + BEHIND)}
        server.kill()
        eventually(lambda: not Path(f"/proc/{door}").exists() or _is_zombie(door), "the door outlives its server")
        server.start()
        until_back(server)


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def begun(server: LiveServer, user: str, password: str, calls: int) -> socket.socket:
    """A connection with so many uploads that have begun, and say nothing."""
    host, _, port = server.ready["flight"].rpartition(":")
    link = socket.create_connection((host, int(port)), timeout=20)
    link.sendall(PREFACE + SETTINGS)
    begin(link, user, password, range(calls))
    return link


def begin(link: socket.socket, user: str, password: str, calls: range) -> None:
    """Some more of them."""
    pair = base64.b64encode(f"{user}:{password}".encode())
    path = b"/arrow.flight.protocol.FlightService/DoPut"
    head = b"".join(
        literal(name, value)
        for name, value in (
            (b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"), (b"te", b"trailers"),
            (b":path", path), (b"content-type", b"application/grpc"), (b"authorization", b"Basic " + pair),
        )
    )  # fmt: skip
    link.sendall(b"".join(h2_frame(1, 4, 2 * number + 1, head) for number in calls))


def threads_of(process: int) -> int:
    return len(os.listdir(f"/proc/{process}/task"))


USERS = """
[before_login]
time = "5m"
[[user]]
name = "guest"
password = "guest"
[[user]]
name = "other"
password = "other"
"""


@pytest.mark.parametrize(("password", "share"), [("guest", 384), ("wrong", 64)])
def test_calls_that_say_nothing_have_their_share_of_the_threads(tmp_path: Path, password: str, share: int) -> None:
    """Each has a thread from its headers on; 1,400 took all that there was memory for, and every call was refused."""
    with serving(tmp_path, USERS) as server:
        assert server.process is not None
        door = door_of(server.process.pid)
        other = url_of(server).replace("guest:guest", "other:other")
        for url in (url_of(server), other):
            with penstock.connect(url) as client:
                client.health()  # so its login is known
        with begun(server, "guest", password, 700) as link:
            link.recv(1)
            eventually(lambda: threads_of(door) > share, "they did not begin", 20)
            eventually(lambda: threads_of(door) < share + 150, lambda: f"they have {threads_of(door)} threads", 30)
            for _ in range(3):  # others are served at once, each over a connection of its own
                with penstock.connect(other) as client:
                    client.publish("q", b"x", mandatory=False)
        assert door_of(server.process.pid) == door


def test_calls_that_say_nothing_with_two_wrong_logins_keep_nobody_out(tmp_path: Path) -> None:
    """In small portions, so the server is asked about each; two logins with too many guesses took all places."""
    with serving(tmp_path, USERS) as server, ExitStack() as links:
        assert server.process is not None
        door = door_of(server.process.pid)
        other = url_of(server).replace("guest:guest", "other:other")
        with penstock.connect(other) as client:
            client.health()
            for password in ("w1", "w2"):
                link = links.enter_context(begun(server, "guest", password, 10))
                for first in range(10, 500, 10):
                    begin(link, "guest", password, range(first, first + 10))
                    for _ in range(3):
                        client.health()  # somebody who is known is served meanwhile
        eventually(lambda: threads_of(door) < 64 + 150, lambda: f"they have {threads_of(door)} threads", 20)
        with penstock.connect(other) as client:
            client.publish("q", b"x", mandatory=False)
