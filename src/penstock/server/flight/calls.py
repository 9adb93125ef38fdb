"""What is the same for every Flight call: who calls, how many streams run, and what an error looks like outside.

Owns what a user's tags allow, the limit on streams, and the translation of errors into Flight statuses.  Knows no
command.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import flight

from penstock.errors import AccessRefused, InvalidArgument, PenstockError, Unavailable
from penstock.records.dataclass import dataclass
from penstock.server.entitlements import Rights
from penstock.server.flight.handover import Abandoned
from penstock.server.flight.intake import Intake
from penstock.server.flight.logins import Credentials, Logins
from penstock.wire.flight.failures import encode_error

logger = logging.getLogger("penstock.flight")

ADMINISTRATOR = "administrator"
"""The tag of those who may see records of all kinds and vhosts, and have the server work on its whole log."""

POLICYMAKER = "policymaker"
"""The tag of those who may set policies and nothing more."""

ABANDONED_SHARE = 4
"""Abandoned streams there may be for each one allowed; their threads wait for clients that do not move."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call, and whether it still waits for the answer."""

    user: str
    peer: str
    gone: Callable[[], bool]
    tags: tuple[str, ...] = ()
    rights: Rights | None = None  # None: nothing is limited

    def administer(self, what: str) -> None:
        """AccessRefused unless this user has the administrator's tag.  `what`: what is asked for."""
        if ADMINISTRATOR not in self.tags:
            raise AccessRefused(f"{what}: for users with the tag {ADMINISTRATOR!r}, which {self.user!r} does not have")

    def make_policies(self, what: str, *, operator: bool) -> None:
        """AccessRefused unless this user may: policies take the tag policymaker too, operator policies do not."""
        if operator or POLICYMAKER not in self.tags:
            self.administer(what)


def peer_host(peer: str) -> str:
    """`ipv4:127.0.0.1:5000` and `ipv6:%5B::1%5D:5000` without scheme, brackets and port."""
    rest = unquote(peer).partition(":")[2]
    return rest.rpartition(":")[0].removeprefix("[").removesuffix("]")


class Slot:
    """One open stream's place among those allowed.  A stream that stands still gives it up, its thread stays."""

    __slots__ = ("_calls", "_held", "_state", "floor", "touched")

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._state = "open"
        self._held = 0
        self.floor: int | None = None  # a read that may still need the log from this LSN on
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

    @property
    def state(self) -> str:
        """open, abandoned or closed."""
        return self._state

    @state.setter
    def state(self, value: str) -> None:
        self._state = value


class Calls:
    """All running calls.  Threads of abandoned streams end when their client moves or its connection breaks."""

    def __init__(self, logins: Logins, intake: Intake, streams_max: int, stalled_s: float = 60.0) -> None:
        self.intake = intake
        self.streams_max = streams_max
        self.stalled_s = stalled_s  # a stream on which nothing moves for so long is abandoned
        self.refused_streams = 0
        self.total = 0
        self._logins = logins
        self._open = set[Slot]()
        self._abandoned = set[Slot]()
        self._lock = threading.RLock()  # a stream may be collected, and closed, in the middle of anything

    @property
    def streams(self) -> int:
        """How many are open and moving."""
        return len(self._open)

    @property
    def abandoned(self) -> int:
        """How many stand still."""
        return len(self._abandoned)

    def floor(self) -> int | None:
        """The lowest LSN that a running read may still need; None: no read runs.  A stalled read has no say."""
        with self._lock:
            return min((slot.floor for slot in list(self._open) if slot.floor is not None), default=None)

    def caller(self, context: flight.ServerCallContext) -> Caller:
        """Who calls; raises Unauthenticated."""
        credentials = cast("Credentials", context.get_middleware("login"))
        peer: Any = context.peer()
        peer = peer.decode() if isinstance(peer, bytes) else str(peer)
        tags = self._logins.verify(credentials, peer_host(peer))
        return Caller(credentials.user, peer, context.is_cancelled, tags, self._logins.rights(credentials.user))

    def stream(self) -> Slot:
        """Room for one stream; Unavailable when there is none."""
        with self._lock:
            if len(self._open) >= self.streams_max or len(self._abandoned) >= ABANDONED_SHARE * self.streams_max:
                self.refused_streams += 1
                raise Unavailable(
                    f"{len(self._open)} Flight streams are open and {self.streams_max} allowed: "
                    "close some, or try again later"
                )
            slot = Slot(self)
            self._open.add(slot)
            self.total += 1
            return slot

    def change(self, slot: Slot, state: str) -> None:
        """A stream is abandoned or closed."""
        with self._lock:
            if slot.state == "closed":
                return
            slot.state = state
            self._open.discard(slot)
            self._abandoned.discard(slot)
            if state == "abandoned":
                self._abandoned.add(slot)

    def beat(self) -> None:
        """Once a second: find streams on which nothing moves."""
        oldest = time.monotonic() - self.stalled_s
        for slot in list(self._open):
            if slot.touched < oldest:
                slot.abandon()


@contextmanager
def reported() -> Generator[None, None, None]:
    """Errors of a call as Flight statuses that carry our code; what we did wrong is logged and not shown."""
    try:
        yield
    except flight.FlightError:
        raise
    except Abandoned:
        raise flight.FlightCancelledError("the client is gone") from None
    except Exception as error:  # noqa: BLE001 - the border: what is not ours is logged there and shown as internal
        raise flight_error(error) from None


def flight_error(error: Exception) -> flight.FlightError:
    """The status for an error."""
    if isinstance(error, pa.ArrowInvalid | pa.ArrowTypeError | pa.ArrowKeyError | pa.ArrowNotImplementedError):
        error = InvalidArgument(f"the Arrow stream cannot be read: {str(error)[:300]}")
    if not isinstance(error, PenstockError):
        logger.error("a Flight call failed", exc_info=error)
        return flight.FlightInternalError("internal error; the server's log has the details")
    message, extra = encode_error(error)
    if isinstance(error, Unavailable):
        return flight.FlightUnavailableError(message, extra)
    if isinstance(error, AccessRefused):
        return flight.FlightUnauthorizedError(message, extra)
    return flight.FlightServerError(message, extra)


class Guarded(Iterator[T]):
    """A stream whose errors are reported, and that gives its place back however it ends, even if nobody began to read.

    (The `finally` of a generator that was never begun does not run.)
    """

    def __init__(self, rows: Iterator[T], slot: Slot) -> None:
        self._rows = rows
        self._slot = slot

    def __next__(self) -> T:
        row: T | None = None
        try:
            with reported():
                row = next(self._rows, None)
        finally:
            if row is None:
                self._slot.close()
        if row is None:
            raise StopIteration
        self._slot.touch()
        return row

    def __del__(self) -> None:
        self._slot.close()
