"""The manifest of an archive: which LSNs it has, in which files.  Written last, whole or not at all.

    1  files are written and synced under `.new/`
    2  `manifest.json` is replaced: from here on they count, and those in `gone` do not
    3  files move to the folder of their topic and day, and what is gone is deleted

A crash before 2 leaves files under `.new/` that no manifest names: `tidy` removes them.  A crash after 2 leaves files
that have not moved yet, which readers find under `.new/` too, and files that are gone but there: `tidy` finishes both.
So whoever looks at the topic folders alone never sees a row that is not archived.

From it follows what is to be archived next (`runs`) and what may go (`prunable`): whole days, oldest first.  Times in
the log never decrease, so all LSNs of a day lie below those of the next one, and what goes is all that lies below one
LSN.  The newest day stays.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import orjson

from penstock.errors import LogDamaged
from penstock.log.archive.told import LSN_MOST, NUMBER_MOST, SUM_MOST, Told, with_sum
from penstock.log.archive.told import read as read_told
from penstock.ports import Disk, replace_whole

if TYPE_CHECKING:
    from penstock.log.catalog import SegmentInfo


NAME = "manifest.json"
NEW = ".new"
VERSION = 1
MESSAGES, RECORDS = "messages", "records"
AGAIN = "penstock log archive --repair makes it anew from the archive's files"
OTHERS = "_others"
"""The folder of topics that have none of their own."""

_SPECIAL = re.compile(r"[\x00-\x1f\"#%'*/:=?\\\x7f{}\[\]^<>|]")
_NAME_BYTES = 200
"""A folder may have so long a name; topics whose name would be longer share one with others."""


class Part(NamedTuple):
    """One Parquet file: rows of one folder, ascending in LSN."""

    path: str  # below the archive's folder
    topic: str | None  # whose messages alone it has; None: of several topics, or records that are no messages
    first: int  # LSN of its first row
    last: int
    rows: int
    bytes: int
    foot: int  # CRC-32C of its Parquet foot: pages have sums of their own, the foot has none
    sum: int  # CRC-32C of all of it

    @property
    def folder(self) -> str:
        """Where it belongs."""
        return self.path.rpartition("/")[0]

    @property
    def fresh(self) -> str:
        """Its name on its way there."""
        return f"{NEW}/{self.path.rpartition('/')[2]}"

    @property
    def day(self) -> str:
        """Of all its rows: yyyy-mm-dd, UTC."""
        return self.folder.rpartition("=")[2]

    @property
    def messages(self) -> bool:
        """Whether its rows are messages."""
        return self.path.startswith(f"{MESSAGES}/")


class Manifest(NamedTuple):
    """What an archive has."""

    origin: int
    number: int = 0  # one more with each that is written
    spans: tuple[tuple[int, int], ...] = ()  # LSNs [a, b) that are archived, ascending, apart from each other
    files: tuple[Part, ...] = ()  # by first LSN
    gone: tuple[str, ...] = ()  # replaced, and to be deleted
    vias: dict[str, list[str]] = {}  # noqa: RUF012 - never changed: what `via` in the rows stands for
    pruned: int = 0  # what lay below this LSN was archived once, or needs not be, and is not kept

    @property
    def first(self) -> int:
        """The first LSN of the archive; 0 when it has none."""
        return self.spans[0][0] if self.spans else 0

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.files)

    @property
    def size(self) -> int:
        return sum(part.bytes for part in self.files)

    def has(self, first: int, last: int) -> bool:
        """Whether all LSNs in first..last are archived, or were and have gone by the archive's own retention."""
        first = max(first, self.pruned)
        return first > last or any(a <= first and last < b for a, b in self.spans)

    def with_files(self, start: int, end: int, files: Iterable[Part], vias: dict[str, list[str]]) -> Manifest:
        """The next one, with the rows of [start, end), which it does not have yet.  ValueError when it has some."""
        if any(a < end and start < b for a, b in self.spans):
            raise ValueError(f"LSNs {start} to {end - 1} are archived in part")
        joined = list[tuple[int, int]]()
        for a, b in sorted([*self.spans, (start, end)]):
            if joined and joined[-1][1] == a:
                joined[-1] = joined[-1][0], b
            else:
                joined.append((a, b))
        listed = tuple(sorted((*self.files, *files), key=lambda part: (part.first, part.path)))
        return self._replace(number=self.number + 1, spans=tuple(joined), files=listed, vias={**self.vias, **vias})

    def without(self, cut: int) -> Manifest:
        """The next one, without what lies below an LSN.  ValueError when a file has rows on both sides of it."""
        left, dropped = list[Part](), list[str]()
        for part in self.files:
            if part.first >= cut:
                left.append(part)
            elif part.last < cut:
                dropped.append(part.path)
            else:
                raise ValueError(f"LSN {cut} lies within {part.path}")
        spans = tuple((max(a, cut), b) for a, b in self.spans if b > cut)
        return self._replace(
            number=self.number + 1, spans=spans, files=tuple(left), gone=(*self.gone, *dropped),
            pruned=max(self.pruned, cut),
        )  # fmt: skip

    def going_on_without(self, lost: Callable[[int], bool]) -> Manifest:
        """This one, or the next one without the files whose rows the log goes on without.

        lost: whether that is so of an LSN.  ValueError when a file has rows that are and rows that are not.
        """
        gone = [part for part in self.files if lost(part.last)]
        if not gone:
            return self
        if mixed := [part for part in gone if not lost(part.first)]:
            raise ValueError(f"{mixed[0].path} has LSNs that the log has, and LSNs that it goes on without")
        left = tuple(part for part in self.files if part not in gone)
        spans, last = self.spans, max(b for _, b in self.spans)
        for part in gone:
            end = min((one.first for one in left if one.first > part.last), default=last)
            spans = _without(spans, part.first, end)
        paths = (*self.gone, *(part.path for part in gone))
        return self._replace(number=self.number + 1, spans=spans, files=left, gone=paths)

    def replaced(self, old: Sequence[Part], new: Part) -> Manifest:
        """The next one, with one file in the place of several.  ValueError when they are not all there."""
        left = [part for part in self.files if part not in old]
        if len(left) != len(self.files) - len(old):
            raise ValueError("files to be merged are not in the manifest any more")
        listed = tuple(sorted((*left, new), key=lambda part: (part.first, part.path)))
        gone = (*self.gone, *(part.path for part in old))
        return self._replace(number=self.number + 1, files=listed, gone=gone)

    def encode(self) -> bytes:
        said: dict[str, object] = {
            "version": VERSION, "origin": self.origin, "number": self.number, "spans": self.spans,
            "vias": self.vias, "gone": self.gone, "pruned": self.pruned,
            "files": [part._asdict() for part in self.files],
        }  # fmt: skip
        return with_sum(orjson.loads(orjson.dumps(said)))


def read(disk: Disk) -> Manifest | None:
    """The manifest of an archive's folder; None when it has none.  LogDamaged when it is not what was written."""
    try:
        said = read_told(disk, NAME, "version")
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise LogDamaged(f"the archive's {NAME} {error}; {AGAIN}") from None
    version = said["version"]
    if version != VERSION:
        raise LogDamaged(f"the archive's {NAME} has version {repr(version)[:60]}, and this Penstock reads {VERSION}")
    try:
        return _manifest(Told(said))
    except ValueError as error:
        raise LogDamaged(f"the archive's {NAME} is none: {error}; {AGAIN}") from None


def _manifest(told: Told) -> Manifest:
    """What it says.  ValueError for what none says."""
    told.take("version")
    found = Manifest(
        told.number("origin", 0, NUMBER_MOST), told.number("number", 0, NUMBER_MOST), told.spans("spans"),
        tuple(map(_part, told.objects("files"))), told.paths("gone"), told.lists_of_texts("vias"),
        told.number("pruned", 0, LSN_MOST, 0),
    )  # fmt: skip
    told.finish()
    return found


def _part(told: Told) -> Part:
    path, topic, first = told.path("path"), told.text_or_none("topic"), told.number("first", 1)
    found = Part(
        path, topic, first, told.number("last", first), told.number("rows"), told.number("bytes", 0, NUMBER_MOST),
        told.number("foot", 0, SUM_MOST), told.number("sum", 0, SUM_MOST),
    )  # fmt: skip
    told.finish()
    return found


def commit(disk: Disk, manifest: Manifest, lead: str = "") -> None:
    """Step 2: from here on it counts.  OSError leaves the one before.

    lead: the folder of the term that has the archive, where members of a cluster share it; see
    `server.cluster.shared_archive`
    """
    replace_whole(disk, NAME, manifest.encode(), lead)


def tidy(disk: Disk, manifest: Manifest | None) -> list[str]:
    """Step 3, and what a crash has left: files into their places, orphans and what is gone away; names of the latter.

    OSError leaves the rest for the next time.
    """
    known = {part.fresh: part for part in manifest.files} if manifest is not None else {}
    removed = list[str]()
    for path in manifest.gone if manifest is not None else ():
        try:
            disk.remove(path)
        except FileNotFoundError:
            continue
        disk.sync_folder(path.rpartition("/")[0])
    moved = False
    for name in disk.list(NEW):
        fresh = f"{NEW}/{name}"
        part = known.get(fresh)
        if part is None:
            disk.remove(fresh)
            removed.append(fresh)
        else:
            make_folder(disk, part.folder)
            disk.rename(fresh, part.path)
            disk.sync_folder(part.folder)
        moved = True
    if moved:
        disk.sync_folder(NEW)
    return removed


def make_folder(disk: Disk, folder: str) -> None:
    """A folder with its parents, each synced into the one above."""
    above = ""
    for name in folder.split("/"):
        here = f"{above}/{name}" if above else name
        disk.mkdir(here)
        disk.sync_folder(above)
        above = here


def folder_of(topic: str | None, day: str) -> str:
    """Where messages of a topic and day are; None: those that share a folder."""
    return f"{MESSAGES}/topic={OTHERS if topic is None else escaped(topic)}/day={day}"


def escaped(topic: str) -> str:
    """A topic as Hive, Spark and DuckDB write it in the name of a folder."""
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", topic)


def has_folder(topic: str) -> bool:
    """Whether a topic's name can be one of a folder."""
    return topic not in ("", OTHERS) and len(escaped(topic).encode()) <= _NAME_BYTES


RUN_BYTES = 256 << 20
"""Bytes of segments that are archived in one go, about: each run makes a file a topic and day."""


class Run(NamedTuple):
    """Neighbouring segments: LSNs [start, end)."""

    start: int
    end: int
    segments: int
    bytes: int
    cut: int  # where the second of them begins
    first_bytes: int

    def first_alone(self) -> Run:
        """The first of the segments."""
        return Run(self.start, self.cut, 1, self.first_bytes, self.cut, self.first_bytes)

    def plain(self) -> dict[str, int]:
        return {"first": self.start, "last": self.end - 1, "segments": self.segments, "bytes": self.bytes}


def runs(segments: Sequence[SegmentInfo], manifest: Manifest, failed: Collection[int] = ()) -> list[Run]:
    """All that is to be done, oldest first.  The last segment is open, and waits until it is not.

    failed: first LSNs of segments to pass over.
    """
    out = list[Run]()
    for one, following in pairwise(segments):
        start = max(one.first, manifest.pruned)
        end = following.first  # what lies between its last LSN and the next one was never given out
        for a, b in manifest.spans:
            if a <= start < b:
                start = min(b, end)  # it was merged with one that is archived
        if start >= end or start in failed or manifest.has(start, max(start, one.last)):
            continue
        last = out[-1] if out else None
        if last is not None and last.end == start and last.bytes + one.bytes <= RUN_BYTES:
            out[-1] = last._replace(end=end, segments=last.segments + 1, bytes=last.bytes + one.bytes)
        else:
            out.append(Run(start, end, 1, one.bytes, end, one.bytes))
    return out


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _without(spans: tuple[tuple[int, int], ...], start: int, end: int) -> tuple[tuple[int, int], ...]:
    """What of the spans lies outside of [start, end)."""
    around = [one for a, b in spans for one in ((a, min(b, start)), (max(a, end), b))]
    return tuple((a, b) for a, b in around if a < b)


class Pruned(NamedTuple):
    """What goes."""

    cut: int  # all below this LSN
    day: str  # the last one that goes
    files: int
    rows: int
    bytes: int

    def possible(self, gone: Sequence[Part], floor: int) -> bool:
        """Whether no reader needs what goes, and no clock that was set back has mixed the days."""
        return self.cut <= floor and max(part.last for part in gone) < self.cut

    def plain(self) -> dict[str, object]:
        return {"below": self.cut, "day": self.day, "files": self.files, "rows": self.rows, "bytes": self.bytes}


def prunable(manifest: Manifest, now: int, age: int | None, size: int | None, floor: int) -> Pruned | None:
    """The most that may go; None: nothing.

    now, age: microseconds; a day goes when all of it is older.  size: bytes that the archive may have.
    floor: somebody may still ask for what has this LSN or a higher one.
    """
    oldest = "" if age is None else (_EPOCH + timedelta(microseconds=max(0, now - age))).strftime("%Y-%m-%d")
    most = math.inf if size is None else size
    rest, found = sorted(manifest.files, key=attrgetter("day")), None
    gone = list[Part]()
    left = manifest.size
    while rest[-1:] and rest[0].day < rest[-1].day and (rest[0].day < oldest or left > most):
        day = rest[0].day
        count = bisect_right(rest, day, key=attrgetter("day"))
        gone, rest = gone + rest[:count], rest[count:]
        size_gone = sum(part.bytes for part in gone)
        left = manifest.size - size_gone
        cut = min(part.first for part in rest)
        pruned = Pruned(cut, day, len(gone), sum(part.rows for part in gone), size_gone)
        if not pruned.possible(gone, floor):
            break
        found = pruned
    return found
