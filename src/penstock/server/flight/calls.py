"""What is the same for every Flight call: who calls, how many run, and what an error looks like outside.

Owns the places of streams, and the translation of errors into Flight statuses.  Knows no command.

Somebody logs in by Basic on each call, or by Basic once and a bearer token.  Each call is asked about (`server.logins`
remembers who was right); a refused one is answered late.

The intake is an account of the budget for what Flight's threads hold of what clients sent, and the core has not taken
yet.
"""

from __future__ import annotations

import base64
import binascii
import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, cast
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import flight

from penstock.errors import AccessRefused, InvalidArgument, PenstockError, Unavailable
from penstock.records.dataclass import dataclass
from penstock.server.access import Who
from penstock.server.entitlements import Rights
from penstock.server.flight.handover import Abandoned
from penstock.server.shares import Shares
from penstock.wire.flight.failures import encode_error

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false


TOKENS_MAX = 10_000
UNPROVEN_MAX = 1000
"""Tokens of logins that nobody has found right so far; they push one another out, never those that were right."""

REFUSED_LOGIN_DELAY_S = 0.5
"""A refused login is answered late, to slow guessing."""

DELAYED_MAX = 32


def host_and_port(peer: str) -> tuple[str, int]:
    """`ipv4:127.0.0.1:5000` and `ipv6:%5B::1%5D:5000` without scheme and brackets."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port) if port.isdigit() else 0


def _nobody_asks(peer: tuple[str, int], who: Who) -> None:
    """Nobody counts who has logged in."""


class People(Protocol):
    """Who there is: `server.logins.Logins`.  Any thread asks, with each call."""

    def check(self, user: str, password: str, host: str) -> bool:
        """Whether this user may log in with this password from this host."""
        ...

    def is_wrong(self, user: str, password: str) -> bool:
        """Whether this is nobody's password, wherever the call comes from; False where that is not known."""
        ...

    def who(self, user: str) -> Who:
        """Somebody who has logged in, as rights are judged; one who is gone may do nothing."""
        ...


class Credentials(flight.ServerMiddleware):
    """What one call brought to say who it is."""

    def __init__(self, user: str, password: str, token: str) -> None:
        self.user = user
        self.password = password
        self.token = token

    def sending_headers(self) -> dict[str, str]:  # type: ignore[override]  # the stubs want lists, pyarrow takes both
        """A bearer token for the next calls."""
        return {"authorization": f"Bearer {self.token}"}


class Logins(flight.ServerMiddlewareFactory):
    """Reads the authorization header of each call."""

    def __init__(self, people: People, entered: Callable[[tuple[str, int], Who], object] = _nobody_asks) -> None:
        """entered: told of each call that would be let in, by host and port; it may raise Unavailable."""
        self.entered = entered
        self._people = people
        self._proven = _Tokens(TOKENS_MAX)
        self._unproven = _Tokens(UNPROVEN_MAX)
        self._waiting = 0  # refused logins that are kept waiting
        self._lock = threading.Lock()

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str] | list[bytes]]) -> Credentials:
        """Flight's: a call begins.  Raises Unauthenticated for a call that does not say who it is.

        Of GetSchema pyarrow makes no status later on, so a wrong password is told here, where no address is known.
        """
        for name, values in headers.items():
            if name.lower() == "authorization" and values:
                credentials = self._read(values[0])
                if info.method == flight.FlightMethod.GET_SCHEMA:
                    self._refuse_wrong(credentials)
                return credentials
        raise unauthenticated("no user: send an authorization header with Basic user:password")

    def _read(self, header: str | bytes) -> Credentials:
        text = header.decode("latin-1") if isinstance(header, bytes) else header
        scheme, _, value = text.partition(" ")
        if scheme.lower() == "bearer":
            with self._lock:
                known = self._proven.pair(value.strip()) or self._unproven.pair(value.strip())
            if known is None:
                raise unauthenticated("unknown bearer token: log in again with Basic user:password")
            return Credentials(*known, value.strip())
        if scheme.lower() != "basic":
            raise unauthenticated("the authorization header is neither Basic nor Bearer")
        try:
            user, colon, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            raise unauthenticated("the Basic authorization header is not base64 of user:password") from None
        if not colon:
            raise unauthenticated("the Basic authorization header has no colon between user and password")
        return Credentials(user, password, self._token(user, password))

    def _token(self, user: str, password: str) -> str:
        """A token for a pair that may yet turn out wrong: every call checks it."""
        pair = user, password
        with self._lock:
            token = self._proven.token(pair) or self._unproven.token(pair)
            if token is None:
                token = secrets.token_urlsafe(24)
                self._unproven.put(pair, token)
            return token

    def enter(self, context: flight.ServerCallContext) -> tuple[Who, str]:
        """Who makes a call, and from where as gRPC writes it.  Raises Unauthenticated, and what `entered` raises."""
        credentials = cast("Credentials", context.get_middleware("login"))
        told: Any = context.peer()
        peer = told.decode() if isinstance(told, bytes) else str(told)
        host, port = host_and_port(peer)
        who = self.verify(credentials, host)
        self.entered((host, port), who)
        return who, peer

    def verify(self, credentials: Credentials, host: str) -> Who:
        """Who calls.  Raises Unauthenticated, late, unless this user may log in from this host."""
        if not self._people.check(credentials.user, credentials.password, host):
            self._delay()
            raise unauthenticated(f"user {credentials.user[:60]!r} may not log in from {host} with this password")
        pair = credentials.user, credentials.password
        with self._lock:
            if self._unproven.drop(pair):
                self._proven.put(pair, credentials.token)
        return self._people.who(credentials.user)

    def _refuse_wrong(self, credentials: Credentials) -> None:
        if self._people.is_wrong(credentials.user, credentials.password):
            self._delay()
            raise unauthenticated(f"user {credentials.user[:60]!r} may not log in with this password")

    def _delay(self) -> None:
        """Keep a refused login waiting, unless so many wait that they would take the threads from others."""
        with self._lock:
            self._waiting += 1
            crowded = self._waiting > DELAYED_MAX
        if not crowded:
            time.sleep(REFUSED_LOGIN_DELAY_S)
        with self._lock:
            self._waiting -= 1


class _Tokens:
    """Bearer tokens and the logins they stand for, the oldest going first.  Guarded by whoever has it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._pairs = OrderedDict[str, tuple[str, str]]()
        self._tokens = dict[tuple[str, str], str]()

    def token(self, pair: tuple[str, str]) -> str | None:
        return self._tokens.get(pair)

    def pair(self, token: str) -> tuple[str, str] | None:
        return self._pairs.get(token)

    def put(self, pair: tuple[str, str], token: str) -> None:
        self._tokens[pair] = token
        self._pairs[token] = pair
        while len(self._pairs) > self._most:
            _, oldest = self._pairs.popitem(last=False)
            del self._tokens[oldest]

    def drop(self, pair: tuple[str, str]) -> bool:
        token = self._tokens.pop(pair, None)
        if token is not None:
            del self._pairs[token]
        return token is not None


class AnyHandshake(flight.ServerAuthHandler):
    """Lets `authenticate_basic_token` through to the middleware, which does the work."""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        """Flight's: nothing is exchanged beyond the headers."""

    def is_valid(self, token: Any) -> Any:
        """Flight's: identity comes from the middleware."""
        return ""


def unauthenticated(text: str) -> flight.FlightUnauthenticatedError:
    message, extra = encode_error(AccessRefused(text))
    return flight.FlightUnauthenticatedError(message, extra)


SHARE = 4
"""It may count for the budget's share of one in so many."""


class Intake:
    """Bytes.  Thread-safe."""

    def __init__(self, budget: int) -> None:
        """budget: bytes of `server.memory`, of which it counts a share."""
        self.bytes = 0
        self._most = budget // SHARE
        self._lock = threading.Lock()

    @property
    def counted(self) -> int:
        """Bytes that count for the budget, however many there are."""
        return min(self.bytes, self._most)

    def add(self, size: int) -> None:
        """So many bytes more; a negative number gives them back."""
        with self._lock:
            self.bytes += size

    @contextmanager
    def holding(self, size: int) -> Generator[None]:
        """So many bytes, for a while."""
        self.add(size)
        try:
            yield
        finally:
            self.add(-size)


logger = logging.getLogger("penstock.flight")

ABANDONED_SHARE = 4
"""Abandoned streams there may be for each one allowed; their threads wait for clients that do not move."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call, and whether it still waits for the answer."""

    who: Who
    peer: str
    gone: Callable[[], bool]

    @property
    def user(self) -> str:
        return self.who.user

    @property
    def rights(self) -> Rights | None:
        """What the user may read and write; None where nothing is limited."""
        return self.who.rights


class Slot:
    """One open stream's place among those allowed.  A stream that stands still gives it up, its thread stays."""

    __slots__ = ("_calls", "_held", "_state", "floor", "touched", "user")

    def __init__(self, calls: Calls, user: str) -> None:
        self._calls = calls
        self.user = user
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
        return self._state

    @state.setter
    def state(self, value: str) -> None:
        self._state = value


class Calls:
    """All running calls.  Threads of abandoned streams end when their client moves or its connection breaks."""

    def __init__(
        self,
        logins: Logins,
        intake: Intake,
        streams_max: int,
        stalled_s: float = 60.0,
        shares: Shares | None = None,
    ) -> None:
        self.intake = intake
        self.streams_max = streams_max
        self.stalled_s = stalled_s  # a stream on which nothing moves for so long is abandoned
        self.total = 0
        shares = shares or Shares()
        self.working = shares.of("flight_calls").held  # one of this user's that is no stream, for as long as it lasts
        self._moving, self._still = shares.of("flight_streams"), shares.of("flight_streams_still")
        self._moving.bound(streams_max)
        self._still.bound(ABANDONED_SHARE * streams_max)
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
        """How many streams stand still, their threads waiting for clients."""
        return len(self._abandoned)

    def floor(self) -> int | None:
        """The lowest LSN that a running read may still need; None: no read runs.  A stalled read has no say."""
        with self._lock:
            return min((slot.floor for slot in list(self._open) if slot.floor is not None), default=None)

    def caller(self, context: flight.ServerCallContext) -> Caller:
        """Who calls, by the headers of the call; raises Unauthenticated, late."""
        who, peer = self._logins.enter(context)
        return Caller(who, peer, context.is_cancelled)

    def stream(self, caller: Caller) -> Slot:
        """Room for one stream of this user's; Unavailable when there is none.

        Nobody takes all of those that move, and nobody so many that stand still that others find none to begin.
        """
        with self._lock:
            with self._still.held(caller.who):  # it may come to stand still
                self._moving.take(caller.who)
            slot = Slot(self, caller.user)
            self._open.add(slot)
            self.total += 1
            return slot

    def change(self, slot: Slot, state: str) -> None:
        """A stream is abandoned or closed."""
        with self._lock:
            if slot.state == "closed":
                return
            slot.state = state
            for places, share in ((self._open, self._moving), (self._abandoned, self._still)):
                if slot in places:
                    places.remove(slot)
                    share.give(slot.user)
            if state == "abandoned":
                self._abandoned.add(slot)
                self._still.put(slot.user)

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
