"""Expressions off the loop: what is made of their values, a rank or a key, in slices between two breaths.

A body of more than a mebibyte would hold the interpreter for as long as its JSON takes to parse, so the bulk child
evaluates it; when there is none, or it fails, the thread does it after all, for the answer must not depend on that.

What the filter of a command asks about who asks is answered before it is compiled (`asked_by`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from penstock.core.queue.last_values import key_of
from penstock.core.queue.order.ranks import rank_of
from penstock.core.queue.shares.staging import key_text
from penstock.errors import PenstockError
from penstock.expr import Value, compile_value
from penstock.expr.context import Context
from penstock.expr.filter import bound
from penstock.records.entries import Topic

if TYPE_CHECKING:
    from penstock.core.asks import Made
    from penstock.ports import Disk


logger = logging.getLogger("penstock.judging")

CHILD_BODY = 1 << 20
"""Bytes of a body beyond which another process parses it: 1 MiB of JSON takes 4 ms."""

SLICE_ROWS = 500
SLICE_BYTES = 256 * 1024
"""What is evaluated between two breaths: about half a millisecond."""

BREATH_S = 50e-6
"""How long a breath is: any real sleep hands the interpreter over, and a longer one would only delay the answer."""

spent = time.thread_time_ns
"""Nanoseconds of CPU that this thread has used: what a way of looking costs, whoever else is busy."""

Ask = Callable[[str, dict[str, object]], dict[str, Any]]
"""`Bulk.call`: the result of a job of the bulk child."""

MAKERS: Mapping[Made, Callable[[object], Any]] = {"rank": rank_of, "key": key_of, "text": key_text}
Times: TypeAlias = "Sequence[int] | None"


def breathe() -> None:
    """Let another thread have the interpreter: any real sleep hands it over."""
    time.sleep(BREATH_S)


def slices(rows: Sequence[int], sizes: Sequence[int]) -> Iterator[Sequence[int]]:
    """Rows in pieces that are evaluated between two breaths."""
    start, n = 0, len(rows)
    while start < n:
        size, stop = sizes[start], start + 1
        while stop < n and stop - start < SLICE_ROWS and size + sizes[stop] <= SLICE_BYTES:
            size += sizes[stop]
            stop += 1
        yield rows[start:stop]
        start = stop


def made_of(
    value: Value,
    made: Made,
    bodies: Sequence[bytes],
    properties: bytes | Sequence[bytes],
    topics: Topic | Sequence[Topic],
    *,
    lsns: Times = None,
    times: Times = None,
    ask: Ask | None = None,
) -> list[Any]:
    """What is made of the value of each message: integers of ranks and keys, text or None of texts.

    Any thread but the loop's.
    """
    out = list[Any]()
    for part in slices(range(len(bodies)), list(map(len, bodies))):
        some = slice(part[0], part[-1] + 1)
        data = properties if isinstance(properties, bytes) else properties[some]
        where = topics if isinstance(topics, Topic) else topics[some]
        lsn, when = None if lsns is None else lsns[some], None if times is None else times[some]
        found: list[Any] | None = None
        if ask is not None and value.needs_body and len(bodies[some.start]) > CHILD_BODY:
            found = _elsewhere(value, made, bodies[some.start], data, where, lsn, when, ask)
        if found is None:
            found = list(map(MAKERS[made], value.values(bodies[some], data, where, lsns=lsn, times=when)))
        out += found
        breathe()
    return out


def _elsewhere(
    value: Value,
    made: Made,
    body: bytes,
    properties: bytes | Sequence[bytes],
    topics: Topic | Sequence[Topic],
    lsns: Times,
    times: Times,
    ask: Ask,
) -> list[Any] | None:
    """The same of one large body, from the child; None when it could not tell."""
    topic = topics if isinstance(topics, Topic) else topics[0]
    values: dict[str, object] = {
        "text": value.text,
        "made": made,
        "body": body,
        "properties": properties if isinstance(properties, bytes) else properties[0],
        "exchange": topic.exchange,
        "name": topic.name,
        "lsn": None if lsns is None else lsns[0],
        "time": None if times is None else times[0],
    }
    try:
        told = ask("make", values)
    except PenstockError as error:
        logger.warning("a body of %d bytes is evaluated beside the loop: %s", len(body), error)
        return None
    one = told["made"]
    return [bytes(one).decode(errors="surrogateescape") if made == "text" and one is not None else one]


def make_there(
    disk: Disk,
    text: str,
    made: Made,
    body: memoryview,
    properties: memoryview,
    exchange: str,
    name: str,
    lsn: int | None,
    time: int | None,
) -> dict[str, object]:
    """A job of the bulk child: what is made of an expression's value of one message; text as its bytes."""
    [value] = compile_value(text).values(
        [bytes(body)],
        bytes(properties),
        Topic("", exchange, name),
        lsns=None if lsn is None else [lsn],
        times=None if time is None else [time],
    )
    one = MAKERS[made](value)
    return {"made": one.encode(errors="surrogateescape") if isinstance(one, str) else one}


@overload
def asked_by(text: str, *, client: str, user: str, instance: str) -> str: ...
@overload
def asked_by(text: str | None, *, client: str, user: str, instance: str) -> str | None: ...
def asked_by(text: str | None, *, client: str, user: str, instance: str) -> str | None:
    """The text for one client.  ExpressionError for one that cannot be read."""
    if not text:
        return text
    return bound(text, Context(client_name=client, user=user, instance_name=instance))
