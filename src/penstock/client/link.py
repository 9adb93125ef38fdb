"""The connection: pyarrow's Flight client, with logins, with the server's errors as our own; and when to try it again.

    away = Outage(300.0)
    away.failed(error)      # raises it when another try is not worth while, or the time is over
    away.wait(until, ended) # until the next try is due
    away.over()             # it answered

Whoever has something open with a server has one of these: consumers, replays and workers wait alike.  It knows no
connection; how one is made is its owner's to say.
"""

from __future__ import annotations

import base64
import random
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, cast

import orjson
import pyarrow as pa
from pyarrow import flight

from penstock.client.forks import changing, check_origin, closed, not_here, opened, watch
from penstock.client.urls import Address
from penstock.client.waiting import attended
from penstock.errors import InvalidArgument, NotLeading, PenstockError, ProtocolError, Unavailable, shown
from penstock.units import Duration, format_address, seconds_of
from penstock.wire.fields import write_json
from penstock.wire.flight.failures import UNREACHED, decode_error, lost

PAUSE_S = (0.1, 5.0)
"""Before the next try: about so long at first, doubled each time, and at most."""

PATIENCE: Duration = "5m"
"""How long a server may be away unless somebody says otherwise."""


def patience(given: Duration | None) -> float | None:
    """How many seconds a server may be away; None: for ever."""
    return None if given is None else seconds_of(given, "reconnect")


class Outage:
    """One time without an answer, or none.  Of one thread, but for the event that ends its waiting."""

    def __init__(self, limit: float | None, *, chance: random.Random | None = None) -> None:
        """limit: seconds from the loss on after which it is given up; 0: at once; None: never."""
        self._limit = limit
        self._chance = chance or random.Random()
        self._since: float | None = None
        self._pause = PAUSE_S[0]
        self._due = 0.0
        self.error: PenstockError | None = None
        """Why the last try failed; None: there is no outage."""

    def failed(self, error: PenstockError) -> None:
        """The connection was lost, or a try to have it again failed.  Raises it when nothing more is to be tried."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if not error.retry or self._limit == 0:
            raise error
        if self._limit is not None and now - self._since >= self._limit:
            raise Unavailable(f"the server was away for {now - self._since:.0f} s and is given up: {error}") from error
        self.error = error
        pause = self._pause * (0.5 + self._chance.random())
        if self._limit is not None:
            pause = min(pause, max(self._limit - (now - self._since), PAUSE_S[0]))
        self._due = now + pause
        self._pause = min(self._pause * 2, PAUSE_S[1])

    @property
    def pause(self) -> float:
        """Seconds until the next try is due."""
        return max(0.0, self._due - time.monotonic())

    def wait(self, until: float | None, ended: threading.Event) -> bool:
        """Until the next try is due; False where `until`, a moment of the monotonic clock, or the end comes first."""
        left = self.pause
        if until is not None and until - time.monotonic() < left:
            ended.wait(max(0.0, until - time.monotonic()))
            return False
        return not ended.wait(left)

    def over(self) -> bool:
        """The server answered; whether it had been away."""
        was_away = self._since is not None
        self._since, self._pause, self._due, self.error = None, PAUSE_S[0], 0.0, None
        return was_away


KEEPALIVE_MS = 300_000
"""A silent connection is probed so often; gRPC servers refuse clients that do it more often."""

RECONNECTING = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500))
"""How soon gRPC looks again for a server that was away; calls in between fail at once.  Its own way is up to
two minutes."""


LOOK_S = 2.0
"""How long a server of a cluster may take to say that it serves, before the next one is asked."""

GO_ON_S = 60.0
"""How long a call that is safe to repeat waits for a cluster that has no leader."""

AGAIN_S = 0.1
"""Between two rounds over its servers."""

NO_THREAD = "Server Threadpool Exhausted"
"""What gRPC says where it cannot begin a thread for a call: nobody has heard of it."""

CROWDED = "the server has no thread for another call at the moment: try again"
"""The same, as callers read it once it was tried for a while."""

T = TypeVar("T")


@contextmanager
def translated() -> Generator[None, None, None]:
    """Errors of Flight as ours."""
    try:
        yield
    except pa.ArrowException as error:
        raise rebuilt(error) from None


def chunks(reader: Any, told: Callable[[bytes], object] | None = None) -> Generator[pa.RecordBatch]:
    """The batches of a stream, which ends however the reading does.  told: takes what stands beside a batch."""
    try:
        while True:
            with translated():
                try:
                    chunk = attended(reader.read_chunk)
                except StopIteration:
                    return
            if told is not None and chunk.app_metadata is not None:
                told(chunk.app_metadata.to_pybytes())
            elif chunk.data is not None:
                yield chunk.data
    finally:
        reader.cancel()  # does nothing to a stream that has ended


@contextmanager
def understood() -> Generator[None, None, None]:
    """What a server says where it is taken apart: what no server of ours says is a ProtocolError.  Decorates, too."""
    try:
        yield
    except (pa.ArrowException, PenstockError):
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ProtocolError(f"the server said what no server says: {type(error).__name__}: {error}") from error


def said(data: bytes) -> dict[str, Any]:
    """An object of JSON that stands beside rows, or answers.  ProtocolError for anything else."""
    with understood():
        value: object = orjson.loads(data)
        if not isinstance(value, dict):
            raise TypeError(f"{shown(value)} is no JSON object")
        return cast("dict[str, Any]", value)


def rebuilt(error: BaseException) -> PenstockError:
    """The server's error as its own class; a broken connection as Unavailable."""
    text = str(error)
    extra = getattr(error, "extra_info", None)
    ours = decode_error(text, extra if isinstance(extra, bytes) else None)
    if ours is not None:
        return ours
    if NO_THREAD in text:
        return Unavailable(CROWDED)
    if isinstance(error, flight.FlightUnavailableError | flight.FlightTimedOutError | flight.FlightCancelledError):
        return lost(text)
    if isinstance(error, flight.FlightError):
        return PenstockError(text.split(". Detail:")[0])
    if isinstance(error, pa.ArrowInvalid | pa.ArrowTypeError):
        return InvalidArgument(text[:500])
    return lost(text)


def failure(writer: Any, error: BaseException) -> PenstockError:
    """Why a stream of ours failed: what the server says at its end tells more than a broken write."""
    try:
        writer.close()
    except pa.ArrowException as better:
        return rebuilt(better)
    return rebuilt(error)


def crowded(error: PenstockError) -> bool:
    """Whether nobody heard of a call that failed, because the server had no thread for it."""
    return str(error) == CROWDED


def never_came(error: PenstockError) -> bool:
    """Whether nobody did anything for a call that failed: no connection came about, or to one who only follows."""
    text = str(error)
    return isinstance(error, NotLeading) or UNREACHED in text or " none serves: " in text


class Link:
    """One connection, of several servers to the one that serves.  Thread-safe, as Flight's client is."""

    def __init__(self, address: Address, timeout: float | None, *others: Address) -> None:
        """`timeout`: seconds that an action may take; None for no limit.  others: of the same cluster."""
        self.address = address
        self.closed = False
        self.servers = (address, *others)
        self._in_doubt = bool(others)  # whether the present one serves
        self._looking = threading.Lock()
        secret = base64.b64encode(f"{address.user}:{address.password}".encode())
        headers: Any = [(b"authorization", b"Basic " + secret)]  # the stubs want text, gRPC takes bytes
        self._headers = headers
        self._patience = GO_ON_S if timeout is None else min(timeout, GO_ON_S)
        self.options = flight.FlightCallOptions(headers=headers)
        self._timed = flight.FlightCallOptions(headers=headers, timeout=timeout)
        self._look = flight.FlightCallOptions(
            headers=headers, timeout=LOOK_S if timeout is None else min(timeout, LOOK_S)
        )
        self._inherited = False  # by a fork
        with changing:
            self.client: Any = _client(address)
            watch(self)

    def leave(self) -> None:
        """The process was forked, and this is the child."""
        self._inherited = not self.closed

    # of several servers

    def doubt(self) -> None:
        """A stream was lost: of several servers it is asked which one serves, before anything else is."""
        self._in_doubt = len(self.servers) > 1

    def _find(self) -> None:
        """Be connected to the server that serves.  Unavailable when none does."""
        with self._looking:
            if not self._in_doubt:
                return
            at = self.servers.index(self.address)
            why = None
            for address in (*self.servers[at:], *self.servers[:at]):
                self.check()
                client = self.client if address is self.address else _client(address)
                try:
                    with translated():
                        attended(partial(self._look_at, client))
                except Unavailable as error:
                    why = error
                    continue
                self.client, self.address, self._in_doubt = client, address, False
                return
            names = ", ".join(format_address(one.host, one.port) for one in self.servers)
            raise Unavailable(f"of {names} none serves: {why}")

    def going_on(self, call: Callable[[], T], *, again: bool, seconds: float | None = GO_ON_S) -> T:
        """What a call gives; with several servers it is repeated while none serves, if nobody had heard of it.

        again: also when its outcome is not known, for a repetition does no harm.  seconds: for so long; None: for ever
        """
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            try:
                return self.heard(call)
            except Unavailable as error:
                self.doubt()
                if len(self.servers) == 1 or self.closed or (until is not None and time.monotonic() > until):
                    raise
                if not (again or never_came(error)):
                    raise
            time.sleep(AGAIN_S)

    def heard(self, call: Callable[[], T]) -> T:
        """What a call gives, which is made again while the server has no thread for it: nobody has heard of it then.

        Unavailable when that lasts as long as an action may.
        """
        crowd: Outage | None = None
        while True:
            try:
                with translated():
                    return call()
            except Unavailable as error:
                if not crowded(error) or self.closed:
                    raise
                crowd = crowd or Outage(self._patience)
                crowd.failed(error)
            time.sleep(crowd.pause)

    # calls

    def act(self, name: str, fields: Mapping[str, object]) -> dict[str, Any]:
        """The answer of an action.  Raises what the server refuses, Unavailable when it does not answer in time."""
        self.check()
        body = write_json({key: value for key, value in fields.items() if value is not None}, name)
        action = flight.Action(name, body)
        try:
            results = self.heard(lambda: self._asked(lambda client: list(client.do_action(action, self._timed))))
        except Unavailable:
            self.doubt()
            raise
        if len(results) != 1:
            raise ProtocolError(f"the server gave {len(results)} answers to {name}, and one is due")
        return said(results[0].body.to_pybytes())

    def _look_at(self, client: Any) -> None:
        list(client.do_action(flight.Action("health", b"{}"), self._look))

    def _asked(self, call: Callable[[Any], Any]) -> Any:
        """What a call of the server that serves gives."""
        client = self._serving()
        return attended(lambda: call(client))

    def _serving(self) -> Any:
        if self._in_doubt:
            self._find()
        return self.client

    def get(self, ticket: bytes) -> Any:
        """The stream of a DoGet."""
        self.check()
        stream = self.heard(lambda: self._asked(lambda client: client.do_get(flight.Ticket(ticket), self.options)))
        return opened(stream)

    def schema(self, command: bytes) -> pa.Schema:
        """That of the answer to a DoGet."""
        self.check()
        descriptor = flight.FlightDescriptor.for_command(command)

        def asked() -> pa.Schema:
            try:
                return cast("pa.Schema", self._asked(lambda client: client.get_schema(descriptor, self.options)).schema)
            except OSError as error:  # where other calls raise an error of Flight's
                raise rebuilt(error) from None

        return self.heard(asked)

    def put(self, command: bytes, schema: pa.Schema) -> tuple[Any, Any]:
        """Writer and metadata reader of a DoPut."""
        self.check()
        with translated():
            descriptor = flight.FlightDescriptor.for_command(command)
            writer, reader = self._asked(lambda client: client.do_put(descriptor, schema, self.options))
        return opened(writer), opened(reader)

    def exchange(self, command: bytes) -> tuple[Any, Any]:
        """Writer and reader of a DoExchange."""
        self.check()
        descriptor = flight.FlightDescriptor.for_command(command)
        writer, reader = self.heard(lambda: self._asked(lambda client: client.do_exchange(descriptor, self.options)))
        return opened(writer), opened(reader)

    def check(self) -> None:
        """Raises Unavailable once the connection is closed, PreconditionFailed in a fork of the process that has it."""
        if self._inherited:
            raise not_here()
        if self.closed:
            raise Unavailable(f"the connection to {self.address} is closed")

    def close(self) -> None:
        """End the connection; twice does no harm."""
        if not self.closed and not self._inherited:
            with changing, translated():
                self.closed = True
                self.client.close()
                closed(self.client)


def _client(address: Address) -> Any:
    check_origin()
    tls = address.trust.options(str(address)) if address.tls else {}
    generic: Any = [("grpc.keepalive_time_ms", KEEPALIVE_MS), *RECONNECTING]
    with changing, translated():
        return opened(flight.FlightClient(address.location, generic_options=generic, **tls))
