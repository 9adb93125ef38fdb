"""What filters said, as they came, of messages that wait in line behind others of their key; of a bounded number.

When such a message is let go, whoever wants it has it at once, in its turn.  At the others lists look when they are let
go.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from penstock.core.queue.dispatching.consumers import Lists, TargetList
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.entries import Publishes

NONE: tuple[TargetList, ...] = ()


class Foreseen:
    """By message: which lists were there, as a number that grows with each new one, and which of them want it."""

    __slots__ = ("_said",)

    def __init__(self) -> None:
        self._said: dict[int, tuple[int, tuple[TargetList, ...]]] = {}

    def __len__(self) -> int:
        return len(self._said)

    def look(
        self, targets: Lists, chunk: Chunk, arrived: Chunk, batch: Publishes | None, rows: Sequence[int] | None
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

    def let_go(self, targets: Lists, chunk: Chunk, place: int) -> Chunk:
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
        """These wait in line no longer."""
        said = self._said
        for chunk in chunks:
            for lsn in chunk:
                said.pop(lsn, None)

    def clear(self) -> None:
        """Nothing waits in line any more."""
        self._said.clear()
