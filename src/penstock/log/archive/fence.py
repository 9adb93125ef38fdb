"""Who may write to an archive that all members of a cluster see: the leader of the newest term that has taken it.

    .lead-<term>/     one folder in the archive's; whoever takes the archive renames it to its own term
    commit            the manifest is written within it and moved out of it: without that folder the move fails

So a leader that wakes up late changes nothing, at whatever step it slept: its manifest does not come into place, and
what a manifest no longer names is deleted only after it has.  The file system must show a rename to all at once, as one
machine's does; NFS does so when names are not cached (`lookupcache=none`).
"""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from penstock.errors import PreconditionFailed
from penstock.log.disk import OsDisk

TOKEN = ".shared"
"""A file that says which archive this is, so that two folders of one name on two machines are told apart."""

_LEAD = re.compile(r"\.lead-([0-9]{20})\Z")


def lead_name(term: int) -> str:
    """The folder of a term."""
    return f".lead-{term:020d}"


def terms(folder: Path) -> list[int]:
    """Of those that have taken it: one, but for a moment; none where it is no cluster's."""
    return sorted(int(found[1]) for one in os.listdir(folder) if (found := _LEAD.match(one)))


def take(folder: Path, term: int) -> str:
    """Make it a term's: no earlier one writes to it from now on.  The name of the folder to commit by.

    PreconditionFailed where a later term has it; OSError.
    """
    mine = folder / lead_name(term)
    mine.mkdir(exist_ok=True)
    while (others := [one for one in terms(folder) if one != term]) or not mine.exists():
        if others and others[-1] > term:
            with suppress(OSError):
                mine.rmdir()
            raise PreconditionFailed(f"the leader of term {others[-1]} has the archive in {folder}, and this is {term}")
        mine.mkdir(exist_ok=True)
        for part in mine.iterdir():
            part.unlink()
        with suppress(FileNotFoundError):  # a later term was faster: it is seen next
            if others:
                (folder / lead_name(others[0])).rename(mine)
    OsDisk(folder).sync_folder()
    return mine.name


def token_of(folder: Path) -> str:
    """Which archive this is; a new one gets its token now.  OSError."""
    path = folder / TOKEN
    with suppress(FileExistsError):
        part = folder / f"{TOKEN}.{secrets.token_hex(4)}"
        part.write_text(secrets.token_hex(16))
        try:
            os.link(part, path)
        finally:
            part.unlink()
        OsDisk(folder).sync_folder()
    return path.read_text()
