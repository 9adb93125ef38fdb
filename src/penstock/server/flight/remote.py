"""One call of a client in the door's process: its line to the server, what the client sends, and how it ends."""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from pyarrow import flight

from penstock.errors import PenstockError, Unavailable
from penstock.server.doors.columns import batch_up, schema_up
from penstock.server.doors.line import Broken, Ended, Frame, Kind, Told, failed, failure_of, with_head
from penstock.server.flight.arriving import Arriving
from penstock.wire.flight.failures import encode_error, status_of
from penstock.wire.flight.received import Bounds, Layout

if TYPE_CHECKING:
    from penstock.server.doors.line import Lines

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


class Call:
    """One call on its line.  `close` it, however it ends."""

    def __init__(self, lines: Lines, context: Any) -> None:
        self._lines = lines
        self._context = context
        self._line, number = lines.take()
        self._number = number + 1
        self._over = False  # the server has said its last word
        self._closed = False

    def begin(self, told: dict[str, object], blob: bytes) -> None:
        """Raises Failed, Abandoned and Ended."""
        self._line.send(Kind.CALL, self._number, *with_head(told, blob))
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

    def send(self, kind: Kind, *pieces: Any, rows: int = 0, later: bool = False) -> None:
        self._line.send(kind, self._number, *pieces, rows=rows, later=later)

    def close(self) -> None:
        """The line waits for the next call if this one has ended in order; else the server sees its end."""
        if self._closed:
            return
        self._closed = True
        if self._over:
            self._lines.give(self._line, self._number)
        else:
            self._line.close()

    def cut(self) -> None:
        """Nobody waits for it any more: who waits for the server here sees that, too."""
        if not self._over:
            self._line.close()

    def __del__(self) -> None:
        """A stream that nobody read to its end."""
        self.close()


class _Slot:
    """Nothing is counted in the door."""

    def touch(self) -> None: ...

    def hold(self, size: int) -> None: ...


class _FromClient(Arriving):
    passing = (flight.FlightError,)


class Uploads:
    """What a client sends on one call, given to the server as it asks for it."""

    def __init__(self, call: Call, reader: Any, layout: Layout, bounds: Bounds, context: Any) -> None:
        self._call = call
        self._layout = layout
        self._context = context
        self._arriving = _FromClient(reader, cast("Any", _Slot()), bounds)
        self._each = self._arriving.each(layout)

    def begin(self) -> None:
        """Send the schema and what comes first, or what is wrong with the schema."""
        try:
            schema = self._arriving.expect(self._layout)
        except PenstockError as error:
            self._call.send(Kind.FAILED, failed((status_of(error), *encode_error(error))))
        else:
            self._call.send(Kind.SCHEMA, schema_up(schema), later=True)
            self.go_on()

    def go_on(self) -> bool:
        """Send what comes next; False: that was the last.  Raises Abandoned when the client is gone."""
        try:
            received, words = next(self._each)
            if received is None:
                self._call.send(Kind.WORDS, words or b"")
            else:
                self._call.send(Kind.BATCH, *batch_up(received, words), rows=len(received))
        except StopIteration:
            if self._context.is_cancelled():
                raise Abandoned from None
            self._call.send(Kind.END)
            return False
        except PenstockError as error:
            self._call.send(Kind.FAILED, failed((status_of(error), *encode_error(error))))
            return False
        return True


class Down(threading.Thread):
    """What a consumer is sent, once its client is listened to as well."""

    def __init__(self, call: Call, told: Callable[[Frame], None]) -> None:
        """told: writes what a frame brings to the client."""
        super().__init__(name="penstock-flight-down", daemon=True)
        self.error: BaseException | None = None
        self._call = call
        self._told = told
        self._asked = threading.Semaphore(0)
        self._over = False

    def run(self) -> None:
        """Until the server's last word."""
        try:
            while (frame := self._call.next(patient=True)).kind is not Kind.DONE:
                if frame.kind is Kind.MORE:
                    self._asked.release()
                else:
                    self._told(frame)
        except BaseException as error:  # noqa: BLE001 - raised where the call ends
            self.error = error
            self._call.cut()
        finally:
            self._over = True
            self._asked.release()

    def asked(self) -> bool:
        """Wait until the server wants to hear more; False: it has said its last word."""
        self._asked.acquire()
        return not self._over


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
