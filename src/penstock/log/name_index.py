"""The index of a closed segment: which topics have messages in which batches.

It is derived and only saves time: `index/<first>-<generation>.names` may be missing, damaged or of another file, and is
then not used and made again.  Nothing is ever deleted from the log because of what an index says; a reader that uses
one leaves out batches that have no message of a wanted name, and looks at the rows of the others as ever.

    0   8s   "PENSTIDX"
    8   u32  version 1
    12  u32  CRC-32C of the file with this field as zeros
    16  u64  origin
    24  u64  first LSN of the segment
    32  u32  generation of the segment
    36  u32  batches in the segment
    40  u32  names: N; 0xFFFFFFFF: too many to tell apart, every batch has to be looked at
    44  u32  bytes of all names
    48       N + 1 x u32 where each name begins; names in UTF-8, ascending by bytes, padded to 4 bytes;
             N + 1 x u32 where the batch numbers of each name begin; the batch numbers as u32

What it is made from, as what is rewritten, are the batches of a segment file from its first byte to its last, each
checked before it is believed (`SegmentSource`); a child process or a command reads them by the file's name alone.
"""

from __future__ import annotations

import re
import struct
import threading
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from penstock.errors import LogDamaged, told_as
from penstock.log.catalog import Segment
from penstock.log.frame import Frame, FrameReader, NotAFrame, Window, sound
from penstock.log.reader import damaged
from penstock.log.record_batches import rows_of
from penstock.log.segment import NotASegment, SegmentHeader, read_header, segment_name
from penstock.ports import Disk, File, read_whole
from penstock.records.compute import compute, distinct_numbers
from penstock.records.kinds import Kind

_BLOCK = 256 << 10
"""Bytes that are read at once: of more, two would lie in memory while the next comes."""

_I64 = struct.Struct("<q")


class RawBatch(NamedTuple):
    """A batch with rows, as it lies in the file; its sum is right."""

    frame: Frame
    message: bytes

    @property
    def last(self) -> int:
        """LSN of the last row: what the header says, or the last value of the first column."""
        frame = self.frame
        if frame.last >= 0:
            return frame.last
        return int(_I64.unpack_from(self.message, frame.header + frame.buffers[2] + 8 * (frame.rows - 1))[0])

    @property
    def base(self) -> bool:
        """Whether it holds a base, which is alone in its batch: the first value of the second column says so."""
        frame = self.frame
        return not frame.compressed and self.message[frame.header + frame.buffers[6]] == Kind.BASE

    def decode(self) -> pa.RecordBatch:
        """Its rows as an Arrow batch."""
        return rows_of(self.message, compressed=self.frame.compressed)


class Source:
    """One segment file, read once from front to back."""

    def __init__(self, disk: Disk, name: str) -> None:
        """LogDamaged when the file does not begin as a segment; OSError when it cannot be opened."""
        self.name = name
        self.file: File = disk.open(name, readonly=True)
        self.rows = 0
        self.read = 0  # batches
        try:
            self.header, self._start = _header(self.file, name)
        except BaseException:
            self.file.close()
            raise

    def batches(self) -> Iterator[RawBatch]:
        """The batches with rows, in order.  LogDamaged at the first that is not what was written, and at a cut."""
        window = Window(self.file, self.file.size(), _BLOCK)
        at = self._start
        try:
            for frame in FrameReader().each(window, at):
                message = window.read(at, frame.length)
                if not sound(frame, message):
                    raise damaged(self.name, self.read, at, frame.lsn, "is not what was written")
                if frame.rows:
                    self.rows += frame.rows
                    self.read += 1
                    yield RawBatch(frame, message)
                at += frame.length
        except NotAFrame as error:
            raise damaged(self.name, self.read, at, 0, f"cannot be read: {error}") from None
        if self.header.generation and self.rows != self.header.rows:
            raise LogDamaged(f"{self.name} has {self.rows} of its {self.header.rows} rows")

    def close(self) -> None:
        """Let the file go, and what the system keeps of it in memory."""
        self.file.give_back()
        self.file.close()


def _header(file: File, name: str) -> tuple[SegmentHeader, int]:
    with told_as(LogDamaged, f"{name} is no segment of this log: ", instead=NotASegment):
        return read_header(file)


FOLDER = "index"
NAMES_MAX = 1 << 16
"""With more names than this in a segment an index would save little and take much."""
GROUP = 1_000
"""Batches, or rows of one batch, after which whoever waits for the interpreter gets it."""
KEPT = 16
"""Indexes in memory."""

_HEAD = struct.Struct("<8sIIQQIIII")
_MAGIC, _VERSION, _MANY = b"PENSTIDX", 1, 0xFFFFFFFF
_NAME = re.compile(r"([0-9]{20})-([0-9]{5})\.names\Z")

Wanted: TypeAlias = "str | Callable[[str], bool]"
"""One name, or whether a name is wanted."""

Numbers = npt.NDArray[np.uint32]
_Key: TypeAlias = "tuple[int, int]"  # first LSN and generation


def index_name(first: int, generation: int) -> str:
    """The file of one segment's index."""
    return f"{FOLDER}/{first:020d}-{generation:05d}.names"


def which(name: str) -> tuple[int, int] | None:
    """First LSN and generation in the name of an index (without its folder); None for names that are not ours."""
    match = _NAME.match(name)
    return (int(match[1]), int(match[2])) if match else None


class Names:
    """A sound index in memory."""

    def __init__(self, data: bytes, count: int, size: int) -> None:
        self._many = count == _MANY
        if self._many:
            return
        at = _HEAD.size
        self._starts: Numbers = np.frombuffer(data, "<u4", count + 1, at)
        at += 4 * (count + 1)
        self._text = data[at : at + size]
        at += size + (-size & 3)
        self._places: Numbers = np.frombuffer(data, "<u4", count + 1, at)
        self._batches: Numbers = np.frombuffer(data, "<u4", -1, at + 4 * (count + 1))

    def batches(self, wanted: Wanted) -> Sequence[int] | None:
        """Ascending numbers of the batches that may have such messages; None: any may."""
        if self._many:
            return None
        if isinstance(wanted, str):
            name = wanted.encode()
            at = bisect_left(range(len(self)), name, key=self._name)
            found = at < len(self) and self._name(at) == name
            return cast("list[int]", self._of(at).tolist()) if found else []
        hits = [self._of(at) for at in range(len(self)) if wanted(self._name(at).decode())]
        return cast("list[int]", distinct_numbers(np.concatenate(hits)).tolist()) if hits else []

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        """How many names there are."""
        return len(self._starts) - 1

    def _name(self, at: int) -> bytes:
        return self._text[int(self._starts[at]) : int(self._starts[at + 1])]

    def _of(self, at: int) -> Numbers:
        return self._batches[int(self._places[at]) : int(self._places[at + 1])]


def build(disk: Disk, first: int, between: Callable[[int], bool] | None = None) -> int:
    """Make the index of the segment that starts at `first`; its size.  A job for a thread or another process.

    `between` is called between groups of batches with the bytes read, and ends the work by True; then 0 is given.
    LogDamaged when the segment is not what was written, OSError when the disk fails or is full.
    """
    source = Source(disk, segment_name(first))
    names = dict[str, "array[int]"]()
    try:
        done = 0
        for number, raw in enumerate(source.batches()):
            if len(names) <= NAMES_MAX:
                for name in _names_of(raw.decode()):
                    names.setdefault(name, array("I")).append(number)
            done += raw.frame.length
            if between is not None and (number % GROUP == GROUP - 1 or raw.frame.rows >= GROUP) and between(done):
                return 0
    finally:
        source.close()
    return _write(disk, source.header, source.read, names)


def _names_of(batch: pa.RecordBatch) -> list[str]:
    """The distinct names of the messages in a batch."""
    column = cast("Any", batch.column("name"))
    messages = compute.less_equal(batch.column("kind"), pa.scalar(int(Kind.PUBLISH_TRANSIENT), pa.int8()))
    return cast("list[str]", compute.unique(compute.filter(column, messages)).to_pylist())


def _write(disk: Disk, header: SegmentHeader, batches: int, names: dict[str, array[int]]) -> int:
    pieces, count, size = list[bytes](), _MANY, 0
    if len(names) <= NAMES_MAX:
        ordered = sorted((name.encode(), numbers) for name, numbers in names.items())
        count, text = len(ordered), b"".join(name for name, _ in ordered)
        size = len(text)
        starts = list(accumulate((len(name) for name, _ in ordered), initial=0))
        places = list(accumulate((len(numbers) for _, numbers in ordered), initial=0))
        pieces = [_u4(starts), text, bytes(-size & 3), _u4(places), *(_u4(numbers) for _, numbers in ordered)]
    body = b"".join(pieces)
    said = (header.origin, header.first, header.generation, batches, count, size)
    crc = crc32c(body, crc32c(_HEAD.pack(_MAGIC, _VERSION, 0, *said)))
    data = _HEAD.pack(_MAGIC, _VERSION, crc, *said) + body
    disk.mkdir(FOLDER)
    fresh = f"{FOLDER}/new"
    with closing(disk.open(fresh, create="new" not in disk.list(FOLDER))) as file:
        file.truncate(0)
        file.pwrite(data, 0)
    disk.rename(fresh, index_name(header.first, header.generation))
    return len(data)


def _u4(values: Sequence[int]) -> bytes:
    return np.asarray(values, "<u4").tobytes()


def load(disk: Disk, header: SegmentHeader, batches: int) -> Names | None:
    """The index of a segment with so many batches; None when there is no sound one."""
    try:
        data = read_whole(disk, index_name(header.first, header.generation))
    except OSError:
        return None
    if len(data) < _HEAD.size:
        return None
    magic, version, crc, *said, count, size = _HEAD.unpack_from(data)
    head = _HEAD.pack(magic, version, 0, *said, count, size)
    if (magic, version) != (_MAGIC, _VERSION) or crc32c(memoryview(data)[_HEAD.size :], crc32c(head)) != crc:
        return None
    if tuple(said) != (header.origin, header.first, header.generation, batches):
        return None
    return Names(data, count, size)


class Indexes:
    """The indexes of a log, a few of them kept in memory.  Thread-safe."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = threading.Lock()
        self._kept = OrderedDict[_Key, Names]()
        self._sound = set[_Key]()  # what `missing` has found sound

    def finder(self, wanted: Wanted | None) -> Callable[[Segment], Sequence[int] | None] | None:
        """`find` for these names; None: for any, so nothing need be found."""
        return None if wanted is None else partial(self.find, wanted=wanted)

    def find(self, segment: Segment, wanted: Wanted) -> Sequence[int] | None:
        """Numbers of the segment's batches that may have messages of a wanted name; None: any may."""
        key = (segment.header.first, segment.header.generation)
        with self._lock:
            names = self._kept.get(key)
            if names is not None:
                self._kept.move_to_end(key)
        if names is None:
            names = load(self._disk, segment.header, len(segment.lsns))
            if names is None:
                self._sound.discard(key)
                return None
            with self._lock:
                self._kept[key] = names
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
        return names.batches(wanted)

    def missing(self, closed: Sequence[Segment]) -> list[int]:
        """First LSNs of the closed segments without a sound index; indexes of files that are gone are removed."""
        there = {which(name): name for name in self._disk.list(FOLDER)}
        keys = [(segment.header.first, segment.header.generation) for segment in closed]
        for key in set(there) - set(keys) - {None}:
            self._disk.remove(f"{FOLDER}/{there[key]}")
        self._sound &= set(keys)
        for key, segment in zip(keys, closed, strict=True):
            if key not in self._sound and key in there and load(self._disk, segment.header, len(segment.lsns)):
                self._sound.add(key)
        return [first for first, generation in keys if (first, generation) not in self._sound]
