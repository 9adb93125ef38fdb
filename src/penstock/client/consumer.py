"""One consumer: an iterator of messages, or of batches, which goes on when a connection was lost.

The iterator ends when it is closed; it raises what the server says no with, and when the server was away for longer
than its patience.  Each connection is an `Exchange` of its own.  What came over a lost one and was not settled comes
again: what nobody has taken of it is dropped here, and a settle of what was taken has no effect, which is told.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, Generic, Protocol, Self, TypeVar, cast

import orjson
import pyarrow as pa

from penstock.client import tracing
from penstock.client.arguments import arguments_checked
from penstock.client.batches import Batch
from penstock.client.bodies import Reader, plain
from penstock.client.exchange import GIVE_BACK_S, WAIT_S, End, Exchange, Past
from penstock.client.forks import OfThisProcess
from penstock.client.link import Link, Outage, crowded
from penstock.client.messages import B, Message, Rows
from penstock.client.transactions import Opening
from penstock.client.waiting import check_running
from penstock.errors import PenstockError, Unavailable
from penstock.units import Duration, left_of, until_of

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false


logger = logging.getLogger("penstock.client")
T = TypeVar("T")


def close_dropped(dropped: Closing) -> None:
    """Close, in a thread, what nobody has any more."""
    logger.warning("%r was dropped and not closed: what it held goes back", dropped)

    def close() -> None:
        with suppress(PenstockError, pa.ArrowException):
            dropped.close()

    with suppress(RuntimeError):  # the process ends, and its connections with it
        threading.Thread(target=close, name="penstock-consumer-close", daemon=True).start()


CLOSE_S = WAIT_S
"""How long `flush` waits for the server to say that the settles are durable."""


class Closing(Protocol):
    """What is closed by who is done with it."""

    @property
    def over(self) -> bool:
        """Whether it holds nothing any more: it or its client was closed, it came to its end or was refused."""
        ...

    def close(self) -> None: ...


class Owner(Opening, Protocol):
    """The client, as its consumers know it."""

    def forget(self, consumer: Consumer[Any]) -> None: ...


@arguments_checked
class Consumer(OfThisProcess, Generic[B]):
    """Made by `Client.consume`.  Iterate over it; as a context manager it stays open when the loop is left.

    Threads that share one take in turn.
    """

    def __init__(
        self,
        client: Owner,
        link: Link,
        command: bytes,
        *,
        backlog: int,
        heartbeat: float,
        timeout: float | None,
        reconnect: float | None = 0.0,
        read: Reader = plain,
    ) -> None:
        """`heartbeat`: seconds after which the server gives up a silent consumer.  `timeout`: see `Client.consume`.

        reconnect: seconds that the server may be away once it had taken the subscription; None: for ever.
        """
        self._client = client
        self._link = link
        self._command = command
        self._past = Past()
        self._make = partial(Exchange, client, link, past=self._past, read=read, backlog=backlog, heartbeat=heartbeat)
        self._timeout = timeout
        self._reconnect = reconnect
        self._outage = Outage(reconnect)
        self._here: Iterator[Message[B]] = iter(())
        self._over: End | None = None  # the stream has ended for good, and the caller has taken all that came before
        self._entered = False
        self._closing = False
        self._closed = False
        self._ended = threading.Event()  # `close` was called
        self._exchange = self._make(command)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._exchange.source!r})"

    # -- the caller's thread

    def __iter__(self) -> Iterator[Message[B]]:
        try:
            while (message := self._take(self._timeout)) is not None:
                yield message
        finally:
            if not self._entered:
                self.close()

    def take(self, timeout: Duration | None = None) -> Message[B] | None:
        """The next message; None when none came for so long, or when the consumer is closed.

        While the server is away it is tried again.  Unavailable when it is away at the end of `timeout`, after which
        this may be called again, and when it is given up.
        """
        return self._take(self._given(timeout))

    def _given(self, timeout: Duration | None) -> float | None:
        return self._timeout if timeout is None else left_of(timeout, "timeout")

    def _take(self, timeout: float | None) -> Message[B] | None:
        return self._in_turn(timeout, self._found)

    def _in_turn(self, timeout: float | None, take: Callable[[float | None], T | None]) -> T | None:
        """What this thread takes, when those that came before have taken; None where that lasts too long."""
        turn = self._past.turn
        if not turn.acquire(blocking=False):
            until = until_of(time.monotonic(), timeout)
            if not turn.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
                return None
            timeout = None if until is None else max(0.0, until - time.monotonic())
        try:
            return take(timeout)
        finally:
            turn.release()

    def _found(self, timeout: float | None) -> Message[B] | None:
        if self._exchange.answers.ended is not None and self._dropping:
            self._here = iter(())
        for message in self._here:
            return message
        until = until_of(time.monotonic(), timeout)
        while not self._closed and self._over is None:
            item = self._next(until)
            if item is None:
                break
            if isinstance(item, End):
                self._lost(item)
            elif not self._dropping:
                if tracing.active is not None:
                    tracing.active.received(self._exchange.source, [item.value("headers", n) for n in range(len(item))])
                self._here = self._messages(item)
                for message in self._here:
                    return message
        return None

    def _messages(self, rows: Rows) -> Iterator[Message[B]]:
        period, rows.keeper = self._exchange.answers.lease_period, self
        made: Iterator[Message[B]] = map(partial(Message, rows, consumer=self._exchange), range(len(rows)))
        return self._leased(rows, period, made) if period else made

    def _leased(self, rows: Rows, period: float, messages: Iterator[Message[B]]) -> Iterator[Message[B]]:
        """But for those whose lease has ended while they waited here: the server has given them to somebody else."""
        for row, message in enumerate(messages):
            if rows.outlived(row, period):
                self._past.lapse()
            else:
                yield message

    def take_batch(self, timeout: Duration | None = None) -> Batch[B] | None:
        """What came together, as one Arrow batch; None and errors as of `take`."""
        return self._in_turn(self._given(timeout), self._found_batch)

    def _found_batch(self, timeout: float | None) -> Batch[B] | None:
        message = self._found(timeout)
        return None if message is None else self.batch_of(message)

    def batch_of(self, message: Message[B]) -> Batch[B]:
        """The message that was taken last, with all that came with it and was not taken."""
        self._here = iter(())
        batch: Batch[B] = Batch(*message.place, cast("Exchange", message.holder))
        return batch

    def batches(self) -> Iterator[Batch[B]]:
        """What comes, as Arrow batches that are settled together or row by row; ends as the iteration of messages."""
        try:
            while (batch := self.take_batch()) is not None:
                yield batch
        finally:
            if not self._entered:
                self.close()

    @property
    def _dropping(self) -> bool:
        """Whether what came and was not taken comes again, over another connection."""
        answers = self._exchange.answers
        return self._reconnect != 0 and answers.leased and answers.ended is not None and not self._closing

    def _next(self, until: float | None) -> Rows | End | None:
        """What comes next; None when nothing did until then."""
        exchange = self._exchange
        if self._outage.error is not None and exchange.answers.ended is not None and exchange.incoming.empty():
            if not self._outage.wait(until, self._ended):
                if self._closed:
                    return None
                raise Unavailable(f"the server is away, and is tried again: {self._outage.error}")
            try:
                exchange = self._exchange = self._make(self._command)
            except PenstockError as error:
                return End(error)
        if exchange.incoming.empty():
            with suppress(Unavailable):  # its end says so, too
                exchange.flush()
            check_running()
        try:
            item = exchange.incoming.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
        except queue.Empty:
            item = None
        if exchange.answers.subscribed and self._outage.over():
            logger.warning("connected to %s again", self._link.address)
        if item is None and self._outage.error is not None:
            raise Unavailable(f"the server is away, and is tried again: {self._outage.error}")
        return item

    def _lost(self, end: End) -> None:
        """The exchange has ended: for good, or another one is tried later."""
        error = end.error
        if error is None or self._closing:
            self._over = end
            return
        exchange, first = self._exchange, self._outage.error is None
        self._link.doubt()
        exchange.abandon()
        try:
            if first and not exchange.answers.subscribed and not crowded(error):
                raise error
            self._outage.failed(error)
        except PenstockError:
            self._over = end
            self._closed = True
            self._client.forget(self)
            raise
        if first:
            unknown = exchange.unknown
            self._past.unknown += unknown
            self._past.stale += exchange.answers.stale
            exchange.answers.stale = 0
            told = f"; what became of {unknown:,} settles is not known" if unknown else ""
            logger.warning("the connection to %s was lost and is tried again: %s%s", self._link.address, error, told)

    @property
    def stale(self) -> int:
        """Settles that had no effect, for somebody else held the message by then, or nobody, since the connection it
        came over was lost; complete after `flush` or `close`.
        """
        return self._past.stale + self._exchange.answers.stale

    @property
    def tag(self) -> str:
        """What the server calls it.  Waits for its word; errors as for `take`."""
        return self._exchange.tag

    @property
    def effective_backlog(self) -> int | None:
        """How many may be unsettled at once: what was asked for, or the limit of a queue; None: no limit.

        Waits for the server's word.  Errors as for `take`, when the subscription was refused.
        """
        return cast("int | None", self._exchange.answers.terms()["effective_backlog"])

    @property
    def queues(self) -> list[str]:
        """The queues it consumed from when it began or was replaced; a pattern may match more since."""
        return list(self._exchange.answers.terms()["queues"])

    @property
    def lease_period(self) -> float | None:
        """Seconds after which a lease ends unless it is extended, the shortest of its queues; None: it does not.

        As it was when the subscription began or was replaced.  Waits for the server's word.
        """
        micros = cast("int | None", self._exchange.answers.terms()["lease_period"])
        return None if micros is None else micros / 1e6

    def replace(self, *, filter: str | None = None, max_backlog: int | None = None, queue: str | None = None) -> None:
        """Change the terms in one step; what is not named stays, and so do the leases.

        filter        empty text: none any more
        max_backlog   what is outstanding counts, and may be more than this; then nothing comes until it is less
        queue         another queue, or a pattern of names
        Messages taken after this match the new terms, but for those that had come already.
        Errors: what the server refuses it for; nothing is changed then.
        """
        given = {"filter": filter, "max_backlog": max_backlog, "queue": queue}
        terms: dict[str, object] = {name: value for name, value in given.items() if value is not None}
        self._exchange.flush()
        self._exchange.replace(terms, CLOSE_S)
        asked = cast("dict[str, dict[str, Any]]", orjson.loads(self._command))
        asked["consume"] |= {name: value or None if name == "filter" else value for name, value in terms.items()}
        self._command = orjson.dumps({"consume": {k: v for k, v in asked["consume"].items() if v is not None}})

    def flush(self, timeout: Duration = CLOSE_S) -> None:
        """Wait until everything settled so far is durable.

        Raises Unavailable when it takes longer or the connection breaks, and, once, when a connection broke before the
        server had said so of all that was settled over it; LogBroken when it never will be.
        """
        self._exchange.durable(left_of(timeout, "timeout"))
        if self._past.unknown:
            unknown, self._past.unknown = self._past.unknown, 0
            told = f"a connection was lost with {unknown:,} settles on their way"
            raise Unavailable(f"{told}: of what the server did not take the messages come again")

    def close(self) -> None:
        """Give back what is not settled, and wait until what is settled is durable.  Twice does no harm.

        What had come and was never taken does not count as delivered.
        Raises LogBroken when the server cannot make the settles durable.
        """
        if self._closed:
            return
        self._closing = True
        self._ended.set()
        exchange = self._exchange
        exchange.closing()
        with suppress(PenstockError, pa.ArrowException):  # without it they go back, too, and count as delivered
            exchange.flush()
            if exchange.answers.ended is None:
                self.give_back()
        self._closed = True
        exchange.close()
        self._client.forget(self)
        if exchange.answers.failures:
            raise exchange.answers.failures[0]

    @property
    def over(self) -> bool:
        """Whether it holds nothing any more, as of `Closing`."""
        return self._closed

    def __del__(self) -> None:
        """Close what its caller has dropped, in a thread: those of its exchange would hold the messages for ever."""
        if hasattr(self, "_exchange") and not self.over and not sys.is_finalizing():
            close_dropped(self)

    def untake(self, message: Message[B]) -> None:
        """The message that was taken last was not, for its caller had gone.  In the thread that takes."""
        self._here = chain((message,), self._here)

    def give_back(self) -> None:
        """Give back what came and was not taken, uncounted, and be sent no more; what was taken stays.

        Unavailable when the server does not answer.  In the thread that takes.
        """
        exchange = self._exchange
        # the server sends no more once it has answered that the backlog is 0
        exchange.replace({"max_backlog": 0}, GIVE_BACK_S)
        items = list[Rows | End]()
        first = next(self._here, None)
        unseen = [] if first is None else [first.place]
        self._here = iter(())
        while not exchange.incoming.empty():
            items.append(exchange.incoming.get())
        unseen += [(item, 0) for item in items if isinstance(item, Rows)]
        for rows, row in reversed(unseen):  # the newest first: a ring that has room again keeps these
            exchange.unseen(rows, row)
        for item in items:
            if isinstance(item, End):
                exchange.incoming.put(item)

    def catch_up(self) -> bool:
        """Wait until all that the server has granted so far is here; whether some of it was not taken yet.

        Unavailable when the server does not answer.  In the thread that takes.
        """
        self._exchange.replace({}, CLOSE_S)  # nothing changes; the answer follows what was granted before
        return not self._exchange.incoming.empty()

    def take_ready(self) -> Message[B] | None:
        """The next message if it has come already; never waits."""
        if self._dropping:
            return None  # `take` goes on
        message = next(self._here, None)
        if message is None and not self._exchange.incoming.empty():
            message = self.take(0.0)
        return message

    def __enter__(self) -> Self:
        self._entered = True
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
