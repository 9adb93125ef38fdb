"""Small files of a folder become one: which, and how.  LSNs and rows stay; the manifest changes the files at once."""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import LogDamaged
from penstock.log.archive.files import SCHEMA, Sink, Source, foot_sum, reader, writer
from penstock.log.archive.manifest import NEW, Manifest, Part
from penstock.log.archive.origins import Told, told_in, told_together
from penstock.log.archive.writing import ROW_GROUP, Form, finished, write_groups
from penstock.ports import Disk

LIKE = 4
"""So many neighbours of about a size are merged; sizes are alike that differ by less than this."""

SMALL = 64 << 10
"""Files below it are of a size."""


def plan(manifest: Manifest, most: int) -> list[Part] | None:
    """The files to merge next, neighbours of one folder, into one of `most` bytes about; None: nothing is worth it.

    Files of a folder are merged by fours of about a size, so that each row is written again a few times only; files of
    a day that is over are merged whatever their sizes.
    """
    folders: dict[str, list[Part]] = {}
    for part in manifest.files:  # by first LSN, and those of one folder do not overlap
        folders.setdefault(part.folder, []).append(part)
    newest = max((folder.rpartition("=")[2] for folder in folders), default="")
    for folder, parts in sorted(folders.items()):
        over = folder.rpartition("=")[2] < newest
        found = _neighbours(parts, most, over)
        if found:
            return found
    return None


def _neighbours(parts: Sequence[Part], most: int, over: bool) -> list[Part] | None:
    run, size = list[Part](), 0
    for part in parts:
        if part.bytes >= most // 2 or (run and (size + part.bytes > most or not (over or _alike(run[-1], part)))):
            if len(run) >= (2 if over else LIKE):
                return run
            run, size = [], 0
            if part.bytes >= most // 2:
                continue
        run.append(part)
        size += part.bytes
    return run if len(run) >= (2 if over else LIKE) else None


def _alike(a: Part, b: Part) -> bool:
    low, high = sorted((max(a.bytes, SMALL), max(b.bytes, SMALL)))
    return high < low * LIKE


def merge(
    disk: Disk, parts: Sequence[Part], form: Form, token: str, progress: Callable[[int], object] | None = None
) -> Part:
    """One new file with all rows of these, under `.new/`, synced.  LogDamaged names a file that is not as it was.

    progress: told rows that are done.
    """
    disk.mkdir(NEW)
    folder = parts[0].folder
    part = Part(
        f"{folder}/{parts[0].first:020d}-{token}.parquet", parts[0].topic, parts[0].first, parts[-1].last, 0, 0, 0, 0
    )
    out = disk.open(part.fresh, create=True)
    sink = Sink(out)
    made = writer(sink, form.compression)
    try:
        held, size, rows = list[pa.Table](), 0, 0
        said = list[Told]()
        for one in parts:
            for table in _groups(disk, one, said):
                if held and size + table.nbytes > ROW_GROUP:
                    write_groups(made, pa.concat_tables(held))
                    held, size = [], 0
                held.append(table)
                size += table.nbytes
                rows += table.num_rows
                if progress is not None:
                    progress(rows)
        if held:
            write_groups(made, pa.concat_tables(held))
        part = finished(part._replace(rows=rows), out, sink, made, told_together(said)._replace(path=part.path))
    except BaseException:
        sink.abandon(made)
        out.close()
        raise
    if rows != sum(one.rows for one in parts):
        raise LogDamaged(f"the archive's folder {folder} lacks rows from LSN {part.first} on")
    disk.sync_folder(NEW)
    return part


def _groups(disk: Disk, part: Part, said: list[Told]) -> Any:
    """Its rows; what it says of them goes to `said`."""
    try:
        try:
            file = disk.open(part.path, readonly=True)
        except FileNotFoundError:
            file = disk.open(part.fresh, readonly=True)
        try:
            if file.size() != part.bytes or foot_sum(file, part.bytes) != part.foot:
                raise LogDamaged(f"the archive's file {part.path} is not what was written")
            source: Any = reader(Source(file))
            said.append(told_in(source.metadata, part.path))
            for number in range(source.metadata.num_row_groups):
                yield source.read_row_group(number, use_threads=False).cast(SCHEMA)
        finally:
            file.close()
    except FileNotFoundError:
        raise LogDamaged(f"the archive's file {part.path} is missing; put back a copy of it") from None
    except (pa.ArrowException, ValueError) as error:
        raise LogDamaged(f"the archive's file {part.path} cannot be read: {error}") from error
