"""Messages as the client gives them, and receipts of what was published.

A message is a row of the Arrow batch it came in: its values are looked up when they are asked for, so taking a thousand
messages and looking at their bodies makes no dictionary of headers.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import field
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, SupportsIndex, TypeAlias, cast

import pyarrow as pa

from penstock.client import tracing
from penstock.client.arguments import arguments_checked
from penstock.client.arrays import array_of, repeated
from penstock.client.bodies import Reader, decoded, parsed, plain
from penstock.client.forks import OfThisProcess
from penstock.client.showing import facts
from penstock.errors import InvalidArgument, InvalidBody, PreconditionFailed, Refused
from penstock.records.causes import death_reason
from penstock.records.dataclass import dataclass
from penstock.records.entries import fence_of
from penstock.units import Duration, wait_of
from penstock.wire.flight.bookmarks import format_bookmark
from penstock.wire.flight.commands import SETTLE

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    B = TypeVar("B", default=Any)
else:
    from typing import TypeVar

    B = TypeVar("B")  # what the bodies of messages are read as

UNTYPED: Any = None
"""The type of bodies of which none was asked for."""

Following: TypeAlias = "tuple[str, object] | tuple[str, object, Mapping[str, object]]"
"""A message to publish: topic, body, and options of `Client.publish`."""


def followings(given: object) -> list[Following]:
    """Messages that are published with an ack, each of which is one.  InvalidArgument."""
    form = "(topic, body) or (topic, body, options)"
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InvalidArgument(f"ack: publish is {given!r}, not messages such as [('bills', body)]")
    found = list(cast("Iterable[object]", given))
    for one in found:
        parts = cast("Sequence[object]", one) if isinstance(one, tuple | list) else ()
        if len(parts) not in (2, 3) or (len(parts) == 3 and not isinstance(parts[2], Mapping)):
            raise InvalidArgument(f"ack: publish has {one!r}, which is no message: write {form}")
    return cast("list[Following]", found)


REASON_MOST = 500
"""Characters of a failure that are told with a settle."""


def reason_of(failure: BaseException | str) -> str:
    """Why something failed, as a settle tells it: cut, and half a pair of surrogates, as names of files may hold one,
    is written with its number.
    """
    try:
        text = failure if isinstance(failure, str) else f"{type(failure).__name__}: {failure}".removesuffix(": ")
    except Exception:  # noqa: BLE001 - its own code, for which no settle fails
        text = f"{type(failure).__name__}, which has no text"
    return text[:REASON_MOST].encode(errors="backslashreplace").decode()


class Rows:
    """The columns of one batch as lists, made when first asked for."""

    __slots__ = ("_lists", "batch", "came", "extended", "keeper", "read")

    def __init__(self, batch: pa.RecordBatch, read: Reader = plain, came: float = 0.0, keeper: object = None) -> None:
        """read: what the values of its messages are.  came: when it did, monotonic seconds.

        keeper: the consumer that they were taken from, which is there for as long as they are.
        """
        self.keeper = keeper
        self.read = read
        self.came = came
        self.extended = False  # how long one of them is leased is known to the server alone
        self.batch = batch
        self._lists = dict[str, list[Any]]()

    def __len__(self) -> int:
        return self.batch.num_rows

    def value(self, column: str, row: int) -> Any:
        """One value; None when there is no such column."""
        values = self._lists.get(column)
        if values is None:
            names = self.batch.schema.names
            values = self.batch.column(column).to_pylist() if column in names else [None] * len(self)
            self._lists[column] = values
        return values[row]

    def after(self, first: int) -> Rows:
        """The rows from `first` on."""
        rest = Rows(self.batch.slice(first), self.read, self.came, self.keeper)
        rest.extended = self.extended
        return rest

    def outlived(self, row: int, period: float) -> bool:
        """Whether the lease of a row has ended, which was for `period` seconds when it came: by both
        clocks, as its end may be later than was known, and is told by the server's.
        """
        if time.monotonic() < self.came + period:
            return False
        until = cast("datetime | None", self.value("lease_until", row))
        return until is not None and until.timestamp() <= time.time()

    def unseen(self, first: int) -> pa.RecordBatch:
        """What gives the rows from `first` on back as nobody has seen them: columns of `SETTLE`."""
        return settles(self.batch.slice(first), "unseen", None, None)

    def settled(self, rows: Sequence[int], verb: str, delay: int | None, reason: str | None) -> pa.RecordBatch:
        """What settles these rows, in ascending order: columns of `SETTLE`."""
        some = self.batch if len(rows) == len(self) else self.batch.take(array_of(rows, pa.int64()))
        return settles(some, verb, delay, reason)


def settles(some: pa.RecordBatch, verb: str, delay: int | None, reason: str | None) -> pa.RecordBatch:
    """Rows of `SETTLE` for messages that are settled alike."""
    names, count = some.schema.names, some.num_rows
    told: dict[str, Any] = {name: some.column(name) for name in ("lsn", "attempt", "queue") if name in names}
    for name, value in (("verb", verb), ("delay", delay), ("reason", reason)):
        if value is not None:
            told[name] = repeated(value, SETTLE.field(name).type, count)
    columns = [told[field.name] if field.name in told else pa.nulls(count, field.type) for field in SETTLE]
    return pa.RecordBatch.from_arrays(cast("Any", columns), schema=SETTLE)


class Values:
    """What a message says, and how it was delivered: the values of its row."""

    __slots__ = ("_row", "_rows")

    def __init__(self, rows: Rows, row: int) -> None:
        self._rows = rows
        self._row = row

    def __repr__(self) -> str:
        what = f"{self.topic!r}, {self.bookmark!r}, {len(self.body)} bytes, attempt {self.attempt}"
        return f"{type(self).__name__}({what})"

    def _repr_html_(self) -> str:
        told = {
            "bookmark": self.bookmark, "topic": f"{self.exchange}/{self.topic}" if self.exchange else self.topic,
            "queue": self.queue, "time": self._rows.value("time", self._row), "attempt": self.attempt or None,
            "state": self.state, "reason": self.reason, "headers": self.headers, "content_type": self.content_type,
            "body": self.body,
        }  # fmt: skip
        return facts(told)

    @property
    def place(self) -> tuple[Rows, int]:
        """The batch it came in, and its row there."""
        return self._rows, self._row

    @property
    def body(self) -> bytes:
        """The bytes that were published."""
        return cast("bytes", self._rows.value("body", self._row))

    def json(self) -> Any:
        """The body parsed as JSON.  Raises InvalidBody, a ValueError too, when it is none."""
        return parsed(self.body, self._whose)

    def text(self) -> str:
        """The body as UTF-8.  Raises InvalidBody, a ValueError too, when it is none."""
        return decoded(self.body, self._whose)

    @property
    def _source(self) -> str | None:
        """The queue that it is of; None of what came from none."""
        return self.queue

    def _whose(self) -> str:
        """Behind "the body" in a sentence."""
        where = f"topic {self.topic!r}" if self._source is None else f"queue {self._source!r}"
        return f" of {self.bookmark!r} in {where}" if self.bookmark else f" of a row in {where}"

    @property
    def queue(self) -> str | None:
        """The queue it came from, where the consumer asked for several; None: the one it asked for."""
        return cast("str | None", self._rows.value("queue", self._row))

    @property
    def lsn(self) -> int:
        """Its place in the server's log."""
        return cast("int", self._rows.value("lsn", self._row))

    @property
    def bookmark(self) -> str:
        """`<origin>|<lsn>|`: a replay from here starts with the next message.  Empty for a row of a view."""
        found = cast("str | None", self._rows.value("bookmark", self._row))
        return found or ("" if self._rows.value("lsn", self._row) is None else format_bookmark(0, self.lsn))

    @property
    def topic(self) -> str:
        """The key it was published under."""
        return cast("str", self._rows.value("topic", self._row))

    @property
    def exchange(self) -> str:
        """The exchange it was published to; empty for the default one."""
        return cast("str", self._rows.value("exchange", self._row)) or ""

    @property
    def time(self) -> datetime:
        """When the server stored it, in UTC."""
        return cast("datetime", self._rows.value("time", self._row))

    @property
    def attempt(self) -> int:
        """Which delivery this is, from 1; 0 for a message that was not delivered yet."""
        return cast("int | None", self._rows.value("attempt", self._row)) or 0

    @property
    def redelivered(self) -> bool:
        """Whether somebody may have seen it before."""
        return bool(self._rows.value("redelivered", self._row))

    @property
    def lease_until(self) -> datetime | None:
        """When the lease ends unless it is extended; None: it does not end by time."""
        return cast("datetime | None", self._rows.value("lease_until", self._row))

    @property
    def headers(self) -> dict[str, str]:
        """The publisher's headers, each value as text, and what the server added to a dead letter."""
        found: dict[str, Any] = dict(self._rows.value("headers", self._row) or ())
        if None in found.values():  # of a client of AMQP's
            found = {name: "null" if value is None else str(value) for name, value in found.items()}
        return cast("dict[str, str]", found)

    @property
    def priority(self) -> int | None:
        """0 to 255, or None."""
        return cast("int | None", self._rows.value("priority", self._row))

    @property
    def content_type(self) -> str | None:
        """The kind of body that its publisher named, `application/json` for what became JSON; None without one."""
        return cast("str | None", self._rows.value("content_type", self._row))

    @property
    def message_id(self) -> str | None:
        """The name that its publisher gave it; None without one."""
        return cast("str | None", self._rows.value("message_id", self._row))

    @property
    def correlation_id(self) -> str | None:
        """What its publisher says that it belongs to; None without one."""
        return cast("str | None", self._rows.value("correlation_id", self._row))

    @property
    def reply_to(self) -> str | None:
        """Where its publisher asks for an answer; None where no answer is asked for."""
        return cast("str | None", self._rows.value("reply_to", self._row))

    @property
    def event(self) -> str | None:
        """Of a subscription to records: sow (it was there), publish, or oof."""
        return cast("str | None", self._rows.value("event", self._row))

    @property
    def reason(self) -> str | None:
        """Why a record is out of focus: deleted, expired, match.  Of a dead letter why it died: what its consumer said
        (`reject(reason=)`), else RabbitMQ's word."""
        told = cast("str | None", self._rows.value("reason", self._row))
        return told or death_reason(self.headers)

    @property
    def sow_key(self) -> str | None:
        """The key of a record, in an answer of `sow`."""
        return cast("str | None", self._rows.value("sow_key", self._row))

    @property
    def state(self) -> str | None:
        """ready, leased or delayed, when it was looked at in a queue."""
        return cast("str | None", self._rows.value("state", self._row))


class Holder(Protocol):
    """The consumer that a message is leased to, as the message knows it."""

    @property
    def client(self) -> object: ...

    @property
    def tag(self) -> str:
        """What the server calls it."""
        ...

    @property
    def term(self) -> int:
        """Of the leader of a cluster of servers that it is connected to; 0 without one."""
        ...

    @property
    def source(self) -> str:
        """The queue that it was asked for, or a pattern."""
        ...

    def settle(self, message: Message[Any], verb: str, delay: int | None, reason: str | None) -> bool:
        """False: the server has taken the message back with a connection that was lost, so that it has no effect."""
        ...

    def ack_with(self, message: Message[Any], following: Sequence[Following]) -> None:
        """Ack a message and publish others, both or neither."""


@arguments_checked
class Message(Values, OfThisProcess, Generic[B]):
    """One message.  Those of `consume` must be settled; those of `replay` and `peek` cannot be."""

    __slots__ = ("_consumer", "_span", "outcome")

    def __init__(self, rows: Rows, row: int, consumer: Holder | None = None) -> None:
        super().__init__(rows, row)
        self._consumer = consumer
        self.outcome: str | None = None
        """How this holder settled it: ack, release, retry or reject; None so far; lost, when that came too late."""

    @property
    def value(self) -> B:
        """The body as the type that `consume` was asked for; else parsed JSON where it is said to be that, or bytes.

        Read each time.  Raises InvalidBody when it is no such thing.
        """
        return cast("B", self._rows.read(self.body, self.content_type, self._whose))

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> str | tuple[Any, ...]:
        held = self._consumer is not None
        return OfThisProcess.__reduce_ex__(self, protocol) if held else object.__reduce_ex__(self, protocol)

    @property
    def _source(self) -> str | None:
        return self.queue or (None if self._consumer is None else self._consumer.source)

    @property
    def fence(self) -> int:
        """A number that is higher with each delivery of a message, also over takeovers in a cluster of servers.

        Whoever writes to another system hands it over: that system refuses a lower one than it has seen, so a worker
        that lost its lease, or its leader, does no harm when it wakes up.
        """
        return fence_of(self.holder.term, self.attempt)

    def ack(self, *, publish: Iterable[Following] = ()) -> bool:
        """Done: it will not come again.  False, as of each way to settle: too late, it comes again all the same, for
        the connection that it came over was lost, or its lease has ended and `leasing` is `strict`.

        publish    messages, (topic, body) or (topic, body, options of `publish`), that are published with the ack, both
                   or neither; then this waits until all is durable.  `Client.transaction` does the same with more.
        Errors, with `publish`: as for `Transaction.commit`; the message is still held.
        """
        following = followings(publish) if publish != () else ()
        if not following:
            return self._settle("ack")
        self.holder.ack_with(self, following)
        return True

    def release(self) -> bool:
        """Back to its place at once, not counted as a failure."""
        return self._settle("release")

    def retry(self, *, delay: Duration | None = None, error: str | None = None) -> bool:
        """Back, counted as a failure: after the queue's back-off, or after `delay`."""
        return self._settle("retry", delay, error)

    def reject(self, reason: str | None = None) -> bool:
        """Refused for good: a dead letter, where the queue has a place for them, which tells the reason."""
        return self._settle("reject", None, reason)

    cancel = retry
    expire = reject

    def extend(self, period: Duration) -> bool:
        """Hold it until `period` from now at least; False as of `ack`.  PreconditionFailed once it was settled."""
        self.check_unsettled()
        return self.holder.settle(self, "extend", wait_of(period, "extend"), None)

    def _settle(self, verb: str, delay: Duration | None = None, reason: str | None = None) -> bool:
        holder = self._consumer
        if holder is None or self.outcome is not None:
            holder = self.holder
            self.check_unsettled()
        micros = None if delay is None else wait_of(delay, "delay")
        if tracing.active is None:
            in_time = holder.settle(self, verb, micros, reason)
        else:
            with tracing.active.settle(verb, self.queue or holder.source, [self.headers]):
                in_time = holder.settle(self, verb, micros, reason)
        self.outcome = verb if in_time else "lost"
        return in_time

    def check_unsettled(self) -> None:
        """PreconditionFailed once it was settled."""
        if self.outcome is not None:
            raise PreconditionFailed(f"{self!r} was settled already: {self.outcome}")

    @property
    def holder(self) -> Holder:
        """The consumer that it is leased to.  Refused for a message that is not leased."""
        if self._consumer is None:
            raise Refused(f"{self!r} is not leased: only messages of `consume` are settled")
        return self._consumer

    def __enter__(self) -> Self:
        self.begin()
        return self

    def begin(self) -> None:
        """What is done from now on is work on this message, for who watches."""
        if tracing.active is not None and self._consumer is not None:
            self._span = tracing.active.process(self, self.queue or self._consumer.source, "")
            self._span.__enter__()

    def end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """The work on it is over."""
        span: AbstractContextManager[None] | None = getattr(self, "_span", None)
        if span is not None:
            del self._span
            with suppress(BaseException):  # the error that it is told of, and raises again
                span.__exit__(kind, error, trace)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ack, or retry after an exception, unless it was settled within; reject what is no value of its type."""
        try:
            self.leave(error)
        finally:
            self.end(kind, error, trace)

    def leave(self, error: BaseException | None) -> None:
        """Ack, or retry after an exception, unless it was settled within; reject what is no value of its type."""
        if self.outcome is None and self._consumer is not None:
            if error is None:
                self.ack()
            elif isinstance(error, InvalidBody):
                self.reject(reason_of(str(error)))  # it never will be valid
            elif isinstance(error, Exception):
                self.retry(error=reason_of(error))
            else:
                self.release()  # the process is told to stop: not the message's fault


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of one published message.  It is durable when you hold this."""

    outcome: str
    """stored, duplicate (stored before), unroutable (no queue and no declared topic wanted it), replied (given to who
    waits at the `reply_to` of a request, which keeps nothing), or dropped."""
    lsn: int = 0
    bookmark: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One row of a table that the server refused."""

    row: int
    code: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class TableReceipt:
    """What became of the rows of a table.  `stored` rows are durable; their LSNs lie in first..last."""

    rows: int
    stored: int
    duplicates: int = 0
    unroutable: int = 0
    refused_rows: int = 0
    first: int = 0
    last: int = 0
    refused: tuple[Refusal, ...] = field(default=(), repr=False)  # the first thousand of each batch
    sequence: int | None = None  # with a publisher: nothing up to here has to be sent again
    replies: int = 0  # rows that were given to who waits for them, at the `reply_to` of a request
