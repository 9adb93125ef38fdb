"""A Flight client for benchmarks: batches made ahead, each answer read, each body that comes back compared.

Row n of a stream has the number n in its first 8 bytes and the same random bytes as every row of its slot after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Self

import numpy as np
import pyarrow as pa
from harness import Wrong
from pyarrow import flight

SIZE = 100
SLOTS = 10_000
_NOISE = np.frombuffer(Random(1).randbytes(SLOTS * (SIZE - 8)), np.uint8).reshape(SLOTS, SIZE - 8)


def _bodies(first: int, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Bodies of rows first..first+count-1, a row each."""
    numbers = np.arange(first, first + count, dtype=">u8")
    out = np.empty((count, SIZE), np.uint8)
    out[:, :8] = numbers.view(np.uint8).reshape(-1, 8)
    out[:, 8:] = _NOISE[numbers.astype(np.int64) % SLOTS]
    return out


def rows(first: int, count: int) -> pa.RecordBatch:
    """A batch to publish."""
    offsets = pa.py_buffer(np.arange(0, (count + 1) * SIZE, SIZE, dtype=np.int32).tobytes())
    values = pa.py_buffer(_bodies(first, count).tobytes())
    body = pa.Array.from_buffers(pa.binary(), count, [None, offsets, values])
    return pa.RecordBatch.from_arrays([body], names=["body"])


@dataclass(frozen=True, slots=True)
class Came:
    """A batch that was read."""

    batch: pa.RecordBatch

    def check(self, first: int) -> int:
        """Raise Wrong unless its bodies are those of rows `first` on; the row after its last."""
        count = self.batch.num_rows
        column: Any = self.batch.column("body")
        data = b"".join(column.to_pylist()) if column.null_count else _values(column)
        if data != _bodies(first, count).tobytes():
            raise Wrong(f"the bodies of rows {first} to {first + count - 1} differ from what was published")
        return first + count


def _values(column: Any) -> bytes:
    _, offsets, values = column.buffers()
    places = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    if len(column) == 0:
        return b""
    return bytes(memoryview(values)[int(places[0]) : int(places[-1])])


class Door:
    """A connection to the Flight door.  Use as a context."""

    def __init__(self, address: tuple[str, int], user: str = "guest", password: str = "guest") -> None:
        self._client: Any = flight.FlightClient(f"grpc://{address[0]}:{address[1]}")
        token = self._client.authenticate_basic_token(user, password)
        self._options: Any = flight.FlightCallOptions(headers=[token])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def publish(self, topic: str, batches: Sequence[pa.RecordBatch], ahead: int = 4) -> None:
        """One DoPut; at most `ahead` batches are unanswered.  Raises Wrong unless every row was stored."""
        command = json.dumps({"publish": {"topic": topic}}).encode()
        descriptor: Any = flight.FlightDescriptor.for_command(command)
        writer, reader = self._client.do_put(descriptor, batches[0].schema, self._options)
        stored = answered = 0
        total = sum(batch.num_rows for batch in batches)
        for sent, batch in enumerate(batches, 1):
            writer.write_batch(batch)
            while sent - answered >= ahead:
                stored += _answer(reader)["stored"]
                answered += 1
        writer.write_metadata(json.dumps({"end": {"rows": total}}).encode())
        writer.done_writing()
        while answered < len(batches):
            stored += _answer(reader)["stored"]
            answered += 1
        end = _answer(reader)
        writer.close()
        if stored != total or end.get("complete") is not True:
            raise Wrong(f"{total} rows were sent and {stored} stored: {end}")

    def replay(self, topic: str, columns: Sequence[str] = ("lsn", "body")) -> Iterator[Came]:
        """All messages of a topic, batch by batch."""
        ticket = json.dumps({"replay": {"topic": topic, "bookmark": "EPOCH", "columns": list(columns)}}).encode()
        for chunk in self._client.do_get(flight.Ticket(ticket), self._options):
            if chunk.data is not None:
                yield Came(chunk.data)


def _answer(reader: Any) -> dict[str, Any]:
    data = reader.read()
    if data is None:
        raise Wrong("the server ended the upload without an answer")
    answer: dict[str, Any] = json.loads(data.to_pybytes())
    return answer
