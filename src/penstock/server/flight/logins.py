"""Who a Flight call is from: Basic on each call, or Basic once and a bearer token.

Each call is asked about (`server.logins` remembers who was right); a refused one is answered late.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

import base64
import binascii
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol, cast
from urllib.parse import unquote

from pyarrow import flight

from penstock.errors import AccessRefused
from penstock.server.access import Who
from penstock.wire.flight.failures import encode_error

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
