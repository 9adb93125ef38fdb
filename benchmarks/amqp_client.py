"""An AMQP client that costs less than the server: raw sockets, frames encoded ahead, streams checked by comparison.

What goes over the wire is known before it goes, but for a few numbers.  A `Cycle` is such a byte stream: some thousand
messages encoded once, which repeat with new numbers patched in.  Publishers and ackers send slices of one; a consumer
holds what it reads against one, so every byte of every delivery (tag, topic, header, body) is checked by one memory
comparison a read, and a lost, doubled, reordered or changed message is a `Wrong` with its place.

Owns connections, cycles, publisher, consumer.  Refuses to know what is measured.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar, Protocol, Self

import numpy as np
from harness import Wrong
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

CHANNEL = 1
SILENCE_S = 30.0
"""A server that neither reads nor writes for this long has lost something."""

READ_SIZE = 1 << 18
_FRAME = struct.Struct(">BHI")
_SETTLE = struct.Struct(">BHIHHQBB")  # a whole basic.ack or basic.nack
_ACK, _NACK = (60, 80), (60, 120)


# -- frames


def _short(text: str) -> bytes:
    data = text.encode()
    return bytes([len(data)]) + data


def _long(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """One whole frame."""
    return _FRAME.pack(kind, channel, len(payload)) + payload + b"\xce"


def method(name: tuple[int, int], arguments: bytes = b"", channel: int = CHANNEL) -> bytes:
    """The frame of a method, by class and number."""
    return frame(1, channel, struct.pack(">HH", *name) + arguments)


def content(body: bytes, properties: bytes) -> bytes:
    """Header and body frame of a message that fits into one."""
    header = frame(2, CHANNEL, struct.pack(">HHQ", 60, 0, len(body)) + properties)
    return header + (frame(3, CHANNEL, body) if body else b"")


# -- streams that are known ahead


@dataclass(frozen=True, slots=True)
class Patch:
    """Numbers that change from turn to turn: where they lie (a row each), and their bytes in a turn."""

    places: NDArray[np.int64]
    encode: Callable[[int], Bytes]


class Cycle:
    """A byte stream of pieces that repeats every `count` pieces, but for its patches.  Offsets count from its start."""

    def __init__(self, pieces: Sequence[bytes], patches: Sequence[Patch]) -> None:
        self.count = len(pieces)
        self.places: list[int] = [0, *np.cumsum([len(piece) for piece in pieces]).tolist()]
        self.size: int = self.places[-1]
        self._data = bytearray(b"".join(pieces))
        self._cells = np.frombuffer(self._data, np.uint8)
        self._view = memoryview(self._data)
        self._patches = patches
        self._turn = -1

    def offset(self, piece: int) -> int:
        """Where the n-th piece begins."""
        turn, rest = divmod(piece, self.count)
        return turn * self.size + self.places[rest]

    def pieces_before(self, offset: int) -> int:
        """How many whole pieces end at or before an offset."""
        turn, rest = divmod(offset, self.size)
        return turn * self.count + bisect_right(self.places, rest) - 1

    def _turn_to(self, turn: int) -> None:
        if turn != self._turn:
            for patch in self._patches:
                self._cells[patch.places] = patch.encode(turn)
            self._turn = turn

    def slice(self, start: int, stop: int) -> memoryview:
        """Bytes from `start` to `stop`, or to the end of the turn if that comes first.  Good until the next call."""
        turn, rest = divmod(start, self.size)
        self._turn_to(turn)
        return self._view[rest : min(rest + stop - start, self.size)]

    def check(self, data: bytes, offset: int) -> None:
        """Raise Wrong unless the stream has exactly these bytes at `offset`."""
        done = 0
        while done < len(data):
            turn, rest = divmod(offset + done, self.size)
            self._turn_to(turn)
            length = min(len(data) - done, self.size - rest)
            part = data if length == len(data) else data[done : done + length]
            if not self._data.startswith(part, rest):
                same = next(at for at in range(length) if part[at] != self._data[rest + at])
                piece = self.pieces_before(offset + done + same)
                first = max(0, self.places[piece % self.count] - rest)
                raise Wrong(
                    f"message {piece + 1} differs at its byte {rest + same - self.places[piece % self.count]}:\n"
                    f"  came   {part[first : same + 40].hex(' ')}\n"
                    f"  wanted {self._data[rest + first : rest + same + 40].hex(' ')}"
                )
            done += length


def _columns(starts: Sequence[int], width: int) -> NDArray[np.int64]:
    return np.asarray(starts, np.int64)[:, None] + np.arange(width)


def _big_endian(first: Sequence[int], step: int) -> Callable[[int], Bytes]:
    """The 8 bytes of `first[row] + turn * step`."""
    base = np.asarray(first, np.int64)
    return lambda turn: (base + turn * step).astype(">u8").view(np.uint8).reshape(-1, 8)


def _digits(turn: int) -> Bytes:
    return np.frombuffer(b"%08d" % turn, np.uint8)


def _turn_bytes(turn: int) -> Bytes:
    return np.frombuffer(turn.to_bytes(4, "big"), np.uint8)


@dataclass(frozen=True, slots=True)
class Workload:
    """Messages that never repeat: body = turn (4 bytes), slot (4 bytes), random bytes.

    One turn is `count` messages; each topic has as many of them as the others, in random order.
    """

    exchange: str
    topics: tuple[str, ...]
    sizes: tuple[int, ...]
    topic_of: tuple[int, ...]
    bodies: tuple[bytes, ...]
    ids: bool = False

    @classmethod
    def make(
        cls,
        topics: Sequence[str],
        *,
        exchange: str = "",
        smallest: int = 100,
        largest: int = 100,
        ids: bool = False,
        count: int = 4000,
        seed: int = 1,
    ) -> Workload:
        """Sizes in bytes, at least 8."""
        random = Random(seed)
        sizes = [random.randint(smallest, largest) for _ in range(count)]
        topic_of = [slot % len(topics) for slot in range(count)]
        random.shuffle(topic_of)
        bodies = [bytes(4) + slot.to_bytes(4, "big") + random.randbytes(size - 8) for slot, size in enumerate(sizes)]
        return cls(exchange, tuple(topics), tuple(sizes), tuple(topic_of), tuple(bodies), ids)

    @property
    def count(self) -> int:
        """Messages in a turn."""
        return len(self.bodies)

    def share(self, topic: int, messages: int) -> int:
        """How many of the first `messages` go to a topic."""
        turns, rest = divmod(messages, self.count)
        return turns * self.topic_of.count(topic) + self.topic_of[:rest].count(topic)

    def _properties(self, slot: int) -> tuple[bytes, int]:
        """Persistent, and an id where asked for; where in them the turn of the id is (0: nowhere)."""
        if not self.ids:
            return b"\x10\x00\x02", 0
        return b"\x10\x80\x02" + _short(f"00000000-{slot:06d}"), 4

    def _cycle(self, slots: Sequence[int], heads: Sequence[bytes], patches: Sequence[Patch]) -> Cycle:
        pieces: list[bytes] = []
        turns: list[int] = []
        ids: list[int] = []
        start = 0
        for slot, head in zip(slots, heads, strict=True):
            properties, id_at = self._properties(slot)
            body = self.bodies[slot]
            piece = head + content(body, properties)
            pieces.append(piece)
            turns.append(start + len(piece) - 1 - len(body))
            ids.append(start + len(head) + 7 + 12 + id_at)
            start += len(piece)
        more = [Patch(_columns(turns, 4), _turn_bytes)]
        if self.ids:
            more.append(Patch(_columns(ids, 8), _digits))
        return Cycle(pieces, [*patches, *more])

    def published(self) -> Cycle:
        """What a publisher sends."""
        heads = [method((60, 40), b"\0\0" + _short(self.exchange) + _short(key) + b"\0") for key in self.topics]
        return self._cycle(range(self.count), [heads[topic] for topic in self.topic_of], ())

    def delivered(
        self, consumer_tag: str, topic: int | None = None, first: int = 1, *, redelivered: bool = False
    ) -> Cycle:
        """What a consumer of all topics, or of one, gets on a fresh channel: its first delivery has the tag `first`.

        `redelivered` after a kill of the server: it cannot know what was delivered before, and must say so of all.
        """
        slots = [slot for slot in range(self.count) if topic is None or self.topic_of[slot] == topic]
        names = [_short(self.exchange) + _short(key) for key in self.topics]
        own = _short(consumer_tag)
        heads = [method((60, 60), own + bytes(8) + bytes([redelivered]) + names[self.topic_of[slot]]) for slot in slots]
        contents = [content(self.bodies[slot], self._properties(slot)[0]) for slot in slots]
        sizes = [len(head) + len(rest) for head, rest in zip(heads, contents, strict=True)]
        starts = np.cumsum([0, *sizes[:-1]]) + 7 + 4 + len(own)
        tags = _big_endian(range(first, first + len(slots)), len(slots))
        return self._cycle(slots, heads, [Patch(_columns(starts.tolist(), 8), tags)])


def _ack_cycle(every: int, count: int = 4096) -> Cycle:
    """Acks of tags every, 2 * every and so on."""
    one = _SETTLE.pack(1, CHANNEL, 13, *_ACK, 0, every > 1, 0xCE)
    places = _columns(range(11, 11 + count * len(one), len(one)), 8)
    return Cycle([one] * count, [Patch(places, _big_endian(range(every, every * count + 1, every), every * count))])


# -- a connection


class Socket(Protocol):
    """What is used of a socket."""

    def fileno(self) -> int: ...
    def send(self, data: memoryview, /) -> int: ...
    def sendall(self, data: bytes | memoryview, /) -> None: ...
    def recv(self, size: int, /) -> bytes: ...
    def setblocking(self, blocking: bool, /) -> None: ...
    def settimeout(self, seconds: float, /) -> None: ...
    def close(self) -> None: ...


class Link:
    """A connection with one open channel; calls block.  `rest` is what was read beyond the last answer."""

    over: ClassVar[Callable[[socket.socket], Socket] | None] = None
    """What every new connection is wrapped into: TLS."""

    login: ClassVar[tuple[str, str]] = ("guest", "guest")
    """As whom every new connection logs in."""

    heartbeat: ClassVar[int] = 0
    """Seconds that every new connection asks for; 0: none.  Who asks for them sends them."""

    def __init__(self, address: tuple[str, int]) -> None:
        user, password = self.login
        plain = socket.create_connection(address, timeout=SILENCE_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wrap = type(self).over
        self.sock: Socket = plain if wrap is None else wrap(plain)
        self.rest = b""
        self.sock.sendall(b"AMQP\0\0\x09\x01")
        self._answer((10, 10))
        capabilities = b"".join(_short(name) + b"t\x01" for name in ("publisher_confirms", "basic.nack"))
        client = _long(_short("capabilities") + b"F" + _long(capabilities))
        plain = _long(b"\0" + user.encode() + b"\0" + password.encode())
        self.sock.sendall(method((10, 11), client + _short("PLAIN") + plain + _short("en_US"), 0))
        limits = self._answer((10, 30))
        channels, frames, _ = struct.unpack(">HIH", limits)
        self.sock.sendall(method((10, 31), struct.pack(">HIH", channels, frames, self.heartbeat), 0))
        self.sock.sendall(method((10, 40), _short("/") + b"\0\0", 0))
        self._answer((10, 41))
        self.call((20, 10), b"\0", (20, 11))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def call(self, name: tuple[int, int], arguments: bytes, answer: tuple[int, int]) -> bytes:
        """Send a method and wait for its answer, which must be the next frame; the answer's arguments."""
        self.sock.setblocking(True)
        self.sock.settimeout(SILENCE_S)
        self.sock.sendall(method(name, arguments))
        return self._answer(answer)

    def _answer(self, wanted: tuple[int, int]) -> bytes:
        kind, _, payload = self.read_frame()
        got = struct.unpack_from(">HH", payload)
        if kind != 1 or got != wanted:
            raise Wrong(f"waited for method {wanted}, got {_told(kind, payload)}")
        return payload[4:]

    def read_frame(self) -> tuple[int, int, bytes]:
        """The next frame: kind, channel, payload."""
        while len(self.rest) < 7 or len(self.rest) < 8 + _FRAME.unpack_from(self.rest)[2]:
            data = self.sock.recv(READ_SIZE)
            if not data:
                raise Wrong("the server closed the connection")
            self.rest += data
        kind, channel, size = _FRAME.unpack_from(self.rest)
        payload, end = self.rest[7 : 7 + size], self.rest[7 + size]
        if end != 0xCE:
            raise Wrong("a frame without its end mark")
        self.rest = self.rest[8 + size :]
        return kind, channel, payload

    def declare(self, queue: str, *, passive: bool = False, arguments: bytes = b"") -> int:
        """Declare a durable queue; how many messages are ready in it.  arguments: the fields of AMQP's table."""
        flags = bytes([1 if passive else 2])
        answer = self.call((50, 10), b"\0\0" + _short(queue) + flags + _long(arguments), (50, 11))
        return int(struct.unpack_from(">I", answer, 1 + answer[0])[0])

    def delete(self, queue: str) -> None:
        """Delete a queue with all that is in it."""
        self.call((50, 40), b"\0\0" + _short(queue) + b"\0", (50, 41))

    def delete_exchange(self, name: str) -> None:
        """Delete an exchange."""
        self.call((40, 20), b"\0\0" + _short(name) + b"\0", (40, 21))

    def direct_exchange(self, name: str) -> None:
        """Declare a durable direct exchange."""
        self.call((40, 10), b"\0\0" + _short(name) + _short("direct") + b"\x02" + _long(b""), (40, 11))

    def bind(self, queue: str, exchange: str, key: str) -> None:
        """Bind a queue."""
        self.call((50, 20), b"\0\0" + _short(queue) + _short(exchange) + _short(key) + b"\0" + _long(b""), (50, 21))

    def confirms(self) -> None:
        """Confirms on."""
        self.call((85, 10), b"\0", (85, 11))

    def consume(self, queue: str, tag: str, prefetch: int) -> None:
        """Set the prefetch and begin to consume."""
        self.call((60, 10), struct.pack(">IHB", 0, prefetch, 0), (60, 11))
        self.call((60, 20), b"\0\0" + _short(queue) + _short(tag) + b"\0" + _long(b""), (60, 21))

    def cancel(self, tag: str) -> None:
        """End a consumer; what it holds stays with the channel."""
        self.call((60, 30), _short(tag) + b"\0", (60, 31))

    def ack(self, tag: int, multiple: bool = False) -> None:
        """One ack."""
        self.sock.sendall(_SETTLE.pack(1, CHANNEL, 13, *_ACK, tag, multiple, 0xCE))

    def round_trip(self) -> None:
        """Returns when the server has handled all that was sent before."""
        self.call((60, 10), struct.pack(">IHB", 0, 0, 0), (60, 11))

    def close(self) -> None:
        """Close as the protocol wants it."""
        self.sock.setblocking(True)
        self.sock.settimeout(SILENCE_S)
        self.sock.sendall(method((10, 50), struct.pack(">H", 200) + _short("") + bytes(4), 0))
        self._answer((10, 51))
        self.sock.close()


def _told(kind: int, payload: bytes) -> str:
    """A frame for an error message."""
    names = {(10, 50): "connection.close", (20, 40): "channel.close", (60, 50): "basic.return"}
    name = struct.unpack_from(">HH", payload) if kind == 1 and len(payload) >= 4 else (0, 0)
    if name in names:
        code, length = struct.unpack_from(">HB", payload, 4)
        return f"{names[name]} {code} {payload[7 : 7 + length].decode(errors='replace')}"
    return f"{name} in a frame of kind {kind}: {payload[:60].hex(' ')}"


# -- publisher and consumer, driven together by one poll


class Actor(Protocol):
    """Something with a socket that `drive` wakes."""

    @property
    def sock(self) -> Socket: ...
    @property
    def done(self) -> bool: ...
    @property
    def waiting(self) -> bool:
        """Whether it has bytes to send that the socket did not take."""
        ...

    def read(self) -> None: ...
    def write(self) -> None: ...


def _send(sock: Socket, cycle: Cycle, start: int, stop: int) -> int:
    """Send a stretch of a cycle as far as the socket takes it; how far it came."""
    while start < stop:
        try:
            start += sock.send(cycle.slice(start, stop))
        except BlockingIOError:
            break
    return start


def _receive(link: Link) -> bytes:
    """What there is to read, first what the calls left over; empty when nothing is there now."""
    if link.rest:
        data, link.rest = link.rest, b""
        return data
    try:
        data = link.sock.recv(READ_SIZE)
    except BlockingIOError:
        return b""
    if not data:
        raise Wrong("the server closed the connection")
    return data


class Confirms:
    """Counts publisher confirms in a byte stream; each number must be confirmed once."""

    def __init__(self) -> None:
        self.upto = 0  # every message up to here is confirmed
        self._beyond: set[int] = set()
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Raises Wrong for a nack, a double confirm or any other frame."""
        data = self._rest + data if self._rest else data
        whole = len(data) // _SETTLE.size * _SETTLE.size
        for row in _SETTLE.iter_unpack(data[:whole]):
            kind, _, size, *name, tag, multiple, end = row
            if kind != 1 or size != 13 or tuple(name) != _ACK or end != 0xCE:
                if tuple(name) == _NACK:
                    raise Wrong(f"the server refused message {tag}")
                raise Wrong(f"not a confirm: {_told(kind, data[7 : 7 + size])}")
            if tag <= self.upto or tag in self._beyond:
                raise Wrong(f"message {tag} is confirmed twice")
            if multiple:
                self.upto = tag
                self._beyond = {one for one in self._beyond if one > tag}
            else:
                self._beyond.add(tag)
            while self.upto + 1 in self._beyond:
                self.upto += 1
                self._beyond.remove(self.upto)
        self._rest = data[whole:]


class Publisher:
    """Publishes `messages` of a workload, at most `window` of them unconfirmed.

    `a_call`: messages in each send call, 0 for as many as there is room.  `batches`: send a window only after the one
    before is confirmed as a whole.
    """

    def __init__(
        self,
        link: Link,
        workload: Workload,
        messages: int,
        window: int = 1024,
        *,
        a_call: int = 0,
        batches: bool = False,
    ) -> None:
        link.confirms()
        link.sock.setblocking(False)
        self.sock = link.sock
        self.messages = messages
        self._link = link
        self._cycle = workload.published()
        self._window = window
        self._a_call = a_call
        self._batches = batches
        self._confirms = Confirms()
        self._sent = 0  # bytes
        self._target = 0  # bytes
        self._open = 0  # messages that may have been sent
        self._room()

    @property
    def confirmed(self) -> int:
        """Messages confirmed so far."""
        return self._confirms.upto

    @property
    def done(self) -> bool:
        """Whether all are confirmed."""
        return self._confirms.upto >= self.messages

    @property
    def waiting(self) -> bool:
        """Whether there is something left to send now."""
        return self._sent < self._target

    def allow(self, messages: int) -> None:
        """Let the first `messages` go, whatever the window says, and send what the socket takes."""
        self._open = max(self._open, min(messages, self.messages))
        self._target = self._cycle.offset(self._open)
        self.write()

    def end(self) -> None:
        """Send nothing beyond what the window now allows."""
        self.messages = self._open

    def _room(self) -> None:
        if not self._batches or self._confirms.upto == self._open:
            self._open = max(self._open, min(self._confirms.upto + self._window, self.messages))
            self._target = self._cycle.offset(self._open)

    def write(self) -> None:
        """Send what the window allows."""
        if not self._a_call:
            self._sent = _send(self.sock, self._cycle, self._sent, self._target)
            return
        while self._sent < self._target:
            stop = min(self._cycle.offset(self._cycle.pieces_before(self._sent) + self._a_call), self._target)
            self._sent = _send(self.sock, self._cycle, self._sent, stop)
            if self._sent < stop:
                break

    def read(self) -> None:
        """Take confirms in."""
        data = _receive(self._link)
        if not data:
            return
        self._confirms.feed(data)
        if self._confirms.upto > self._open:
            raise Wrong(f"message {self._confirms.upto} is confirmed and was not sent")
        self._room()
        self.write()


class Consumer:
    """Consumes the first `messages` of a workload (of one of its topics, if given) and acks every `ack_every`.

    The queue must hold exactly the workload's messages, in order, `skip` of them already gone.
    """

    def __init__(
        self,
        link: Link,
        workload: Workload,
        messages: int,
        queue: str,
        *,
        topic: int | None = None,
        prefetch: int = 1000,
        ack_every: int = 100,
        skip: int = 0,
        redelivered: bool = False,
    ) -> None:
        self.messages = messages
        self.got = 0
        self._link = link
        self.sock = link.sock
        self._stream = workload.delivered("bench", topic, first=1 - skip, redelivered=redelivered)
        self._offset = self._start = self._stream.offset(skip)
        self._skip = skip
        self._end = self._stream.offset(skip + messages)
        self._every = ack_every
        self._acks = _ack_cycle(ack_every)
        self._sent = 0  # bytes of acks
        self._target = 0
        link.consume(queue, "bench", prefetch)
        link.sock.setblocking(False)

    @property
    def done(self) -> bool:
        """Whether all came and all full groups are acked."""
        return self.got >= self.messages and not self.waiting

    @property
    def waiting(self) -> bool:
        """Whether acks wait for the socket."""
        return self._sent < self._target

    def read(self) -> None:
        """Check what came against what must come, and ack."""
        data = _receive(self._link)
        if not data:
            return
        self._stream.check(data, self._offset)
        self._offset += len(data)
        if self._offset > self._end:
            raise Wrong(f"more than the {self.messages} messages that were published came")
        self.got = self._stream.pieces_before(self._offset) - self._skip
        self._target = self._acks.offset(self.got // self._every)
        self.write()

    def write(self) -> None:
        """Send acks."""
        self._sent = _send(self.sock, self._acks, self._sent, self._target)

    def finish(self) -> None:
        """Ack the last, incomplete group, and wait until the server has taken every ack."""
        self.sock.setblocking(True)
        self.sock.settimeout(SILENCE_S)
        if self.got % self._every:
            self._link.ack(self.got, multiple=True)
        self._link.round_trip()


def drive(*actors: Actor, until: Callable[[], bool] | None = None) -> None:
    """Run actors until all are done, or until `until` says so.  Raises Wrong after a silence of `SILENCE_S`."""
    poll = select.poll()
    by_handle: dict[int, Actor] = {}
    writing: dict[int, bool] = {}
    for actor in actors:
        handle = actor.sock.fileno()
        by_handle[handle] = actor
        actor.read()  # what the calls before have left over
        actor.write()
        writing[handle] = actor.waiting
        poll.register(handle, select.POLLIN | (select.POLLOUT if actor.waiting else 0))
    while not (until() if until is not None else all(actor.done for actor in actors)):
        woken = poll.poll(SILENCE_S * 1000)
        if not woken:
            raise Wrong("silence: " + "; ".join(_state(actor) for actor in actors))
        for handle, what in woken:
            actor = by_handle[handle]
            if what & ~select.POLLOUT:
                actor.read()
            elif what & select.POLLOUT:
                actor.write()
            if actor.waiting != writing[handle]:
                writing[handle] = actor.waiting
                poll.modify(handle, select.POLLIN | (select.POLLOUT if actor.waiting else 0))


def _state(actor: Actor) -> str:
    if isinstance(actor, Publisher):
        return f"{actor.confirmed} of {actor.messages} confirmed"
    if isinstance(actor, Consumer):
        return f"{actor.got} of {actor.messages} delivered"
    return repr(actor)


def publish(
    address: tuple[str, int], workload: Workload, messages: int, window: int = 1024, *, batches: bool = False
) -> None:
    """Publish all and wait for all confirms."""
    with Link(address) as link:
        publisher = Publisher(link, workload, messages, window, batches=batches)
        drive(publisher)
        link.close()


def paced(address: tuple[str, int], workload: Workload, messages: int, rate: float) -> list[float]:
    """Publish at a rate that does not wait for the server; seconds from when each message was due to its confirm."""
    with Link(address) as link:
        publisher = Publisher(link, workload, messages, 0)
        poll = select.poll()
        poll.register(publisher.sock, select.POLLIN)
        seen: list[tuple[int, float]] = []
        started = heard = time.perf_counter()
        while not publisher.done:
            now = time.perf_counter()
            publisher.allow(int((now - started) * rate) + 1)
            if poll.poll(1):
                publisher.read()
                heard = time.perf_counter()
                seen.append((publisher.confirmed, heard))
            elif now - heard > SILENCE_S:
                raise Wrong(f"silence: {_state(publisher)}")
        link.close()
    taken: list[float] = []
    for upto, when in seen:
        taken.extend(when - started - number / rate for number in range(len(taken), upto))
    return taken


def drain(
    address: tuple[str, int],
    workload: Workload,
    messages: int,
    queue: str,
    *,
    topic: int | None = None,
    skip: int = 0,
    redelivered: bool = False,
) -> None:
    """Consume and ack all that must be in a queue, check every byte, and that nothing is left."""
    with Link(address) as link:
        consumer = Consumer(link, workload, messages, queue, topic=topic, skip=skip, redelivered=redelivered)
        drive(consumer)
        consumer.finish()
        link.close()
    empty(address, queue)


def empty(address: tuple[str, int], queue: str) -> None:
    """Raise Wrong unless a queue that nobody consumes holds nothing."""
    with Link(address) as link:
        left = link.declare(queue, passive=True)
        link.close()
    if left:
        raise Wrong(f"queue {queue} still has {left} messages after all were acked")


def saturate(address: tuple[str, int], workload: Workload, stop: Callable[[], bool]) -> tuple[int, float]:
    """Publish at full speed, 1,024 in flight, until `stop` says so; the number of confirmed messages, and seconds."""
    with Link(address) as link:
        publisher = Publisher(link, workload, 1 << 40)
        started = time.perf_counter()
        drive(publisher, until=stop)
        publisher.end()
        drive(publisher)
        seconds = time.perf_counter() - started
        link.close()
        return publisher.confirmed, seconds
