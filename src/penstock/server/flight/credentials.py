"""Who a call says that it is: the headers of gRPC's calls, in the door's process, and the tokens that it gives.

Somebody logs in by Basic on each call, or by Basic once and a bearer token.  The server is asked about each call
(`server.logins` remembers who was right); a refused one is answered late.  A token ends with the door's process: its
holder logs in again.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import base64
import binascii
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from pyarrow import flight

from penstock.errors import AccessRefused
from penstock.wire.flight.failures import encode_error

TOKENS_MAX = 10_000
UNPROVEN_MAX = 1000
"""Tokens of logins that nobody has found right so far; they push one another out, never those that were right."""

REFUSED_LOGIN_DELAY_S = 0.5
"""A refused login is answered late, to slow guessing."""

DELAYED_MAX = 32


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

    def __init__(self, is_wrong: Callable[[str, str], bool]) -> None:
        """is_wrong: asks the server whether this is nobody's password, wherever the call comes from."""
        self._is_wrong = is_wrong
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

    def proven(self, credentials: Credentials) -> None:
        """The server found these right."""
        pair = credentials.user, credentials.password
        with self._lock:
            if self._unproven.drop(pair):
                self._proven.put(pair, credentials.token)

    def _refuse_wrong(self, credentials: Credentials) -> None:
        if self._is_wrong(credentials.user, credentials.password):
            self.delay()
            raise unauthenticated(f"user {credentials.user[:60]!r} may not log in with this password")

    def delay(self) -> None:
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
