"""What filters said, as they came, of messages that nobody may have yet: they wait in line behind others of their key.

When such a message is let go, whoever wants it has it at once, in its turn; without this its body would be read and
looked at then, and those who could take it would be given later ones meanwhile.  A bounded number is remembered.  At
the others (most of a long line, what was there before a start or before the filter) lists look when they are let go.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from penstock.records.chunks import Chunk, as_chunk
from penstock.records.entries import Publishes

if TYPE_CHECKING:
    from penstock.core.queue.dispatching.filtering import Targets
    from penstock.core.queue.dispatching.target_list import TargetList

NONE: tuple[TargetList, ...] = ()


class Foreseen:
    """By message: which lists were there, as a number that grows with each new one, and which of them want it."""

    __slots__ = ("_said",)

    def __init__(self) -> None:
        self._said: dict[int, tuple[int, tuple[TargetList, ...]]] = {}

    def __len__(self) -> int:
        return len(self._said)

    def look(
        self, targets: Targets, chunk: Chunk, arrived: Chunk, batch: Publishes | None, rows: Sequence[int] | None
    ) -> None:
        """Ask the filters about some of the messages that arrived, if all of them follow and there is room.

        batch, rows    as `Queue.arrive` has them
        """
        if batch is None or not targets.all_follow or len(self._said) + len(chunk) > targets.most:
            return
        here: Sequence[int] = range(len(batch)) if rows is None else rows
        if len(chunk) < len(arrived):
            some = set(chunk)
            here = [row for lsn, row in zip(arrived, here, strict=True) if lsn in some]
        found = targets.matches(chunk, batch, here)
        if found is None:
            return
        wanting: dict[int, tuple[TargetList, ...]] = {}
        for one, places in found:
            for place in places:
                wanting[place] = (*wanting.get(place, NONE), one)
        joined = targets.joined
        said = self._said
        for place, lsn in enumerate(chunk):
            said[lsn] = joined, wanting.get(place, NONE)

    def let_go(self, targets: Targets, chunk: Chunk, place: int) -> Chunk:
        """Messages stand among what came back now, at this place: tell the lists; those at which all have to look."""
        said = self._said
        strange = array("q")
        for lsn in chunk:
            known = said.pop(lsn, None)
            if known is None:
                strange.append(lsn)
                continue
            joined, wanting = known
            one = range(lsn, lsn + 1)
            for each in wanting:
                if targets.lists.get(each.filter.text) is each:
                    targets.recall(each, one, place)
            if joined < targets.joined:
                targets.ask_newer(joined, lsn, place)
        return as_chunk(strange)

    def forget(self, chunks: Iterable[Chunk]) -> None:
        """These wait no longer."""
        said = self._said
        for chunk in chunks:
            for lsn in chunk:
                said.pop(lsn, None)

    def clear(self) -> None:
        """Nothing waits any more."""
        self._said.clear()
