"""One upload: batches out, answers in, and the count that proves it complete."""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

from typing import Any, cast

import orjson
import pyarrow as pa

from penstock.client.link import rebuilt
from penstock.client.messages import Refusal, TableReceipt
from penstock.errors import PenstockError, Unavailable

WINDOW = 4
"""Batches of a table that are sent before the first of their answers is read."""


class Upload:
    """One DoPut: batches out, answers in, never more than `WINDOW` answers behind."""

    def __init__(self, writer: Any, reader: Any, *, answers: bool = True) -> None:
        self._writer = writer
        self._reader = reader
        self._answers = answers  # the server answers each batch
        self._rows = 0
        self._behind = 0
        self._offset = 0
        self._unroutable = 0
        self._refused: list[Refusal] = []

    def send(self, batch: pa.RecordBatch) -> None:
        """One batch."""
        self._writer.write_batch(batch)
        if not batch.num_rows:
            return
        self._rows += batch.num_rows
        self._behind += 1
        if self._answers and self._behind > WINDOW:
            self._hear()

    def _hear(self) -> None:
        said = self._read()
        self._behind -= 1
        self._unroutable += said["unroutable"]
        for one in said["refused"]:
            self._refused.append(Refusal(self._offset + one["row"], one["code"], one["reason"], one["message"]))
        self._offset += said["rows"]

    def _read(self) -> dict[str, Any]:
        buffer = self._reader.read()
        if buffer is None:
            self._writer.close()  # raises what the server refused, if it did
            raise Unavailable("the server ended the upload without an answer")
        return cast("dict[str, Any]", orjson.loads(buffer.to_pybytes()))

    def end(self) -> dict[str, Any]:
        """Say how many rows were sent; the server's last answer."""
        self._writer.write_metadata(orjson.dumps({"end": {"rows": self._rows}}))
        self._writer.done_writing()
        while self._answers and self._behind:
            self._hear()
        return self._read()

    def finish(self) -> tuple[TableReceipt, list[Refusal]]:
        """The whole upload's receipt."""
        said = self.end()
        receipt = TableReceipt(
            said["rows"],
            said["stored"],
            said["duplicates"],
            self._unroutable,
            said["refused_rows"],
            said["first"],
            said["last"],
            tuple(self._refused),
            said.get("sequence"),
        )
        return receipt, self._refused

    def failure(self, error: BaseException) -> PenstockError:
        """Why the upload failed: what the server said at its end tells more than a broken write."""
        try:
            self._writer.close()
        except pa.ArrowException as better:
            return rebuilt(better)
        return rebuilt(error)

    def close(self) -> None:
        """End the stream; what went wrong was told before."""
        try:
            self._writer.close()
        except pa.ArrowException:
            pass
