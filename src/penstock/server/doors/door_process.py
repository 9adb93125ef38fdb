"""A door's process as the server holds it: started, listened to, started anew when it ends, cut off when it lies.

    thread `keep`    starts it, asks it every `PING_MS` whether it lives, hears what it says on the control socket
    thread `lines`   takes the sockets of its calls, each of which has a thread of its own (`line`), or goes to a loop
    any thread       ask(...) -> answer

A door that has been silent for `SILENT_S` is killed: one that is stopped holds leases and sockets.  One that has work,
and gets too little of the machine to answer, is given `BUSY_S`; what the server slept through itself counts for nobody.
Whatever ends it,
its lines end with it, so every call of its clients ends as if they had gone; then another one takes its addresses.  It
ends when the control socket does, and that happens however the server ends; one that is stopped then is killed by the
kernel, which looks at the thread that started it: that is `keep`, and it stays as long as the door is wanted.

`apart=False` runs the door in a thread of this process, by the same frames: for tests, and for brokers in a test.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import KW_ONLY, field
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar, cast

import orjson

from penstock.errors import Unavailable
from penstock.records.dataclass import dataclass
from penstock.server.base.allowed import begin
from penstock.server.base.loading import END_S, begun, ended
from penstock.server.doors.line import Broken, Ended, Kind, Line, number, plain

logger = logging.getLogger("penstock.doors")

PING_MS = 1000
SILENT_S, BUSY_S = 5.0, 60.0

LINES_MOST = 1024
"""Calls that one door has under way at most; what users may take is far below."""

CONTROL = {Kind.CONTROL: 4 << 20}
"""What may come on a control socket: the addresses of all connections that ended since the last word, at most."""

YOUNG_S, PAUSE_S, PAUSE_MOST_S = 1.0, 0.2, 0.8
"""A process that ends so soon is started again after a pause, each time a longer one: whoever ends it again and again
keeps the others out for less than a second."""

WAIT_S = 30.0

Answer = Mapping[str, Any]
T = TypeVar("T")


class Spawned(NamedTuple):
    """A process, and the server's ends of its sockets."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    lines: socket.socket


def begun_with_lines(module: str, *words: str, env: Mapping[str, str] | None = None) -> Spawned:
    """A process of two sockets: one to be told something, one that sockets go over.  As `begun`."""
    with ExitStack() as unused, ExitStack() as theirs:
        pairs = [socket.socketpair() for _ in range(2)]
        for mine, other in pairs:
            unused.enter_context(mine)
            theirs.enter_context(other)
        process = begun(module, [other for _, other in pairs], *words, env=env)
        unused.pop_all()
    return Spawned(process, *(mine for mine, _ in pairs))


def spawned(module: str, memory: list[int]) -> Spawned:
    """A door's process, which loads what it needs and waits to be told more.

    memory: bytes that it may decompress, and may have in all.
    """
    return begun_with_lines(module, orjson.dumps(memory).decode())


_over = threading.Event()


def begin_no_more() -> None:
    """This process is about to end: a door that ends before it is not followed by another, which would outlive it."""
    _over.set()


@dataclass(eq=False)
class DoorProcess:
    """One door.  Thread-safe."""

    name: str
    module: str  # has `main` for a process, `run` for a thread
    begin: Mapping[str, object]  # the first thing that the door is told
    serve: Callable[[Line], None] | None = None  # one line, until it ends, in a thread; it may raise Ended and Broken
    _: KW_ONLY
    hand_over: Callable[[socket.socket], None] | None = None  # takes its socket instead, and closes it
    heard: Callable[[Answer], None]  # takes what the door says unasked
    lost: Callable[[], None]  # the door has ended, and all of its lines
    memory: list[int]  # as of `spawned`
    apart: bool
    first: Spawned | None = None  # a process that was started before
    starts: int = field(default=0, init=False)
    deaths: int = field(default=0, init=False)  # that nobody asked for
    _process: subprocess.Popen[bytes] | threading.Thread | None = field(default=None, init=False)
    _control: Line | None = field(default=None, init=False)
    _lines: set[Line] = field(default_factory=set[Line], init=False)
    _pending: dict[int, SimpleQueue[Answer]] = field(default_factory=dict[int, "SimpleQueue[Answer]"], init=False)
    _number: int = field(default=0, init=False)
    _wishes: list[tuple[dict[str, object], Sequence[socket.socket]]] = field(default_factory=list[Any], init=False)
    """Of each new process, again."""
    _sockets: socket.socket | None = field(default=None, init=False)  # where they go back and forth
    _closed: threading.Event = field(default_factory=threading.Event, init=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False)
    _silent: float = field(default=0.0, init=False)  # seconds that the door has said nothing
    _looked: float = field(default=0.0, init=False)  # when that was last added to
    _thread: threading.Thread | None = field(default=None, init=False)

    # -- any thread

    @property
    def pid(self) -> int | None:
        """Of the process that runs, if one does."""
        process = self._process
        return process.pid if isinstance(process, subprocess.Popen) and process.poll() is None else None

    @property
    def wanted(self) -> bool:
        """Whether another one follows when it ends."""
        return not (self._closed.is_set() or _over.is_set())

    def start(self) -> None:
        """Begin; twice does no harm.  OSError when no process can be started."""
        with self._lock:
            if self._thread is not None:
                return
            began: SimpleQueue[Exception | None] = SimpleQueue()
            thread = threading.Thread(target=self._keep, args=(began,), name=f"penstock-door-{self.name}", daemon=True)
            thread.start()
            if (error := began.get()) is not None:
                raise error
            self._thread = thread

    def ask(
        self, told: Mapping[str, object], sockets: Sequence[socket.socket] = (), *, timeout: float = WAIT_S
    ) -> Answer:
        """What the door answers.  Unavailable when it ended, or gives no answer.  sockets: that it is given, too."""
        answers: SimpleQueue[Answer] = SimpleQueue()
        with self._lock:
            control, lines = self._control, self._sockets
            self._number += 1
            number = self._number
            self._pending[number] = answers
        try:
            if control is None:
                raise Unavailable(f"the process of the {self.name} door is not there")
            self._request(control, lines, {**told, "number": number}, sockets)
            answer = answers.get(timeout=timeout)
        except Empty:
            raise Unavailable(f"the process of the {self.name} door gives no answer") from None
        except Ended:
            answer = {"ended": True}
        finally:
            self._pending.pop(number, None)
        if "ended" in answer:
            raise Unavailable(f"the process of the {self.name} door ended")
        return answer

    def keep_asking(self, told: dict[str, object], sockets: Sequence[socket.socket] = ()) -> None:
        """Ask each further process for this, too; it may be changed until then."""
        self._wishes.append((told, sockets))

    @staticmethod
    def _request(
        control: Line, lines: socket.socket | None, told: Mapping[str, object], sockets: Sequence[socket.socket]
    ) -> None:
        """The sockets are there when the door reads of them.  Raises Ended."""
        if sockets and lines is not None:
            try:
                socket.send_fds(lines, [b"="], [one.fileno() for one in sockets])
            except OSError as error:
                raise Ended(error.errno, str(error)) from None
        control.send(Kind.CONTROL, 0, orjson.dumps(told))

    def cut_off(self, why: str) -> None:
        """It says what no door says: it is not believed any more."""
        logger.warning("the process of the %s door is cut off: %s", self.name, why)
        self._kill()

    def close(self, timeout: float) -> Answer | None:
        """Have the door close, in so many seconds; then it ends.  What it says at its end."""
        with self._lock:
            self._closed.set()
        answer: Answer | None = None
        if self._thread is not None:
            try:
                answer = self.ask({"do": "close", "timeout": timeout}, timeout=timeout + END_S + SILENT_S)
            except Unavailable:
                pass  # it goes as it is
        with self._lock:
            if (control := self._control) is not None:
                control.close()
        if self._thread is not None:
            self._thread.join(2 * END_S)
        return answer

    # -- the thread that keeps it

    def _keep(self, began: SimpleQueue[Exception | None]) -> None:
        try:
            self._launch()
        except Exception as error:  # noqa: BLE001 - `start` raises it
            began.put(error)
            return
        began.put(None)
        pause = PAUSE_S
        while True:
            since = time.monotonic()
            try:
                self._attend()
            except Broken as broken:
                self.cut_off(str(broken))
            except Ended:
                pass
            self._bury()
            if time.monotonic() - since > YOUNG_S:
                pause = 0.0
            if not self._begun_again(pause):
                return
            pause = min(PAUSE_MOST_S, 2 * pause or PAUSE_S)

    def _begun_again(self, pause: float) -> bool:
        """Whether there is another process now; False: the server wants none any more."""
        while True:
            self._closed.wait(pause)
            pause = PAUSE_S
            try:
                with self._lock:
                    if not self.wanted:
                        return False
                    self._launch()
            except OSError as error:
                logger.error("the process of the %s door cannot be started: %s", self.name, error)
                if self._process is not None:  # it has begun, and nobody here listens to it
                    self._kill()
                    self._bury()
            else:
                return True

    def _attend(self) -> None:
        control = self._control
        if control is None:
            return
        self._spoke()
        while True:
            answer = plain(control.receive(CONTROL, self._lives).payload)
            self._spoke()
            number = answer.get("number")
            if number is None:
                self.heard(answer)
            elif isinstance(number, int) and (waiting := self._pending.get(number)) is not None:
                waiting.put(answer)

    def _spoke(self) -> None:
        self._silent, self._looked = 0.0, time.monotonic()

    def _lives(self) -> bool:
        """Nothing came for a while: ask, and give a door up that does not answer."""
        control = self._control
        if control is None:
            return False
        now = time.monotonic()
        self._silent += min(now - self._looked, 2 * PING_MS / 1000)
        self._looked = now
        if self._silent > SILENT_S and (self._silent > BUSY_S or not (self.pid is None or runs(self.pid))):
            self.cut_off(f"nothing was heard from it for {self._silent:.0f} s")
            return False
        control.send(Kind.CONTROL, 0, b'{"do":"ping"}')
        return True

    def _launch(self) -> None:
        """Start one, and ask it for what the last one did."""
        first, self.first = self.first, None
        made = first or (spawned(self.module, self.memory) if self.apart else self._beside())
        self._process, control, sockets = made
        self._control, self._sockets = Line(control), sockets
        self._control.poll_ms = self._control.poll_most_ms = PING_MS
        self.starts += 1
        name = f"penstock-lines-{self.name}"
        try:
            begin(threading.Thread(target=self._take, args=(sockets,), name=name, daemon=True))
        except OSError:
            sockets.close()
            raise
        try:
            self._control.send(Kind.CONTROL, 0, orjson.dumps({"do": "begin", **self.begin}))
            for wish, bound in self._wishes:
                self._request(self._control, sockets, wish, bound)
        except Ended:
            pass  # whoever attends sees it, too

    def _beside(self) -> tuple[threading.Thread, socket.socket, socket.socket]:
        """The door in a thread of this process."""
        control, its_control = socket.socketpair()
        lines, its_lines = socket.socketpair()
        run = import_module(self.module).run
        thread = threading.Thread(target=run, args=(its_control, its_lines), name=f"penstock-{self.name}", daemon=True)
        begin(thread)
        return thread, control, lines

    def _kill(self) -> None:
        with self._lock:
            process, control = self._process, self._control
        if isinstance(process, subprocess.Popen):
            process.kill()
        elif control is not None:
            control.close()

    def _bury(self) -> None:
        """Whatever is left of it goes, and whoever waits for it is told."""
        with self._lock:
            process, self._process = self._process, None
            control, self._control = self._control, None
            pending, self._pending = self._pending, {}
        if control is not None:
            control.close()
        if isinstance(process, subprocess.Popen):
            code = ended(process)
            if not self._closed.is_set():
                self.deaths += 1
                logger.warning("the process of the %s door ended with status %d: another one begins", self.name, code)
        elif process is not None:
            process.join(END_S)
        for line in list(self._lines):
            line.close()
        for waiting in pending.values():
            waiting.put({"ended": True})
        self.lost()

    # -- the threads of its lines

    def _take(self, sock: socket.socket) -> None:
        """Until the door ends."""
        with sock:
            while True:
                try:
                    message, fds, _, _ = socket.recv_fds(sock, 1, 1)
                except OSError:
                    return
                if not message:
                    return
                for fd in fds:  # none, where no descriptor is left: the door sees its end closed
                    self._begin_line(fd)

    def _begin_line(self, fd: int) -> None:
        try:
            made = socket.socket(fileno=fd)
        except OSError:
            os.close(fd)
            return self.cut_off("it sends what is no socket")
        if made.family != socket.AF_UNIX or made.type != socket.SOCK_STREAM or len(self._lines) >= LINES_MOST:
            made.close()
            return self.cut_off(f"it sends another kind of socket, or more than {LINES_MOST} of them")
        if self.hand_over is not None:
            return self.hand_over(made)
        line = Line(made)
        self._lines.add(line)
        try:
            begin(threading.Thread(target=self._serve_line, args=(line,), name=f"penstock-{self.name}", daemon=True))
        except OSError as error:  # the door sees its end closed
            logger.error("a call at the %s door is refused: %s", self.name, error.strerror)
            self._lines.discard(line)
            line.close()
        return None

    def _serve_line(self, line: Line) -> None:
        try:
            assert self.serve is not None
            self.serve(line)
        except Ended:
            pass
        except Broken as broken:
            self.cut_off(str(broken))
        finally:
            line.close()
            self._lines.discard(line)


COUNTS_MOST = 64
"""Numbers that a door tells of one thing."""


class StrangerCounts:
    """Connections without a login at doors of one kind, as these say."""

    def __init__(self) -> None:
        self._there = dict[str, dict[str, int]]()  # by door, then by listener
        self._closed = dict[str, Counter[tuple[str, str]]]()
        self._before = Counter[tuple[str, str]]()

    def heard(self, told: Answer, door: str = "") -> None:
        """How it stands now, with how many were sent away in all.  Broken for what is none."""
        closed = Counter[tuple[str, str]]()
        for what, count in _counts(told.get("closed")).items():
            listener, _, why = what.partition(" ")
            closed[listener, why] = count
        self._there[door], self._closed[door] = _counts(told["strangers"]), closed

    def lost(self, door: str = "") -> None:
        """It has ended, and all its connections have; the next one counts from zero."""
        self._there.pop(door, None)
        self._before += self._closed.pop(door, Counter())

    def there(self) -> dict[str, int]:
        """How many have not logged in, by listener."""
        return dict(_sum(self._there.values()))

    @property
    def closed(self) -> Counter[tuple[str, str]]:
        """How many were sent away, by listener and what they went beyond."""
        return _sum([self._before, *self._closed.values()])


def _sum(some: Iterable[Mapping[T, int]]) -> Counter[T]:
    found = Counter[T]()
    for one in list(some):
        found.update(one)
    return found


def _counts(told: object) -> dict[str, int]:
    """Numbers by name."""
    some = cast("dict[str, Any]", told) if isinstance(told, dict) else None
    if some is None or len(some) > COUNTS_MOST:
        raise Broken("figures that are none")
    return {name: number(some, name) for name in some}


def figures_of(pid: int | None) -> tuple[float, int]:
    """Seconds of CPU and resident bytes of a process; zeros where there is none."""
    try:
        told = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(told[11]) + int(told[12])) / os.sysconf("SC_CLK_TCK"), int(told[21]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return 0.0, 0


def runs(pid: int) -> bool:
    """Whether some thread of a process has work, and gets the machine or waits for it (or for the disk)."""
    with suppress(OSError):  # it has ended
        tasks = Path(f"/proc/{pid}/task")
        return any(_state(tasks / task / "stat") in (b"R", b"D") for task in os.listdir(tasks))
    return False


def _state(told: Path) -> bytes:
    """Of a thread; none where it has ended meanwhile, as some do while hundreds come and go."""
    with suppress(OSError):
        return told.read_bytes().rpartition(b")")[2][1:2]
    return b""
