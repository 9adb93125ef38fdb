"""The rows of a table while a statement runs: in memory while they are few, then in a file, read anew by each scan.

DuckDB asks for a stream whenever it scans: twice for a join of a table with itself, once a turn of a recursive query.
So the rows are kept outside DuckDB, in pages of a bounded size: a scan holds a few pages, whatever the table has.
What lies in files counts as put aside (`sql.spill`).  Knows rows and bytes, no SQL.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.errors import ResourceExhausted
from penstock.records.dataclass import dataclass
from penstock.server.sql.result import cut

PAGE_BYTES = 1 << 20
"""Of a page, if it has more than one row.  Readers hold up to 16 ahead."""

PAGE_ROWS = 20_000
"""The most of a page: what lies in few bytes is worth a batch too."""


@dataclass(slots=True)
class Aside:
    """What a statement may put aside.  `left`: bytes on disk."""

    folder: Path
    left: int
    in_memory: int  # bytes of tables, before they go to files

    def ask(self, size: int) -> None:
        """Whether there is room for so many bytes.  ResourceExhausted when there is not."""
        if size > self.left:
            raise ResourceExhausted(
                "the tables of the statement are larger than sql.spill allows: name fewer columns, read less, or allow "
                "more in the settings"
            )


class Kept:
    """One table; `close` it when the statement ends."""

    def __init__(self, schema: pa.Schema, aside: Aside, name: str) -> None:
        self.schema = schema
        self.rows = 0
        self.widest = 1  # bytes of a row, in the page with the widest ones
        self._aside = aside
        self._path = aside.folder / f"{name}.arrows"
        self._pages: list[pa.RecordBatch] = []
        self._held = 0
        self._writer: Any = None
        self._file: Any = None

    def fill(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Keep all rows; gives each page, once it is kept."""
        for page in paged(batches):
            self.rows += page.num_rows
            self.widest = max(self.widest, page.nbytes // page.num_rows)
            self._keep(page)
            yield page
        if self._writer is not None:
            self._writer.close()
            self._file.close()

    def _keep(self, page: pa.RecordBatch) -> None:
        if self._writer is None and (page.nbytes <= self._aside.in_memory or not self._aside.left):
            self._aside.in_memory -= page.nbytes
            self._pages.append(page)
            return
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = pa.OSFile(str(self._path), "wb")
            self._writer = pa.ipc.new_stream(self._file, self.schema)
            for one in self._pages:
                self._write(one)
                self._aside.in_memory += one.nbytes
            self._pages = []
        self._write(page)

    def _write(self, page: pa.RecordBatch) -> None:
        self._aside.ask(page.nbytes)
        before = self._file.tell()
        self._writer.write_batch(page)
        self._aside.left = max(0, self._aside.left - (self._file.tell() - before))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows from the first, for one scan; of the Arrow PyCapsule interface."""
        reader: Any = (
            pa.RecordBatchReader.from_batches(self.schema, iter(self._pages))
            if self._writer is None
            else pa.ipc.open_stream(pa.OSFile(str(self._path), "rb"))
        )
        return reader.__arrow_c_stream__(requested_schema)

    def close(self) -> None:
        """Let go of the rows; a file goes with its folder."""
        self._pages = []


def paged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in pages: small batches joined, large ones cut."""
    waiting = list[pa.RecordBatch]()
    rows = size = 0
    for batch in batches:
        for piece in cut(batch, PAGE_BYTES):
            if not piece.num_rows:
                continue
            if waiting and (size + piece.nbytes > PAGE_BYTES or rows + piece.num_rows > PAGE_ROWS):
                yield joined(waiting)
                waiting, rows, size = [], 0, 0
            waiting.append(piece)
            rows += piece.num_rows
            size += piece.nbytes
    if waiting:
        yield joined(waiting)


def joined(pieces: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Some batches as one."""
    return pieces[0] if len(pieces) == 1 else pa.Table.from_batches(pieces).combine_chunks().to_batches()[0]
