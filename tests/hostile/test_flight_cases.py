"""Streams that once ended the process, or wrote a traceback into its log, each by itself."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pyarrow as pa
import pytest

from hostile.arrow_streams import CONSUMED, QUEUE, Message, Stream, command, messages_of, valid_streams
from hostile.flight_wire import FlightWire, action, path
from hostile.pressing import Pressed
from penstock.server.doors.line import ABOUT_MOST
from penstock.wire.fields import COMMAND_LIMIT

END = Message(metadata=b'{"end": {"rows": 2}}')
PUBLISH = command("publish", topic=QUEUE)
STAGE = command("stage", query="q", batch=1, partition=0, attempt=0, topic=QUEUE)
IN_ORDER = command("stage", query="q", batch=1, partition=0, attempt=0, topic=QUEUE, ordered=True)


@pytest.fixture(scope="module")
def lives() -> Iterator[list[Pressed]]:
    """The servers of this module, of which all but the last have been ended by a stream."""
    lives: list[Pressed] = []
    yield lives
    for one in lives:
        one.__exit__(None, None, None)


@pytest.fixture
def pressed(lives: list[Pressed], tmp_path: Path) -> Pressed:
    if not lives or not lives[-1].watched.alive:
        lives.append(Pressed(tmp_path))
        lives[-1].__enter__()
    return lives[-1]


def lying(batch: pa.RecordBatch, column: str, offsets: list[int]) -> list[Message]:
    """The messages of a batch with the offsets of one column replaced in its body: no writer writes what is wrong."""
    [schema, one] = messages_of([batch])
    right = batch.column(column).buffers()[1].to_pybytes()[: 4 * len(offsets)]
    assert right in one.body
    return [schema, Message(one.header, one.body.replace(right, struct.pack(f"<{len(offsets)}i", *offsets), 1))]


def lying_stream(what: bytes, column: str, offsets: list[int], last: bytes = END.metadata) -> Stream:
    """A put of two rows in which a column's offsets lie."""
    headers = pa.array([[("k", "v"), ("l", "w")], [("m", "x")]], pa.map_(pa.string(), pa.string()))
    batch = pa.record_batch({"body": [b"abcd", b"e"], "headers": headers, "order": [b"123456", b"2"]})
    if what != IN_ORDER:
        batch = batch.drop_columns(["order"])
    return Stream("put", what, [*lying(batch, column, offsets), Message(metadata=last)])


def no_rows() -> Stream:
    """No rows, and the first offset of the map points far away: Arrow's validation has nothing to look at."""
    headers = pa.array([], pa.map_(pa.string(), pa.string()))
    filled = pa.record_batch({"body": [b"abc"], "headers": pa.array([[("k", "v")]], headers.type)})
    [schema, one] = messages_of([filled])
    header = one.header.replace(struct.pack("<q", 1), struct.pack("<q", 0))  # rows and lengths
    body = one.body.replace(struct.pack("<ii", 0, 1), struct.pack("<ii", 1 << 28, 1 << 28))
    return Stream("put", PUBLISH, [schema, Message(header, body), Message(metadata=b'{"end": {"rows": 0}}')])


def named(name: bytes) -> Stream:
    """A column whose name is no text."""
    [schema, one] = messages_of([pa.record_batch({"body": [b"abc", b"de"]})])
    return Stream("put", PUBLISH, [Message(schema.header.replace(b"body", name)), one, END])


def zoned(zone: bytes) -> Stream:
    """A time zone that is no text."""
    times = pa.array([1, 2], pa.timestamp("us", "Europe/Berlin"))
    [schema, one] = messages_of([pa.record_batch({"body": [b"abc", b"de"], "not_before": times})])
    return Stream("put", PUBLISH, [Message(schema.header.replace(b"Europe/Berlin", zone)), one, END])


def cut() -> Stream:
    """A body that ends before its buffers do."""
    [schema, one] = messages_of([pa.record_batch({"body": [b"abc" * 100, b"de"]})])
    return Stream("put", PUBLISH, [schema, Message(one.header, one.body[:40]), END])


def no_dictionary() -> Stream:
    """A dictionary that does not come."""
    schema, _, *rest = valid_streams()["publish dictionary"].messages
    return Stream("put", PUBLISH, [schema, *rest])


FAR = [0, 1 << 28, 3]
END_FAR = [0, 1, 1 << 28]
COMMIT = b'{"commit": {"rows": 2, "settles": []}}'

CASES: dict[str, Callable[[], Stream]] = {
    "publish: map": lambda: lying_stream(PUBLISH, "headers", END_FAR),
    "publish: map, inside": lambda: lying_stream(PUBLISH, "headers", FAR),
    "publish: bodies": lambda: lying_stream(PUBLISH, "body", FAR),
    "publish: negative": lambda: lying_stream(PUBLISH, "headers", [0, -(1 << 28), 3]),
    "stage: map": lambda: lying_stream(STAGE, "headers", END_FAR),
    "stage: the order's offsets": lambda: lying_stream(IN_ORDER, "order", FAR),
    "stage in order: map": lambda: lying_stream(IN_ORDER, "headers", END_FAR),
    "transact: map": lambda: lying_stream(command("transact"), "headers", END_FAR, COMMIT),
    "a name that is no text": lambda: named(b"\xff\xfe\xfd\xfc"),
    "a time zone that is no text": lambda: zoned(b"\xff" * 13),
    "a body that is cut": cut,
    "a dictionary that is missing": no_dictionary,
}


@pytest.mark.parametrize("name", CASES)
def test_what_lies_is_refused_in_our_words(pressed: Pressed, name: str) -> None:
    outcome = pressed.wire.put(CASES[name]().frames())
    assert "[PS105]" in outcome.details, outcome
    pressed.judge()


def test_no_rows_are_no_reason_to_follow_an_offset(pressed: Pressed) -> None:
    outcome = pressed.wire.put(no_rows().frames())
    assert outcome.code is grpc.StatusCode.OK, outcome
    pressed.judge()


def test_a_settle_whose_text_lies_is_refused(pressed: Pressed) -> None:
    batch = pa.record_batch({"lsn": [1, 2], "verb": ["ack", "ack"]})
    sent = Stream("exchange", command("consume", queue=CONSUMED), lying(batch, "verb", FAR))
    assert "[PS105]" in pressed.wire.exchange(sent.frames()).details
    pressed.judge()


MUCH = b"x" * (COMMAND_LIMIT + ABOUT_MOST)
"""More than the server takes of a call: its door is cut off, with everybody's calls, where that comes there."""


@pytest.mark.parametrize("password", ["guest", "wrong"])
@pytest.mark.parametrize(
    ("method", "said"),
    [("DoAction", action(MUCH, b"{}")), ("GetFlightInfo", path(MUCH)), ("GetSchema", path(b"queue", MUCH, b"\1" * 10))],
    ids=["an action", "a path", "a schema's path"],
)
def test_who_says_much_of_a_call_is_refused_and_nobody_else_notices(
    pressed: Pressed, method: str, said: bytes, password: str
) -> None:
    with FlightWire(pressed.server.ready["flight"], "guest", password) as wire:
        outcome = wire.one(method, said)
    stranger = password == "wrong" and outcome.code is grpc.StatusCode.UNAUTHENTICATED  # whom the door knows by now
    assert stranger or f"bytes as JSON; at most {ABOUT_MOST} are read" in outcome.details, outcome
    assert MUCH[:100].decode() not in outcome.details
    assert pressed.wire.one("DoAction", action(b"health", b"{}")).code is grpc.StatusCode.OK, "on the same connection"
    pressed.watched.judge(replace(pressed.bounds, lines=3))  # wrong logins may be told
    assert "another one begins" not in pressed.server.output()
