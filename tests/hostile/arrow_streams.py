"""Arrow streams of every command that takes data and of every shape, valid as a client would send them.

`mutations` breaks them.  A stream is its messages as Flight carries them: the flatbuffer header of each, its body, and
what a client says beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from hostile.flight_wire import descriptor, flight_data

QUEUE = "hostile"
"""Where messages are published."""

CONSUMED = "calm"
"""What is consumed: its few messages are no work for the server."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a stream."""

    header: bytes = b""
    body: bytes = b""
    metadata: bytes = b""


@dataclass(frozen=True, slots=True)
class Stream:
    """One call: which, with which command, and what is sent."""

    call: str  # put or exchange
    command: bytes
    messages: Sequence[Message] = field(default=())

    def frames(self) -> list[bytes]:
        """FlightData of each message; the first has the command."""
        first, *rest = self.messages or (Message(),)
        return [
            flight_data(first.header, first.body, first.metadata, descriptor(self.command)),
            *(flight_data(one.header, one.body, one.metadata) for one in rest),
        ]


def messages_of(
    batches: Sequence[pa.RecordBatch], schema: pa.Schema | None = None, compression: str | None = None
) -> list[Message]:
    """What Arrow writes for these batches: schema, dictionaries, batches."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression, unify_dictionaries=False)
    with pa.ipc.new_stream(sink, schema or batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    found = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))
    return [Message(one.metadata.to_pybytes(), b"" if one.body is None else one.body.to_pybytes()) for one in found]


def command(name: str, **fields: object) -> bytes:
    """A command as JSON."""
    return orjson.dumps({name: fields})


# -- columns


def _texts(rows: int) -> list[str]:
    return [f"wert {n} ü" for n in range(rows)]


def _headers(rows: int) -> pa.Array[Any]:
    kind = pa.map_(pa.string(), pa.string())
    return pa.array([[("k", f"v{n % 5}"), ("tenant", "t")] if n % 3 else None for n in range(rows)], kind)


def _whole(rows: int) -> pa.RecordBatch:
    """Every column of a publish that may stand beside the others."""
    texts, time = _texts(rows), pa.timestamp("us", "UTC")
    later = pa.array([2_000_000_000_000_000 + n for n in range(rows)], pa.int64()).cast(time)
    return pa.record_batch(
        {
            "body": pa.array([text.encode() for text in texts], pa.binary()),
            "topic": pa.array([QUEUE if n % 2 else None for n in range(rows)], pa.string()),
            "priority": pa.array([n % 9 for n in range(rows)], pa.int16()),
            "delay": pa.array([n if n % 4 == 0 else None for n in range(rows)], pa.int64()),
            "expires_at": later,
            "headers": _headers(rows),
            **{
                name: pa.array(texts, pa.string())
                for name in ("content_type", "message_id", "correlation_id", "reply_to")
            },
        }
    )


def _bodies(rows: int, size: int) -> pa.RecordBatch:
    return pa.record_batch({"body": pa.array([b"%07d" % n * (size // 7 + 1) for n in range(rows)], pa.binary())})


def _large(rows: int) -> pa.RecordBatch:
    """Other types that are taken."""
    texts = _texts(rows)
    return pa.record_batch(
        {
            "body": pa.array(texts, pa.large_string()),
            "topic": pa.array([QUEUE] * rows, pa.large_string()),
            "priority": pa.array([1] * rows, pa.uint8()),
            "not_before": pa.array([1] * rows, pa.timestamp("s", "Europe/Berlin")),
            "headers": pa.array([[("a", "b")]] * rows, pa.map_(pa.large_string(), pa.large_string())),
        }
    )


def _settles(rows: int) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "lsn": pa.array(range(1, rows + 1), pa.int64()),
            "attempt": pa.array([1] * rows, pa.int32()),
            "verb": pa.array([("ack", "release", "retry", "extend")[n % 4] for n in range(rows)], pa.string()),
            "delay": pa.array([1000 if n % 4 > 1 else None for n in range(rows)], pa.int64()),
            "reason": pa.array(["why" if n % 2 else None for n in range(rows)], pa.string()),
            "queue": pa.nulls(rows, pa.string()),
        }
    )


def _ordered(rows: int, kind: pa.DataType) -> pa.RecordBatch:
    values: list[object] = [b"%09d" % n for n in range(rows)] if kind == pa.binary() else list(range(rows))
    return pa.record_batch({"body": pa.array(_texts(rows), pa.string()), "order": pa.array(values, kind)})


def _nested(depth: int) -> pa.Array[Any]:
    value: object = 1
    kind: pa.DataType = pa.int8()
    for _ in range(depth):
        value, kind = [value], pa.list_(kind)
    return pa.array([value, None], kind)


STRANGE: Mapping[str, Callable[[], pa.Array[Any]]] = {
    "dictionary": lambda: pa.array(["a", "b"]).dictionary_encode(),
    "dictionary of dictionaries": lambda: pa.DictionaryArray.from_arrays(
        pa.array([0, 1], pa.int8()), pa.array([["a"], ["b"]], pa.list_(pa.string()))
    ),
    "list": lambda: pa.array([[1], [2, 3]]),
    "deep list": lambda: _nested(40),
    "struct": lambda: pa.array([{"a": 1, "b": "x"}, None]),
    "dense union": lambda: pa.UnionArray.from_dense(
        pa.array([0, 1], pa.int8()), pa.array([0, 0], pa.int32()), [pa.array([1]), pa.array(["x"])]
    ),
    "sparse union": lambda: pa.UnionArray.from_sparse(
        pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["x", "y"])]
    ),
    "run-end encoded": lambda: pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array(["x"])),
    "string view": lambda: pa.array(["a text that is not short", "b"], pa.string_view()),
    "binary view": lambda: pa.array([b"bytes that are not short at all", b"b"], pa.binary_view()),
    "list view": lambda: pa.array([[1], [2]], pa.list_view(pa.int64())),
    "fixed size": lambda: pa.array([b"abcd", b"efgh"], pa.binary(4)),
    "fixed list": lambda: pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2)),
    "decimal": lambda: pa.array([1, 2]).cast(pa.decimal256(50, 3)),
    "null": lambda: pa.nulls(2),
    "extension": lambda: pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}", "[]"])),
    "tensor": lambda: pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int32(), [2]), pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2))
    ),
    "wrong map": lambda: pa.array([[(1, "a")], []], pa.map_(pa.int32(), pa.string())),
}
"""Types that no command takes: whoever reads a batch before its schema is judged meets them."""


# -- streams


def _put(kind: str, batches: Sequence[pa.RecordBatch], compression: str | None = None) -> Stream:
    """A DoPut of one of the three commands with the last word that belongs to it."""
    rows = sum(batch.num_rows for batch in batches)
    said: dict[str, tuple[bytes, object]] = {
        "publish": (command("publish", topic=QUEUE), {"end": {"rows": rows}}),
        "stage": (command("stage", query="q", batch=1, partition=0, attempt=0, topic=QUEUE), {"end": {"rows": rows}}),
        "ordered": (
            command("stage", query="q", batch=1, partition=0, attempt=0, topic=QUEUE, ordered=True),
            {"end": {"rows": rows}},
        ),
        "transact": (command("transact"), {"commit": {"rows": rows, "settles": []}}),
    }
    words, last = said[kind]
    sent = messages_of(batches, compression=compression)
    if kind == "transact":
        goal = orjson.dumps({"topic": QUEUE})
        sent = [sent[0], *(Message(one.header, one.body, goal) for one in sent[1:])]
    return Stream("put", words, [*sent, Message(metadata=orjson.dumps(last))])


def _consume(batches: Sequence[pa.RecordBatch], compression: str | None = None) -> Stream:
    sent = messages_of(batches, compression=compression)
    hello = Message(metadata=b'{"heartbeat": true}')
    replace = Message(metadata=b'{"replace": {"filter": "/a > 1", "max_backlog": 3}, "number": 7}')
    asked = [Message(one.header, one.body, b'{"number": %d}' % n) for n, one in enumerate(sent[1:], 1)]
    return Stream("exchange", command("consume", queue=CONSUMED, backlog=2), [hello, sent[0], *asked, replace])


def valid_streams() -> dict[str, Stream]:
    """By name, every command with every shape."""
    out: dict[str, Stream] = {}
    for kind in ("publish", "stage", "transact"):
        out[f"{kind} bodies"] = _put(kind, [_bodies(2, 10)])
        out[f"{kind} all columns"] = _put(kind, [_whole(9)])
        out[f"{kind} other types"] = _put(kind, [_large(3)])
        out[f"{kind} many rows"] = _put(kind, [_whole(300), _whole(1)])
        out[f"{kind} nothing"] = _put(kind, [_whole(0)])
        out[f"{kind} lz4"] = _put(kind, [_whole(40)], "lz4")
        out[f"{kind} zstd"] = _put(kind, [_whole(40), _whole(7)], "zstd")
        out[f"{kind} one large body"] = _put(kind, [_bodies(1, 70_000)])
    for name, kind in (("number", pa.int64()), ("bytes", pa.binary())):
        out[f"ordered by {name}"] = _put("ordered", [_ordered(5, kind), _ordered(3, kind).slice(2)])
    out["settles"] = _consume([_settles(8), _settles(1)])
    out["settles zstd"] = _consume([_settles(40)], "zstd")
    out["settles lsn alone"] = _consume([_settles(3).select(["lsn", "verb"])])
    for name, column in STRANGE.items():
        values = column()
        body = pa.record_batch({"body": values})
        out[f"publish {name}"] = _put("publish", [body])
        out[f"settle {name}"] = _consume([pa.record_batch({"lsn": values, "verb": values})])
        other = pa.record_batch({"body": [b"a", b"b"], "headers": values})
        out[f"stage headers {name}"] = _put("stage", [other])
    return out
