"""What was worked out about large bodies before they are published: their keys, and deltas merged.

A body is known by the object that holds it, which the door keeps while it waits.  What nobody came back for makes room
for others, oldest first, and is worked out again if somebody does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass

LARGE = 256 * 1024
"""Bytes from which on a body is not read on the event loop."""

KEPT_BYTES = 64 << 20

Answer: TypeAlias = "int | str | bytes | InvalidArgument"
"""A key's number, why there is none, a merged body, or why it cannot be merged."""


@dataclass(frozen=True, slots=True)
class Job:
    """Something to be worked out off the loop."""

    body: bytes
    mark: int  # what about it: the id of a SOW topic, for the key; minus the LSN of a record, for the merged body
    work: Callable[[], Answer]


class Worked:
    """Answers."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[bytes, Answer]] = {}
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._known)

    def get(self, body: bytes, mark: int) -> Answer | None:
        """What is known; None: nothing."""
        found = self._known.get((id(body), mark))
        return found[1] if found is not None and found[0] is body else None

    def put(self, body: bytes, mark: int, answer: Answer) -> None:
        self.forget(body, mark)
        self._known[id(body), mark] = body, answer
        self._bytes += _size(body, answer)
        while self._bytes > KEPT_BYTES and len(self._known) > 1:
            place, (old, about) = next(iter(self._known.items()))
            del self._known[place]
            self._bytes -= _size(old, about)

    def forget(self, body: bytes, mark: int) -> None:
        """The answer was used, and nobody asks for it again."""
        found = self._known.pop((id(body), mark), None)
        if found is not None:
            self._bytes -= _size(*found)


def _size(body: bytes, answer: Answer) -> int:
    return len(body) + (len(answer) if isinstance(answer, bytes) else 0)
