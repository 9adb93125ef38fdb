"""What comes beside the batches of a DoPut `transact`: where a batch goes, and the word that commits.

    batch of messages, columns of `PUBLISH`     metadata {"exchange": E, "topic": T}, both optional
    ...
    last                                        metadata {"commit": {"rows": N, "settles": [settle, ...]}}

    settle = [consumer, queue or null, lsn, attempt, verb, delay in microseconds or null, reason or null]

`consumer` is the name that the server gave the consumer when it subscribed.  An upload that ends without the last word
has committed nothing.
"""

from __future__ import annotations

from typing import cast

from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass
from penstock.wire.fields import LSN_MAX, NAME_LIMIT, Fields, nearest, read_json, shown

VERBS = ("ack", "release", "retry", "cancel", "reject", "expire")

SETTLES_MOST = 1_000_000


@dataclass(frozen=True, slots=True)
class Settle:
    """One delivery that ends with the transaction."""

    consumer: str
    queue: str | None  # None: the one that the consumer asked for
    lsn: int
    attempt: int
    verb: str
    delay: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Goal:
    """Where the messages of one batch go."""

    exchange: str = ""
    topic: str | None = None  # of rows without one
    mandatory: bool = False  # a row that nobody wants refuses the whole transaction


@dataclass(frozen=True, slots=True)
class CommitWord:
    """The last word."""

    rows: int
    settles: tuple[Settle, ...]


def read_word(metadata: bytes) -> Goal | CommitWord:
    """The metadata of one message of a client.  InvalidArgument says what is wrong with it."""
    fields = Fields("transact metadata", read_json(metadata, "transact metadata"))
    commit = fields.inner("commit")
    if commit is None:
        goal = Goal(fields.text("exchange"), fields.optional_text("topic"), fields.flag("mandatory"))
        fields.finish()
        return goal
    fields.finish()
    rows = commit.count("rows")
    items: object = commit.rest().pop("settles", [])
    if not isinstance(items, list):
        raise InvalidArgument(f"transact: settles is {shown(items)}, not a list")
    found = cast("list[object]", items)
    if len(found) > SETTLES_MOST:
        raise InvalidArgument(f"transact: {len(found)} settles; at most {SETTLES_MOST} are allowed")
    return CommitWord(rows, tuple([_settle(one) for one in found]))


def _settle(item: object) -> Settle:
    told = f"transact: {shown(item)}"
    values = cast("list[object]", item) if isinstance(item, list) else []
    if len(values) != 7:
        raise InvalidArgument(f"{told} is no settle: [consumer, queue, lsn, attempt, verb, delay, reason]")
    consumer, queue, lsn, attempt, verb, delay, reason = values
    if not isinstance(consumer, str) or not (queue is None or isinstance(queue, str)):
        raise InvalidArgument(f"{told}: consumer and queue are text")
    if not _whole(lsn) or not _whole(attempt) or not (delay is None or _whole(delay)):
        raise InvalidArgument(f"{told}: lsn, attempt and delay are whole numbers from 0 on")
    if not isinstance(verb, str) or verb not in VERBS:
        hint = nearest(verb, VERBS) if isinstance(verb, str) else ""
        raise InvalidArgument(f"transact: verb {shown(verb)} is unknown{hint}")
    if not (reason is None or (isinstance(reason, str) and len(reason.encode()) <= 8 * NAME_LIMIT)):
        raise InvalidArgument(f"{told}: reason is text of at most {8 * NAME_LIMIT} bytes")
    return Settle(
        consumer, queue, cast("int", lsn), cast("int", attempt), verb, cast("int | None", delay), reason or None
    )


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LSN_MAX
