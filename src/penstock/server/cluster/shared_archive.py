"""A leader's archive, in a folder that all members see: who may write to it, and what its members know of it.

    .lead-<term>/     one folder in the archive's; whoever takes the archive renames it to its own term
    commit            the manifest is written within it and moved out of it: without that folder the move fails

Only the leader of the newest term that has taken the folder writes to it.  One that wakes up late changes nothing, at
whatever step it slept: its manifest does not come into place, and what a manifest no longer names is deleted only after
it has.  The file system must show a rename to all at once, as one machine's does; NFS does so when names are not cached
(`lookupcache=none`).

What `archive.json` says, beside the log, is on the disk of every member that may lead
next: which folder that is, and the last manifest that counts.  So one that sees another folder, or an older manifest in
it, archives nothing and says so; and retention waits until all of them know that a segment is archived.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from penstock.errors import LogDamaged, PreconditionFailed, Unavailable
from penstock.log.disk import OsDisk
from penstock.replication.messages import ARCHIVE
from penstock.server.upkeep.remembered import Known, known_in, remember

if TYPE_CHECKING:
    from penstock.log.archive.manifest import Manifest
    from penstock.log.catalog import SegmentInfo


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


Keep: TypeAlias = Callable[[Sequence[str], Callable[[], object]], object]
"""Has files beside the log copied, and calls back when all who may lead next have them (`leading.Cluster.keep`)."""


class ByHand(NamedTuple):
    """A cluster in which a person says who leads, as its leader has it."""

    lost: Callable[[int], bool]  # whether an LSN is one that the log goes on without
    copied: Callable[[SegmentInfo], bool]  # whether no member is waited for that lacks a segment
    heard_of: Callable[[int], object]  # told a term that somebody has made


class SharedArchive:
    """Of one leader.  Belongs to the loop."""

    def __init__(self, keep: Keep, data: Path, term: int, by_hand: ByHand | None = None) -> None:
        self._keep, self._term, self._by_hand = keep, term, by_hand
        self._disk = OsDisk(data)
        self._token = ""
        self._stopped = False
        self._waiting: asyncio.Future[None] | None = None

    def take(self, folder: str) -> str:
        """Make the folder ours; how a manifest is committed to it.

        PreconditionFailed, OSError, and LogDamaged for a folder that is not the one of the leaders before.
        """
        place, known = Path(folder), known_in(self._disk)
        try:
            lead = take(place, self._term)
        except PreconditionFailed as error:
            if self._by_hand is None:
                raise
            self._by_hand.heard_of(max(terms(place)))
            told = "the term that begins when this server is started again is later"
            raise PreconditionFailed(f"{error}; {told}") from None
        self._token = token_of(place)
        if known is not None and known.token not in ("", self._token):
            raise LogDamaged("it is not the folder that the leader before wrote to: all members must see the same one")
        return lead

    def going_on(self, found: Manifest) -> Manifest:
        """What counts of a manifest that a leader before has written: without rows that were set aside.  LogDamaged."""
        if self._by_hand is None:
            return found
        try:
            return found.going_on_without(self._by_hand.lost)
        except ValueError as error:
            raise LogDamaged(f"{error}, since a person had it set aside") from None

    def may_have(self, segment: SegmentInfo) -> bool:
        """Whether a durable segment may be archived: nobody may set it aside any more."""
        return self._by_hand is None or self._by_hand.copied(segment)

    async def told(self, number: int) -> None:
        """Return when all who may lead next know that this manifest counts.  Unavailable when the server stops."""
        there = self._waiting = asyncio.get_running_loop().create_future()

        def done() -> None:
            if not there.done():
                there.set_result(None)

        await asyncio.to_thread(remember, self._disk, Known(self._token, number))
        self._keep([ARCHIVE], done)
        if self._stopped:
            raise Unavailable("the server stops")
        await there

    def stop(self) -> None:
        """Whoever waits for an answer is refused: the server stops."""
        self._stopped = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(Unavailable("the server stops"))
