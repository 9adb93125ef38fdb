"""What is no row, no message, no function and no body is said by name, before anything is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

import penstock.otel
from penstock.client import aio
from penstock.client.aio import stream
from penstock.client.batches import Batch
from penstock.client.client import Client
from penstock.client.exchange import Exchange
from penstock.client.json_bodies import body_of
from penstock.client.messages import Message, Rows
from penstock.client.queue_contents import tell_stats
from penstock.client.transactions import Transaction
from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.wire.flight.commands import DELIVERY


class Holding:
    """Who holds four messages, and is told which of them are settled."""

    client, tag, term, source = None, "tested", 0, "jobs"

    def __init__(self) -> None:
        self.settled: list[int] = []

    def ack_with(self, message: Message[Any], following: Any) -> None:
        Exchange.ack_with(cast("Any", SimpleNamespace(client=self.client)), message, following)

    def settle_rows(self, rows: Rows, chosen: list[int], *_: object) -> bool:
        self.settled += chosen
        return True


def batch() -> tuple[Batch[Any], Holding]:
    holding = Holding()
    some = {"lsn": 1, "bookmark": "0|1|", "topic": "jobs", "attempt": 1, "redelivered": False, "body": b"{}"}
    columns = [pa.array([some.get(field.name)] * 4, field.type) for field in DELIVERY]
    return Batch[Any](Rows(pa.RecordBatch.from_arrays(columns, schema=DELIVERY)), 0, cast("Any", holding)), holding


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("too warm", r"reject: rows is 'too warm', not the numbers of rows such as \[0, 2\]; a reason is reason="),
        (b"\0", r"reject: rows is b'\\x00', not the numbers of rows such as \[0, 2\]$"),
        (1, r"reject: rows is 1, not the numbers of rows such as \[0, 2\]$"),
        (["x"], "reject: rows has 'x', which is no number of a row$"),
        ([0, None], "reject: rows has None, which is no number of a row$"),
        ([1.0], "reject: rows has 1.0, which is no number of a row$"),
        ([True, False, False, True], "reject: rows has True, .*; of a mask take numpy.flatnonzero"),
        (np.array([True, False]), "reject: rows has True, .*; of a mask take numpy.flatnonzero"),
        (pa.array([True, False]), "reject: rows has True, .*; of a mask take numpy.flatnonzero"),
    ],
)
def test_what_is_no_row_settles_nothing(rows: Any, told: str) -> None:
    """A mask was taken for the rows 0 and 1, and a reason for rows that are called by its letters."""
    some, holding = batch()
    with pytest.raises(InvalidArgument, match=told):
        some.reject(rows)
    with pytest.raises(InvalidArgument, match=told):
        asyncio.run(_of_asyncio(some, rows))
    assert (holding.settled, some.unsettled) == ([], [0, 1, 2, 3])


async def _of_asyncio(some: Batch[Any], rows: Any) -> None:
    async def run(work: Callable[[], Any]) -> Any:
        return work()

    await stream.Batch(some, run).reject(rows)


@pytest.mark.parametrize(
    "rows", [[0, 2], range(0, 4, 2), np.array([2, 0]), pa.array([0, 2]), pa.chunked_array([[0, 2]])]
)
def test_rows_are_numbers_of_any_maker(rows: Any) -> None:
    """`pyarrow.compute.indices_nonzero` gives an array of Arrow."""
    some, holding = batch()
    assert some.ack(rows)
    assert (holding.settled, some.unsettled) == ([0, 2], [1, 3])


@pytest.mark.parametrize("row", ["x", slice(1, 3), True, None])
def test_one_message_of_a_batch_has_a_number(row: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"is no number of a row"):
        batch()[0][row]


@pytest.mark.parametrize(
    ("publish", "told"),
    [
        ("bills", r"ack: publish is 'bills', not messages such as \[\('bills', body\)\]"),
        (5, r"ack: publish is 5, not messages such as"),
        (("bills", {}), r"ack: publish has 'bills', which is no message: write \(topic, body\)"),
        ([("bills",)], r"ack: publish has \('bills',\), which is no message: write \(topic, body\)"),
        (
            [("bills", {}, [1])],
            r"ack: publish has .*, which is no message: write \(topic, body\) or \(topic, body, opt",
        ),
        ([("bills", {}, {"prio": 1})], "ack: publish: 'prio' is no option of a message; did you mean 'priority'\\?"),
    ],
)
def test_what_is_published_with_an_ack(publish: Any, told: str) -> None:
    some, _ = batch()
    with pytest.raises(InvalidArgument, match=told):
        some[0].ack(publish=publish)
    assert some[0].outcome is None


@pytest.mark.parametrize("verb", ["ack", "release", "retry", "reject"])
@pytest.mark.parametrize("given", ["m", None, 5])
def test_a_transaction_settles_messages(verb: str, given: object) -> None:
    told = rf"{verb}: message is {given!r}, not a Message: that is of type {type(given).__name__}"
    for transaction in (Transaction(cast("Any", None)), aio.Transaction(cast("Any", None))):
        with pytest.raises(InvalidArgument, match=told):
            getattr(transaction, verb)(given)


def test_what_a_transaction_settles_twice_is_refused_however_much_it_settles() -> None:
    """Each message was held against all before it: 10,000 took the client half a minute."""
    asked, some = 0, [one for _ in range(100) for one in batch()[0]]

    def place(message: Message[Any]) -> tuple[object, int]:
        nonlocal asked
        asked += 1
        return message._rows, message._row

    with patch.object(Message, "place", property(place)):
        transaction = Transaction(cast("Any", None))
        for one in some:
            transaction.ack(one)
        with pytest.raises(PreconditionFailed, match="settled twice in one transaction"):
            transaction.reject(some[7])
    assert asked == len(some) + 1


def test_messages_of_the_other_client_are_told_apart() -> None:
    some, _ = batch()
    with pytest.raises(InvalidArgument, match=r"not a Message: that is of type penstock.client.batches.Message"):
        aio.Transaction(cast("Any", None)).ack(cast("Any", some[0]))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda c: c.replay("t", "MOST_RECENT", name="n", bookmarks="file"),
            "bookmarks is 'file', not a Bookmarks or None",
        ),
        (lambda c: c.sow("t", stats=5), "stats is 5, not a function or None"),
        (lambda c: c.redrive("t", progress=5), "progress is 5, not a function or None"),
        (lambda c: c.bind("t", "e", arguments=[1]), r"arguments is \[1\], not names with their values or None"),
    ],
)
def test_other_arguments_are_looked_at(call: Callable[[Any], object], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        call(object.__new__(Client))


def test_what_a_callers_function_raises_is_its_own() -> None:
    """It was told as what no server says."""

    def stats(_: object) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="^mine$"):
        tell_stats(stats, b'{"stats": {}}')


def nested(depth: int) -> object:
    body: object = 1
    for _ in range(depth):
        body = {"a": body}
    return body


ROUND: dict[str, object] = {}
ROUND["self"] = ROUND


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (nested(300), "a body of type dict does not become JSON: it is nested deeper than 254, or holds itself"),
        (ROUND, "a body of type dict does not become JSON: it is nested deeper than 254, or holds itself"),
        ({"a": [2**70]}, f"a body of type dict does not become JSON: {2**70} at /a/0 is no whole number of 64 bits"),
        ({"a": {(1, 2): 3}}, r"does not become JSON: the key \(1, 2\) at /a is a tuple, not a text"),
        ({"a": "\udc80"}, r"does not become JSON: '\\udc80' at /a is no text in UTF-8"),
        ({"\udc80": 1}, r"does not become JSON: the key '\\udc80' at the whole body is no text in UTF-8"),
        ({"a": [object()]}, "does not become JSON: at /a/0: an object has no text of its own"),
    ],
)  # fmt: skip
def test_what_is_no_json_is_told_with_its_place_and_its_limit(body: object, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        body_of(body)


def test_a_client_and_a_batch_say_what_they_are() -> None:
    some, _ = batch()
    assert repr(some) == "Batch(4 messages, 4 not settled)"
    assert repr(stream.Batch(some, cast("Any", None))) == "Batch(4 messages, 4 not settled)"


def test_what_traces_is_a_provider() -> None:
    with pytest.raises(InvalidArgument, match="^instrument: provider is 5, not a TracerProvider or None$"):
        penstock.otel.instrument(cast("Any", 5))
