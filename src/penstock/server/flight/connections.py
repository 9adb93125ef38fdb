"""The connections of Flight's ports as the kernel sees them: who has not logged in is bounded, and all can be cut.

gRPC owns its sockets, shows none, and reads a message of any size before it asks who sends it.  But they are
descriptors of this process: those at one of our ports are found by their address, the kernel counts what came on each
(`TCP_INFO`), and `shutdown` ends what gRPC would wait for.  So before its first call is let in a connection has a time
and a number of bytes, and there are so many of them in all and from one address, of which the oldest go first.  All
together have `TOGETHER` times the bytes of one, and who sent most goes first.  After that call nothing here looks at a
connection again, but to tell when it has ended: its user has it until then; and where gRPC holds too much of what came
(`crowding`), to cut the one that sent most of it (`senders`).  While everybody has logged in nobody looks but for
those ends, a few times a second, and while nobody is connected not at all: the kernel tells of the next one
(`crowding`).
"""

from __future__ import annotations

import ctypes
import logging
import os
import socket
import stat
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import NamedTuple
from urllib.parse import unquote

from penstock.log.disk import exhausted, lent
from penstock.records.dataclass import dataclass
from penstock.server.flight import crowding
from penstock.server.flight.crowding import Crowding
from penstock.server.flight.senders import Peer, Senders
from penstock.units import parted_address

logger = logging.getLogger("penstock.flight")

LOOK_S, IDLE_S = 0.01, 0.03
"""Between two looks, while somebody has not logged in and otherwise: at 1 GB/s so many GB come in between."""

COST = 20
"""Between two looks pass so many times what one took: with very many descriptors a look takes milliseconds."""

QUIET_S, REST_S, PRESENT_S = 1.0, 0.5, 0.25
"""How long nobody has to have come or gone before it is waited to be told of the next one, and how long at a time;
and how long where somebody has logged in, whose end nobody tells of."""

TOGETHER = 32
"""Strangers of all ports together have so many times the bytes of one."""

_FOLDER = "/proc/self/fd"
_BYTES = struct.Struct("=Q")
_AT_BYTES = 128
"""Where `tcpi_bytes_received` is in `struct tcp_info` (linux/tcp.h, since Linux 4.1)."""


@dataclass(frozen=True, slots=True)
class Strangers:
    """What connections of a port may do before their first call is let in."""

    seconds: float = 10.0
    bytes: int = 4 * 2**20  # enough for a first call with the largest command
    most: int = 512
    from_one_address: int = 64


def host_and_port(peer: str) -> tuple[str, int]:
    """`ipv4:127.0.0.1:5000` and `ipv6:%5B::1%5D:5000` without scheme and brackets."""
    host, port = parted_address(unquote(peer).partition(":")[2])
    return host, int(port) if port.isdigit() else 0


class _Seen(NamedTuple):
    """A connection on which no call was let in so far."""

    since: float
    peer: Peer
    door: str


class Connections:
    """Those of some ports.  `known` belongs to any thread, and so do `watch`, `cut_those`, `cut_all` and `end`."""

    def __init__(
        self,
        strangers: Strangers | None = None,
        left: Callable[[list[Peer]], None] | None = None,
        crowding: Crowding | None = None,
        batch_most: int = 256 << 20,
    ) -> None:
        """left: told which of those that had logged in have ended.  crowding: whether gRPC holds too much.

        batch_most: bytes of one batch of an upload.
        """
        self.strangers = strangers or Strangers()
        self._left = left
        self._crowding = crowding
        self.closed = Counter[tuple[str, str]]()  # by door and what they went beyond: time, bytes, crowd, ...
        self._doors = dict[int, str]()  # by port
        self._known = set[Peer]()  # those with a call that was let in since the last look
        if crowding is None:
            self.senders = Senders(batch_most, lambda: False, lambda: 0)
        else:
            self.senders = Senders(batch_most, crowding.is_full, lambda: crowding.calls)
        self._members = dict[int, Peer]()  # these, by socket, once a look has found it
        self._waiting = dict[int, _Seen]()  # without, by socket, the oldest first
        self._sizes = dict[int, int]()  # what came on each of these, at the last look
        self._others = set[int]()  # sockets that are nobody's business here, or not any more
        self._listening = dict[int, list[tuple[int, int]]]()  # sockets by port, of those that tell who connects
        self._stirred = 0.0  # when somebody came or went last
        self._somebody = threading.Event()  # is connected, for all that is known
        self._looking = threading.Lock()
        self._adding = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, port: int, door: str) -> None:
        """Look after the connections of a port on which this process listens for a door, until `end`."""
        with self._looking:
            self._doors[port] = door
            if self._thread is None and os.path.isdir(_FOLDER):
                self._somebody.set()
                self._thread = threading.Thread(target=self._run, name="penstock-flight-strangers", daemon=True)
                with crowding.deaf():
                    self._thread.start()
                if self._crowding is not None:
                    watching = partial(self._watch_crowds, self._crowding)
                    threading.Thread(target=watching, name="penstock-flight-crowds", daemon=True).start()
            self._stirred = time.monotonic()
            if self._thread is not None and self._thread.native_id is not None:
                self._listening[port] = list(_told_of(port, self._thread.native_id))

    def there(self) -> dict[str, int]:
        """How many have not logged in, by door."""
        counts = dict.fromkeys(list(self._doors.values()), 0)
        for seen in list(self._waiting.values()):
            counts[seen.door] += 1
        return counts

    def known(self, peer: Peer, size: int = 0) -> None:
        """A call of this peer was let in, with so many bytes."""
        with self._adding:
            self.senders.known(peer, size)
            self._known.add(peer)

    def is_known(self, peer: Peer) -> bool:
        """Whether a call of this peer was let in before."""
        return peer in self.senders

    def end(self) -> None:
        self._ended.set()

    def cut_strangers(self, now: float) -> None:
        """End those that have not logged in."""
        self.look(now)
        with self._looking:
            self._cut_off(dict.fromkeys(self._waiting, "time"))

    def cut_those(self, peers: set[Peer]) -> None:
        """End some by address; what was written to them before still comes to them."""
        for _, _, one in _sockets() if peers else ():
            with suppress(OSError):  # some end by themselves
                if (found := _door_and_peer(one, self._doors)) is not None and found[1] in peers:
                    one.shutdown(socket.SHUT_RDWR)

    def cut_all(self) -> int:
        """End every connection; how many there were.  Calls on them end as if the client had gone."""
        return sum(_door_and_peer(one, self._doors) is not None and _shut(one) for _, _, one in _sockets())

    def look(self, now: float) -> None:
        """Find connections that are new, and cut those that did what strangers may not."""
        with self._looking:
            with self._adding:  # whoever was known before this look has a socket that it finds
                known, self._known = self._known, set[Peer]()
            here = dict(_descriptors())
            if not self._waiting and here.keys() == self._others and known <= set(self._members.values()):
                return  # nobody came, went or is a stranger, as mostly
            before = self._waiting.keys() | self._members.keys()
            for number, descriptor in here.items():
                if number not in self._others:
                    self._look_at(number, descriptor, now, known)
            present = set(here)
            self._others &= present
            self._leave(known, present)
            if self._waiting or before != self._members.keys():  # others have sockets in this process, too
                self._stirred = now
            for number in self._waiting.keys() - present:
                del self._waiting[number]
            for number in self._sizes.keys() - self._waiting.keys():
                del self._sizes[number]
            if self._waiting:
                self._thin_out()

    def _leave(self, known: set[Peer], present: set[int]) -> None:
        """Tell of those that are closed; some of the known were before a look found them."""
        gone = [self._members.pop(number) for number in self._members.keys() - present]
        gone += known - set(self._members.values()) if known else ()
        with self._adding:
            ended = [peer for peer in gone if peer not in self._known and peer in self.senders]
            self.senders.left(ended)
        if ended and self._left is not None:
            self._left(ended)

    def _look_at(self, number: int, descriptor: int, now: float, known: set[Peer]) -> None:
        one = _opened(number, descriptor)
        if one is None:
            return
        with one:
            seen = self._waiting.get(number)
            if seen is None:
                found = _door_and_peer(one, self._doors)
                if found is None:
                    self._others.add(number)
                    return
                seen = self._waiting[number] = _Seen(now, found[1], found[0])
            may = self.strangers
            size = self._sizes[number] = _received(one)
            if seen.peer in known:
                del self._waiting[number]
                self._others.add(number)
                self._members[number] = seen.peer
                self.senders.found(seen.peer, partial(_received_at, number, descriptor))
            elif size > may.bytes:
                self._cut(number, one, "bytes")
            elif now - seen.since > may.seconds:
                self._cut(number, one, "time")

    def _thin_out(self) -> None:
        """Cut the oldest where there are too many, and those that sent most where that is too much."""
        doomed = self._too_many()
        left = sorted((self._sizes[number], number) for number in self._waiting.keys() - doomed.keys())
        over = sum(size for size, _ in left) - TOGETHER * self.strangers.bytes
        while over > 0:
            size, number = left.pop()
            doomed[number] = "bytes"
            over -= size
        if doomed:
            self._cut_off(doomed)

    def _cut_off(self, doomed: Mapping[int, str]) -> None:
        """Sockets, and what each went beyond."""
        places = dict(_descriptors())
        for number, what in doomed.items():
            if (one := _opened(number, places.get(number, -1))) is not None:
                with one:
                    self._cut(number, one, what)

    def _too_many(self) -> dict[int, str]:
        """Those beyond what a door may have, in all and from one address, and which of both it is."""
        may, waiting = self.strangers, self._waiting
        by_door = Counter(seen.door for seen in waiting.values())
        by_host = Counter((seen.door, seen.peer[0]) for seen in waiting.values())
        doomed = dict[int, str]()
        for number, seen in waiting.items():
            host = seen.door, seen.peer[0]
            if by_host[host] > may.from_one_address:
                doomed[number] = "per_address"
            elif by_door[seen.door] > may.most:
                doomed[number] = "sockets"
            else:
                continue
            by_host[host] -= 1
            by_door[seen.door] -= 1
        return doomed

    def relieve(self, now: float, short_of: int = 0, grown: int = 0) -> bool:
        """Cut the one that sent most of what has not come out of gRPC, logged in or not; whether there was one.

        short_of: bytes of memory that are in use, where that is too much.  grown: of these, since calls began to crowd.
        """
        with self._looking:
            here = dict[Peer, tuple[int, int, str]]()
            came = list[tuple[Peer, int]]()
            for number, descriptor, one in _sockets():
                if (found := _door_and_peer(one, self._doors)) is not None:
                    door, peer = found
                    here[peer] = number, descriptor, door
                    came.append((peer, _received(one)))
            if (blamed := self.senders.blamed(came, now, short_of, grown)) is None:
                return False
            peer, size = blamed
            number, descriptor, door = here[peer]
            if (worst := _opened(number, descriptor)) is None:
                return False
            with worst:
                if done := _disconnect(worst):
                    self.closed[door, "crowd"] += 1
                    logger.warning("flight: a connection with %d bytes of calls nobody waits for is cut", size)
            return done

    def _cut(self, number: int, one: socket.socket, what: str) -> None:
        seen = self._waiting.pop(number, None)
        if _shut(one) and seen is not None:
            self.closed[seen.door, what] += 1
        self._others.add(number)  # until gRPC closes it

    def _run(self) -> None:
        pause = IDLE_S
        while not self._ended.wait(pause):
            began, quiet = time.monotonic(), False
            try:
                self.look(began)
                quiet = self.is_quiet(began)
            except OSError as error:  # not one descriptor is left to look with: in a moment there may be
                if not exhausted(error):
                    raise
            if quiet:
                self._rest()
                pause = 0.0
            else:
                self._somebody.set()
                spent = time.monotonic() - began
                pause = max(LOOK_S if self._waiting else IDLE_S, COST * spent)
        self._somebody.set()  # who waits for somebody sees the end

    def is_quiet(self, now: float) -> bool:
        """Whether everybody has logged in, and whoever connects is told of."""
        with self._looking:
            if self._waiting or now - self._stirred < QUIET_S:
                return False
            if self._crowding is not None and self._crowding.is_full():
                return False
            if not all(self._listening.get(port) for port in self._doors):
                return False
            for number, descriptor in chain.from_iterable(self._listening.values()):
                if (one := _opened(number, descriptor)) is not None:
                    with one:
                        if crowding.stands_outside(one):
                            return False
            return True

    def _rest(self) -> None:
        """Until somebody connects, or it is time to see what nobody tells of, as the end of all this is."""
        if not self._members:
            self._somebody.clear()
        if crowding.wait(PRESENT_S if self._members else REST_S):
            self._stirred = time.monotonic()
            self._somebody.set()  # before anybody looks: all that watch begin at once

    def _watch_crowds(self, crowding: Crowding) -> None:
        """A thread of its own: where Python's lock is wanted by hundreds, a look at all descriptors takes a second."""
        while self._somebody.wait() and not self._ended.is_set():
            crowding.pause()
            try:
                now = time.monotonic()
                if crowding.too_many(now) and self.relieve(now, crowding.short_of, crowding.grown):
                    crowding.relieved()
            except OSError as error:
                if not exhausted(error):
                    raise


def _descriptors() -> list[tuple[int, int]]:
    """Socket and descriptor of each socket of this process; a socket's number is no other's while it lives."""
    sockets = list[tuple[int, int]]()
    for name in lent(partial(os.listdir, _FOLDER)):
        try:
            found = os.fstat(int(name))
        except OSError:
            continue  # closed meanwhile
        if stat.S_ISSOCK(found.st_mode):
            sockets.append((found.st_ino, int(name)))
    return sockets


def _opened(number: int, descriptor: int) -> socket.socket | None:
    """A socket by a descriptor of our own; None when it is not that one any more."""
    try:
        mine = lent(lambda: os.dup(descriptor))
    except OSError:
        return None
    if os.fstat(mine).st_ino != number:
        os.close(mine)
        return None
    return socket.socket(fileno=mine)


def _sockets() -> Iterator[tuple[int, int, socket.socket]]:
    """Number and descriptor of each of this process, open until the next one is asked for."""
    for number, descriptor in _descriptors():
        if (one := _opened(number, descriptor)) is not None:
            with one:
                yield number, descriptor, one


def _told_of(port: int, thread: int) -> Iterator[tuple[int, int]]:
    """Socket and descriptor of each that listens at a port of ours and tells a thread who connects."""
    for number, descriptor, one in _sockets():
        if _listens_at(one, port) and crowding.tell(one, thread):
            yield number, descriptor


def _listens_at(one: socket.socket, port: int) -> bool:
    return one.family in (socket.AF_INET, socket.AF_INET6) and one.getsockname()[1] == port and crowding.listens(one)


def _door_and_peer(one: socket.socket, doors: Mapping[int, str]) -> tuple[str, Peer] | None:
    """Which of these ports of ours somebody is connected to, and who; None for any other socket, listening ones too."""
    if one.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        mine, peer = one.getsockname(), one.getpeername()
    except OSError:
        return None
    door = doors.get(mine[1])
    return None if door is None else (door, (str(peer[0]).removeprefix("::ffff:"), int(peer[1])))


def _received(one: socket.socket) -> int:
    try:
        info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:
        return 0
    return int(_BYTES.unpack_from(info, _AT_BYTES)[0]) if len(info) >= _AT_BYTES + _BYTES.size else 0


def _received_at(number: int, descriptor: int) -> int | None:
    """The same of a socket by a descriptor of our own; None when it is not that one any more."""
    try:
        one = _opened(number, descriptor)
    except OSError:
        return None  # no descriptor is free to look with
    if one is None:
        return None
    with one:
        return _received(one)


_RESET = struct.pack("ii", 1, 0)
"""What is closed is reset: a peer that was writing into a full window hears of nothing else, for a minute or longer."""


def _shut(one: socket.socket) -> bool:
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False  # it has ended by itself
    return True


_NOWHERE = struct.pack("=H14x", socket.AF_UNSPEC)


def _disconnect(one: socket.socket) -> bool:
    """The same, and what has come and was not read is gone: there are thousands of calls in it."""
    try:
        return int(ctypes.CDLL(None).connect(one.fileno(), _NOWHERE, len(_NOWHERE))) == 0
    except (OSError, AttributeError):
        return _shut(one)
