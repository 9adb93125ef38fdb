"""Putting a rewritten segment in the place of the old ones, so that a crash and a reader at any moment see one of both.

    prepare   any thread: old files pinned, the new one renamed over the first of them, the folder synced
    enter     the loop: one new list of segments; readers with the old list read the old files to their end
    finish    any thread: the other old files removed, the folder synced

After a crash before the rename the old files are all there is, after it the new one covers the rest of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.log.files import pin
from penstock.log.index import Catalog, Segment
from penstock.log.reader import Reader
from penstock.log.recover import Recovery
from penstock.log.segment import FOLDER, rewrite_name, segment_name
from penstock.log.upkeep.rewrite import Made
from penstock.ports import Disk


class Swap:
    """One exchange.  Call the three steps in order; each once."""

    def __init__(self, disk: Disk, catalog: Catalog, reader: Reader, recovery: Recovery, made: Made) -> None:
        """ValueError when what `made` replaces is no longer what the catalog lists."""
        self._disk, self._catalog, self._reader, self._recovery = disk, catalog, reader, recovery
        self._made = made
        self.olds = replaced(catalog.segments, made)
        self._durable = False
        self._new: Segment | None = None

    def prepare(self) -> None:
        """OSError before the rename: nothing has changed, and the new file is removed.

        OSError after it does not reach the caller: the new file is in place, and `finish` will keep the old ones.
        """
        disk, made = self._disk, self._made
        name = segment_name(made.first)
        try:
            for old in self.olds:
                pin(old.file)
            shelf = self._catalog.shelf
            opened = disk.open(rewrite_name(made.first), readonly=True)
            disk.rename(rewrite_name(made.first), name)
        except OSError:
            drop(disk, made)
            raise
        new = Segment(name, made.header(), made.start, opened if shelf is None else shelf.put(name, opened))
        new.lsns.frombytes(made.lsns)
        for values, told in ((new.offsets, made.offsets), (new.lengths, made.lengths)):
            values.frombytes(told)
        new.checked = bytearray(len(new.lsns))
        new.rows, new.end, new.last = made.rows, made.end, made.last
        self._new = new
        try:
            disk.sync_folder(FOLDER)
            self._durable = True
        except OSError as error:
            self._recovery.warnings.append(f"{name}: the folder could not be synced after a rewriting: {error}")

    def enter(self) -> None:
        """On the loop."""
        new = self._new
        assert new is not None, "prepare first"
        self._catalog.replace(self.olds, new)
        self._recovery.forget(self.olds)

    def finish(self) -> None:
        """OSError when an old file could not be removed: the next start does it."""
        for old in self.olds:
            self._reader.forget(old)
        if not self._durable:
            return
        for old in self.olds[1:]:
            self._disk.remove(old.name)
        if len(self.olds) > 1:
            self._disk.sync_folder(FOLDER)


def replaced(segments: Sequence[Segment], made: Made) -> list[Segment]:
    """The segments that a new file stands for.  ValueError when they are not all there, or the open one is among them.

    The last segment is the open one.
    """
    olds = [segment for segment in segments[:-1] if made.first <= segment.first <= made.last]
    if not olds or olds[0].first != made.first or olds[-1].last != made.last:
        raise ValueError(f"{segment_name(made.first)} up to LSN {made.last} is not what the catalog lists")
    if max(old.header.generation for old in olds) >= made.generation:
        raise ValueError(f"{segment_name(made.first)} was rewritten meanwhile")
    return olds


def drop(disk: Disk, made: Made) -> None:
    """Remove a new file that will not be used; if that fails too, the next start does it."""
    name = rewrite_name(made.first)
    if name.rpartition("/")[2] in disk.list(FOLDER):
        disk.remove(name)
