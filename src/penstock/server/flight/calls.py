"""What is the same for every Flight call: who calls, how many run, and what an error looks like outside.

Owns the places of streams, and what a client is told of an error.  Knows no command, and no gRPC.

The intake is an account of the budget for what the calls' threads hold of what clients sent, and the core has not taken
yet.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar
from weakref import WeakSet

import pyarrow as pa

from penstock.errors import AccessRefused, InvalidArgument, PenstockError
from penstock.records.rights import Right
from penstock.server.base.faults import reports
from penstock.server.doors.line import Told
from penstock.server.flight.handover import Abandoned
from penstock.server.people.access import Shares, Who, ask_tag, judge
from penstock.server.people.entitlements import Rights
from penstock.wire.flight.failures import encode_error, status_of

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false


SHARE = 4
"""It may count for the budget's share of one in so many."""


class Intake:
    """Bytes.  Thread-safe."""

    def __init__(self, budget: int) -> None:
        """budget: bytes of `server.memory`, of which it counts a share."""
        self.whole = 0  # all that there are
        self.bytes = 0  # those that count for the budget
        self._most = budget // SHARE
        self._lock = threading.RLock()  # a stream may be collected, and give back, in the middle of anything

    def add(self, size: int) -> None:
        """So many bytes more; a negative number gives them back."""
        with self._lock:
            self.whole += size
            self.bytes = min(self.whole, self._most)

    @contextmanager
    def holding(self, size: int) -> Generator[None]:
        """So many bytes, for a while."""
        self.add(size)
        try:
            yield
        finally:
            self.add(-size)


ABANDONED_SHARE = 4
"""Abandoned streams there may be for each one allowed; their threads wait for clients that do not move."""

T = TypeVar("T")


class Caller:
    """Who makes a call, as it is now, and whether it still waits for the answer.

    A call may last for days.  What it does next is judged by the rights that its login has by then; when the user or
    the token is no more, whoever works for the call meets `AccessRefused` where it asks whether the client is `gone`.
    """

    __slots__ = ("_asked", "_era", "_look", "_within", "left", "login", "peer", "user")

    def __init__(self, who: Who, peer: str, left: Callable[[], bool], look: Callable[[], Who] | None = None) -> None:
        """left: whether the client has hung up.  look: who it is now; without it who it was."""
        self.user = who.user
        self.login = who.user, who.token  # a token of his may do less than he
        self.peer = peer
        self.left = left
        self._era, self._look = who.era, look or (lambda: who)
        self._within: dict[str, Callable[[], bool]] = {}
        self._asked: dict[Right, str] = {}  # whose tags it takes as long as it lasts, and what for

    def judge(self, right: Right, names: Mapping[str, object], vhosts: Container[str], what: str) -> None:
        """As `access.judge`; who has not the tag any more ends the call."""
        judge(self._look(), right, names, vhosts, what)
        self._asked[right] = what

    def enter(self, vhost: str, still: Callable[[], bool]) -> None:
        """The call is in a vhost; still: whether that is the same one, and none that has its name later."""
        self._within.setdefault(vhost, still)

    @property
    def who(self) -> Who:
        return self._look()

    @property
    def rights(self) -> Rights | None:
        """What the user may read and write; None where nothing is limited."""
        return self._look().rights

    def refusal(self) -> AccessRefused | None:
        """Why the call may not go on."""
        who = self._look()
        if not who.there or who.era != self._era:
            return AccessRefused(
                f"user '{self.user}' may not log in any more, or the token has ended: so does the call"
            )
        for vhost, still in self._within.items():
            if not still():
                return AccessRefused(f"vhost '{vhost}' was deleted, and the call ends with it")
        try:
            for right, what in self._asked.items():
                ask_tag(who, right, what)
        except AccessRefused as error:
            return error
        return None

    def gone(self) -> bool:
        """Whether nobody waits for the answer.  AccessRefused when the login is none any more."""
        if self.left():
            return True
        if (why := self.refusal()) is not None:
            raise why
        return False


class Slot:
    """One open stream's place among those allowed.  A stream that stands still gives it up, its thread stays."""

    __slots__ = ("__weakref__", "_calls", "_held", "floor", "missed", "state", "touched", "user")

    def __init__(self, calls: Calls, user: str) -> None:
        self._calls = calls
        self.user = user
        self.state = "open"
        self._held = 0
        self.floor: int | None = None  # a read that may still need the log from this LSN on
        self.missed = 0  # one past the last LSN of what lost rows, from its floor on, while it had no say
        self.touched = time.monotonic()

    def touch(self) -> None:
        """Something moved on the stream."""
        self.touched = time.monotonic()

    def hold(self, size: int) -> None:
        """The stream's thread holds so many bytes of what the client sent, instead of what it held before."""
        self._calls.intake.add(size - self._held)
        self._held = size

    def abandon(self) -> None:
        """The client does not move: others may have the place."""
        self._calls.change(self, "abandoned")

    def close(self) -> None:
        """The stream has ended; twice does no harm."""
        self.hold(0)
        self._calls.change(self, "closed")

    def __del__(self) -> None:
        """Nobody has it any more: who took it may have failed before he could close it."""
        if hasattr(self, "touched"):  # else it was never made
            self.close()


class Calls:
    """All running calls.  Threads of abandoned streams end when their client moves or its connection breaks."""

    def __init__(self, intake: Intake, streams_max: int, stalled_s: float = 60.0, shares: Shares | None = None) -> None:
        self.intake = intake
        self.streams_max = streams_max
        self.stalled_s = stalled_s  # a stream on which nothing moves for so long is abandoned
        self.total = 0
        shares = shares or Shares()
        self.working = shares.of("flight_calls").held  # one of this user's that is no stream, for as long as it lasts
        self._moving, self._still = shares.of("flight_streams"), shares.of("flight_streams_still")
        self._moving.bound(streams_max)
        self._still.bound(ABANDONED_SHARE * streams_max)
        self._open, self._abandoned = WeakSet[Slot](), WeakSet[Slot]()
        self._lock = threading.RLock()  # a stream may be collected, and closed, in the middle of anything

    @property
    def streams(self) -> int:
        """How many are open and moving."""
        return len(self._open)

    @property
    def abandoned(self) -> int:
        """How many streams stand still, their threads waiting for clients."""
        return len(self._abandoned)

    def floor(self) -> int | None:
        """The lowest LSN that a running read may still need; None: no read runs.  A stalled read has no say."""
        with self._lock:
            return min((slot.floor for slot in list(self._open) if slot.floor is not None), default=None)

    def left_out(self, first: int, last: int) -> None:
        """Rows with LSNs from `first` to `last` are gone, which reads that stand still may have to read yet."""
        with self._lock:
            for slot in list(self._abandoned):
                if slot.floor is not None and slot.floor <= last:
                    slot.missed = max(slot.missed, last + 1)

    def stream(self, caller: Caller) -> Slot:
        """Room for one stream of this user's; Unavailable when there is none.

        Nobody takes all of those that move, and nobody so many that stand still that others find none to begin.
        """
        with self._lock:
            slot, who = Slot(self, caller.user), caller.who
            if (why := self._still.refusal(who)) is not None:  # it may come to stand still
                self._still.refused += 1
                raise why
            self._moving.take(who)
            try:
                self._open.add(slot)
            except BaseException:
                self._moving.give(caller.user)
                raise
            self.total += 1
            return slot

    def change(self, slot: Slot, state: str) -> None:
        """A stream is abandoned or closed."""
        with self._lock:
            if slot.state == "closed":
                return
            for places, share in ((self._open, self._moving), (self._abandoned, self._still)):
                if slot in places:
                    places.remove(slot)
                    try:
                        share.give(slot.user)
                    except BaseException:
                        places.add(slot)  # it is closed once more, as it is collected
                        raise
            if state == "abandoned":
                self._still.put(slot.user)
                self._abandoned.add(slot)
            slot.state = state

    def beat(self) -> None:
        """Once a second: find streams on which nothing moves."""
        oldest = time.monotonic() - self.stalled_s
        for slot in self._moved():
            if slot.touched < oldest:
                slot.abandon()

    def abandon(self) -> None:
        """All that are open: others may have their places."""
        for slot in self._moved():
            slot.abandon()

    def _moved(self) -> list[Slot]:
        with self._lock:
            return list(self._open)


def told_of(error: BaseException) -> Told:
    """An error as a client is told of it, with our code; what we did wrong is logged and not shown."""
    if isinstance(error, Abandoned):
        return "cancelled", "the client is gone", b""
    if isinstance(error, pa.ArrowInvalid | pa.ArrowTypeError | pa.ArrowKeyError | pa.ArrowNotImplementedError):
        error = InvalidArgument(f"the Arrow stream cannot be read: {str(error)[:300]}")
    if not isinstance(error, PenstockError):
        reports.tell(error, "flight")
        return "internal", "internal error; the server's log has the details", b""
    return status_of(error), *encode_error(error)


class Guarded(Iterator[T]):
    """A stream that gives its place back however it ends, even if nobody began to read.

    (The `finally` of a generator that was never begun does not run.)
    """

    def __init__(self, rows: Iterator[T], slot: Slot, caller: Caller) -> None:
        self._rows = rows
        self._slot = slot
        self._caller = caller

    def __next__(self) -> T:
        row: T | None = None
        try:
            if (why := self._caller.refusal()) is not None:  # where rows never cease, nobody asks whether he is gone
                raise why
            found = next(self._rows, None)
            if (why := self._caller.refusal()) is not None:  # it may have come long after it was waited for
                raise why
            row = found
        finally:
            if row is None:
                self._slot.close()
                close = getattr(self._rows, "close", None)
                if close is not None:  # of one that was ended while it waits for the next
                    close()
        if row is None:
            raise StopIteration
        self._slot.touch()
        return row

    def __del__(self) -> None:
        self._slot.close()
