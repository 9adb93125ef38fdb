"""Putting a rewritten segment in the place of the old ones, so that a crash and a reader at any moment see one of both.

    prepare   any thread: old files pinned, the new one opened
    enter     the loop: one new list of segments; readers with the old list read the old files to their end
    finish    any thread: the new file renamed over the first old one, the others removed, the folder synced
    undo      the loop: instead of `enter`, or after a rename that failed: the old list, which lacks nothing

`enter` is the one moment from which on rows are missing: whoever asks about holds does so in the same step of the loop.
That is why the rename, which nobody can take back, comes after it.  After a crash before the rename the old files are
all there is, after it the new one covers the rest of them.  Between `enter` and the rename the file has another
generation than the list says, and who opens it by its name lists again.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from penstock.log.catalog import Catalog, Segment
from penstock.log.mending import Recovery
from penstock.log.reader import Reader
from penstock.log.rewriting.rewrite import Made
from penstock.log.segment import FOLDER, rewrite_name, segment_name
from penstock.log.segment_files import pin, unpin
from penstock.ports import Disk


class Swap:
    """One exchange.  Call the steps in order; each once."""

    def __init__(self, disk: Disk, catalog: Catalog, reader: Reader, recovery: Recovery, made: Made) -> None:
        """ValueError when what `made` replaces is no longer what the catalog lists."""
        self._disk, self._catalog, self._reader, self._recovery = disk, catalog, reader, recovery
        self._made = made
        self.olds = replaced(catalog.segments, made)
        self._new: Segment | None = None
        self._entered = False
        self.renamed = False  # from then on there is no way back

    def prepare(self) -> None:
        """OSError: nothing has changed, and the new file is removed."""
        disk, made = self._disk, self._made
        try:
            for old in self.olds:
                pin(old.file)
            opened = disk.open(rewrite_name(made.first), readonly=True)
        except OSError:
            drop(disk, made)
            raise
        new = Segment(segment_name(made.first), made.header(), made.start, opened)
        new.lsns.frombytes(made.lsns)
        new.offsets.frombytes(made.offsets)
        lengths = memoryview(made.lengths).cast("q")
        new.lengths = array("I" if max(lengths, default=0) < 1 << 32 else "q", lengths)
        new.checked = bytearray(len(new.lsns))
        new.rows, new.end, new.last = made.rows, made.end, made.last
        self._new = new

    def enter(self) -> None:
        """On the loop."""
        new = self._new
        assert new is not None, "prepare first"
        self._catalog.replace(self.olds, [new])
        self._entered = True

    def undo(self) -> None:
        """On the loop, before there was a rename.  The new file can be removed then, see `drop`."""
        assert not self.renamed, "the old file is gone"
        if self._entered and self._new is not None:
            self._catalog.replace([self._new], self.olds)
        for old in self.olds:
            unpin(old.file)

    def finish(self) -> None:
        """OSError before the rename: see `undo`.  OSError after it: an old file stays, and the next start removes it.

        When the folder cannot be synced all old files stay, with a warning.
        """
        disk, made, new, shelf = self._disk, self._made, self._new, self._catalog.shelf
        assert new is not None, "prepare first"
        disk.rename(rewrite_name(made.first), new.name)
        self.renamed = True
        if shelf is not None:  # now its name can be opened again
            new.file = shelf.put(new.name, new.file)
        self._recovery.forget(self.olds)
        for old in self.olds:
            self._reader.forget(old)
        try:
            disk.sync_folder(FOLDER)
        except OSError as error:
            self._recovery.warnings.append(f"{new.name}: the folder could not be synced after a rewriting: {error}")
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
