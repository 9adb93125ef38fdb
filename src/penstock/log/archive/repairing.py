"""An archive's files against its manifest: all of them checked, and a lost manifest made anew from them.

Each file says what it has rows of (`parquet.Footer`).  For a new manifest all rows are read, with the sums of their
pages; it is right when each stretch that the files speak of has as many rows as were written.  Anything less is refused
by name: a manifest that leaves something out would leave it out of every read.  Files on their way count when they make
a stretch whole; what a crash left beside them goes with the next `tidy`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import LogDamaged
from penstock.log.archive.manifest import MESSAGES, NEW, OTHERS, RECORDS, Manifest, Part, escaped, read
from penstock.log.archive.parquet import Claim, Footer, Source, file_sum, foot_sum, reader, told_in
from penstock.log.archive.row_groups import Archive, Gone
from penstock.log.record_batches import column
from penstock.ports import Disk
from penstock.records.dataclass import dataclass

if TYPE_CHECKING:
    from penstock.ports import Disk


Ints = npt.NDArray[np.int64]


class _Found(NamedTuple):
    """A file, read."""

    part: Part
    told: Footer
    counts: dict[Claim, int]  # its rows of each stretch
    fresh: bool  # it is on its way


def paths_of(folder: str) -> list[str]:
    """All Parquet files of an archive's folder, those on their way too; ascending."""
    places = (Path(folder, name) for name in (MESSAGES, RECORDS, NEW))
    return sorted(str(path.relative_to(folder)) for place in places for path in place.rglob("*.parquet"))


def has_files(folder: str) -> bool:
    """Whether there is an archive at all, with a manifest or without."""
    return any(files for name in (MESSAGES, RECORDS) for _, _, files in os.walk(os.path.join(folder, name)))


def rebuilt(
    disk: Disk, paths: Iterable[str], origin: int, number: int, progress: Callable[[int, int], object] | None = None,
    before: Collection[int] = (),
) -> Manifest:  # fmt: skip
    """The manifest of these files; nothing is written.

    origin: of the log that they must belong to; before: of logs that it was restored from backups of.
    number: higher than any that the archive had, so that readers follow.
    progress: told files that are read, and all.
    LogDamaged names a file that is not what was written, or the LSNs of which rows are missing.
    """
    named, found = sorted(paths), list[_Found]()
    for at, path in enumerate(named):
        found.append(_read(disk, path, {origin, *before}))
        if progress is not None:
            progress(at + 1, len(named))
    kept, gone = _whole(found)
    spans = list[tuple[int, int]]()
    for claim in sorted({claim for one in kept for claim in one.told.claims}):
        if spans and spans[-1][1] == claim.first:
            spans[-1] = spans[-1][0], claim.end
        elif spans and spans[-1][1] > claim.first:
            raise LogDamaged(f"the archive has LSNs {claim.first} to {min(spans[-1][1], claim.end) - 1} twice")
        else:
            spans.append((claim.first, claim.end))
    vias = {key: pair for one in kept for key, pair in one.told.vias.items()}
    parts = sorted((one.part for one in kept), key=lambda part: (part.first, part.path))
    return Manifest(origin, number, tuple(spans), tuple(parts), tuple(gone), vias)


def _rows_of(disk: Disk, path: str) -> tuple[Footer, Ints, set[str | None]]:
    """What a file says of itself, the LSNs of all its rows, and names of its topics: two at least, if it has two."""
    lsns, names = [np.zeros(0, np.int64)], set[str | None]()
    with closing(Source(disk.open(path, readonly=True))) as source:
        try:
            opened: Any = reader(source)
            told = told_in(opened.metadata, path)
            for group in range(opened.metadata.num_row_groups):
                table = opened.read_row_group(group, use_threads=False)  # all columns: each page has a sum
                for batch in table.combine_chunks().to_batches():
                    lsns.append(column(batch, "lsn", "<i8"))
                    if len(names) < 2:
                        names |= set(batch.column("name").unique().to_pylist())
        except (pa.ArrowException, OSError, ValueError) as error:
            raise LogDamaged(f"the archive's file {path} cannot be read: {error}; put back a copy of it") from error
    return told, np.concatenate(lsns), names


def _read(disk: Disk, path: str, origins: Collection[int]) -> _Found:
    """A file, with all its rows."""
    with closing(disk.open(path, readonly=True)) as with_sum:
        size, foot, whole = with_sum.size(), foot_sum(with_sum, with_sum.size()), file_sum(with_sum)
    told, every, names = _rows_of(disk, path)
    if told.origin not in origins:
        raise LogDamaged(
            f"the archive's file {path} is of another log, with origin {told.origin}; if this data folder was restored "
            f"from a backup of that one, say --origin {told.origin}"
        )
    fresh = path.startswith(f"{NEW}/")
    if not fresh and told.path != path:
        raise LogDamaged(f"the archive's file {path} was written as {told.path}")
    if not len(every) or (np.diff(every) <= 0).any():
        raise LogDamaged(f"the archive's file {path} is not what was written: its LSNs do not rise")
    part = Part(told.path, None, int(every[0]), int(every[-1]), len(every), size, foot, whole)
    part = part._replace(topic=_topic(part, names))
    edges = np.searchsorted(every, [edge for claim in told.claims for edge in claim[:2]]).reshape(-1, 2)
    counts = {claim: int(b - a) for claim, (a, b) in zip(told.claims, edges, strict=True)}
    if sum(counts.values()) != len(every):
        raise LogDamaged(f"the archive's file {path} has rows that it does not speak of")
    return _Found(part, told, counts, fresh)


def _topic(part: Part, names: set[str | None]) -> str | None:
    """The one topic of a file with a folder of its own."""
    if not part.messages or len(names) != 1:
        return None
    [name] = names
    named = part.folder.split("/")[1].removeprefix("topic=")
    return name if name and named != OTHERS and escaped(name) == named else None


def _whole(found: Sequence[_Found]) -> tuple[list[_Found], list[str]]:
    """The files that count, and those that another one replaces.  LogDamaged when rows are missing."""
    kept, gone = _newest(found)
    dropped = _unfinished(kept)
    return [one for one in kept if one.part.path not in dropped], gone


def _newest(found: Sequence[_Found]) -> tuple[list[_Found], list[str]]:
    """All but those that a newer file has the rows of, and the paths of these."""
    kept, gone = [one for one in found if not one.fresh], list[str]()
    for one in found:
        if not one.fresh:
            continue
        old = [
            other for other in kept
            if other.part.folder == one.part.folder
            and one.part.first <= other.part.first and other.part.last <= one.part.last
        ]  # fmt: skip
        if sum(other.part.rows for other in old) == one.part.rows:
            continue  # it was to replace them, and they are all there
        kept = [*(other for other in kept if other not in old), one]
        gone += [other.part.path for other in old]
    return kept, gone


def _unfinished(kept: Sequence[_Found]) -> set[str]:
    """Paths of new files whose stretch was not written to its end.  LogDamaged where another stretch lacks rows."""
    dropped = set[str]()
    for claim in sorted({claim for one in kept for claim in one.told.claims}):
        mine = [one for one in kept if claim in one.counts]
        rows = sum(one.counts[claim] for one in mine)
        if rows == claim.rows:
            continue
        if all(one.fresh for one in mine):
            dropped |= {one.part.path for one in mine}  # it was never finished, and the log has it still
            continue
        raise LogDamaged(
            f"the archive has {rows} of the {claim.rows} rows of LSNs {claim.first} to {claim.end - 1}: files are "
            "missing, put back copies of them"
        )
    return dropped


DAMAGE_MOST = 100


@dataclass(slots=True)
class Checked:
    """What was read, and all that is wrong with it."""

    files: int = 0
    rows: int = 0
    bytes: int = 0
    spans: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    damage: list[str] = field(default_factory=list[str])

    def told(self) -> dict[str, object]:
        return {"files": self.files, "rows": self.rows, "bytes": self.bytes, "spans": [list(one) for one in self.spans]}


def check(disk: Disk, progress: Callable[[int, int], object] | None = None, origin: int = 0) -> Checked | None:
    """All of an archive, read once with the sums of its pages; None when there is none.

    origin: of the log that it must belong to; 0: any.
    """
    out = Checked()
    try:
        manifest = read(disk)
    except LogDamaged as error:
        out.damage.append(str(error))
        return out
    if manifest is None:
        return None
    if origin and manifest.origin != origin:
        out.damage.append(f"the archive belongs to another data folder (origin {manifest.origin}, not {origin})")
        return out
    out.files, out.bytes, out.spans = len(manifest.files), manifest.size, list(manifest.spans)
    for part in manifest.files:
        if not manifest.has(part.first, part.last):
            out.damage.append(f"the archive's file {part.path} has LSNs that its manifest does not list")
    bad = _files(disk, manifest, out, progress)
    _order(disk, manifest, bad, out)
    return out


def _files(disk: Disk, manifest: Manifest, out: Checked, progress: Callable[[int, int], object] | None) -> set[str]:
    """Each file by itself; those that are not what was written."""
    bad = set[str]()
    for part in manifest.files:
        alone = Archive(disk, manifest._replace(files=(part,)))
        try:
            with closing(alone.file(part)) as with_sum:
                if file_sum(with_sum) != part.sum:
                    raise LogDamaged(f"the archive's file {part.path} is not what was written")
            last = rows = 0
            for batch in alone.batches(part.first, part.last + 1):
                lsns = column(batch, "lsn", "<i8")
                if lsns[0] <= last or (np.diff(lsns) <= 0).any():
                    raise LogDamaged(f"the archive's file {part.path}: its LSNs do not rise")
                last, rows = int(lsns[-1]), rows + len(lsns)
            if (rows, last) != (part.rows, part.last):
                raise LogDamaged(
                    f"the archive's file {part.path} has {rows} rows up to LSN {last}, and {part.rows} up to LSN "
                    f"{part.last} were written"
                )
        except Gone:
            bad.add(part.path)
            out.damage.append(f"the archive's file {part.path} is missing; put back a copy of it")
            continue
        except LogDamaged as error:
            bad.add(part.path)
            if len(out.damage) < DAMAGE_MOST:
                out.damage.append(str(error))
            continue
        out.rows += rows
        if progress is not None:
            progress(out.rows, manifest.rows)
    return bad


def _order(disk: Disk, manifest: Manifest, bad: set[str], out: Checked) -> None:
    """No LSN is in two files."""
    sound = Archive(disk, manifest._replace(files=tuple(part for part in manifest.files if part.path not in bad)))
    last = 0
    for a, b in manifest.spans:
        for batch in sound.batches(a, b, ["lsn"]):
            lsns = batch.column(0).to_numpy()
            twice = lsns[1:][np.diff(lsns) <= 0]
            if len(twice) or lsns[0] <= last:
                found = int(twice[0]) if len(twice) else int(lsns[0])
                out.damage.append(f"the archive has LSN {found} twice")
                return
            last = int(lsns[-1])
