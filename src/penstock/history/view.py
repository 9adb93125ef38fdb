"""The log as a reader without its lock sees it: segments that somebody listed, up to a durable LSN that somebody named.

The server lists its segments with each request, each with the byte up to which it may be believed; `View` opens files,
indexes what it has not seen yet, and gives rows whose CRC was right.  It writes nothing and judges no torn tail: beyond
the listed end it never looks.  `stand_alone` makes the same of a folder that no server speaks for, whose files
themselves say what there is.

A file may be deleted or replaced by one of a higher generation while it is read: what is open stays readable, and a
name that is gone before it was opened raises Moved, upon which the server lists again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import LogDamaged, told_as
from penstock.log import checkpoints
from penstock.log.archive import Shown, archive_disk
from penstock.log.catalog import Catalog, Chosen, Segment, has_every, whole_from
from penstock.log.checkpoints import Base
from penstock.log.frame import FrameReader, NotAFrame, Window
from penstock.log.mending import Recovery
from penstock.log.name_index import Indexes, Wanted
from penstock.log.reader import Reader, Vias, damaged, decode
from penstock.log.record_batches import column
from penstock.log.segment import NotASegment, read_header
from penstock.ports import Disk
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from penstock.log.archive.row_groups import Archive


Groups = npt.NDArray[np.int64]

T = TypeVar("T")

OPEN_MAX = 256
"""Files that stay open between requests, with their indexes."""


class Moved(Exception):
    """A listed file is not there any more, or is another one: list again."""


LISTINGS = 40

PAUSE_S = 0.05
"""Between two listings that were out of date: a file that is being replaced gets its name meanwhile."""


def listed_again(look: Callable[[], T]) -> T:
    """What a look at a fresh listing of the log gives; again when a file was replaced or deleted before it was opened.

    Raises what `look` raises, and LogDamaged for a file that after two seconds is not what the server takes it for.
    """
    rest, moved = threading.Event(), ""
    for turn in range(LISTINGS):
        if turn > 1:
            rest.wait(PAUSE_S)  # nobody sets it
        try:
            return look()
        except Moved as error:
            moved = str(error)
    raise lasting(moved)


def lasting(moved: str) -> LogDamaged:
    """For a file that is so in every listing."""
    return LogDamaged(f"{moved} is not the file that the server has: it was replaced, deleted or damaged")


class Place(NamedTuple):
    """A segment as its owner lists it.  `end` is the byte behind its last durable batch."""

    name: str
    first: int
    last: int
    rows: int
    batches: int
    end: int
    closed: bool
    generation: int = 0  # how often it was rewritten: the same name then means another file


class Listing(NamedTuple):
    """What a reader may see: plain values, made by `listing` and sent with each request."""

    origin: int
    durable: int
    vias: dict[str, list[str]]
    segments: list[Place]
    archive: Shown | None = None  # where the rest is, for who wants that too
    begins: int = 0  # the first LSN of the log, whichever segments of it are listed

    def plain(self) -> dict[str, object]:
        """For a head."""
        return {
            "origin": self.origin,
            "durable": self.durable,
            "vias": self.vias,
            "segments": [list(place) for place in self.segments],
            "archive": None if self.archive is None else list(self.archive),
            "begins": self.begins,
        }

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Listing:
        """The inverse."""
        archive = values.get("archive")
        places = [Place(*one) for one in values["segments"]]
        shown = None if archive is None else Shown(*archive)
        return cls(values["origin"], values["durable"], values["vias"], places, shown, values["begins"])


Showing = Callable[[], "Shown | None"]
"""What the archive is at the moment; None: there is none."""


class Owner(Protocol):
    """What a listing asks of an open log (`penstock.log.log.Log`)."""

    vias: Vias

    @property
    def origin(self) -> int: ...
    @property
    def durable(self) -> int: ...

    def segments(self) -> Sequence[Any]: ...


def listing(log: Owner, start: int = 0, end: int = 1 << 62, archive: Showing | None = None) -> Listing:
    """The segments with LSNs in [start, end), as far as they are durable now.  Any thread.

    The first of them is always there, so that `first_lsn` of a whole listing is the log's.
    archive: asked after the segments, so that a row that has left them by then is in it.
    """
    durable = log.durable  # before the ends of the segments: each of them covers it
    places = [Place(*one[:8]) for one in log.segments()]
    chosen = [place for place in places if place.last >= start and place.first < end]
    shown = None if archive is None else archive()
    return Listing(log.origin, durable, log.vias.table(), chosen or places[-1:], shown, places[0].first)


class View:
    """What one request may read.  Its segments are shared with other requests, its bounds are its own."""

    def __init__(
        self, listed: Listing, segments: Sequence[Segment], indexes: Indexes, archive: Archive | None = None
    ) -> None:
        """`archive`: of what was listed with one."""
        self.origin = listed.origin
        self.durable = listed.durable
        self.listed = listed
        self.vias = Vias()
        self.vias.load(listed.vias)
        self.catalog = Catalog()
        for segment in segments:
            self.catalog.add(segment)
        self._reader = Reader(self.catalog, self.vias, 0)
        self._indexes = indexes
        self.archive = archive

    @property
    def first_lsn(self) -> int:
        """No row with a lower LSN is listed, or archived where the archive was listed too."""
        first = self.catalog.segments[0].header.first
        return first if self.archive is None else min(first, self.archive.manifest.first or first)

    def has_every(self, a: int, b: int) -> bool:
        """Whether every row that was written with an LSN in [a, b) is listed, or archived where that was listed too."""
        segments, archive = self.catalog.segments, self.archive
        if archive is None or has_every(segments, a, b):
            return has_every(segments, a, b)
        return a >= archive.manifest.pruned and archive.manifest.has(a, min(b, whole_from(segments)) - 1)

    def batches(
        self, a: int, b: int, columns: Sequence[str] | None = None, names: Wanted | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Rows of all kinds with LSNs in [a, b), never above `durable`.  LogDamaged where bytes are wrong.

        `names`: only messages of such topics matter, so batches without any may be left out.
        """
        chosen = self._indexes.finder(names)
        end = min(b, self.durable + 1)
        if self.archive is None or self.listed.archive is None:
            return self._reader.batches(a, end, columns, chosen)
        return self._whole(self.archive, self.listed.archive.seam, a, end, columns, names, chosen)

    def outlines(self, a: int, b: int, names: Wanted | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of `batches`, with the lengths of the bodies in the place of them where that saves reading."""
        if self.archive is not None and self.listed.archive is not None:
            return self.batches(a, b, None, names)
        chosen = self._indexes.finder(names)
        return self._reader.outlines(a, min(b, self.durable + 1), chosen)

    def _whole(
        self,
        archive: Archive,
        seam: int,
        a: int,
        b: int,
        columns: Sequence[str] | None,
        names: Wanted | None,
        chosen: Chosen | None,
    ) -> Iterator[pa.RecordBatch]:
        """The same where a part of it is archived."""
        from penstock.log.archive.row_groups import pieces

        for piece in pieces(a, b, seam, archive.manifest.spans):
            if piece.archived:
                yield from archive.batches(piece.start, piece.end, columns, names)
            else:
                yield from self._reader.batches(piece.start, piece.end, columns, chosen)

    @property
    def complete(self) -> bool:
        """Whether log and archive have every record since the log began at LSN 1, though the log alone does not."""
        if self.archive is None or self.listed.archive is None:
            return False
        begun = self.archive.manifest.spans[0] if self.archive.manifest.spans else (0, 0)
        return begun[0] == 1 and begun[1] >= max(self.listed.archive.seam, self.catalog.segments[0].header.first)

    def groups(self, a: int, b: int) -> Iterator[tuple[pa.RecordBatch, Groups]]:
        """Rows as `batches` gives them, and for each the first LSN of the record batch it was written in.

        Of a batch of the log that begins before `a` that is the first LSN given.
        """
        end = min(b, self.durable + 1)
        if self.archive is None or self.listed.archive is None:
            yield from map(_with_group, self._reader.batches(a, end))
            return
        from penstock.log.archive.parquet import LOG_COLUMNS, READ
        from penstock.log.archive.row_groups import pieces

        for piece in pieces(a, end, self.listed.archive.seam, self.archive.manifest.spans):
            if not piece.archived:
                yield from map(_with_group, self._reader.batches(piece.start, piece.end))
                continue
            for batch in self.archive.batches(piece.start, piece.end, READ.names):
                yield batch.select(LOG_COLUMNS), batch.column("batch").to_numpy()

    def close(self) -> None:
        """Close the files, where this view is the only one that has them (`stand_alone`)."""
        for segment in self.catalog.segments:
            segment.file.close()


class Folder:
    """The files of a log folder that a process has opened, and what it has indexed of them.  Thread-safe."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._frames = FrameReader()
        self._lock = threading.Lock()
        self._begin(0)

    def _begin(self, origin: int) -> None:
        """Know nothing yet of the log with this origin, nor of another one that was here under the same names."""
        self._origin = origin
        self._indexes = Indexes(self.disk)
        self._open = dict[str, tuple[Place, Segment]]()
        self._archives = dict[str, "Archive"]()  # by folder

    def _archive(self, shown: Shown | None) -> Archive | None:
        if shown is None:
            return None
        from penstock.log.archive.row_groups import Archive

        archive = self._archives.get(shown.folder)
        if archive is None:
            archive = self._archives[shown.folder] = Archive(archive_disk(shown.folder))
        archive.follow(shown.number)
        return archive

    def view(self, listed: Listing) -> View:
        """A view of what was listed.

        Raises Moved when the list is out of date, LogDamaged when a file is not what it must be.
        """
        with self._lock:
            if listed.origin != self._origin:
                self._begin(listed.origin)
            segments = [self._segment(place, listed.origin) for place in listed.segments]
            view = View(listed, segments, self._indexes, self._archive(listed.archive))
            for place in listed.segments:
                self._open[place.name] = self._open.pop(place.name)
            self._forget(listed)
            for name in list(self._open)[: -max(OPEN_MAX, len(listed.segments))]:
                del self._open[name]  # a reader that still has it keeps it open
            return view

    def _forget(self, listed: Listing) -> None:
        """Let go of files that the log has no more: while one is open its room on the disk is not free."""
        names, span = {place.name for place in listed.segments}, range(0)
        if listed.segments:
            span = range(listed.segments[0].first, listed.segments[-1].last + 1)
        for name, (place, _) in list(self._open.items()):
            if place.last < listed.begins or (place.first in span and name not in names):
                del self._open[name]

    def _segment(self, place: Place, origin: int) -> Segment:
        known = self._open.get(place.name)
        if known is not None:
            before, segment = known
            if before.generation != place.generation or (before.closed and before != place):
                known = None  # another file under the same name, however much of the one before was seen
            elif segment.end >= place.end:
                return segment  # as far as asked for, or further
        segment = known[1] if known is not None else self._fresh(place, origin)
        self._index(segment, place)
        self._open[place.name] = (place, segment)
        return segment

    def _fresh(self, place: Place, origin: int) -> Segment:
        try:
            file = self.disk.open(place.name, readonly=True)
        except FileNotFoundError:
            raise Moved(place.name) from None
        with told_as(LogDamaged, f"{place.name} is no segment of this log: ", instead=NotASegment):
            header, size = read_header(file)
        if header.origin != origin:
            raise LogDamaged(f"{place.name} belongs to another data folder (origin {header.origin}, not {origin})")
        if (header.first, header.generation) != (place.first, place.generation):
            raise Moved(place.name)
        return Segment(place.name, header, size, file)

    def _index(self, segment: Segment, place: Place) -> None:
        """Walk the frames up to the listed end.  Headers alone; each CRC is checked when a row is asked for."""
        window = Window(segment.file, place.end)
        at, wrong = segment.end, ""
        try:
            for frame in self._frames.each(window, at):
                at += frame.length
                if frame.rows:
                    last = frame.last if frame.last >= 0 else frame.lsn + frame.rows - 1
                    segment.add(frame.lsn, last, frame.offset, frame.length, frame.rows, False)
                segment.end = at
            if at < place.end:
                wrong = "is zeros"
        except NotAFrame as error:
            wrong = f"cannot be read: {error}"
        if wrong or (place.closed and len(segment.lsns) != place.batches):
            where = (segment.name, len(segment.lsns), at, segment.last + 1)
            raise damaged(*where, wrong or f"is not where the server has it ({place.batches} batches)")
        segment.last = place.last


def _with_group(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Groups]:
    return batch, np.full(batch.num_rows, int(column(batch, "lsn", "<i8")[0]))


def rows_of(view: View) -> int:
    """Rows in all listed segments, or about so many in them and their archive."""
    live = sum(segment.rows for segment in view.catalog.segments)
    if view.archive is None or view.listed.archive is None:
        return live
    return live + sum(part.rows for part in view.archive.manifest.files if part.last < view.listed.archive.seam)


BASE_ROWS = 4096
"""A batch with a part of a base has no more rows."""


def stand_alone(disk: Disk, archive: Archive | None = None) -> View:
    """A view of a folder that no server speaks for: up to the last whole batch, and of its archive if it is given.

    LogDamaged where the files do not fit together.  Beside a running server the last batches may not be synced yet, and
    files come and go; so what does not fit is believed when it is the same twice.  (`log.verify` is exact there.)
    """
    from penstock.log.recover import open_segments  # the bulk child's reads do without what opens a folder

    said = ""
    while True:
        catalog = Catalog()
        try:
            recovery = open_segments(disk, catalog, origin=0, new_first=1, repair=False)
            return _stand_alone(disk, catalog, recovery, archive)
        except (LogDamaged, FileNotFoundError) as error:
            for segment in catalog.segments:
                segment.file.close()
            if str(error) == said:
                raise
            said = str(error)


def _stand_alone(disk: Disk, catalog: Catalog, recovery: Recovery, archive: Archive | None) -> View:
    from penstock.log.recover import newest_base

    segments = catalog.segments
    base = newest_base(segments[0], recovery)
    last = segments[-1]
    places = [
        Place(
            one.name,
            one.header.first,
            one.last,
            one.rows,
            len(one.lsns),
            one.end,
            one is not last,
            one.header.generation,
        )
        for one in segments
    ]
    shown: Shown | None = None
    if archive is not None and archive.manifest.spans:
        if archive.manifest.origin != recovery.origin:
            raise LogDamaged(
                f"the archive belongs to another data folder (origin {archive.manifest.origin}, not {recovery.origin})"
            )
        shown = Shown("", archive.manifest.number, whole_from(segments))
    listed = Listing(recovery.origin, last.last, base.vias if base is not None else {}, places, shown)
    view = View(listed, segments, Indexes(disk), archive if shown is not None else None)
    checkpoint = checkpoints.newest(disk, recovery.origin, recovery.warnings)
    after = 0
    if checkpoint is not None and checkpoint.lsn <= last.last:
        view.vias.load(checkpoint.vias)
        after = checkpoint.lsn
    for batch in view.batches(after + 1, last.last + 1):
        for row in np.flatnonzero(column(batch, "kind", "<i1") == int(Kind.VIA)).tolist():
            via, header = (cast("Any", batch.column(name))[row].as_py() for name in ("via", "properties"))
            view.vias.learn(via, header)
    return view


def base_of(view: View) -> Base | None:
    """The base that the listed segments need; None when they need none.  LogDamaged when that is missing."""
    from penstock.log.recover import newest_base

    oldest = view.catalog.segments[0]
    neediest = max((segment.header for segment in view.catalog.segments), key=attrgetter("floor"))
    if not oldest.header.previous and not neediest.floor:
        return None
    found = list[tuple[Segment, int]]()
    for segment, number in view.catalog.batches(0, view.durable + 1):
        data = segment.read(number)
        batch = decode(segment, number, data)
        if batch.num_rows <= BASE_ROWS and (column(batch, "kind", "<i1") == int(Kind.BASE)).any():
            found.append((segment, number))
    return newest_base(oldest, Recovery(base_batches=found, neediest=neediest))
