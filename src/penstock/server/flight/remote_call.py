"""One call of a client in the door's process: who it says that it is, its line to the server, and how it ends.

Somebody logs in by Basic on each call, or by Basic once and a bearer token.  The server is asked about each call
(`server.people.logins` remembers who was right); a refused one is answered late.  A token ends with the door's
process: its holder logs in again.
"""

from __future__ import annotations

import base64
import binascii
import logging
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from pyarrow import flight

from penstock.errors import AccessRefused, PenstockError, Unavailable
from penstock.records.tokens import login_of, refused
from penstock.server.doors.line import AHEAD, Broken, Ended, Frame, Kind, Lines, Told, failure_of, with_head
from penstock.server.flight.senders import Holder, Living, Peer
from penstock.wire.flight.failures import encode_error, status_of

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false


logger = logging.getLogger("penstock.flight")

TO_CLIENT = {
    Kind.SCHEMA: 64 << 20, Kind.BATCH: 1 << 31, Kind.WORDS: 1 << 30, Kind.MORE: 0, Kind.DONE: 1 << 31,
    Kind.FAILED: 1 << 20,
}  # fmt: skip
"""What the server may say once it knows who calls."""

STATUSES: dict[str, type[flight.FlightError]] = {
    "unavailable": flight.FlightUnavailableError,
    "unauthorized": flight.FlightUnauthorizedError,
    "unauthenticated": flight.FlightUnauthenticatedError,
    "internal": flight.FlightInternalError,
    "cancelled": flight.FlightCancelledError,
}


class Failed(Exception):
    """The server refuses a call, or it failed there."""

    def __init__(self, told: Told) -> None:
        super().__init__(told[1])
        self.told = told


class Abandoned(Exception):
    """The client went away."""


class Place(Holder):
    """What a call takes as long as it is under way."""

    __slots__ = ("peer", "rests", "told_at")

    def __init__(self) -> None:
        super().__init__()
        self.peer: Peer | None = None  # of whom it is, once somebody has looked
        self.rests = False  # its client says nothing now, and all that he said has its answer
        self.told_at = math.inf  # when he was told that it has ended, so that he need only end his half of the stream


class Call:
    """One call on its line.  `close` it, however it ends."""

    def __init__(self, lines: Lines, context: Any, place: Place | None = None) -> None:
        self.place = place or Place()
        self._lines = lines
        self._context = context
        self._over = False  # the server has said its last word
        self._closed = True  # as long as there is no line
        self._line, number = lines.take()
        self._number = number + 1
        self._closed = False

    def begin(
        self, told: dict[str, object], blob: bytes | memoryview, ahead: Callable[[Call], None] | None = None
    ) -> None:
        """Raises Failed, Abandoned and Ended.  ahead: sends the schema and what comes first of an upload."""
        if ahead is None:
            self._line.send(Kind.CALL, self._number, *with_head(told, blob))
        else:
            self._line.send(Kind.CALL, self._number, *with_head(told, blob), flags=AHEAD, later=True)
            ahead(self)
        self._next({Kind.WELCOME: 0, Kind.FAILED: 1 << 20})

    def ask(self, told: dict[str, object]) -> bytes:
        """The answer of a question that nobody has to log in for."""
        self._line.send(Kind.CALL, self._number, *with_head(told))
        return bytes(self._next({Kind.DONE: 1 << 20, Kind.FAILED: 1 << 20}).payload)

    def next(self, *, patient: bool = False) -> Frame:
        """What the server says next; DONE is the last.  patient: whether the client is still there is not asked."""
        return self._next(TO_CLIENT, patient=patient)

    def _next(self, may: dict[Kind, int], *, patient: bool = False) -> Frame:
        try:
            frame = self._line.receive(may, None if patient else self._wanted)
        except Ended:
            if not patient and not self._wanted():
                raise Abandoned from None
            raise
        if frame.number != self._number:
            raise Broken(f"a frame of call {frame.number} in call {self._number}")
        self._over = frame.kind in (Kind.DONE, Kind.FAILED)
        if frame.kind is Kind.FAILED:
            raise Failed(failure_of(frame.payload))
        return frame

    def _wanted(self) -> bool:
        return self._context is None or not self._context.is_cancelled()

    def send(self, kind: Kind, *pieces: Any, flags: int = 0, rows: int = 0, later: bool = False) -> None:
        self._line.send(kind, self._number, *pieces, flags=flags, rows=rows, later=later)

    def close(self) -> None:
        """The line waits for the next call if this one has ended in order; else the server sees its end."""
        if self._closed:
            return
        self._closed = True
        if self._over:
            self._lines.give(self._line, self._number)
        else:
            self._lines.drop(self._line)

    def cut(self) -> None:
        """Nobody waits for it any more: who waits for the server here sees that, too."""
        if not self._over:
            self._line.close()

    def __del__(self) -> None:
        """A stream that nobody read to its end.  It may be a part of a cycle, and go in the middle of anything."""
        if not self._closed:
            self._closed = True
            self._lines.drop(self._line)


@contextmanager
def writing() -> Generator[None, None, None]:
    """Abandoned where what is written to a client does not reach it."""
    try:
        yield
    except OSError:
        raise Abandoned from None


@contextmanager
def reported() -> Generator[None, None, None]:
    """Errors of a call as Flight statuses that carry our code; what we did wrong is logged and not shown."""
    try:
        yield
    except flight.FlightError:
        raise
    except (Abandoned, Failed) as error:
        raise _status(error.told if isinstance(error, Failed) else ("cancelled", "the client is gone", b"")) from None
    except Ended:
        gone = Unavailable("the server is gone: try again in a moment")
        raise _status((status_of(gone), *encode_error(gone))) from None
    except PenstockError as error:
        raise _status((status_of(error), *encode_error(error))) from None
    except Exception as error:
        logger.error("a Flight call failed", exc_info=error)
        raise flight.FlightInternalError("internal error; the server's log has the details") from None


def _status(told: Told) -> flight.FlightError:
    status, message, extra = told
    kind = STATUSES.get(status, flight.FlightServerError)
    return kind(message, extra) if extra else kind(message)


TOKENS_MAX = 10_000
UNPROVEN_MAX = 1000
"""Tokens of logins that nobody has found right so far; they push one another out, never those that were right."""

REFUSED_LOGIN_DELAY_S = 0.5
"""A refused login is answered late, to slow guessing."""

DELAYED_MAX = 32


CALLS_MOST, CALLS_OF_LOGIN, CALLS_UNPROVEN = 704, 384, 64
"""Calls that have begun: in all, of one login that was found right, and of all others.  Each has a thread of gRPC's
until it ends, also one whose client says nothing: the server does not hear of it before it has a message."""

ASKED_MOST = 16
"""Logins about which the server is asked at a time because those places are taken."""


class Places:
    """How many calls there are, of whom.  Thread-safe."""

    def __init__(self) -> None:
        self._of = dict[tuple[str, str], Living]()
        self._known, self._nobodys = Living(), Living()
        self._lock = threading.Lock()

    def take(self, pair: tuple[str, str], holder: Holder) -> bool:
        """One for a login, or NOBODY; whether there was one."""
        with self._lock:
            if self._known.most() >= CALLS_MOST and self._known.count() >= CALLS_MOST:
                return False
            if pair == NOBODY:
                return self._nobodys.take(holder, CALLS_UNPROVEN)
            if len(self._of) > 2 * CALLS_MOST:
                self._of = {pair: one for pair, one in self._of.items() if one.count()}
            if not self._of.setdefault(pair, Living()).take(holder, CALLS_OF_LOGIN):
                return False
            self._known.add(holder)
            return True

    def total(self) -> int:
        return self._known.count() + self._nobodys.count()

    def at_rest(self) -> set[Peer]:
        """Whose calls all rest."""
        calls = [one for one in (*self._known.here(), *self._nobodys.here()) if isinstance(one, Place)]
        told = time.monotonic() - TOLD_S
        rest = [one.rests or one.told_at < told for one in calls]
        peers = [
            {one.peer for one, rests in zip(calls, rest, strict=True) if rests is so and one.peer}
            for so in (True, False)
        ]
        return peers[0] - peers[1]


TOLD_S = 1.0
"""Who was told that a stream has ended, and lives, ends his half of it sooner; one that is frozen never does."""

NOBODY = "", ""
"""Whose calls those are whose login nobody has found right so far."""


class Credentials(flight.ServerMiddleware):
    """What one call brought to say who it is, and the place that it takes."""

    def __init__(self, user: str, password: str, token: str) -> None:
        self.user = user
        self.password = password
        self.token = token
        self.place = Place()  # pyarrow lets go of it with the call, also where there is no memory to say so

    def call_completed(self, exception: BaseException | None) -> None:
        """Flight's: the call has ended, however it did."""
        self.place.over = True

    def sending_headers(self) -> dict[str, str]:  # type: ignore[override]  # the stubs want lists, pyarrow takes both
        """A bearer token for the next calls."""
        return {"authorization": f"Bearer {self.token}"}


class Logins(flight.ServerMiddlewareFactory):
    """Reads the authorization header of each call."""

    def __init__(self, is_wrong: Callable[[str, str], bool], is_right: Callable[[str, str], bool]) -> None:
        """Both ask the server about a login, wherever the call comes from; what is not known is neither."""
        self.begun: Callable[[], None] = lambda: None  # told of each call
        self._is_wrong = is_wrong
        self._is_right = is_right
        self._proven = _Tokens(TOKENS_MAX)
        self._unproven = _Tokens(UNPROVEN_MAX)
        self._waiting = Living()  # refused logins that are kept waiting
        self._places = Places()
        self._asking = Living()
        self._lock = threading.Lock()

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str] | list[bytes]]) -> Credentials:
        """Flight's: a call begins.  Raises Unauthenticated for a call that does not say who it is.

        Of GetSchema pyarrow makes no status later on, so a wrong password is told here, where no address is known.
        """
        self.begun()
        for name, values in headers.items():
            if name.lower() == "authorization" and values:
                credentials = self._read(values[0])
                if info.method == flight.FlightMethod.GET_SCHEMA:
                    self._refuse_wrong(credentials)
                self._let_in(credentials)
                return credentials
        raise unauthenticated("no user: send an authorization header with Basic user:password")

    def under_way(self) -> int:
        """Calls that have said who they are, and have not ended."""
        return self._places.total()

    def at_rest(self) -> set[Peer]:
        """Connections that could be cut without a loss: each of their calls waits for its client, and owes nothing."""
        return self._places.at_rest()

    def _let_in(self, credentials: Credentials) -> None:
        """Have a place for it.  Whoever finds none of those for logins that nobody knows is asked about.

        Only who is right has one of his own then: too many guesses are neither right nor wrong.
        """
        pair = credentials.user, credentials.password
        with self._lock:
            proven = self._proven.token(pair) is not None
        if not proven:
            if self._places.take(NOBODY, credentials.place):
                return
            if not self._found_right(pair):
                raise unavailable("too many logins that nobody knows yet: try again in a moment")
        if not self._places.take(pair, credentials.place):
            raise unavailable(f"user {credentials.user[:60]!r} has too many calls under way: try again later")

    def _found_right(self, pair: tuple[str, str]) -> bool:
        """What the server says, unless it is asked about so many already."""
        asks = Holder()  # as long as this function runs
        return self._asking.take(asks, ASKED_MOST) and self._is_right(*pair)

    def _read(self, header: str | bytes) -> Credentials:
        text = header.decode("latin-1") if isinstance(header, bytes) else header
        scheme, _, value = text.partition(" ")
        if scheme.lower() == "bearer":
            with self._lock:
                known = self._proven.pair(value.strip()) or self._unproven.pair(value.strip())
            known = known or login_of(value)
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
                token = base64.urlsafe_b64encode(os.urandom(24)).decode()  # `secrets` brings 4 MiB of OpenSSL
                self._unproven.put(pair, token)
            return token

    def proven(self, credentials: Credentials) -> None:
        """The server found these right."""
        pair = credentials.user, credentials.password
        with self._lock:
            if self._unproven.drop(pair):
                self._proven.put(pair, credentials.token)

    def _refuse_wrong(self, credentials: Credentials) -> None:
        if self._is_wrong(credentials.user, credentials.password):
            raise self._refused(credentials)

    def _refused(self, credentials: Credentials) -> flight.FlightUnauthenticatedError:
        self.delay()
        return unauthenticated(refused(credentials.user))

    def delay(self) -> None:
        """Keep a refused login waiting, unless so many wait that they would take the threads from others."""
        waits = Holder()  # as long as this function runs
        if self._waiting.take(waits, DELAYED_MAX):
            time.sleep(REFUSED_LOGIN_DELAY_S)


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


def unavailable(text: str) -> flight.FlightUnavailableError:
    message, extra = encode_error(Unavailable(text))
    return flight.FlightUnavailableError(message, extra)


def unauthenticated(text: str) -> flight.FlightUnauthenticatedError:
    message, extra = encode_error(AccessRefused(text))
    return flight.FlightUnauthenticatedError(message, extra)
