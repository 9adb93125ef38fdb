"""One life of a consumer: from its subscription to the end of the Flight exchange that it is.

Settles are gathered and sent together: when half the backlog is waiting, when nothing more has come, and at the latest
after ten milliseconds.  One thread reads what comes, one sends heartbeats and what was gathered.  The messages that
came here are held here: when the connection is lost the server takes them back, and who settles one of them later is
told.  What follows a lost connection is the consumer's to do.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

import orjson
import pyarrow as pa

from penstock.client.arrays import array_of
from penstock.client.bodies import Reader
from penstock.client.forks import Ended, not_here, watch
from penstock.client.link import Link, rebuilt, said, understood
from penstock.client.messages import Following, Message, Rows
from penstock.client.transactions import Opening, Transaction, check_options
from penstock.client.waiting import check_running, check_threads
from penstock.errors import Fenced, LogBroken, PenstockError, ProtocolError, Unavailable, shown
from penstock.units import FOR_EVER_S
from penstock.wire.flight.commands import SETTLE
from penstock.wire.flight.failures import error_from

logger = logging.getLogger("penstock.client")

WAIT_S = 30.0
"""How long the server may take to answer."""

GATHERED = 1000
"""Settles that are sent together at the latest, where the backlog has no limit."""


class End:
    """The stream has ended; `error` None: as it should."""

    def __init__(self, error: PenstockError | None) -> None:
        self.error = error


class Past:
    """What stays of a consumer over all its connections: what became of settles on lost ones, and whose turn it is."""

    def __init__(self) -> None:
        self.stale = 0  # had no effect
        self.unknown = 0  # of these the server had not said that they are durable
        self.lapsed = 0  # messages whose lease ended before they were taken
        self.turn = threading.RLock()  # of who takes

    def lapse(self) -> None:
        """One more; the first time whoever reads the log is told what helps."""
        self.lapsed += 1
        told = "the lease of a message ended before it was taken, which goes to somebody else: a smaller backlog helps"
        logger.log(logging.WARNING if self.lapsed == 1 else logging.DEBUG, told)


class Answers:
    def __init__(self, backlog: int) -> None:
        """backlog: what was asked for; 0 is no limit."""
        self.stale = 0  # settles that had no effect
        self.half = max(1, backlog // 2) if backlog else GATHERED  # settles that are sent together at the latest
        self.failures: deque[PenstockError] = deque()  # settles that will never be durable
        self.ended: End | None = None
        self._changed = threading.Condition()
        self._terms: dict[str, Any] | None = None  # as the server told them
        self.strict = False  # a settle has no effect once the lease has ended
        self._replies: dict[int, dict[str, Any]] = {}  # to replacements, by number
        self.heard = 0  # number of the last question about settles that was answered

    @property
    def subscribed(self) -> bool:
        """Whether the server has taken the subscription."""
        return self._terms is not None

    @property
    def leased(self) -> bool:
        """Whether what came and was not settled comes again when the connection is lost; False: it may be gone."""
        return self._terms is not None and bool(self._terms.get("leased"))

    @property
    def lease_period(self) -> float:
        """Seconds after which a lease ends, as far as is known; 0: it does not."""
        return 0.0 if self._terms is None else (self._terms.get("lease_period") or 0) / 1e6

    # -- the thread that reads

    def hear(self, told: dict[str, Any]) -> None:
        number = told.get("answer")
        with self._changed:
            if "subscribed" in told:
                self._set_terms(told["subscribed"])
            elif number is None:
                return
            elif "replaced" in told or "refused" in told:
                self._replies[number] = told
            else:
                self.heard = int(number)
                self.stale += told.get("stale", 0)
                if "broken" in told:
                    self.failures.append(LogBroken(f"the log is broken: {told['broken']}"))
            self._changed.notify_all()

    def end(self, end: End) -> None:
        with self._changed:
            self.ended = end
            self._changed.notify_all()

    def _set_terms(self, terms: dict[str, Any]) -> None:
        limit = terms["effective_backlog"]
        if not isinstance(terms["consumer"], str):
            raise TypeError(f"consumer is {shown(terms['consumer'])}, not text")
        self.half = GATHERED if limit is None else max(1, limit // 2)
        self.strict = bool(terms.get("strict"))
        self._terms = terms

    # -- those that wait

    def _wait(self, done: Callable[[], bool], seconds: float, late: str) -> None:
        """Until it is so, or the stream has ended; holding `_changed`.  Unavailable, as `late` says, when it is not."""
        deadline = time.monotonic() + min(seconds, FOR_EVER_S)
        while not done() and self.ended is None:
            check_running()
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
            told = self._replies.pop(number, None)
            if told is None:
                raise self._gone("the stream ended")
            with understood():
                if "refused" in told:
                    raise error_from(told["refused"])
                self._set_terms(told["replaced"])

    def durable(self, number: int, seconds: float) -> None:
        """All settles up to the question of this number are durable."""
        with self._changed:
            late = f"the server did not say within {seconds:g} s that the settles are durable"
            self._wait(lambda: self.heard >= number, seconds, late)
            if self.heard < number:
                raise self._gone("the stream ended before the settles were durable")


FLUSH_S = 0.01
"""A settle is sent at the latest so long after it was asked for; what is asked for meanwhile goes with it."""

ASK_S = 1.0
"""How often the server is asked, at most, whether the settles so far are durable: of what it has not said so by the end
nobody knows what became of it."""

GIVE_BACK_S = 5.0
"""How long `give_back` waits for the server to send no more, to say then what nobody has seen."""

LAST_S = 0.1
"""How long the server has to take what was settled while Python ends, before its stream is cut off: its word that it
has it is heard by nobody."""


class Exchange:
    """Made by a `Consumer`.  The holder of the messages that came over it."""

    def __init__(
        self, client: Opening, link: Link, command: bytes, *, past: Past, read: Reader, backlog: int, heartbeat: float
    ) -> None:
        """`heartbeat`: seconds after which the server gives up a silent consumer."""
        self.answers = Answers(backlog)
        self.incoming: queue.SimpleQueue[Rows | End] = queue.SimpleQueue()
        self.closed = False
        self.client = client  # the client on whose connection it is
        self._past = past
        self._read_body = read
        self._command = command
        self._beat = heartbeat / 3
        self._gathered: list[tuple[int, int, str, int | None, str | None, str | None]] = []
        self._lock = threading.Lock()  # of what is gathered and of the writer
        self._work = threading.Event()  # something was gathered, or it ends
        self._unasked = False  # settles were sent since the last question
        self._asked = 0  # number of the last question about settles
        self._asked_at = 0.0
        self._numbered = 0  # of all questions
        self._settles = 0  # gathered so far
        self._questions: deque[tuple[int, int]] = deque()  # each with the settles that it is about, until answered
        self._known = 0  # settles that are durable
        self._late = False  # whether somebody settled what the server had taken back with the connection
        self._closing = False
        check_threads()
        self._writer, self._reader = link.exchange(command)
        with suppress(pa.ArrowException):  # refused or lost already: the reading thread says why, as of what is soon
            self._writer.begin(SETTLE)
        self._sent_at = time.monotonic()
        named = ("penstock-consumer-read", self._read), ("penstock-consumer-send", self._send)
        self._threads = [threading.Thread(target=work, name=name, daemon=True) for name, work in named]
        for thread in self._threads:
            thread.start()
        self._inherited = False  # by a fork
        watch(self)

    def leave(self) -> None:
        """The process was forked, and this is the child, which has none of its threads."""
        self._inherited = self.closed = True
        self._lock, self._past.turn = threading.Lock(), threading.RLock()  # whoever had the others is not here
        self.answers = Answers(0)
        self.answers.end(End(not_here()))
        self.incoming = queue.SimpleQueue()
        self.incoming.put(End(not_here()))

    # -- what messages ask of their holder

    @property
    def tag(self) -> str:
        """What the server calls it.  Waits for its word; Fenced once the connection is lost."""
        if self._lost is not None:
            raise Fenced(f"the server has taken back what came before the connection was lost: {self._lost}")
        return cast("str", self.answers.terms()["consumer"])

    @property
    def term(self) -> int:
        """Of the leader that it is connected to; 0 without a cluster."""
        return cast("int", self.answers.terms().get("term", 0))

    @property
    def source(self) -> str:
        """The queue that it asked for, or a pattern."""
        return cast("str", orjson.loads(self._command)["consume"]["queue"])

    @property
    def _lost(self) -> PenstockError | None:
        """Why the connection is gone; None where it is there, or was closed."""
        ended = self.answers.ended
        return None if ended is None or self.closed else ended.error

    def settle_rows(self, rows: Rows, chosen: Sequence[int], verb: str, delay: int | None, reason: str | None) -> bool:
        """Settle several rows alike, at once; False as of `settle`."""
        if not self._holds(verb, len(chosen), f"{len(chosen):,} messages"):
            return False
        if self.answers.strict and self._ended(verb, rows, chosen, f"{len(chosen):,} messages"):
            return False
        self.flush()
        with self._lock:
            try:
                self._writer.write_batch(rows.settled(chosen, verb, delay, reason))
            except pa.ArrowException as error:
                raise rebuilt(error) from None
            self._unasked = True
            self._settles += len(chosen)
            self._sent_at = time.monotonic()
        self._work.set()
        return True

    def _holds(self, verb: str, count: int, what: object) -> bool:
        """Whether what is to be settled is still held; says so where it is not."""
        if self._inherited:
            raise not_here()
        if self.closed:
            raise Unavailable(
                "the consumer is closed, by close(), its `with` or the end of its loop (take() leaves it open, and so "
                "does a loop within its `with`); the server has given the message back"
            )
        if self._lost is None:
            return True
        if verb != "unseen":
            self._too_late(verb, count, what, "the connection it came over was lost")
        return False

    def _too_late(self, verb: str, count: int, what: object, why: str) -> None:
        """Count a settle that has no effect; the first time whoever reads the log is told."""
        self._past.stale += count
        told = "%s of %r has no effect: %s, and it comes again"
        logger.log(logging.DEBUG if self._late else logging.WARNING, told, verb, what, why)
        self._late = True

    def _ended(self, verb: str, rows: Rows, chosen: Sequence[int], what: object) -> bool:
        """Whether the leases of all these rows had ended, so that the server heeds no settle of them; says so.

        Of leases that were extended, or of which some had ended, the server knows.
        """
        if verb == "extend":
            rows.extended = True
        period = self.answers.lease_period
        if rows.extended or not period or not all(rows.outlived(row, period) for row in chosen):
            return False
        self._too_late(verb, len(chosen), what, "its lease had ended")
        return True

    def settle(self, message: Message, verb: str, delay: int | None, reason: str | None) -> bool:
        """Gather one settle; False where the server has taken the message back, with a lost connection or by time."""
        if (self.closed or self.answers.ended is not None) and not self._holds(verb, 1, message):
            return False
        if self.answers.strict:
            rows, row = message.place
            if self._ended(verb, rows, (row,), message):
                return False
        with self._lock:
            self._gathered.append((message.lsn, message.attempt, verb, delay, reason, message.queue))
            self._settles += 1
            full = len(self._gathered) >= self.answers.half
        if full:
            self.flush()
        else:
            self._work.set()
        return True

    def ack_with(self, message: Message, following: Sequence[Following]) -> None:
        """Ack a message and publish others, both or neither."""
        with Transaction(self.client) as transaction:
            transaction.ack(message)
            for one in following:
                topic, body, options = one if len(one) == 3 else (*one, {})
                check_options(options)
                transaction.publish(topic, body, **cast("dict[str, Any]", options))

    # -- what its consumer asks

    @property
    def unknown(self) -> int:
        """Settles of which the server has not said that they are durable."""
        heard = self.answers.heard
        while self._questions and self._questions[0][0] <= heard:
            self._known = self._questions.popleft()[1]
        return self._settles - self._known

    def replace(self, terms: dict[str, object], wait: float) -> None:
        """Ask for other terms and wait for the answer, which follows all that was granted before."""
        with self._lock:
            if self.closed:
                raise Unavailable("the consumer is closed")
            if self._lost is not None:
                raise self._lost
            self._numbered += 1
            number = self._numbered
            try:
                self._writer.write_metadata(orjson.dumps({"number": number, "replace": terms}))
            except pa.ArrowException as error:
                raise rebuilt(error) from None
        self.answers.replaced(number, wait)

    def flush(self, *, ask: bool = False) -> None:
        """Send what is gathered; with `ask`, the server is to say when all settles so far are durable."""
        with self._lock:
            if self.closed:
                return
            gathered, self._gathered = self._gathered, []
            try:
                if gathered:
                    columns = zip(*gathered, strict=True)
                    kinds = [field.type for field in SETTLE]
                    arrays = [array_of(values, kind) for values, kind in zip(columns, kinds, strict=True)]
                    self._writer.write_batch(pa.RecordBatch.from_arrays(cast("Any", arrays), schema=SETTLE))
                    self._unasked = True
                if ask and self._unasked:
                    self._unasked = False
                    self._numbered += 1
                    self._asked, self._asked_at = self._numbered, time.monotonic()
                    self._questions.append((self._asked, self._settles))
                    self._writer.write_metadata(orjson.dumps({"number": self._asked}))
                elif not gathered:
                    return
            except pa.ArrowInvalid:  # our side was ended meanwhile, see `_hear`; what is written here is always valid
                raise Unavailable("the server has ended the stream and taken the messages back") from None
            except pa.ArrowException as error:
                raise rebuilt(error) from None
            self._sent_at = time.monotonic()

    def durable(self, timeout: float) -> None:
        """Wait until everything settled so far is durable."""
        self.flush(ask=True)
        self.answers.durable(self._asked, timeout)
        if self.answers.failures:
            raise self.answers.failures[0]

    def unseen(self, rows: Rows, row: int) -> None:
        """Say of the rows from one on that nobody has seen them."""
        with self._lock:
            self._writer.write_batch(rows.unseen(row))
            self._unasked = True

    def closing(self) -> None:
        """Its end will be no loss."""
        self._closing = True

    def close(self) -> None:
        """Wait until what is settled is durable, and end."""
        if self._inherited:
            return
        try:
            self.flush(ask=True)
            with self._lock:
                self._writer.done_writing()
        except (PenstockError, pa.ArrowException):
            pass  # the stream is gone; the reading thread says why
        self._end()
        for thread in self._threads:
            if thread is not threading.current_thread() and not sys.is_finalizing():
                thread.join(WAIT_S)
        if self._threads[0].is_alive():
            if sys.is_finalizing() and self.unknown:
                time.sleep(LAST_S)
            self._reader.cancel()
        self._close_writer()

    def abandon(self) -> None:
        """The server has ended the stream, or the connection is lost; what is held here was taken back."""
        self._work.set()
        self._close_writer()

    def _end(self) -> None:
        self.closed = True
        self._work.set()

    def _close_writer(self) -> None:
        if self._inherited:
            return
        with suppress(pa.ArrowException):  # says again what the reading thread said
            self._writer.close()
        self._writer = Ended()

    # -- threads

    def _read(self) -> None:
        error: PenstockError | None = None
        try:
            while True:
                chunk: Any = self._reader.read_chunk()
                if chunk.app_metadata is not None:
                    with understood():
                        self._hear(chunk.app_metadata.to_pybytes())
                if chunk.data is not None and chunk.data.num_rows:
                    self.incoming.put(Rows(chunk.data, self._read_body, time.monotonic()))
        except StopIteration:
            if not self._closing:
                error = Unavailable("the server ended the stream")
        except pa.ArrowException as failure:
            error = rebuilt(failure)
        except ProtocolError as wrong:
            error = wrong
            self._reader.cancel()
        self._reader = Ended()
        end = End(error)
        self.answers.end(end)
        self.incoming.put(end)
        self._work.set()

    def _hear(self, metadata: bytes) -> None:
        told = said(metadata)
        if "ended" in told:  # the error follows when we have ended our side
            with self._lock:
                self._writer.done_writing()
            return
        self.answers.hear(told)

    def _send(self) -> None:
        while True:
            self._work.wait(min(self._beat, ASK_S) if self._unasked else self._beat)
            self._work.clear()
            if self.closed or self.answers.ended is not None:
                return
            try:
                if self._gathered:
                    time.sleep(FLUSH_S)
                    self.flush()
                if self._unasked and time.monotonic() - self._asked_at >= ASK_S:
                    self.flush(ask=True)
                elif time.monotonic() - self._sent_at >= self._beat:
                    with self._lock:
                        if not self.closed:
                            self._writer.write_metadata(b'{"heartbeat":true}')
                            self._sent_at = time.monotonic()
            except (PenstockError, pa.ArrowException):
                return  # the reading thread says why
