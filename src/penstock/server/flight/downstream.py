"""What one consumer is sent, and the thread that writes it: deliveries in their order, answers before them.

The loop puts, the thread writes; a bell tells it that there is something.  What is queued for a client that does not
read is counted, and whoever puts is told when it is much and when there is room again.

A stream that is cut off lets go of what waits.  The batch that is being written stays, `AT_ONCE` or one piece that is
larger, until the client reads on or its connection ends: gRPC gives no write back.  It stays counted as `queued`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.history.history import History
from penstock.memory.slab import ROW_OVERHEAD, Piece
from penstock.records.compute import distinct_numbers
from penstock.records.dataclass import dataclass
from penstock.records.one_or_each import joined
from penstock.records.schema import TIMESTAMP
from penstock.server.base.faults import TOLD, reports
from penstock.server.flight.handover import Bell
from penstock.wire.flight.codec import bookmark_column, constant, lsn_column, message_batch, topic_columns
from penstock.wire.flight.commands import DELIVERY

if TYPE_CHECKING:
    from penstock.log.log import Log


BATCH_ROWS = 10_000


@dataclass(slots=True)
class Delivery:
    """Neighbouring rows for a consumer.  `time` None: to be looked up in the log, where the rows came from."""

    piece: Piece
    attempt: int
    redelivered: bool
    lease_until: int  # microseconds since the epoch; 0: no end by time
    time: int | None
    queue: str | None = None  # where it is another than the one that was asked for
    size: int = 0

    def __post_init__(self) -> None:
        assert self.piece.bodies is not None
        self.size = sum(map(len, self.piece.bodies)) + ROW_OVERHEAD * len(self.piece.bodies)


def delivery_batch(deliveries: Sequence[Delivery], log: Log) -> pa.RecordBatch:
    """The deliveries as one batch of `schemas.DELIVERY`, in order.

    Most have one topic and one header for all rows, and then nothing is done row by row.
    """
    bodies: list[bytes] = []
    lengths: list[int] = []
    lsns: list[pa.Array[Any]] = []
    times: list[npt.NDArray[np.int64]] = []
    for one in deliveries:
        n = len(one.piece.chunk)
        lengths.append(n)
        lsns.append(lsn_column(one.piece.chunk))
        bodies += cast("list[bytes]", one.piece.bodies)
        times.append(np.full(n, one.time, np.int64) if one.time is not None else _times(lsns[-1], log))
    rows = len(bodies)
    lsn: Any = lsns[0] if len(lsns) == 1 else pa.concat_arrays(lsns)
    topics = joined([(one.piece.topics, n) for one, n in zip(deliveries, lengths, strict=True)])
    return message_batch(
        DELIVERY,
        rows,
        joined([(one.piece.properties, n) for one, n in zip(deliveries, lengths, strict=True)]),
        {
            "lsn": lambda: lsn,
            "bookmark": lambda: bookmark_column(log.origin, lsn),
            **topic_columns(topics, rows),
            "time": lambda: _stamps(times[0] if len(times) == 1 else np.concatenate(times)),
            "attempt": lambda: _values(pa.int32(), [one.attempt for one in deliveries], lengths, rows),
            "redelivered": lambda: _values(pa.bool_(), [one.redelivered for one in deliveries], lengths, rows),
            "queue": lambda: _values(pa.string(), [one.queue for one in deliveries], lengths, rows),
            "lease_until": lambda: _values(TIMESTAMP, [one.lease_until or None for one in deliveries], lengths, rows),
            "body": lambda: cast("pa.Array[Any]", pa.array(bodies, pa.binary())),
        },
    )


def _values(kind: Any, values: list[Any], lengths: list[int], rows: int) -> pa.Array[Any]:
    """A value for each delivery, spread over its rows."""
    if values.count(values[0]) == len(values):
        return constant(kind, values[0], rows)
    return cast("pa.Array[Any]", pa.array(np.repeat(np.array(values, object), lengths), kind))


def _stamps(values: npt.NDArray[np.int64]) -> pa.Array[Any]:
    """Microseconds as timestamps, 0 is null."""
    if not (values == 0).any():
        return cast("pa.Array[Any]", pa.Array.from_buffers(TIMESTAMP, len(values), [None, pa.py_buffer(values.data)]))
    return cast("pa.Array[Any]", pa.array(values, pa.int64(), mask=values == 0).cast(TIMESTAMP))


def _times(lsns: pa.Array[Any], log: Log) -> npt.NDArray[np.int64]:
    """When rows that came from the log were published; 0 for one that the log has let go meanwhile."""
    asked = lsns.to_numpy()
    wanted = distinct_numbers(asked)
    found = np.zeros(len(wanted), np.int64)
    for batch in History(log, lambda: False).rows_at(wanted):
        places = np.searchsorted(wanted, batch.column("lsn").to_numpy())
        found[places] = batch.column("time").cast(pa.int64()).to_numpy()
    return found[np.searchsorted(wanted, asked)]


logger = logging.getLogger("penstock.flight")

QUEUED_HIGH = 8 * 2**20
"""Bytes waiting for a client to read them beyond which it is granted nothing, where that many may wait."""

AT_ONCE = 2 * 2**20
"""Bytes of deliveries that are one batch, unless one alone has more."""

ANSWERS_MOST = 1_000
"""Answers that wait for a client to read them beyond which nothing more of it is heard."""

BEAT_S = 5.0
"""The server says something at least this often, so that a vanished client is noticed by the failing write."""

HEARTBEAT = orjson.dumps({"heartbeat": True})


class _Unreadable(Exception):
    """Deliveries that cannot be sent.  `error` is what the client is told."""

    def __init__(self, error: PenstockError) -> None:
        super().__init__(error)
        self.error = error


@dataclass(eq=False)
class Downstream:
    """The way down of one stream.  What is called is so on the writing thread."""

    _log: Log
    _name: str  # of the queue, for the server's log
    most: Callable[[], int]  # bytes of deliveries that may wait at present
    on_room: Callable[[], None]  # when there is room again
    on_gone: Callable[[], None]  # when the client cannot be written to
    on_unreadable: Callable[[PenstockError], None]  # when deliveries cannot be sent, with what the client is told
    finished: bool = field(default=False, init=False)
    """The writing thread sends the answers that there are and ends."""
    queued: int = field(default=0, init=False)  # bytes of deliveries that wait; changed under `_count`
    sent: int = field(default=0, init=False)  # and that were written, as well
    _held: bool = field(default=False, init=False)  # somebody was told that it is full
    _error: PenstockError | None = field(default=None, init=False)
    """Why the stream ends, when it is not the client's wish."""
    _bell: Bell = field(default_factory=Bell, init=False)
    _out: deque[Delivery | bytes] = field(default_factory=deque[Any], init=False)
    """And what is to be said between two deliveries."""
    _answers: deque[bytes] = field(default_factory=deque[bytes], init=False)
    _says: int = field(default=0, init=False)  # answers among what is in `_out`; changed under `_count`
    _read: Bell = field(default_factory=Bell, init=False)  # the thread that reads the client waits for it
    _count: threading.Lock = field(default_factory=threading.Lock, init=False)

    # -- any thread

    @property
    def full(self) -> bool:
        """Whether more is queued than should be, or was since a quarter of that was left."""
        with self._count:
            self._held = self._held or self.queued > self.most()
            return self._held

    def deliver(self, delivery: Delivery) -> bool:
        """Queue a delivery; whether more is queued then than should be.  It is sent at the next `ring`."""
        with self._count:
            self.queued += delivery.size
        self._out.append(delivery)
        return self.full

    def say(self, words: bytes) -> None:
        """Say something behind the deliveries that are queued."""
        with self._count:
            self._says += 1
        self._out.append(words)
        self.ring()

    def answer(self, *answers: bytes) -> None:
        self._answers.extend(answers)
        self.ring()

    def finish(self, error: PenstockError | None) -> None:
        """Nothing more will come, and what waits is not sent; an error is the reason that the client is told."""
        self._error = self._error or error
        self.finished = True
        with self._count:
            self.queued -= sum(one.size for one in self._out if not isinstance(one, bytes))
            self._out.clear()
            self._says = 0
        self.ring()
        self._read.ring()

    def ring(self) -> None:
        """There is something to do for the writing thread."""
        self._bell.ring()

    # -- the thread of the call

    def await_reader(self) -> None:
        """Wait while as many answers wait for the client as may: called after each thing that it has said."""
        while len(self._answers) + self._says >= ANSWERS_MOST and not self.finished:
            self._read.wait(BEAT_S)

    def beside(
        self, writer: Any, schema: pa.Schema, name: str, hear: Callable[[], None],
        leave: Callable[[PenstockError | None], None],
    ) -> None:  # fmt: skip
        """The stream from its first to its last word: a thread of that name writes, while `hear` reads the client.

        leave: told what was wrong with what he said, it has to `finish` this.  Raises that, or what else ended the
        stream, if it was not his wish.
        """
        writer.begin(schema)
        thread = threading.Thread(target=self.run, args=(writer,), name=name, daemon=True)
        thread.start()
        failure: PenstockError | None = None
        try:
            hear()
        except PenstockError as error:
            failure = error
        finally:
            leave(failure)
            thread.join()
        if (why := failure or self._error) is not None:
            raise why

    # -- the writing thread

    def run(self, writer: Any) -> None:
        """Write until the stream is over."""
        try:
            while True:
                rang = self._bell.wait(BEAT_S)
                finished = self.finished
                while self._answers:
                    answer = self._answers.popleft()
                    self._read.ring()
                    writer.write_metadata(answer)
                if finished:
                    if self._error is not None:
                        self._say_ended(writer, self._error)
                    return
                if self._out:
                    self._write_deliveries(writer)
                elif not rang:
                    writer.write_metadata(HEARTBEAT)
        except OSError:
            # the client is gone; the reading thread sees that too and winds up
            self.on_gone()
        except _Unreadable as unreadable:
            self._give_up(writer, unreadable.error)
        except Exception as error:  # noqa: BLE001 - a thread that just ended would leave the client with its leases
            reports.tell(error, "flight")
            self._give_up(writer, PenstockError(TOLD))

    def _give_up(self, writer: Any, error: PenstockError) -> None:
        self.finished = True
        self.on_unreadable(error)
        with suppress(OSError):  # it is gone, too
            self._say_ended(writer, error)

    @staticmethod
    def _say_ended(writer: Any, error: PenstockError) -> None:
        """Flight's thread is blocked in a read: the client ends the stream at this, and then gets the error itself."""
        writer.write_metadata(orjson.dumps({"ended": str(error)}))

    def _write_deliveries(self, writer: Any) -> None:
        out = self._out
        while out and not self.finished:
            some, size = self._next(out)
            if isinstance(some, bytes):
                self._read.ring()
                writer.write_metadata(some)
                continue
            if not some:
                break
            batch = self._batch(some)
            some.clear()  # a client that does not read may hold this thread for long: once is enough
            writer.write_batch(batch)
            with self._count:
                self.queued -= size
                self.sent += size
                held, self._held = self._held, self._held and self.queued >= self.most() // 4
            if held and not self._held:
                self.on_room()
            if self._answers:
                return self.ring()
        return None

    def _next(self, out: deque[Delivery | bytes]) -> tuple[list[Delivery] | bytes, int]:
        """Deliveries for one batch, and their bytes; or what is to be said first."""
        some: list[Delivery] = []
        rows = size = 0
        with self._count:
            while out and rows < BATCH_ROWS:
                delivery = out[0]
                if isinstance(delivery, bytes):
                    if not some:
                        out.popleft()
                        self._says -= 1
                        return delivery, 0
                    break
                if some and size + delivery.size > AT_ONCE:
                    break
                out.popleft()
                some.append(delivery)
                rows += len(delivery.piece.chunk)
                size += delivery.size
        return some, size

    def _batch(self, deliveries: list[Delivery]) -> pa.RecordBatch:
        """Deliveries as Arrow; what goes wrong is the log's fault or ours, never the client's."""
        try:
            return delivery_batch(deliveries, self._log)
        except PenstockError as error:
            raise _Unreadable(error) from error
        except Exception as error:
            logger.error("deliveries of queue %r cannot be put together", self._name)
            reports.tell(error, "flight")
            raise _Unreadable(PenstockError(TOLD)) from error
