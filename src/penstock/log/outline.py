"""A batch without the bytes of its bodies: what counting and weighing messages needs, for a third of the reading.

`body` is the last column of a batch, and its values are the last buffer of it.  All before that is read; the place of
the values is memory that nobody has written, so the lengths of bodies are right and their bytes mean nothing.

The CRC covers the bodies, so it is not checked here.  What an outline says may decide where a reader stops, never what
it gets: who reads the rows checks them and finds what is damaged.  What could lead astray (a header, the order of LSNs,
the places of names) is looked at, and where it is wrong the batch is read whole, which names the damage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from penstock.log.arrow import column
from penstock.log.frame import NotAFrame
from penstock.records.schema import COLUMNS

if TYPE_CHECKING:
    from penstock.log.frame import FrameReader
    from penstock.log.index import Segment

LEAST = 256 << 10
"""Bytes of a batch below which two reads of a part of it are not quicker than one of all."""

HEAD = 4096
"""Bytes that are read first, with the header in them."""


class Outliner:
    """Makes outlines for one reader, all in the same memory: each is good until the next is made."""

    def __init__(self, frames: FrameReader) -> None:
        self._frames = frames
        self._memory = pa.allocate_buffer(0)

    def outline(self, segment: Segment, number: int) -> pa.RecordBatch | None:
        """All of a batch but what its bodies hold.  None: it has to be read whole.  OSError when the disk fails."""
        offset, length, first = segment.offsets[number], segment.lengths[number], segment.lsns[number]
        if length < LEAST or segment.header.codec:
            return None
        head = segment.file.pread(HEAD, offset)
        try:
            frame = self._frames.header(head[: 8 + int.from_bytes(head[4:8], "little")], offset)
        except NotAFrame:
            return None
        end = frame.header + frame.buffers[-2]
        if frame.compressed or frame.length != length or frame.lsn != first or not HEAD <= end <= length // 4 * 3:
            return None
        rest = segment.file.pread(end - HEAD, offset + HEAD)
        if len(rest) < end - HEAD:
            return None
        if self._memory.size < length:
            self._memory = pa.allocate_buffer(length)
        data: Any = np.frombuffer(memoryview(self._memory), np.uint8)
        data[:HEAD] = np.frombuffer(head, np.uint8)
        data[HEAD:end] = np.frombuffer(rest, np.uint8)
        try:
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(self._memory.slice(0, length)), COLUMNS)
            cast("Any", batch.column("name")).validate(full=True)
        except (pa.ArrowInvalid, OSError):
            return None
        lsns = column(batch, "lsn", "<i8")
        if int(lsns[0]) != first or not (lsns[1:] > lsns[:-1]).all():
            return None
        return batch
