"""The Flight port from the first moment of a start: calls that come while the log is recovered wait for the door.

gRPC takes no socket that somebody else bound, and a client whose connection is refused fails at once.  So pyarrow's
server stands here early and holds each call in the thread it has anyway: at most `WAITING` calls, at most `PATIENCE_S`
each; beyond that the answer is Unavailable, which says that a retry helps and how far the start has come.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import flight

from penstock.errors import Unavailable
from penstock.server.flight.calls import AnyHandshake, Logins, People, reported
from penstock.server.flight.handover import Abandoned

if TYPE_CHECKING:
    from penstock.server.flight.door import FlightDoor

WAITING = 64
PATIENCE_S = 60.0
LOOK_S = 0.2


def _starting() -> str:
    return "starting"


class Entrance:
    """Listens; lets calls through once `open` has named the door."""

    def __init__(self, people: People, how_far: Callable[[], str] = _starting) -> None:
        """`how_far`: what the server is doing until then, for who is sent away.  Any thread calls it."""
        self.logins = Logins(people)
        self._how_far = how_far
        self._door: FlightDoor | None = None
        self._changed = threading.Event()
        self._room = threading.Semaphore(WAITING)
        self._server: _Server | None = None

    def listen(self, host: str, port: int) -> tuple[str, int]:
        """Start to accept; returns the address that was bound.  Raises OSError."""
        bracketed = f"[{host}]" if ":" in host else host
        try:
            self._server = _Server(self, f"grpc://{bracketed}:{port}")
        except (flight.FlightError, pa.ArrowException) as error:
            raise OSError(0, f"Flight cannot listen there: {str(error)[:200]}") from error
        return host, self._server.port

    def open(self, door: FlightDoor) -> None:
        """From now on calls go there; those that wait go first."""
        self._door = door
        self._changed.set()

    def close(self, timeout: float = 5.0) -> bool:
        """Stop listening and wait for running calls, at most so many seconds; whether all have ended.

        pyarrow waits for every call, and a call whose client stands still does not end: then a thread stays behind.
        """
        self._changed.set()
        if self._server is None:
            return True
        thread = threading.Thread(target=self._server.shutdown, name="penstock-flight-stop", daemon=True)
        thread.start()
        thread.join(timeout)
        return not thread.is_alive()

    # -- Flight's threads

    def door(self, context: flight.ServerCallContext) -> FlightDoor:
        """The door, when it is open.  Raises Unavailable, or Abandoned when the client left."""
        return self._door or self._wait(context)

    def _wait(self, context: flight.ServerCallContext) -> FlightDoor:
        if not self._room.acquire(blocking=False):
            raise self._not_yet()
        try:
            until = time.monotonic() + PATIENCE_S
            while not self._changed.wait(LOOK_S):
                if context.is_cancelled():
                    raise Abandoned
                if time.monotonic() > until:
                    raise self._not_yet()
        finally:
            self._room.release()
        if self._door is None:
            raise Unavailable("the server stops")
        return self._door

    def _not_yet(self) -> Unavailable:
        return Unavailable(f"the server is {self._how_far()}: try again in a moment")


class _Server(flight.FlightServerBase):
    """pyarrow's server: each method runs in a thread of its own.  (The stubs have some results wrong: hence Any.)"""

    def __init__(self, entrance: Entrance, location: str) -> None:
        self._entrance = entrance
        super().__init__(location, auth_handler=AnyHandshake(), middleware={"login": entrance.logins})

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Flight's."""
        with reported():
            self._entrance.door(context).put(context, descriptor, reader, writer)

    def do_get(self, context: Any, ticket: Any) -> flight.FlightDataStream:
        """Flight's."""
        with reported():
            return self._entrance.door(context).get(context, ticket)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Flight's."""
        with reported():
            self._entrance.door(context).exchange(context, descriptor, reader, writer)

    def do_action(self, context: Any, action: Any) -> Any:
        """Flight's."""
        with reported():
            return [flight.Result(pa.py_buffer(self._entrance.door(context).act(context, action)))]

    def list_actions(self, context: Any) -> Any:
        """Flight's."""
        with reported():
            table = self._entrance.door(context).actions.table
            return [flight.ActionType(name, text) for name, (_, text) in table.items()]

    def list_flights(self, context: Any, criteria: Any) -> Iterator[flight.FlightInfo]:
        """Flight's."""
        with reported():
            return iter(self._entrance.door(context).listing(context, criteria))

    def get_flight_info(self, context: Any, descriptor: Any) -> flight.FlightInfo:
        """Flight's."""
        with reported():
            return self._entrance.door(context).info(context, descriptor)

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        """Flight's."""
        with reported():
            return flight.SchemaResult(self._entrance.door(context).info(context, descriptor).schema)
