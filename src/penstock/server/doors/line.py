"""The frames between the server and a process beside it, over Unix stream sockets, and who of a door says what when.

     0  u32  bytes behind this head
     4  u8   kind (`Kind`)
     5  u8   version: 2
     6  u16  flags
     8  u32  number of the call, on its line
    12  u32  rows of a batch
    16       what the kind says

A door has one control socket, whose frames are JSON, and a line for each call that is under way; a line whose call has
ended takes the next one.  So calls do not wait for each other, and the kernel's buffers are the back-pressure.

    door                                   server
    CALL     who asks, and for what   ->   (AHEAD: SCHEMA and what comes first follow, without being asked for)
                                      <-   WELCOME  who it is was found right; what follows is the call's
                                      <-   MORE     go on with what the client sends; BEGUN: its schema first
    SCHEMA, BATCH, WORDS, END, FAILED ->   (WORDS that FOLLOWED: the next piece comes without being asked for)
                                      <-   SCHEMA, BATCH, WORDS  for the client
                                      <-   DONE or FAILED        the last word; the line is free

What a door sends late, of a call that has ended meanwhile, is dropped.  Anything else out of its order, and any frame
that is longer than what may come then, is `Broken`: whoever speaks so is cut off and not believed.  Nothing is pickled.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from enum import IntEnum
from typing import Any, NamedTuple, cast

import orjson

from penstock.errors import Unavailable

HEAD = struct.Struct("<IBBHII")
VERSION = 2

BUFFER = 64 << 10
"""Bytes that one read takes at most, unless a larger frame has begun."""

JOINED = 32 << 10
"""Pieces up to so many bytes in all are sent as one."""

ABOUT_MOST = 64 << 10
"""Bytes of who asks and for what, as JSON, beside a command of his."""

PIECES = 512
"""Buffers that one system call takes; Linux takes 1024."""

POLL_MS, POLL_MOST_MS = 50, 500
"""How often a wait for the other side looks whether it is still wanted: at first, and when it has lasted long."""


class Kind(IntEnum):
    """What a frame is.  Numbers are never used again for something else."""

    CALL = 1
    SCHEMA = 2
    BATCH = 3
    WORDS = 4
    END = 5
    FAILED = 6
    WELCOME = 7
    MORE = 8
    DONE = 9
    CONTROL = 10
    DERIVE = 11
    DERIVED = 12
    ANSWER = 13


KINDS = {int(one): one for one in Kind}

BEGUN = 1
"""Flag of MORE: the schema, and what comes behind it."""

HAS_WORDS = 2
"""Flag of BATCH: words stand beside the rows."""

FOLLOWED = 4
"""Flag of WORDS that a client sends: what it says next stands behind them."""

AHEAD = 8
"""Flag of CALL: the schema and the first piece stand behind it."""


class Ended(OSError):
    """The other side is gone, or nobody waits for it any more."""


class Broken(Exception):
    """The other side says what it may not say.  The text is for the server's log."""


class Frame(NamedTuple):
    """One frame."""

    kind: Kind
    flags: int
    number: int
    rows: int
    payload: memoryview


def _poller(sock: socket.socket) -> select.poll:
    """Two threads cannot have one of them poll at the same time."""
    poller = select.poll()
    poller.register(sock, select.POLLIN | select.POLLRDHUP)
    return poller


class Line:
    """One socket.  One thread receives; any sends."""

    def __init__(self, sock: socket.socket, room: Callable[[int], memoryview] | None = None) -> None:
        """room: memory for a frame that is larger than the buffer; MemoryError where there is none."""
        self.sock = sock
        self.poll_ms, self.poll_most_ms = POLL_MS, POLL_MOST_MS
        self._room = room or _of_the_pool
        self._buffer = memoryview(bytearray(BUFFER))
        self._start = self._end = 0  # of what has come and was not taken
        self._kept = list[bytes]()  # frames that leave with the next one
        self._sending = threading.Lock()
        self._poller = _poller(sock)  # of who receives

    def send(self, kind: Kind, number: int, *pieces: Any, flags: int = 0, rows: int = 0, later: bool = False) -> None:
        """One frame.  Ended when nobody reads any more.  later: it may wait for the next one."""
        size = sum(memoryview(piece).nbytes for piece in pieces)
        head = HEAD.pack(size, kind, VERSION, flags, number, rows)
        with self._sending:
            kept = self._kept
            if later:
                kept += (head, *pieces)
                return
            self._kept = []
            try:
                _send(self.sock, [*kept, head, *pieces], size)
            except OSError as error:
                raise Ended(error.errno, str(error)) from None

    def tell(self, told: Mapping[str, object]) -> None:
        """Words beside all calls, as JSON; nothing where nobody reads any more, which whoever receives sees, too."""
        try:
            self.send(Kind.CONTROL, 0, orjson.dumps(told))
        except Ended:
            pass

    def receive(self, may: Mapping[Kind, int], wanted: Callable[[], bool] | None = None) -> Frame:
        """The next frame, in memory of its own.

        may: what may come now, and with how many bytes.  wanted: asked while nothing comes; False gives up with Ended.
        Ended too when the other side is gone; Broken for a frame that may not come.
        """
        if self._end - self._start < HEAD.size:
            self._fill(HEAD.size, wanted)
        size, kind, version, flags, number, rows = HEAD.unpack_from(self._buffer, self._start)
        if version != VERSION:
            raise Broken(f"a frame of version {version}, not {VERSION}")
        told = KINDS.get(kind)
        most = None if told is None else may.get(told)
        if told is None or most is None:
            raise Broken(f"a frame of kind {kind}, which may not come now")
        if size > most:
            raise Broken(f"a frame of kind {kind} with {size} bytes, of {most} that may come")
        self._start += HEAD.size
        return Frame(told, flags, number, rows, self._taken(size))

    def gone(self) -> bool:
        """Whether one side has closed.  Any thread may ask: those that read rows for a statement do."""
        try:
            poller = _poller(self.sock)
        except (ValueError, OSError):
            return True  # it has no descriptor: it was closed here
        return any(event & ~select.POLLIN for _, event in poller.poll(0))

    def close(self) -> None:
        """The other side sees it at once; twice does no harm."""
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed already, here or there
        self.sock.close()

    def _fill(self, size: int, wanted: Callable[[], bool] | None) -> None:
        """Have at least so many bytes in the buffer."""
        if self._start:
            left = self._end - self._start
            self._buffer[:left] = bytes(self._buffer[self._start : self._end])
            self._start, self._end = 0, left
        try:
            pause = self.poll_ms
            while self._end < size:
                while wanted is not None and not self._poller.poll(pause):
                    if not wanted():
                        raise Ended
                    pause = min(2 * pause, self.poll_most_ms)
                came = self.sock.recv_into(self._buffer[self._end :])
                if not came:
                    raise Ended
                self._end += came
        except OSError as error:
            raise error if isinstance(error, Ended) else Ended(error.errno, str(error)) from None

    def _taken(self, size: int) -> memoryview:
        """So many bytes, out of the buffer and from the socket."""
        ready = min(size, self._end - self._start)
        there = self._buffer[self._start : self._start + ready]
        self._start += ready
        if ready == size:
            return memoryview(bytes(there))
        try:
            try:
                view = self._room(size)
            except MemoryError:
                while ready < size and (came := self.sock.recv_into(self._buffer, min(BUFFER, size - ready))):
                    ready += came  # so that who sends it comes to its end, and can be told
                raise
            view[:ready] = there
            while ready < size:
                came = self.sock.recv_into(view[ready:], 0, socket.MSG_WAITALL)
                if not came:
                    raise Ended
                ready += came
        except OSError as error:
            raise error if isinstance(error, Ended) else Ended(error.errno, str(error)) from None
        return view


def _of_the_pool(size: int) -> memoryview:
    import pyarrow as pa  # not before its pool has a bound

    return memoryview(cast("Any", pa.allocate_buffer(size))).cast("B")  # its pool keeps pages for the next one


def _send(sock: socket.socket, pieces: list[Any], size: int) -> None:
    if size <= JOINED:
        sock.sendall(b"".join(pieces))
        return
    left = [memoryview(piece).cast("B") for piece in pieces if memoryview(piece).nbytes]
    while left:
        sent = sock.sendmsg(left[:PIECES])
        while sent:
            first = left[0]
            if sent < len(first):
                left[0] = first[sent:]
                break
            sent -= len(first)
            del left[0]


_SIZE = struct.Struct("<I")


def with_head(told: dict[str, object], *blobs: Any) -> list[Any]:
    """Plain values and bytes behind them, which begin at a multiple of 8, as the payload of a frame."""
    head = orjson.dumps(told)
    head += b" " * (-(_SIZE.size + len(head)) % 8)
    return [_SIZE.pack(len(head)), head, *blobs]


def head_of(payload: memoryview) -> tuple[dict[str, Any], memoryview]:
    """The inverse: plain values, and what stands behind them.  Broken for what is none."""
    if len(payload) < _SIZE.size:
        raise Broken(f"{len(payload)} bytes where a head should be")
    [size] = _SIZE.unpack_from(payload)
    if size > len(payload) - _SIZE.size:
        raise Broken(f"a head of {size} bytes in {len(payload)}")
    return plain(payload[_SIZE.size : _SIZE.size + size]), payload[_SIZE.size + size :]


def plain(payload: memoryview) -> dict[str, Any]:
    """The values of a JSON object.  Broken for anything else."""
    try:
        told: object = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise Broken(f"no JSON: {error}") from None
    if not isinstance(told, dict):
        raise Broken(f"JSON that is no object but {type(told).__name__}")
    return cast("dict[str, Any]", told)


def text(told: dict[str, Any], name: str) -> str:
    """A value that must be text."""
    value: object = told.get(name)
    if not isinstance(value, str):
        raise Broken(f"{name} is no text")
    return value


def number(told: dict[str, Any], name: str, most: int = 1 << 53) -> int:
    """A value that must be a whole number from 0 on."""
    value: object = told.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise Broken(f"{name} is no number from 0 to {most}")
    return value


Told = tuple[str, str, bytes]
"""An error: the status, its text, and its extra bytes."""


def failed(told: Told) -> bytes:
    """The payload of FAILED."""
    status, message, extra = told
    return orjson.dumps({"status": status, "message": message, "extra": extra.decode()})


def failure_of(payload: memoryview) -> Told:
    """The inverse.  Broken for what is none."""
    told = plain(payload)
    return text(told, "status"), text(told, "message"), text(told, "extra").encode()


IDLE_S = 10.0
"""A line that no call wanted for so long is closed."""

LINES_KEPT = 32


def handed(over: socket.socket) -> socket.socket:
    """One end of a new pair, whose other end goes over this socket.  OSError when that cannot be."""
    ours, theirs = socket.socketpair()
    with ExitStack() as unsent:
        unsent.enter_context(ours)
        with theirs:
            socket.send_fds(over, [b"+"], [theirs.fileno()])
        unsent.pop_all()
    return ours


class Lines:
    """The sockets of calls: one for each that is under way, and some that wait for the next.  Thread-safe."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._idle = list[tuple[float, Line, int]]()  # since when, and the number of the last call; the newest last
        self._taken = set[Line]()  # held here: in a cycle of garbage nothing says which goes first
        self._lock = threading.Lock()
        self._closed = False

    @property
    def taken(self) -> int:
        """How many are under way."""
        return len(self._taken)

    def take(self) -> tuple[Line, int]:
        """A line, and the number of its last call.  Unavailable when there is none to be had."""
        with self._lock:
            while self._idle:
                _, line, number = self._idle.pop()
                if not line.gone():
                    self._taken.add(line)
                    return line, number
                line.close()
        try:
            return self.new(), 0
        except OSError as error:
            raise Unavailable(f"the door has no line to the server: {error.strerror}") from None

    def new(self, room: Callable[[int], memoryview] | None = None) -> Line:
        """One that had no call.  OSError when it cannot be made.  room: as of `Line`."""
        line = Line(handed(self._sock), room)
        self._taken.add(line)
        return line

    def drop(self, line: Line) -> None:
        """Its call has ended as it may: the other side sees that, and nobody has the line again.

        Without the lock: a call may be collected in the middle of anything.
        """
        line.close()
        self._taken.discard(line)

    def give(self, line: Line, number: int) -> None:
        """Its call has ended in order."""
        self._taken.discard(line)
        with self._lock:
            if len(self._idle) < LINES_KEPT and not self._closed:
                self._idle.append((time.monotonic(), line, number))
                return
        line.close()

    def tidy(self) -> None:
        """Close those that nobody wanted for a while."""
        oldest = time.monotonic() - IDLE_S
        with self._lock:
            old = [one for one in self._idle if one[0] < oldest]
            self._idle = [one for one in self._idle if one[0] >= oldest]
        for _, line, _ in old:
            line.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
        for _, line, _ in idle:
            line.close()
        self._sock.close()
