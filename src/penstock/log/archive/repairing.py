"""A manifest made anew from an archive's files, when the one that was there is damaged or gone.

Each file says what it has rows of (`origins`).  All rows are read, with the sums of their pages; the manifest is right
when each stretch that the files speak of has as many rows as were written.  Anything less is refused by name: a
manifest that leaves something out would leave it out of every read.  Files on their way count when they make a stretch
whole; what a crash left beside them goes with the next `tidy`.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import LogDamaged
from penstock.log.archive.files import Source, file_sum, foot_sum, reader
from penstock.log.archive.manifest import MESSAGES, NEW, OTHERS, RECORDS, Manifest, Part, escaped
from penstock.log.archive.origins import Claim, Told, told_in
from penstock.log.arrow import column

if TYPE_CHECKING:
    from penstock.ports import Disk

Ints = npt.NDArray[np.int64]


class _Found(NamedTuple):
    """A file, read."""

    part: Part
    told: Told
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


def _read(disk: Disk, path: str, origins: Collection[int]) -> _Found:
    """A file, with all its rows."""
    with_sum = disk.open(path, readonly=True)
    try:
        size, foot, whole = with_sum.size(), foot_sum(with_sum, with_sum.size()), file_sum(with_sum)
    finally:
        with_sum.close()
    source = Source(disk.open(path, readonly=True))
    try:
        opened: Any = reader(source)
        told = told_in(opened.metadata, path)
        lsns = list[Ints]()
        names = set[str | None]()
        for group in range(opened.metadata.num_row_groups):
            table = opened.read_row_group(group, use_threads=False)  # all columns: each page has a sum
            for batch in table.combine_chunks().to_batches():
                lsns.append(column(batch, "lsn", "<i8"))
                if len(names) < 2:
                    names |= set(batch.column("name").unique().to_pylist())
    except (pa.ArrowException, OSError, ValueError) as error:
        raise LogDamaged(f"the archive's file {path} cannot be read: {error}; put back a copy of it") from error
    finally:
        source.close()
    if told.origin not in origins:
        raise LogDamaged(
            f"the archive's file {path} is of another log, with origin {told.origin}; if this data folder was restored "
            f"from a backup of that one, say --origin {told.origin}"
        )
    fresh = path.startswith(f"{NEW}/")
    if not fresh and told.path != path:
        raise LogDamaged(f"the archive's file {path} was written as {told.path}")
    every = np.concatenate(lsns) if lsns else np.zeros(0, np.int64)
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
    wanted = sorted({claim for one in kept for claim in one.told.claims})
    dropped = set[str]()
    for claim in wanted:
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
    return [one for one in kept if one.part.path not in dropped], gone
