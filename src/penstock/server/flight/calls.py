"""What is the same for every Flight call: who calls, how many streams run, and what an error looks like outside.

Owns logins (Basic on each call, or Basic once and a bearer token), the limit on streams, and the translation of errors
into Flight statuses.  Knows no command.
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
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import flight

from penstock.errors import AccessRefused, InvalidArgument, PenstockError, Unavailable
from penstock.server.flight.handover import Abandoned
from penstock.wire.flight.failures import encode_error

logger = logging.getLogger("penstock.flight")

CheckLogin = Callable[[str, str, str], bool]
"""(user, password, peer host) -> may log in."""

LOGIN_REMEMBERED_S = 60.0
"""How long a login that was right is not checked again."""

TOKENS_MAX = 10_000
ABANDONED_SHARE = 4
"""Abandoned streams there may be for each one allowed; their threads wait for clients that do not move."""

REFUSED_LOGIN_DELAY_S = 0.5
"""A refused login is answered late, to slow guessing."""

DELAYED_MAX = 32

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call, and whether it still waits for the answer."""

    user: str
    peer: str
    gone: Callable[[], bool]


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

    def __init__(self, check: CheckLogin) -> None:
        self._check = check
        self._tokens = OrderedDict[str, tuple[str, str]]()
        self._token_of = dict[tuple[str, str], str]()
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
                known = self._tokens.get(value.strip())
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
        with self._lock:
            token = self._token_of.get((user, password))
            if token is None:
                token = self._token_of[user, password] = secrets.token_urlsafe(24)
                self._tokens[token] = (user, password)
                while len(self._tokens) > TOKENS_MAX:
                    _, pair = self._tokens.popitem(last=False)
                    self._token_of.pop(pair, None)
            return token

    def verify(self, credentials: Credentials, host: str) -> None:
        """Raises Unauthenticated, late, unless this user may log in from this host."""
        digest = hashlib.sha256(repr((credentials.user, credentials.password, host)).encode()).digest()
        now = time.monotonic()
        if self._right.get(digest, 0.0) > now:
            return
        if not self._check(credentials.user, credentials.password, host):
            self._delay()
            raise unauthenticated(f"user {credentials.user[:60]!r} may not log in from {host} with this password")
        if len(self._right) >= TOKENS_MAX:
            self._right.clear()
        self._right[digest] = now + LOGIN_REMEMBERED_S

    def _delay(self) -> None:
        """Keep a refused login waiting, unless so many wait that they would take the threads from others."""
        with self._lock:
            self._waiting += 1
            crowded = self._waiting > DELAYED_MAX
        if not crowded:
            time.sleep(REFUSED_LOGIN_DELAY_S)
        with self._lock:
            self._waiting -= 1


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

    __slots__ = ("_calls", "_state", "floor", "touched")

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._state = "open"
        self.floor: int | None = None  # a read that may still need the log from this LSN on
        self.touched = time.monotonic()

    def touch(self) -> None:
        """Something moved on the stream."""
        self.touched = time.monotonic()

    def abandon(self) -> None:
        """The client does not move: others may have the place."""
        self._calls.change(self, "abandoned")

    def close(self) -> None:
        """The stream has ended; twice does no harm."""
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

    def __init__(self, logins: Logins, streams_max: int, stalled_s: float = 60.0) -> None:
        self.streams_max = streams_max
        self.stalled_s = stalled_s  # a stream on which nothing moves for so long is abandoned
        self.refused_streams = 0
        self.total = 0
        self._logins = logins
        self._open = set[Slot]()
        self._abandoned = set[Slot]()
        self._lock = threading.Lock()

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
            return min((slot.floor for slot in self._open if slot.floor is not None), default=None)

    def caller(self, context: flight.ServerCallContext) -> Caller:
        """Who calls; raises Unauthenticated."""
        credentials = cast("Credentials", context.get_middleware("login"))
        peer: Any = context.peer()
        peer = peer.decode() if isinstance(peer, bytes) else str(peer)
        self._logins.verify(credentials, peer_host(peer))
        return Caller(credentials.user, peer, context.is_cancelled)

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


def guarded(rows: Iterator[T], slot: Slot) -> Generator[T, None, None]:
    """A stream whose errors are reported, and that gives its place back when it ends, however it ends."""
    try:
        with reported():
            for row in rows:
                slot.touch()
                yield row
    finally:
        slot.close()
