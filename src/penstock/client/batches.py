"""What came together, as one Arrow batch: settled at once, or row by row.

    for batch in client.consume("readings", backlog=10_000).batches():
        with batch:  # one ack for all, or a retry after an exception
            store(batch.arrow)

A row is settled once, by the batch or by its message; what a settle of the batch is about is what is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from numbers import Integral
from typing import Any, Generic, Self, TypeAlias, cast

import pyarrow as pa

from penstock.client import messages, tracing
from penstock.client.arguments import arguments_checked
from penstock.client.exchange import Exchange
from penstock.client.forks import OfThisProcess
from penstock.client.messages import B, Rows, Values, reason_of
from penstock.errors import InvalidArgument, InvalidBody, PreconditionFailed
from penstock.units import Duration, wait_of

RowNumbers: TypeAlias = "Iterable[int] | pa.Array[Any] | pa.ChunkedArray[Any]"
"""The numbers of some rows; an array of Arrow has whole numbers."""

OUTCOMES = (None, "ack", "release", "retry", "reject", "lost")
"""What has become of a row: `Message.outcome`, by its place here."""


class Message(messages.Message[B]):
    """The message of a row: what became of it is kept by the batch, however often it is looked at."""

    __slots__ = ("_outcomes",)

    def __init__(self, rows: Rows, row: int, holder: Exchange, outcomes: bytearray) -> None:
        Values.__init__(self, rows, row)
        self._consumer = holder
        self._outcomes = outcomes

    @property
    def outcome(self) -> str | None:
        """As of any message."""
        return OUTCOMES[self._outcomes[self._row]]

    @outcome.setter
    def outcome(self, outcome: str | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride] - is as writable
        self._outcomes[self._row] = OUTCOMES.index(outcome)


def _numbers(rows: object, verb: str) -> list[int]:
    """The numbers of rows in ascending order, each once; also those of numpy and Arrow.  InvalidArgument."""
    if isinstance(rows, pa.Array | pa.ChunkedArray):
        rows = cast("list[object]", rows.to_pylist())
    if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
        reason = "; a reason is reason=..." if isinstance(rows, str) else ""
        raise InvalidArgument(f"{verb}: rows is {rows!r}, not the numbers of rows such as [0, 2]{reason}")
    return sorted({_number(one, f"{verb}: rows has") for one in cast("Iterable[object]", rows)})


def _number(row: object, what: str) -> int:
    truth = isinstance(row, bool) or type(row).__name__ in ("bool_", "bool")  # numpy's are called the one or the other
    if truth or not isinstance(row, Integral):
        mask = "; of a mask take numpy.flatnonzero(mask)" if truth else ""
        raise InvalidArgument(f"{what} {bool(row) if truth else row!r}, which is no number of a row{mask}")
    return int(row)


@arguments_checked
class Batch(OfThisProcess, Generic[B]):
    """Made by `Consumer.batches`.  As a sequence it has the messages of its rows."""

    def __init__(self, rows: Rows, first: int, exchange: Exchange) -> None:
        """first: the row it begins with; those before were taken as messages."""
        self._rows = rows if not first else rows.after(first)
        self._exchange = exchange
        self._outcomes = bytearray(len(self._rows))  # of each row: a place in OUTCOMES

    @property
    def arrow(self) -> pa.RecordBatch:
        """The columns `lsn bookmark topic exchange time attempt redelivered lease_until headers body ...`."""
        return self._rows.batch

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> Message[B]:
        row = _number(row, "batch[row]: the row")
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        message: Message[B] = Message(self._rows, row % len(self), self._exchange, self._outcomes)
        return message

    def __iter__(self) -> Iterator[Message[B]]:
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} messages, {self._outcomes.count(0)} not settled)"

    @property
    def unsettled(self) -> list[int]:
        """The rows that nothing was said of so far."""
        return [row for row, outcome in enumerate(self._outcomes) if not outcome]

    def ack(self, rows: RowNumbers | None = None) -> bool:
        """Done: these rows, or all that are left.  False, as of each way to settle: too late, they come again."""
        return self._settle("ack", rows)

    def release(self, rows: RowNumbers | None = None) -> bool:
        """Back to their places at once, not counted as a failure."""
        return self._settle("release", rows)

    def retry(self, rows: RowNumbers | None = None, *, delay: Duration | None = None, error: str | None = None) -> bool:
        """Back, counted as a failure: after the queue's back-off, or after `delay`."""
        return self._settle("retry", rows, None if delay is None else wait_of(delay, "delay"), error)

    def reject(self, rows: RowNumbers | None = None, *, reason: str | None = None) -> bool:
        """Refused for good: dead letters, where the queue has a place for them."""
        return self._settle("reject", rows, None, reason)

    def extend(self, period: Duration) -> bool:
        """Hold all that are left until `period` from now at least."""
        return self._exchange.settle_rows(self._rows, self.unsettled, "extend", wait_of(period, "extend"), None)

    def _settle(self, verb: str, rows: RowNumbers | None, delay: int | None = None, reason: str | None = None) -> bool:
        chosen = self.unsettled if rows is None else _numbers(rows, verb)
        for row in chosen:
            if not 0 <= row < len(self):
                raise PreconditionFailed(f"row {row}: the batch has {len(self)}")
            if self._outcomes[row]:
                raise PreconditionFailed(f"row {row} was settled already: {self[row].outcome}")
        if not chosen:
            return True
        with ExitStack() as stack:
            if tracing.active is not None:
                headers = [self[row].headers for row in chosen]
                stack.enter_context(tracing.active.settle(verb, self._exchange.source, headers))
            in_time = self._exchange.settle_rows(self._rows, chosen, verb, delay, reason)
        place = OUTCOMES.index(verb if in_time else "lost")
        for row in chosen:
            self._outcomes[row] = place
        return in_time

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Ack what is left, or retry it after an exception; release it when the process is told to stop."""
        if error is None:
            self.ack()
        elif isinstance(error, Exception):
            verb = "reject" if isinstance(error, InvalidBody) and len(self) == 1 else "retry"
            self._settle(verb, None, None, reason_of(error))
        else:
            self.release()
