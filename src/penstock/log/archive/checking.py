"""`log verify` of an archive: its manifest, each file it names, and that each LSN is there once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

import numpy as np

from penstock.errors import LogDamaged
from penstock.log.archive.files import file_sum
from penstock.log.archive.manifest import Manifest, read
from penstock.log.archive.reading import Archive, Gone
from penstock.log.arrow import column
from penstock.ports import Disk
from penstock.records.dataclass import dataclass

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
        """For people."""
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
            with_sum = alone.file(part)
            try:
                if file_sum(with_sum) != part.sum:
                    raise LogDamaged(f"the archive's file {part.path} is not what was written")
            finally:
                with_sum.close()
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
