"""The archive: what closed segments hold, as Parquet, for ever; retention waits for it.

    <archive>/manifest.json                          which LSNs are archived, and in which files: the only truth
    <archive>/messages/topic=<t>/day=<d>/*.parquet   messages
    <archive>/records/day=<d>/*.parquet              all other records
    <archive>/.new/*.parquet                         files on their way: of no manifest yet, or not yet in their place

Rows are those of the log, all columns of it, so that a row reads the same from either.  Who writes holds the lock of
the data folder; readers need none.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.log.disk import EnclosedDisk, OsDisk


class Shown(NamedTuple):
    """What a reader of another process has to know of an archive: plain values."""

    folder: str  # its whole path
    number: int  # of the manifest, or of a later one
    seam: int  # from this LSN on the log has every row


def archive_disk(folder: str) -> OsDisk:
    """The disk of an archive's folder."""
    return EnclosedDisk(folder)
