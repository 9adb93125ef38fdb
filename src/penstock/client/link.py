"""The connection: pyarrow's Flight client, with logins, and with the server's errors as our own."""

from __future__ import annotations

import base64
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import orjson
import pyarrow as pa
from pyarrow import flight

from penstock.client.urls import Address
from penstock.errors import InvalidArgument, PenstockError, Unavailable
from penstock.wire.fields import write_json
from penstock.wire.flight.failures import decode_error, lost

KEEPALIVE_MS = 300_000
"""A silent connection is probed so often; gRPC servers refuse clients that do it more often."""

RECONNECTING = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500))
"""How soon gRPC looks again for a server that was away; calls in between fail at once.  Its own way is up to
two minutes."""


@contextmanager
def translated() -> Generator[None, None, None]:
    """Errors of Flight as ours."""
    try:
        yield
    except pa.ArrowException as error:
        raise rebuilt(error) from None


def rebuilt(error: BaseException) -> PenstockError:
    """The server's error as its own class; a broken connection as Unavailable."""
    text = str(error)
    extra = getattr(error, "extra_info", None)
    ours = decode_error(text, extra if isinstance(extra, bytes) else None)
    if ours is not None:
        return ours
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


class Link:
    """One connection.  Thread-safe, as Flight's client is."""

    def __init__(self, address: Address, timeout: float | None) -> None:
        """`timeout`: seconds that an action may take; None for no limit."""
        self.address = address
        self.closed = False
        secret = base64.b64encode(f"{address.user}:{address.password}".encode())
        headers: Any = [(b"authorization", b"Basic " + secret)]  # the stubs want text, gRPC takes bytes
        self.options = flight.FlightCallOptions(headers=headers)
        self._timed = flight.FlightCallOptions(headers=headers, timeout=timeout)
        tls = address.trust.options(str(address)) if address.tls else {}
        generic: Any = [("grpc.keepalive_time_ms", KEEPALIVE_MS), *RECONNECTING]
        with translated():
            self.client: Any = flight.FlightClient(address.location, generic_options=generic, **tls)

    def act(self, name: str, fields: Mapping[str, object]) -> dict[str, Any]:
        """The answer of an action.  Raises what the server refuses, Unavailable when it does not answer in time."""
        self.check()
        body = write_json({key: value for key, value in fields.items() if value is not None}, name)
        with translated():
            [result] = self.client.do_action(flight.Action(name, body), self._timed)
        return cast("dict[str, Any]", orjson.loads(result.body.to_pybytes()))

    def get(self, ticket: bytes) -> Any:
        """The stream of a DoGet."""
        self.check()
        with translated():
            return self.client.do_get(flight.Ticket(ticket), self.options)

    def put(self, command: bytes, schema: pa.Schema) -> tuple[Any, Any]:
        """Writer and metadata reader of a DoPut."""
        self.check()
        with translated():
            writer, reader = self.client.do_put(flight.FlightDescriptor.for_command(command), schema, self.options)
        return writer, reader

    def exchange(self, command: bytes) -> tuple[Any, Any]:
        """Writer and reader of a DoExchange."""
        self.check()
        with translated():
            writer, reader = self.client.do_exchange(flight.FlightDescriptor.for_command(command), self.options)
        return writer, reader

    def check(self) -> None:
        """Raises Unavailable once the connection is closed."""
        if self.closed:
            raise Unavailable(f"the connection to {self.address} is closed")

    def close(self) -> None:
        """End the connection; twice does no harm."""
        if not self.closed:
            self.closed = True
            with translated():
                self.client.close()
