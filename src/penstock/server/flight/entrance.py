"""The Flight port from the first moment of a start: calls that come while the log is recovered wait for the door.

gRPC takes no socket that somebody else bound, and a client whose connection is refused fails at once.  So pyarrow's
server stands here early and holds a few calls in the threads they have anyway, each for at most `PATIENCE_S`; beyond
that the answer is Unavailable, which says that a retry helps and how far the start has come.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from pyarrow import flight

from penstock.errors import Unavailable
from penstock.server.flight.calls import AnyHandshake, Logins, People, reported
from penstock.server.flight.connections import Connections, Strangers
from penstock.server.flight.handover import Abandoned
from penstock.server.shares import Shares

if TYPE_CHECKING:
    from penstock.server.tls import Identity

PATIENCE_S = 60.0
LOOK_S = 0.2

CUT_S = 3.0
"""How long calls may take to end whose connection was cut."""

REBIND_S = 5.0
REBIND_PAUSE_S = 0.002
"""How long the port of a server that makes room for another may be taken before it is told, and between tries."""

logger = logging.getLogger("penstock.flight")


class Inside(Protocol):
    """Where calls go once the start is over: a method for each of Flight's, which raises what is refused."""

    def put(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor, reader: Any, writer: Any
    ) -> None: ...

    def get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream: ...

    def exchange(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor, reader: Any, writer: Any
    ) -> None: ...

    def act(self, context: flight.ServerCallContext, action: flight.Action) -> bytes: ...

    def known(self, context: flight.ServerCallContext) -> list[flight.ActionType]: ...

    def listing(self, context: flight.ServerCallContext, criteria: bytes) -> list[flight.FlightInfo]: ...

    def info(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> flight.FlightInfo: ...


def _starting() -> str:
    return "starting"


class Entrance:
    """Listens; lets calls through once `open` has named the door."""

    def __init__(
        self,
        people: People,
        how_far: Callable[[], str] = _starting,
        strangers: Strangers | None = None,
        shares: Shares | None = None,
    ) -> None:
        """`how_far`: what the server is doing until then, for who is sent away.  Any thread calls it.

        strangers: what connections may do before a login.  shares: what each user may take.
        """
        shares = shares or Shares()
        self.connections = Connections(strangers, shares.of("connections"))
        self.logins = Logins(people, self.connections.known)
        self._how_far = how_far
        self._door: Inside | None = None
        self._changed = threading.Event()
        self._early = shares.of("early_calls")
        self._server: _Server | None = None
        self._tls: _Server | None = None
        self._tls_at = ("", 0)
        self._ending = list[threading.Thread]()  # servers that listen no more, until their last call is over
        self._closed = threading.Event()
        self._renewing = threading.Lock()

    def listen(self, host: str, port: int) -> tuple[str, int]:
        """Start to accept; returns the address that was bound.  Raises OSError."""
        self._server = self._made("grpc", host, port, {})
        self.connections.watch(self._server.port, "flight")
        return host, self._server.port

    def listen_tls(self, host: str, port: int, identity: Identity) -> tuple[str, int]:
        """The same over TLS, beside the other or alone."""
        self._tls = self._made("grpc+tls", host, port, _shown(identity))
        self._tls_at = host, self._tls.port
        self.connections.watch(self._tls.port, "flight_tls")
        return self._tls_at

    def _made(self, scheme: str, host: str, port: int, tls: dict[str, Any]) -> _Server:
        bracketed = f"[{host}]" if ":" in host else host
        try:
            return _Server(self, f"{scheme}://{bracketed}:{port}", tls)
        except (flight.FlightError, pa.ArrowException) as error:
            raise OSError(0, f"Flight cannot listen there: {str(error)[:200]}") from error

    def renew(self, identity: Identity) -> None:
        """Show another certificate from now on.  In a thread of its own: it may wait for the port.

        gRPC's server keeps the certificate it began with, so another one takes its place at the same port: calls under
        way go on with the old one until they end, clients that stay connected come to the new one with their next call.
        Between the two the port is closed for about a millisecond.
        """
        with self._renewing:
            before = self._tls
            if before is None or self._closed.is_set():
                return
            self._end(before)
            until, told = time.monotonic() + REBIND_S, False
            while not self._closed.is_set():
                try:
                    self._tls = self._made("grpc+tls", *self._tls_at, _shown(identity))
                    return
                except OSError as error:
                    if time.monotonic() > until and not told:
                        told = True
                        logger.error("flight_tls: the port was lost while the certificate was renewed: %s", error)
                    self._closed.wait(REBIND_PAUSE_S if not told else REBIND_S)

    def _end(self, server: _Server) -> None:
        self._ending = [one for one in self._ending if one.is_alive()]
        thread = threading.Thread(target=server.shutdown, name="penstock-flight-stop", daemon=True)
        thread.start()
        self._ending.append(thread)

    def open(self, door: Inside) -> None:
        """From now on calls go there; those that wait go first."""
        self._door = door
        self._changed.set()

    def close(self, timeout: float = 5.0) -> bool:
        """Stop listening and wait for running calls, at most so many seconds; whether all have ended then.

        pyarrow waits for every call, and a call whose client stands still or does not end its half of a stream never
        ends: after that time connections are cut, and what runs on them ends with them.
        """
        self._changed.set()
        self._closed.set()
        until = time.monotonic() + timeout
        with self._renewing:
            for server in (self._server, self._tls):
                if server is not None:
                    self._end(server)
        for thread in self._ending:
            thread.join(max(0.0, until - time.monotonic()))
        if any(thread.is_alive() for thread in self._ending):
            logger.info("%d Flight connections are cut: their calls did not end", self.connections.cut_all())
            until = time.monotonic() + CUT_S
            for thread in self._ending:
                thread.join(max(0.0, until - time.monotonic()))
        self.connections.end()
        return not any(thread.is_alive() for thread in self._ending)

    # -- Flight's threads

    def door(self, context: flight.ServerCallContext) -> Inside:
        """The door, when it is open.  Raises Unavailable, or Abandoned when the client left."""
        return self._door or self._wait(context)

    def _wait(self, context: flight.ServerCallContext) -> Inside:
        who, _ = self.logins.enter(context)  # places to wait are for those who may come in
        if self._early.refusal(who) is not None:
            self._early.refused += 1
            raise self._not_yet()
        with self._early.held(who):
            until = time.monotonic() + PATIENCE_S
            while not self._changed.wait(LOOK_S):
                if context.is_cancelled():
                    raise Abandoned
                if time.monotonic() > until:
                    raise self._not_yet()
        if self._door is None:
            raise Unavailable("the server stops")
        return self._door

    def _not_yet(self) -> Unavailable:
        return Unavailable(f"the server is {self._how_far()}: try again in a moment")


def _shown(identity: Identity) -> dict[str, Any]:
    """The identity as pyarrow takes it.  It asks for a client's certificate only to insist on one."""
    asked = {"verify_client": True, "root_certificates": identity.ca_pem} if identity.insists else {}
    return {"tls_certificates": [(identity.chain_pem, identity.key_pem)], **asked}


class Refusal(Exception):  # clients read this name
    """What GetSchema raises: of that alone pyarrow makes no status, and sends the traceback behind the text.

    A traceback that cannot be written is left out.
    """

    @property
    def __cause__(self) -> BaseException | None:  # type: ignore[override]  # whoever writes a traceback asks
        raise AttributeError("the traceback is nobody's business outside")


class _Server(flight.FlightServerBase):
    """pyarrow's server: each method runs in a thread of its own.  (The stubs have some results wrong: hence Any.)"""

    def __init__(self, entrance: Entrance, location: str, tls: dict[str, Any]) -> None:
        self._entrance = entrance
        super().__init__(location, auth_handler=AnyHandshake(), middleware={"login": entrance.logins}, **tls)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with reported():
            self._entrance.door(context).put(context, descriptor, reader, writer)

    def do_get(self, context: Any, ticket: Any) -> flight.FlightDataStream:
        with reported():
            return self._entrance.door(context).get(context, ticket)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with reported():
            self._entrance.door(context).exchange(context, descriptor, reader, writer)

    def do_action(self, context: Any, action: Any) -> Any:
        with reported():
            return [flight.Result(pa.py_buffer(self._entrance.door(context).act(context, action)))]

    def list_actions(self, context: Any) -> Any:
        with reported():
            return self._entrance.door(context).known(context)

    def list_flights(self, context: Any, criteria: Any) -> Iterator[flight.FlightInfo]:
        with reported():
            return iter(self._entrance.door(context).listing(context, criteria))

    def get_flight_info(self, context: Any, descriptor: Any) -> flight.FlightInfo:
        with reported():
            return self._entrance.door(context).info(context, descriptor)

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        try:
            with reported():
                return flight.SchemaResult(self._entrance.door(context).info(context, descriptor).schema)
        except flight.FlightError as error:
            raise Refusal(str(error)) from None
