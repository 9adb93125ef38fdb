"""A door's process as the server holds it: what a door may say, and what becomes of one that lies or ends."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from random import Random
from typing import Any

import orjson
import pytest

from flight_house import Everyone
from penstock.errors import Unavailable
from penstock.server.doors import door_process, doors
from penstock.server.doors.door_process import StrangerCounts
from penstock.server.doors.line import AHEAD, HEAD, VERSION, Broken, Ended, Kind, Line, Lines, plain, with_head
from penstock.server.flight.call_streams import CALL_MOST, Answers, Sent
from penstock.server.flight.calls import Caller
from penstock.server.flight.entrance import Entrance, Peers
from penstock.server.people.access import Shares, Who
from waiting import eventually

CALLED = {
    "call": "act", "name": "hello", "user": "ann", "password": "secret", "peer": "ipv4:127.0.0.1:5000",
    "host": "127.0.0.1", "port": 5000,
}  # fmt: skip


class Inside:
    """Answers actions with their names, and takes one upload."""

    def act(self, caller: Caller, name: str, body: bytes) -> bytes:
        return name.encode()

    def put(self, caller: Caller, command: bytes, sent: Sent, writer: Answers) -> None:
        while sent.read_chunk():
            writer.write(b"taken")


class Followed:
    """A door's process that ends when it is asked, and the ones after it."""

    wanted = True

    def __init__(self, ends: int, follow: int) -> None:
        self.starts, self._ends, self._follow = 1, ends, follow

    def ask(self, wish: object, sockets: object) -> dict[str, object]:
        if self.starts > self._ends:
            return {"by": self.starts}
        self.starts += self.starts <= self._follow
        raise Unavailable("the process of the door ended")


def test_a_door_that_ends_while_a_server_starts_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no mistake of the settings: who waits for a door is told of its address by the next one."""
    followed: Any = Followed(ends=2, follow=2)
    assert doors._ask(followed, {"do": "listen"}, []) == {"by": 3}
    monkeypatch.setattr(doors, "ANOTHER_S", 0.1)
    alone: Any = Followed(ends=2, follow=1)
    with pytest.raises(OSError, match="ended"):
        doors._ask(alone, {"do": "listen"}, [])


class Lying:
    """A door in a thread of the test, which says whatever the test wants."""

    def __init__(self, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        self._stack = stack
        self.shares = Shares()
        self.begun = threading.Semaphore(0)
        monkeypatch.setattr("penstock.server.flight.front.run", self._run)
        self.entrance = Entrance(Everyone(), shares=self.shares)
        self.entrance.open(Inside())  # type: ignore[arg-type]  # as much as is called
        self.entrance.process.start()
        stack.callback(self.entrance.close, 0.0)
        assert self.begun.acquire(timeout=30)

    def _run(self, control: socket.socket, lines: socket.socket) -> None:
        self.control, self.lines = control, lines
        self.begun.release()
        with control, lines:
            try:
                while b"close" not in (control.recv(1 << 16) or b"close"):
                    pass
            except OSError:
                pass

    def line(self) -> Line:
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self.lines, [b"+"], [theirs.fileno()])
        line = Line(ours)
        self._stack.callback(line.close)
        return line

    def says(self, told: object) -> None:
        data = orjson.dumps(told)
        self.control.sendall(HEAD.pack(len(data), Kind.CONTROL, VERSION, 0, 0, 0) + data)


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lying]:
    monkeypatch.setattr(door_process, "PAUSE_S", 0.01)
    with ExitStack() as stack:
        yield Lying(stack, monkeypatch)


ANSWER = {Kind.WELCOME: 0, Kind.MORE: 0, Kind.WORDS: 100, Kind.DONE: 100, Kind.FAILED: 1000}


def answers(line: Line) -> list[Kind]:
    """What the server says, up to its last word, or until it cuts the line."""
    out = list[Kind]()
    while not out or out[-1] not in (Kind.DONE, Kind.FAILED):
        try:
            out.append(line.receive(ANSWER).kind)
        except Ended:
            break
    return out


def test_a_line_takes_one_call_after_the_other(door: Lying) -> None:
    line = door.line()
    for number in (1, 2, 3):
        line.send(Kind.CALL, number, *with_head(CALLED))
        line.send(Kind.WORDS, number, b"of a call that is over by then")
        assert answers(line) == [Kind.WELCOME, Kind.DONE]
    assert door.shares.of("connections").taken == 1


def refusing(monkeypatch: pytest.MonkeyPatch, name: str, times: int) -> list[str]:
    """The system starts no thread of this name, so often; names of those that it did not start."""
    start, refused = threading.Thread.start, list[str]()

    def started(thread: threading.Thread) -> None:
        if thread.name.startswith(name) and len(refused) < times:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    return refused


def test_a_line_for_which_there_is_no_thread_is_refused_and_the_next_one_is_taken(
    door: Lying, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = refusing(monkeypatch, "penstock-flight", 1)
    assert answers(door.line()) == []
    assert refused
    line = door.line()
    line.send(Kind.CALL, 1, *with_head(CALLED))
    assert answers(line) == [Kind.WELCOME, Kind.DONE]


def test_another_door_begins_as_soon_as_there_are_threads_for_it(door: Lying, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = refusing(monkeypatch, "penstock-lines-", 2)
    door.says("nothing that a door says")
    for _ in range(3):
        assert door.begun.acquire(timeout=30)
    eventually(lambda: door.entrance.process.starts == 4)
    assert len(refused) == 2
    line = door.line()
    line.send(Kind.CALL, 1, *with_head(CALLED))
    assert answers(line) == [Kind.WELCOME, Kind.DONE]


LIES: dict[str, Callable[[Line], None]] = {
    "a call out of its order": lambda line: line.send(Kind.CALL, 2, *with_head(CALLED)),
    "a batch before any call": lambda line: line.send(Kind.BATCH, 1, b"x"),
    "words for a call that is to come": lambda line: _called(line, Kind.WORDS, 9),
    "what only the server says": lambda line: line.send(Kind.WELCOME, 1),
    "a call that is too long": lambda line: line.sock.sendall(HEAD.pack(CALL_MOST + 1, Kind.CALL, VERSION, 0, 1, 0)),
    "another version": lambda line: line.sock.sendall(HEAD.pack(0, Kind.CALL, VERSION + 1, 0, 1, 0)),
    "an unknown kind": lambda line: line.sock.sendall(HEAD.pack(0, 99, VERSION, 0, 1, 0)),
    "a call of no JSON": lambda line: line.send(Kind.CALL, 1, b"\x04\0\0\0nope"),
    "a head beyond its frame": lambda line: line.send(Kind.CALL, 1, b"\xff\xff\0\0{}"),
    "a call without a user": lambda line: line.send(Kind.CALL, 1, *with_head({"call": "act"})),
    "a port that is none": lambda line: line.send(Kind.CALL, 1, *with_head({**CALLED, "port": 70000})),
    "an unknown call": lambda line: line.send(Kind.CALL, 1, *with_head({**CALLED, "call": "open_sesame"})),
    "rows that are none": lambda line: _uploaded(line, Kind.BATCH, b"\0" * 5),
    "rows of an unknown column": lambda line: _uploaded(line, Kind.BATCH, b"\xff" * 4 + b"\1\0\0\0" + b"\xfe" * 40),
    "an error that is none": lambda line: _uploaded(line, Kind.FAILED, b"{}"),
    "a schema ahead that is none": lambda line: _ahead(line, Kind.SCHEMA, b"\xff" * 9),
    "rows ahead where a schema should be": lambda line: _ahead(line, Kind.BATCH, b"\0" * 5),
    "a schema ahead that is too long": lambda line: _ahead(line, Kind.SCHEMA, bytes(65)),
}  # fmt: skip


def _called(line: Line, kind: Kind, number: int) -> None:
    line.send(Kind.CALL, 1, *with_head(CALLED))
    assert answers(line) == [Kind.WELCOME, Kind.DONE]
    line.send(kind, number, b"x")


def _uploaded(line: Line, kind: Kind, payload: bytes) -> None:
    line.send(Kind.CALL, 1, *with_head({**CALLED, "call": "put"}))
    while line.receive(ANSWER).kind is not Kind.MORE:
        pass
    line.send(kind, 1, payload, rows=1)


def _ahead(line: Line, kind: Kind, payload: bytes) -> None:
    line.send(Kind.CALL, 1, *with_head({**CALLED, "call": "put"}), flags=AHEAD, later=True)
    line.send(kind, 1, payload)


@pytest.mark.parametrize("lie", LIES, ids=lambda one: one.replace(" ", "_"))
def test_a_door_that_lies_is_cut_off_and_another_one_begins(door: Lying, lie: str) -> None:
    honest, line = door.line(), door.line()
    honest.send(Kind.CALL, 1, *with_head(CALLED))
    assert answers(honest) == [Kind.WELCOME, Kind.DONE]
    try:
        LIES[lie](line)
    except Ended:
        pass  # it was cut off before it had said all of it
    assert answers(line)[-1:] in ([], [Kind.WELCOME], [Kind.MORE])
    assert door.begun.acquire(timeout=30), "no other one begins"
    with pytest.raises(Ended):
        honest.receive(ANSWER)
    assert door.shares.of("connections").taken == 0
    again = door.line()
    again.send(Kind.CALL, 1, *with_head(CALLED))
    assert answers(again) == [Kind.WELCOME, Kind.DONE]


@pytest.mark.parametrize(
    "told",
    [[1, 2], "word", {"left": 7}, {"left": [["host"]]}, {"strangers": {"flight": -1}}, {"strangers": 5}]
    + [{"strangers": {}, "closed": {"flight time": "many"}}],
    ids=repr,
)
def test_a_door_whose_figures_are_none_is_cut_off(door: Lying, told: object) -> None:
    door.says(told)
    assert door.begun.acquire(timeout=30)
    eventually(lambda: door.entrance.process.starts == 2, "no other one was counted")


def test_another_kind_of_socket_is_no_line(door: Lying) -> None:
    with socket.socket() as tcp:
        socket.send_fds(door.lines, [b"+"], [tcp.fileno()])
        assert door.begun.acquire(timeout=30)


def test_who_waits_for_a_door_is_told_of_its_end(door: Lying) -> None:
    asked = Unavailable("")

    def ask() -> None:
        nonlocal asked
        try:
            door.entrance.process.ask({"do": "listen"})
        except Unavailable as error:
            asked = error

    thread = threading.Thread(target=ask)
    thread.start()
    eventually(lambda: bool(door.entrance.process._pending), "it was not asked")
    door.control.shutdown(socket.SHUT_RDWR)
    thread.join(30)
    assert "ended" in str(asked)


def test_connections_that_end_give_their_places_back() -> None:
    share = Shares().of("connections")
    peers = Peers(share)
    ann, bob = Who("ann"), Who("bob")
    for port in (1, 2, 2):
        peers.known(("h", port), ann)
    peers.known(("h", 3), bob)
    assert (share.of("ann"), share.of("bob")) == (2, 1)
    peers.left([("h", 1), ("h", 9)])
    assert share.of("ann") == 1
    peers.lost()
    assert share.taken == 0


def test_strangers_that_a_door_sent_away_count_when_it_has_ended() -> None:
    counts = StrangerCounts()
    counts.heard({"strangers": {"amqp": 4}, "closed": {"amqp time": 2}}, "1")
    counts.heard({"strangers": {"amqp": 2}, "closed": {"amqp time": 5}}, "2")
    assert (counts.there(), counts.closed) == ({"amqp": 6}, {("amqp", "time"): 7})
    counts.lost("1")
    assert (counts.there(), counts.closed) == ({"amqp": 2}, {("amqp", "time"): 7})
    counts.heard({"strangers": {"amqp": 0}, "closed": {"amqp time": 1, "amqp bytes": 1}}, "1")
    assert (counts.there(), counts.closed) == ({"amqp": 2}, {("amqp", "time"): 8, ("amqp", "bytes"): 1})


def test_any_bytes_are_frames_or_broken() -> None:
    """3,000 broken words of either side: none is taken for what may not come, and none takes more than it may."""
    rng, seen = Random(3), Counter[str]()
    may = {Kind.CALL: 100, Kind.WORDS: 10, Kind.END: 0}
    good = HEAD.pack(8, Kind.CALL, VERSION, 0, 1, 0) + b"\x02\0\0\0{}" + b"ab"
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(rng.randint(0, 3)):
            data[rng.randrange(len(data))] = rng.choice([0, 1, 255, rng.randrange(256)])
        ours, theirs = socket.socketpair()
        line = Line(theirs)
        with ours:
            ours.sendall(data[: rng.choice([len(data), rng.randrange(len(data))])])
            ours.shutdown(socket.SHUT_WR)
            try:
                frame = line.receive(may)
                assert len(frame.payload) <= may[frame.kind]
                plain(frame.payload[4:6])
                seen["taken"] += 1
            except (Ended, Broken) as error:
                seen[type(error).__name__] += 1
        line.close()
    assert set(seen) == {"taken", "Ended", "Broken"}


def test_lines_that_are_closed_keep_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that ended after its door kept its line, and one that nobody could be told of kept it, too."""
    made = list[socket.socket]()
    pair = socket.socketpair

    def noted() -> tuple[socket.socket, socket.socket]:
        both = pair()
        made.extend(both)
        return both

    ours, theirs = pair()
    monkeypatch.setattr(socket, "socketpair", noted)
    lines = Lines(ours)
    line, number = lines.take()
    theirs.close()
    with pytest.raises(Unavailable, match="no line to the server"):
        lines.take()
    lines.close()
    lines.give(line, number)
    assert [one.fileno() for one in made] == [-1, -1, -1, -1]
