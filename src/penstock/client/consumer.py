"""One consumer: an iterator of messages over a Flight exchange.

Settles are gathered and sent together: when half the backlog is waiting, when nothing more has come, and at the latest
after ten milliseconds.  One thread reads what comes, one sends heartbeats and what was gathered.  The iterator ends
when it is closed; it raises when the server ends it or the connection breaks.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self, cast

import orjson
import pyarrow as pa

from penstock.client.link import Link, rebuilt
from penstock.client.messages import Following, Message, Rows
from penstock.client.transactions import Opening, Transaction
from penstock.errors import LogBroken, PenstockError, Unavailable
from penstock.wire.flight.commands import SETTLE
from penstock.wire.flight.failures import error_from

WAIT_S = 30.0
"""How long the server may take to answer."""

GATHERED = 1000
"""Settles that are sent together at the latest, where the backlog has no limit."""


class End:
    """The stream has ended; `error` None: as it should."""

    def __init__(self, error: PenstockError | None) -> None:
        self.error = error


class Answers:
    def __init__(self, backlog: int) -> None:
        """backlog: what was asked for; 0 is no limit."""
        self.stale = 0  # settles that had no effect
        self.half = max(1, backlog // 2) if backlog else GATHERED  # settles that are sent together at the latest
        self.failures: deque[PenstockError] = deque()  # settles that will never be durable
        self.ended: End | None = None
        self._changed = threading.Condition()
        self._terms: dict[str, Any] | None = None  # as the server told them
        self._replies: dict[int, dict[str, Any]] = {}  # to replacements, by number
        self._heard = 0  # number of the last question about settles that was answered

    # -- the thread that reads

    def hear(self, said: dict[str, Any]) -> None:
        number = said.get("answer")
        with self._changed:
            if "subscribed" in said:
                self._set_terms(said["subscribed"])
            elif number is None:
                return
            elif "replaced" in said or "refused" in said:
                self._replies[number] = said
            else:
                self._heard = number
                self.stale += said.get("stale", 0)
                if "broken" in said:
                    self.failures.append(LogBroken(f"the log is broken: {said['broken']}"))
            self._changed.notify_all()

    def end(self, end: End) -> None:
        with self._changed:
            self.ended = end
            self._changed.notify_all()

    def _set_terms(self, terms: dict[str, Any]) -> None:
        self._terms = terms
        limit = terms["effective_backlog"]
        self.half = GATHERED if limit is None else max(1, limit // 2)

    # -- those that wait

    def _wait(self, done: Callable[[], bool], seconds: float, late: str) -> None:
        """Until it is so, or the stream has ended; holding `_changed`.  Unavailable, as `late` says, when it is not."""
        deadline = time.monotonic() + seconds
        while not done() and self.ended is None:
            if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                raise Unavailable(late)

    def _gone(self, why: str) -> PenstockError:
        return (self.ended.error if self.ended is not None else None) or Unavailable(why)

    def terms(self) -> dict[str, Any]:
        """Those in force; waits for them."""
        late = f"the server did not answer within {WAIT_S:g} s"
        with self._changed:
            self._wait(lambda: self._terms is not None, WAIT_S, late)
            if self._terms is None:
                raise self._gone("the stream ended")
            return self._terms

    def replaced(self, number: int, seconds: float) -> None:
        """The terms that were asked for with this number are in force; raises what the server refuses them for."""
        with self._changed:
            late = f"the server did not answer within {seconds:g} s"
            self._wait(lambda: number in self._replies, seconds, late)
            said = self._replies.pop(number, None)
            if said is None:
                raise self._gone("the stream ended")
            if "refused" in said:
                raise error_from(said["refused"])
            self._set_terms(said["replaced"])

    def durable(self, number: int, seconds: float) -> None:
        """All settles up to the question of this number are durable."""
        with self._changed:
            late = f"the server did not say within {seconds:g} s that the settles are durable"
            self._wait(lambda: self._heard >= number, seconds, late)
            if self._heard < number:
                raise self._gone("the stream ended before the settles were durable")


# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false


FLUSH_S = 0.01
"""A settle is sent at the latest so long after it was asked for; what is asked for meanwhile goes with it."""

GIVE_BACK_S = 5.0
"""How long `close` waits for the server to send no more, to say then what nobody has seen."""

CLOSE_S = WAIT_S
"""How long `close` waits for the server to say that the settles are durable."""


class Owner(Opening, Protocol):
    """The client, as its consumers know it."""

    def forget(self, consumer: Consumer) -> None: ...


class Consumer:
    """Made by `Client.consume`.  Iterate over it; as a context manager it stays open when the loop is left."""

    def __init__(
        self, client: Owner, link: Link, command: bytes, *, backlog: int, heartbeat: float, timeout: float | None
    ) -> None:
        """`heartbeat`: seconds after which the server gives up a silent consumer.  `timeout`: see `Client.consume`."""
        self._answers = Answers(backlog)
        self._client = client
        self._timeout = timeout
        self._beat = heartbeat / 3
        self._incoming: queue.SimpleQueue[Rows | End] = queue.SimpleQueue()
        self._here: Iterator[Message] = iter(())
        self._gathered: list[tuple[int, int, str, int | None, str | None, str | None]] = []
        self._lock = threading.Lock()  # of what is gathered and of the writer
        self._work = threading.Event()  # something was gathered, or it ends
        self._unasked = False  # settles were sent since the last question
        self._asked = 0  # number of the last question about settles
        self._numbered = 0  # of all questions
        self._over: End | None = None  # the stream has ended, and the caller has taken all that came before
        self._entered = False
        self._closing = False
        self._closed = False
        self._writer, self._reader = link.exchange(command)
        try:
            self._writer.begin(SETTLE)
        except pa.ArrowException as error:
            raise rebuilt(error) from None
        self._sent_at = time.monotonic()
        self._threads = [
            threading.Thread(target=self._read, name="penstock-consumer-read", daemon=True),
            threading.Thread(target=self._send, name="penstock-consumer-send", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # -- the caller's thread

    def __iter__(self) -> Iterator[Message]:
        try:
            while (message := self.take()) is not None:
                yield message
        finally:
            if not self._entered:
                self.close()

    def take(self, timeout: float | None = None) -> Message | None:
        """The next message; None when none came for so many seconds, or when the consumer is closed."""
        for message in self._here:
            return message
        if self._closed or self._over is not None:
            return None
        if timeout is None:
            timeout = self._timeout
        if self._incoming.empty():
            self._flush()
        try:
            item = self._incoming.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(item, End):
            self._over = item
            if item.error is not None and not self._closing:
                self._abandon()
                raise item.error
            return None
        self._here = map(partial(Message, item, consumer=self), range(len(item)))
        return next(self._here, None)

    def ack_with(self, message: Message, following: Sequence[Following]) -> None:
        """Ack a message and publish others, both or neither.  (Messages call this.)"""
        with Transaction(self._client) as transaction:
            transaction.ack(message)
            for one in following:
                topic, body, options = one if len(one) == 3 else (*one, {})
                transaction.publish(topic, body, **cast("dict[str, Any]", options))

    def settle(self, message: Message, verb: str, delay: int | None, reason: str | None) -> None:
        """Gather one settle.  (Messages call this.)"""
        if self._closed:
            raise Unavailable("the consumer is closed; the server has given the message back")
        with self._lock:
            self._gathered.append((message.lsn, message.attempt, verb, delay, reason, message.queue))
            full = len(self._gathered) >= self._answers.half
        if full:
            self._flush()
        else:
            self._work.set()

    @property
    def stale(self) -> int:
        """Settles that had no effect, for somebody else held the message by then; complete after `flush` or `close`."""
        return self._answers.stale

    @property
    def client(self) -> Owner:
        """The client that made it, on whose connection it is."""
        return self._client

    @property
    def tag(self) -> str:
        """What the server calls it.  Waits for its word; errors as for `take`."""
        return cast("str", self._answers.terms()["consumer"])

    @property
    def effective_backlog(self) -> int | None:
        """How many may be unsettled at once: what was asked for, or the limit of a queue; None: no limit.

        Waits for the server's word.  Errors as for `take`, when the subscription was refused.
        """
        return cast("int | None", self._answers.terms()["effective_backlog"])

    @property
    def queues(self) -> list[str]:
        """The queues it consumed from when it began or was replaced; a pattern may match more since."""
        return list(self._answers.terms()["queues"])

    @property
    def lease_period(self) -> float | None:
        """Seconds after which a lease ends unless it is extended, the shortest of its queues; None: it does not.

        As it was when the subscription began or was replaced.  Waits for the server's word.
        """
        micros = cast("int | None", self._answers.terms()["lease_period"])
        return None if micros is None else micros / 1e6

    def replace(self, *, filter: str | None = None, max_backlog: int | None = None, queue: str | None = None) -> None:
        """Change the terms in one step; what is not named stays, and so do the leases.

        filter        empty text: none any more
        max_backlog   what is outstanding counts, and may be more than this; then nothing comes until it is less
        queue         another queue, or a pattern of names
        Messages taken after this match the new terms, but for those that had come already.
        Errors: what the server refuses it for; nothing is changed then.
        """
        terms = {"filter": filter, "max_backlog": max_backlog, "queue": queue}
        self._flush()
        self._replace({name: value for name, value in terms.items() if value is not None})

    def _replace(self, terms: dict[str, object], wait: float = CLOSE_S) -> None:
        """Ask for other terms and wait for the answer, which follows all that was granted before."""
        with self._lock:
            if self._closed:
                raise Unavailable("the consumer is closed")
            self._numbered += 1
            number = self._numbered
            try:
                self._writer.write_metadata(orjson.dumps({"number": number, "replace": terms}))
            except pa.ArrowException as error:
                raise rebuilt(error) from None
        self._answers.replaced(number, wait)

    def flush(self, timeout: float = CLOSE_S) -> None:
        """Wait until everything settled so far is durable.

        Raises Unavailable when it takes longer or the connection breaks, LogBroken when it never will be.
        """
        self._flush(ask=True)
        self._answers.durable(self._asked, timeout)
        if self._answers.failures:
            raise self._answers.failures[0]

    def close(self) -> None:
        """Give back what is not settled, and wait until what is settled is durable.  Twice does no harm.

        What had come and was never taken does not count as delivered.
        Raises LogBroken when the server cannot make the settles durable.
        """
        if self._closed:
            return
        self._closing = True
        try:
            self._flush()
            if self._answers.ended is None:
                with suppress(PenstockError, pa.ArrowException):  # without it they go back, too, and count as delivered
                    self.give_back()
            self._flush(ask=True)
            with self._lock:
                self._writer.done_writing()
        except (PenstockError, pa.ArrowException):
            pass  # the stream is gone; the reading thread says why
        self._closed = True
        self._work.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(CLOSE_S)
        self._client.forget(self)
        if self._threads[0].is_alive():
            self._reader.cancel()
        try:
            self._writer.close()
        except pa.ArrowException:
            pass  # it was broken before
        if self._answers.failures:
            raise self._answers.failures[0]

    def give_back(self) -> None:
        """Give back what came and was not taken, uncounted, and be sent no more; what was taken stays.

        Unavailable when the server does not answer.  In the thread that takes.
        """
        # the server sends no more once it has answered that the backlog is 0
        self._replace({"max_backlog": 0}, GIVE_BACK_S)
        items = list[Rows | End]()
        first = next(self._here, None)
        unseen = [] if first is None else [first.place]
        self._here = iter(())
        while not self._incoming.empty():
            items.append(self._incoming.get())
        unseen += [(item, 0) for item in items if isinstance(item, Rows)]
        with self._lock:
            for rows, row in unseen:
                self._writer.write_batch(rows.unseen(row))
                self._unasked = True
        for item in items:
            if isinstance(item, End):
                self._incoming.put(item)

    def catch_up(self) -> bool:
        """Wait until all that the server has granted so far is here; whether some of it was not taken yet.

        Unavailable when the server does not answer.  In the thread that takes.
        """
        self._replace({})  # nothing changes; the answer follows what was granted before
        return not self._incoming.empty()

    def take_ready(self) -> Message | None:
        """The next message if it has come already; never waits."""
        message = next(self._here, None)
        if message is None and not self._incoming.empty():
            message = self.take(0.0)
        return message

    def _abandon(self) -> None:
        """The server has ended the stream."""
        self._closed = True
        self._work.set()
        self._client.forget(self)
        try:
            self._writer.close()
        except pa.ArrowException:
            pass  # says again what `take` raises

    def __enter__(self) -> Self:
        self._entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- both

    def _flush(self, *, ask: bool = False) -> None:
        """Send what is gathered; with `ask`, the server is to say when all settles so far are durable."""
        with self._lock:
            if self._closed:
                return
            gathered, self._gathered = self._gathered, []
            try:
                if gathered:
                    columns = zip(*gathered, strict=True)
                    kinds = [field.type for field in SETTLE]
                    arrays = [pa.array(values, kind) for values, kind in zip(columns, kinds, strict=True)]
                    self._writer.write_batch(pa.RecordBatch.from_arrays(cast("Any", arrays), schema=SETTLE))
                    self._unasked = True
                if ask and self._unasked:
                    self._unasked = False
                    self._numbered += 1
                    self._asked = self._numbered
                    self._writer.write_metadata(orjson.dumps({"number": self._asked}))
                elif not gathered:
                    return
            except pa.ArrowInvalid:  # our side was ended meanwhile, see `_hear`; what is written here is always valid
                raise Unavailable("the server has ended the stream and taken the messages back") from None
            except pa.ArrowException as error:
                raise rebuilt(error) from None
            self._sent_at = time.monotonic()

    # -- threads

    def _read(self) -> None:
        error: PenstockError | None = None
        try:
            while True:
                chunk: Any = self._reader.read_chunk()
                if chunk.app_metadata is not None:
                    self._hear(chunk.app_metadata.to_pybytes())
                if chunk.data is not None and chunk.data.num_rows:
                    self._incoming.put(Rows(chunk.data))
        except StopIteration:
            if not self._closing:
                error = Unavailable("the server ended the stream")
        except pa.ArrowException as failure:
            error = rebuilt(failure)
        end = End(error)
        self._answers.end(end)
        self._incoming.put(end)
        self._work.set()

    def _hear(self, metadata: bytes) -> None:
        said = cast("dict[str, Any]", orjson.loads(metadata))
        if "ended" in said:  # the error follows when we have ended our side
            with self._lock:
                self._writer.done_writing()
            return
        self._answers.hear(said)

    def _send(self) -> None:
        while True:
            self._work.wait(self._beat)
            self._work.clear()
            if self._closed or self._answers.ended is not None:
                return
            try:
                if self._gathered:
                    time.sleep(FLUSH_S)
                    self._flush()
                elif time.monotonic() - self._sent_at >= self._beat:
                    with self._lock:
                        if not self._closed:
                            self._writer.write_metadata(b'{"heartbeat":true}')
                            self._sent_at = time.monotonic()
            except (PenstockError, pa.ArrowException):
                return  # the reading thread says why
