"""The two streams of a call in the door's process: what a client sends, for the server, and what the server sends him.

What comes first of an upload may be sent with the call, before anybody asked for it (`Call.begin`).
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

from pyarrow import flight

from penstock.errors import InvalidArgument, PenstockError, Unavailable
from penstock.server.doors.columns import batch_up, schema_up
from penstock.server.doors.line import FOLLOWED, Frame, Kind, failed
from penstock.server.flight.arriving import Arriving
from penstock.server.flight.remote_call import Abandoned, Call
from penstock.server.flight.senders import Holder, Living
from penstock.wire.fields import COMMAND_LIMIT
from penstock.wire.flight.failures import encode_error, status_of
from penstock.wire.flight.received import PUBLISHED, STAGED, STAGED_IN_ORDER, TRANSACTED, Bounds, Layout, Received


class _Slot:
    """Nothing is counted in the door."""

    def touch(self) -> None: ...

    def hold(self, size: int) -> None: ...


class _FromClient(Arriving):
    passing = (flight.FlightError,)


UNANSWERED = (PUBLISHED, STAGED, STAGED_IN_ORDER)
"""Uploads of which words alone have no answer: how many rows they have is told with the last one."""

UPLOADS = (*UNANSWERED, TRANSACTED)
"""What is sent up and answered.  Each batch that is published has its answer, of the others all together."""

KEPT_LEAST, KEPT_MOST = 1 << 10, 16 << 10
"""Bytes of words that wait for what follows: for one of them at least, of all."""


class Uploads:
    """What a client sends on one call, given to the server as it asks for it."""

    def __init__(
        self, call: Call, reader: Any, layout: Layout, bounds: Bounds, context: Any, came: Callable[[int], None],
        ends: Callable[[], bool],
    ) -> None:  # fmt: skip
        """came: told how many bytes have come out of gRPC.  ends: whether the door takes nothing new any more."""
        self._call = call
        self._came = came
        self._layout = layout
        self._context = context
        self._arriving = _FromClient(reader, cast("Any", _Slot()), bounds)
        self._each = self._arriving.each(layout)
        self._kept = 0  # bytes of words that wait for what follows them
        self._ends = ends
        self._owing = layout not in UPLOADS  # whether what came may have no answer when the server asks for more

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
            received, words = self._next()
            self._came(0 if received is None else received.size)
            if words is not None and len(words) > COMMAND_LIMIT:  # else the server cuts off the whole door
                what = self._layout.what
                raise InvalidArgument(f"{what}: {len(words)} bytes of metadata; at most {COMMAND_LIMIT} are read")
            if received is None and self._unanswered(words or b""):
                self._call.send(Kind.WORDS, words or b"", flags=FOLLOWED, later=True)
                return self.go_on()
            self._kept = 0
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

    def _next(self) -> tuple[Received | None, bytes | None]:
        """What comes next.  Unavailable for a batch that came when the door began to end: nobody has taken it."""
        place, rests = self._call.place, not self._owing
        place.rests = rests
        try:
            received, words = next(self._each)
        finally:
            place.rests = False  # before it is asked whether the door ends: who ends it says so before he looks at this
        if received is not None:
            if rests and self._ends():
                raise Unavailable("the server stops")
            self._owing = self._layout is not PUBLISHED
        return received, words

    def _unanswered(self, words: bytes) -> bool:
        """Whether a client that says this waits for nothing before it goes on: what it says next is read first."""
        self._kept += KEPT_LEAST + len(words)
        return self._layout in UNANSWERED and self._kept <= KEPT_MOST


class Down(threading.Thread):
    """What a consumer is sent, once its client is listened to as well."""

    running = Living()

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
        here = Holder()  # as long as this function runs
        self.running.add(here)
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
