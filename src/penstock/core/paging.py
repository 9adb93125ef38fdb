"""Which queues and topics want their state out of the heap, and how far the look at them is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.core.sow.holding import Sow

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue


class Paging:
    """Who asks for it, and how old state has to be."""

    __slots__ = ("asking", "at", "before", "version", "wanted")

    def __init__(self) -> None:
        self.wanted = False  # somebody asked for it since the start; until then nobody is looked at
        self.version = -1  # of the topology when `asking` was put together
        self.asking: list[Queue | Sow] = []
        self.at = 0  # where a look that is not over goes on
        self.before = 0  # state of messages below this LSN was there at the last look already

    def begin(self, version: int, queues: Iterable[Queue], sows: Iterable[Sow]) -> None:
        """These are there now."""
        self.version, self.at = version, 0
        self.asking = [queue for queue in queues if queue.settings.file_backed_metadata]
        self.asking += (sow for sow in sows if sow.file_backed)
