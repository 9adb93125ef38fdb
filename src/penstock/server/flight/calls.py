"""What is the same for every Flight call: who calls, how many streams run, and what an error looks like outside.

Owns logins (Basic on each call, or Basic once and a bearer token), what a user's tags allow, the limit on streams, and
the translation of errors into Flight statuses.  Knows no command.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

import base64
import binascii
import hashlib
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
from penstock.server.entitlements import Rights
from penstock.server.flight.handover import Abandoned
from penstock.server.flight.intake import Intake
from penstock.wire.flight.failures import encode_error

logger = logging.getLogger("penstock.flight")

ADMINISTRATOR = "administrator"
"""The tag of those who may see records of all kinds and vhosts, and have the server work on its whole log."""

POLICYMAKER = "policymaker"
"""The tag of those who may set policies and nothing more."""

LOGIN_REMEMBERED_S = 60.0
"""How long a login that was right is not checked again."""

TOKENS_MAX = 10_000
UNPROVEN_MAX = 1000
"""Tokens of logins that nobody has found right so far; they push one another out, never those that were right."""

ABANDONED_SHARE = 4
"""Abandoned streams there may be for each one allowed; their threads wait for clients that do not move."""

REFUSED_LOGIN_DELAY_S = 0.5
"""A refused login is answered late, to slow guessing."""

DELAYED_MAX = 32

T = TypeVar("T")


class People(Protocol):
    """Who there is: `server.users.Users`.  Any thread asks."""

    def check(self, user: str, password: str, host: str) -> bool:
        """Whether this user may log in with this password from this host."""
        ...

    def tags(self, user: str) -> tuple[str, ...]:
        """What else a user may do."""
        ...

    def rights(self, user: str) -> Rights | None:
        """What a user may read and write; None where nothing is limited."""
        ...


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

    def __init__(self, people: People) -> None:
        self._people = people
        self._proven = _Tokens(TOKENS_MAX)
        self._unproven = _Tokens(UNPROVEN_MAX)
        self._right = dict[bytes, float]()  # digest of (user, password, host) -> until when it is not checked again
        self._waiting = 0  # refused logins that are kept waiting
        self._lock = threading.Lock()

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str] | list[bytes]]) -> Credentials:
        """Flight's: a call begins.  Raises Unauthenticated for a call that does not say who it is."""
        for name, values in headers.items():
            if name.lower() == "authorization" and values:
                return self._read(values[0])
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

    def verify(self, credentials: Credentials, host: str) -> tuple[str, ...]:
        """The user's tags.  Raises Unauthenticated, late, unless this user may log in from this host."""
        digest = hashlib.sha256(repr((credentials.user, credentials.password, host)).encode()).digest()
        now = time.monotonic()
        if self._right.get(digest, 0.0) <= now:
            if not self._people.check(credentials.user, credentials.password, host):
                self._delay()
                raise unauthenticated(f"user {credentials.user[:60]!r} may not log in from {host} with this password")
            if len(self._right) >= TOKENS_MAX:
                self._right.clear()
            self._right[digest] = now + LOGIN_REMEMBERED_S
        pair = credentials.user, credentials.password
        with self._lock:
            if self._unproven.drop(pair):
                self._proven.put(pair, credentials.token)
        return self._people.tags(credentials.user)

    def rights(self, user: str) -> Rights | None:
        """What a user may read and write; None where nothing is limited."""
        return self._people.rights(user)

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
    """A refused login."""
    message, extra = encode_error(AccessRefused(text))
    return flight.FlightUnauthenticatedError(message, extra)


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
