"""What the readers of one feed look up in the log while they are behind it: those at one place look once.

A crowd that begins a topic anew, or that falls behind together, wants the same pages at about the same time.  Who asks
for a page that another one is having looked up waits beside him, and pages that were found stay for a moment, up to a
bound, for those who come to the same place a little later.  Readers that began at different places meet at the end of
the first page.

It knows neither topics nor filters, nor how a page is found.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from penstock.server.replaying.page import Found

if TYPE_CHECKING:
    from penstock.memory import Account

Done: TypeAlias = "Callable[[Found], None]"
"""Takes what was found."""

LOOKED_BYTES = 2 << 20
"""Pages kept of what was looked up."""

KEEP_US = 5_000_000
"""How long: a filter may ask for the time."""


class Looks:
    """Belongs to the loop's thread."""

    def __init__(self, account: Account, mono: Callable[[], int]) -> None:
        """account: what the pages take."""
        self._account, self._mono = account, mono
        self._under_way: dict[int, list[Done]] = {}  # by where it begins: who waits for it
        self._found = deque[tuple[int, int, Found]]()  # when it was found, where it begins
        self.bytes = 0  # of pages that were found
        self._round = 0  # what is found after all was let go belongs to the round before

    def known(self, start: int) -> Found | None:
        """What was looked up from this LSN on, or some of it."""
        for _, first, found in self._found:
            if first <= start < found.upto:
                if first == start or found.page is None:
                    return found
                return Found(found.page.from_lsn(start), found.upto)
        return None

    def ask(self, start: int, begin: Callable[[Done], None], done: Done) -> None:
        """A page from this LSN on: begin to look, unless somebody does that already."""
        waiting = self._under_way.get(start)
        if waiting is not None:
            waiting.append(done)
            return
        self._under_way[start] = waiting = [done]
        round_ = self._round

        def answered(found: Found) -> None:
            if self._under_way.get(start) is waiting:
                del self._under_way[start]
            if found.error is None and round_ == self._round:
                self._keep(start, found)
            for one in waiting:
                one(found)

        begin(answered)

    def _keep(self, start: int, found: Found) -> None:
        self._found.append((self._mono(), start, found))
        self._count(found, 1)
        self.trim()

    def _count(self, found: Found, sign: int) -> None:
        size = sign * (0 if found.page is None else found.page.size)
        self.bytes += size
        self._account.add(size)

    def trim(self) -> None:
        """Let go what is old, or too much."""
        oldest = self._mono() - KEEP_US
        while self._found and (self._found[0][0] < oldest or self.bytes > LOOKED_BYTES):
            self._count(self._found.popleft()[2], -1)

    def clear(self) -> None:
        """Let go all of it: who asks from now on looks anew."""
        self._round += 1
        self._under_way.clear()
        for _, _, found in self._found:
            self._count(found, -1)
        self._found.clear()
