"""What a client sends is judged before it is touched, and there is no other way to it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from penstock.errors import InvalidArgument, Unavailable
from penstock.server.flight.arriving import Arriving
from penstock.server.flight.calls import Caller, Calls, Intake
from penstock.server.people.access import Who
from penstock.wire.flight.received import PUBLISHED, Bounds

SERVER = Path(__file__).resolve().parents[3] / "src" / "penstock" / "server"
BATCH = pa.record_batch({"body": [b"abc", b"de"]})


class Reader:
    """pyarrow's, as far as it is asked: gives these one after the other, or raises them."""

    def __init__(self, *chunks: object, schema: object = BATCH.schema) -> None:
        self._chunks = iter(chunks)
        self._schema = schema

    @property
    def schema(self) -> object:
        return _given(self._schema)

    def read_chunk(self) -> object:
        return _given(next(self._chunks))


def _given(value: object) -> object:
    if isinstance(value, BaseException):
        raise value
    return value


def chunk(batch: pa.RecordBatch | None, said: bytes | None = None) -> Any:
    return SimpleNamespace(data=batch, app_metadata=None if said is None else pa.py_buffer(said))


def arriving(*chunks: object, intake: Intake | None = None, schema: object = BATCH.schema) -> Arriving:
    calls = Calls(intake or Intake(1 << 30), 1)
    return Arriving(Reader(*chunks, schema=schema), calls.stream(Caller(Who("ann"), "", lambda: False)), Bounds())


def test_batches_come_with_what_is_said_beside_them() -> None:
    stream = arriving(chunk(None, b"hello"), chunk(BATCH), chunk(BATCH.slice(0, 0), b"end"))
    assert stream.expect(PUBLISHED) == BATCH.schema
    (none, hello), (first, silent), (empty, end) = stream.each(PUBLISHED)
    assert (none, hello, silent, end) == (None, b"hello", None, b"end")
    assert first is not None
    assert first.batch == BATCH
    assert first.size == BATCH.nbytes
    assert empty is not None
    assert not empty


def test_a_batch_is_held_until_the_next_one_or_its_release() -> None:
    intake = Intake(1 << 30)
    stream = arriving(chunk(BATCH), chunk(BATCH.slice(0, 1)), chunk(None), intake=intake)
    held = []
    for received, _ in stream.each(PUBLISHED):
        held.append(intake.whole)
        if received is not None and len(received) == 1:
            stream.release()
    assert held == [BATCH.nbytes, BATCH.slice(0, 1).nbytes, 0]


@pytest.mark.parametrize(
    "error",
    [
        OSError("Invalid flatbuffers message."),
        pa.ArrowInvalid("offsets"),
        pa.ArrowNotImplementedError("a type"),
        KeyError("dictionary 7"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        RuntimeError("of a kind that nobody thought of"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_arrow_raises_over_a_stream_is_told_to_who_sent_it(error: Exception) -> None:
    with pytest.raises(InvalidArgument, match="publish: the Arrow stream cannot be read: "):
        list(arriving(error).each(PUBLISHED))
    with pytest.raises(InvalidArgument, match="publish: the Arrow stream cannot be read: "):
        arriving(schema=error).expect(PUBLISHED)


def test_a_batch_that_has_no_room_is_told_whether_a_retry_helps() -> None:
    with pytest.raises(Unavailable, match="publish: too little memory is free for this batch .* try again"):
        list(arriving(pa.ArrowMemoryError("malloc of size 5000 failed")).each(PUBLISHED))
    with pytest.raises(InvalidArgument, match="a column has 5000000000 bytes; a batch may have 268435456"):
        list(arriving(pa.ArrowMemoryError("malloc of size 5000000000 failed")).each(PUBLISHED))


def test_what_happened_to_the_connection_is_no_fault_of_the_stream() -> None:
    stream = arriving(flight.FlightCancelledError("gone"))
    stream.passing = (flight.FlightError,)
    with pytest.raises(flight.FlightCancelledError):
        list(stream.each(PUBLISHED))


def test_columns_are_judged_where_no_schema_was_asked_for() -> None:
    strange = pa.record_batch({"body": [b"a"], "more": [1]})
    with pytest.raises(InvalidArgument, match="publish: unknown column 'more'"):
        list(arriving(chunk(strange)).each(PUBLISHED))


# -- the tree


def _files(folder: Path, having: str = "") -> Iterator[tuple[Path, ast.Module]]:
    for file in sorted(folder.rglob("*.py")):
        if having in (text := file.read_text()):
            yield file, ast.parse(text)


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def test_nobody_but_arriving_reads_from_a_reader_of_flights() -> None:
    """A handler that is given pyarrow's reader could touch a batch that nobody has judged."""
    reads = {"read_chunk", "read_all", "read_pandas", "to_reader", "read_next_batch"}
    wrong = [
        f"{file.relative_to(SERVER)}:{node.lineno}: {node.attr}"
        for file, tree in _files(SERVER / "flight")
        if file.name != "arriving.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in reads
    ]
    assert not wrong


def test_a_reader_of_flights_is_handed_to_arriving_alone() -> None:
    """pyarrow gives it to `do_put` and `do_exchange`; `Uploads` makes an `Arriving` of it before anybody has it."""
    passing = {"grpc_server.py": {"put", "exchange", "_uploads", "Uploads"}, "uploads.py": {"_FromClient"}}
    wrong: list[str] = []
    for file, tree in _files(SERVER / "flight"):
        if file.name == "arriving.py":
            continue
        handed = {
            id(argument)
            for call in _calls(tree)
            if getattr(call.func, "attr", getattr(call.func, "id", None)) in passing.get(file.name, ())
            for argument in call.args
        }
        wrong += [
            f"{file.relative_to(SERVER)}:{node.lineno}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Name) and node.id == "reader" and id(node) not in handed
        ]
    assert not wrong


def test_nothing_makes_a_received_batch_but_the_judge() -> None:
    wrong = [
        f"{file}:{call.lineno}"
        for file, tree in _files(SERVER.parent, "Received(")
        if file.name != "received.py"
        for call in _calls(tree)
        if getattr(call.func, "id", None) == "Received"
    ]
    assert not wrong
