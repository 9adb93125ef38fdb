"""How much of what each connection sent has come out of gRPC again: who is to blame for what it still has.

gRPC shows nothing of what it holds.  The kernel counts what came on a connection, calls tell what came out.  A call
also takes headers and frames, of which nobody knows how many bytes: each explains up to `OF_A_CALL` beside what it
brought, but never more than came by then, and where calls crowd only what the smallest has.  So calls that were let in
earlier explain nothing of a flood.

A batch on its way excuses its connection.  But it takes a few times its bytes, a call that has only begun a thousand
times: where far more was taken than came, it is calls, and an upload that stays open before them excuses nobody.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import NamedTuple, cast


class Holder:
    """What takes a place, which is given back whatever happens."""

    __slots__ = ("__weakref__", "over")

    def __init__(self) -> None:
        self.over = False  # it has given its place back


class Living:
    """Holders, and how many of them there are: each is counted as long as it lives.  Thread-safe.

    A door with little memory left fails anywhere, also where somebody says that he has done.  A count that goes up and
    down would keep such a place for ever; here nobody has to say anything.  Whoever is gone is gone because nothing
    refers to it any more, which takes no memory to know.  Who has done earlier says so by `over`, if he can.
    """

    __slots__ = ("_all", "_lock")

    def __init__(self) -> None:
        self._all: list[weakref.ref[Holder]] = []
        self._lock = threading.Lock()

    def here(self) -> list[Holder]:
        """Those that live, and have not done."""
        with self._lock:
            return self._here()

    def _here(self) -> list[Holder]:
        found = [(one, holder) for one in self._all if (holder := one()) is not None and not holder.over]
        self._all = [one for one, _ in found]
        return [holder for _, holder in found]

    def count(self) -> int:
        return len(self.here())

    def most(self) -> int:
        """How many there are at most: nobody is looked at."""
        return len(self._all)

    def add(self, holder: Holder) -> None:
        with self._lock:
            self._all.append(weakref.ref(holder))

    def take(self, holder: Holder, most: int) -> bool:
        """A place for one more, of so many; whether there is one."""
        with self._lock:
            if len(self._all) >= most and len(self._here()) >= most:
                return False
            self._all.append(weakref.ref(holder))
            return True


Peer = tuple[str, int]

OF_A_CALL, OF_A_SMALL_CALL = 4096, 32
"""Bytes of a call, or of a piece of one, beside what it brings: what frames and headers take at most, and at least."""

UNSEEN_MOST = 64 << 10
"""So many bytes may be explained before the kernel is asked how many came."""

FIRST_WINDOW = 128 << 10
"""Bytes of a first upload that come before its thread has begun, twice over; of one behind large batches all may."""

LEAST = 32 << 10
"""Bytes of 2,000 calls: with less in gRPC nobody is to blame for what it holds, which goes with those that were cut."""

GROWN = 4
"""A batch takes at most so many times the bytes that came of it: gRPC and Arrow have copies."""

BESIDE = 192 << 20
"""Bytes that a crowd of honest callers takes beside what they sent: each thread has pages of its own."""

IN_VAIN_S, SHORT_S, FILLED_S = 10.0, 2.0, 0.3
"""So long nobody is cut while there are uploads alone; where memory is short; and where most of it went to these.  The
calls of who was cut last may have to end yet, and who makes the crowd may show in what comes next."""

END_S = 60.0
"""So long at most the calls of who was cut are waited for while they come out of gRPC: 17,000 took 40 s where other
processes had seven eighths of the processors."""

STARVED = 4
"""So many seconds without the processor count as one of those: calls that nobody waits for end no sooner either."""

CALL, BEGIN_S = 14 << 10, 0.5
"""Bytes of memory of a call, from its headers on, and how long those of who was cut begin yet: gRPC has read them."""


class _Sender:
    """One connection with a call that was let in."""

    __slots__ = ("brings", "explained", "received", "unseen")

    def __init__(self) -> None:
        self.explained = 0
        self.brings = False  # large batches
        self.unseen = 0  # of these, since the kernel was asked
        self.received: Callable[[], int | None] = _unknown  # what came so far


class _Upload(Holder):
    """One call that brings batches."""

    __slots__ = ("at_hand", "peer")

    def __init__(self, peer: Peer) -> None:
        super().__init__()
        self.peer = peer
        self.at_hand = 0  # bytes of its batch that came out of gRPC, and that it has not given away


class _Share(NamedTuple):
    """What one connection has in gRPC, in bytes."""

    kept: int
    peer: Peer
    excused: int = 0  # of these: batches explain them
    uploads: bool = False  # it brings batches, or has begun to
    large: bool = False  # it brought large ones


SUSPECTS: Sequence[Callable[[_Share], int]] = (
    lambda one: one.kept - one.excused,
    lambda one: 0 if one.uploads else one.kept,
    lambda one: 0 if one.large else one.kept,
    lambda one: one.kept,
)
"""What counts against one, the surest first: more than batches explain, no batches, no large ones, anything."""


def _most(shares: Sequence[_Share], by: Sequence[Callable[[_Share], int]]) -> _Share | None:
    """Who has most by the first of these by which anybody has much."""
    for count in by if shares else ():
        most = max(shares, key=count)
        if count(most) >= LEAST:
            return most
    return None


def _unknown() -> None:
    """The connection was not found yet."""


class Senders:
    """Those that have logged in, until they end.  Thread-safe."""

    def __init__(
        self,
        batch_most: int,
        crowded: Callable[[], bool],
        calls: Callable[[], int],
        worked: Callable[[], float] = time.process_time,
    ) -> None:
        """batch_most: bytes of one batch.  crowded: whether there are more calls than get a thread.

        calls: how many have come out of gRPC.  worked: seconds in which this process had the processor.
        """
        self._batch_most = batch_most
        self._crowded = crowded
        self._calls = calls
        self._worked = worked
        self._all = dict[Peer, _Sender]()
        self._uploads = Living()  # calls under way that bring batches; of who is not let in they excuse nothing
        self._looked_at = -IN_VAIN_S  # when somebody was looked for last
        self._found_at = 0.0  # when somebody was found last, or it was looked for first
        self._still_at = self._worked_then = 0.0  # when that was, or a call of who was cut came out since
        self._cut, self._cut_at = 0, -BEGIN_S  # bytes that who was found last had in gRPC, and when that was
        self._came_out = self._come_out = 0  # calls, at the last look; and once those of all that were cut have
        self._lock = threading.Lock()

    def __contains__(self, peer: object) -> bool:
        return peer in self._all

    def known(self, peer: Peer, size: int) -> None:
        """A call of this peer was let in, with so many bytes."""
        with self._lock:
            if (sender := self._all.get(peer)) is None:
                sender = self._all[peer] = _Sender()
            self._explain(sender, size)

    @contextmanager
    def uploading(self, peer: Peer) -> Generator[Callable[[int], None]]:
        """A call brings batches while this lasts: one of them may be in gRPC at any time.  It may be let in yet.

        What it gives is to be told of each how many bytes it has: these are not gRPC's any more.
        """
        upload = _Upload(peer)
        self._uploads.add(upload)

        def came(size: int) -> None:
            upload.at_hand = size
            with self._lock:
                if (sender := self._all.get(peer)) is not None:
                    sender.brings = sender.brings or size > FIRST_WINDOW
                    self._explain(sender, size)

        try:
            yield came
        finally:
            upload.over = True

    def found(self, peer: Peer, received: Callable[[], int | None]) -> None:
        """Where the kernel tells how many bytes came of it; None once the connection is closed."""
        with self._lock:
            if (sender := self._all.get(peer)) is not None:
                sender.received = received

    def left(self, peers: Iterable[Peer]) -> None:
        with self._lock:
            for peer in peers:  # some of them twice
                self._all.pop(peer, None)

    def blamed(
        self, came: Iterable[tuple[Peer, int]], now: float, short_of: int = 0, grown: int = 0
    ) -> tuple[Peer, int] | None:
        """Who has most in gRPC, and how much; None where nobody has much.

        came: who is there, and what came of each.  short_of: bytes of memory that are in use, where that is too much.
        grown: of these, since calls began to crowd.
        A batch on its way has more bytes than thousands of calls.  So who sent more than batches explain goes first,
        then who brought none, and somebody else only where nobody of these was found for a while, in which no call of
        those who went came out.  Where it is calls that take the memory somebody else goes at once: who brought no
        large batch before others.  What calls of who went last take yet counts against nobody.
        """
        under_way = cast("list[_Upload]", self._uploads.here())
        uploads, at_hand = Counter(one.peer for one in under_way), sum(one.at_hand for one in under_way)
        with self._lock:
            all_ = [self._share(peer, received, uploads[peer]) for peer, received in came]
        total = sum(one.kept for one in all_)
        begin = self._cut // OF_A_SMALL_CALL * CALL if now - self._cut_at < BEGIN_S else 0
        calls = grown > BESIDE + GROWN * (total + at_hand) + begin
        found = _most(all_, SUSPECTS if calls else SUSPECTS[:2])
        self._looked(now, found)
        if not found and self._in_vain(now, short_of, total):
            found = _most(all_, SUSPECTS[-1:])
        if found is None:
            return None
        self._cut, self._cut_at = found.kept, now
        if not found.uploads:
            self._come_out = max(self._come_out, self._came_out) + found.kept // OF_A_SMALL_CALL
        return found.peer, found.kept

    def _looked(self, now: float, found: _Share | None) -> None:
        """The wait for somebody else begins where somebody was found, and anew while calls of who was cut come out."""
        anew = found is not None or now - self._looked_at > SHORT_S
        self._looked_at = now
        if anew:
            self._found_at = now
        elif self._calls() == self._came_out or self._came_out >= self._come_out or now - self._found_at >= END_S:
            return
        self._still_at, self._worked_then, self._came_out = now, self._worked(), self._calls()

    def _in_vain(self, now: float, short_of: int, total: int) -> bool:
        """Whether nobody was found for so long that it may be anybody."""
        if 0 < short_of <= 2 * total:
            return now - self._found_at >= FILLED_S
        waited = now - self._still_at
        had = min(waited, max(self._worked() - self._worked_then, waited / STARVED))
        return had >= (SHORT_S if short_of else IN_VAIN_S)

    def _share(self, peer: Peer, received: int, uploads: int) -> _Share:
        sender = self._all.get(peer)
        if sender is None:
            return _Share(received, peer)
        self._see(sender, received)
        excused = FIRST_WINDOW + (uploads + sender.brings) * self._batch_most
        return _Share(received - sender.explained, peer, excused, sender.brings or uploads > 0, sender.brings)

    def _explain(self, sender: _Sender, size: int) -> None:
        more = size + (OF_A_SMALL_CALL if self._crowded() else OF_A_CALL)
        sender.explained += more
        sender.unseen += more
        if sender.unseen > UNSEEN_MOST and (received := sender.received()) is not None:
            self._see(sender, received)

    def _see(self, sender: _Sender, received: int) -> None:
        sender.explained = min(sender.explained, received)
        sender.unseen = 0
