"""Who holds memory that no cache can give up, and who has to give way when it stays short.

Whoever keeps bytes for others registers how his holders are told apart: of each a key, whose it is, how many bytes it
has, how far it has moved, and how it is cut.  Nobody is asked while there is room.  Where memory has been short for
`PATIENCE_US`, those who have given nothing back for as long are cut until there would be room: of the user who has the
most of it his largest, and so on.  An account with a bound of its own may be short by itself: then its holders are
looked at alone, and cut if that makes the room that is lacking.  Each who is cut is told what he held, how much, and of
what limit; all are counted by account.

    gives up by itself     caches, and what can be read again (`Caches.spare`)
    is cut here            unread bytes, bodies begun, held publishes, transactions, streams that stand still

It knows no protocol; time is told by who asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from penstock.errors import MemoryShort
from penstock.memory import Budget
from penstock.records.dataclass import dataclass
from penstock.units import format_size

PATIENCE_US = 10_000_000
"""So long has memory to be short, and has a holder to stand still, before he is cut."""

LEAST = 1 << 10
"""Who holds less is left alone: it would not help."""


class Held(NamedTuple):
    """What one holder has at present."""

    key: object  # as long as it is the same holder
    user: str
    name: str  # what it is, for who is told: "what a transaction on channel 3 has"
    bytes: int
    moved: int  # rises as he gives bytes back, or does what will
    cut: Callable[[MemoryShort], object]
    pace: int = 1  # how far he has to move in that time


class Caches(Protocol):
    """The memory, as it is asked here."""

    tight: bool  # more is held than there may be, and no cache gives up any more
    budget: Budget


@dataclass(slots=True, eq=False)
class Row:
    """One account."""

    name: str
    holders: Callable[[], Iterable[Held]]
    lacking: Callable[[], int] | None  # bytes that somebody was refused of it; None: it has no bound of its own
    most: int  # that bound
    cut: int = 0  # holders, since the start
    freed: int = 0  # bytes that they had


class Relief:
    """The table of accounts.  For the loop's thread."""

    def __init__(self, memory: Caches, mono: Callable[[], int]) -> None:
        self.rows: dict[str, Row] = {}
        self.on_cut: list[Callable[[str, Held], object]] = []  # told of each, by the name of the account
        self._memory = memory
        self._mono = mono
        self._stood: dict[tuple[str, object], tuple[int, int]] = {}  # how far it had moved, and since when

    def register(
        self,
        name: str,
        holders: Callable[[], Iterable[Held]],
        lacking: Callable[[], int] | None = None,
        most: int = 0,
    ) -> None:
        """holders: asked once a second while memory is short.  lacking: bytes refused lately for the bound `most`."""
        self.rows[name] = Row(name, holders, lacking, most)

    def counts(self) -> dict[str, int]:
        """How many were cut since the start, by account."""
        return {row.name: row.cut for row in self.rows.values()}

    def beat(self) -> None:
        """Once a second: look who stands still, where memory is short."""
        memory, before = self._memory, self._stood
        self._stood = {}
        tight, budget = memory.tight, memory.budget
        lacking = {row.name: row.lacking() for row in self.rows.values() if row.lacking is not None}
        if not tight and not any(lacking.values()):
            return
        standing = list[tuple[Row, Held]]()
        for row in self.rows.values():
            wanted = lacking.get(row.name, 0)
            if tight or wanted:
                some = [(row, held) for held in self._still(row, before)]
                if wanted and sum(held.bytes for _, held in some) >= wanted:  # else they would be cut in vain
                    self._cut(some, wanted, f"the account may have {row.most} bytes")
                else:
                    standing += some
        if tight and budget.over > 0:
            self._cut(standing, budget.over, f"server.memory is {format_size(budget.limit)}")

    def _still(self, row: Row, before: dict[tuple[str, object], tuple[int, int]]) -> list[Held]:
        """Those of an account who have stood still for long enough."""
        now, found = self._mono(), list[Held]()
        for held in row.holders():
            if held.bytes < LEAST:
                continue
            key = row.name, held.key
            was, since = before.get(key, (held.moved, now))
            if held.moved - was >= held.pace or held.moved < was:
                was, since = held.moved, now
            self._stood[key] = was, since
            if now - since >= PATIENCE_US:
                found.append(held)
        return found

    def _cut(self, some: list[tuple[Row, Held]], bytes_: int, limit: str) -> None:
        """Cut the largest of whoever has the most, until so many bytes would be free."""
        by_user, sums = dict[str, list[tuple[Row, Held]]](), Counter[str]()
        for row, held in sorted(some, key=lambda one: one[1].bytes):
            by_user.setdefault(held.user, []).append((row, held))
            sums[held.user] += held.bytes
        while bytes_ > 0 and sums:
            user = max(sums, key=sums.__getitem__)
            row, held = by_user[user].pop()
            sums[user] -= held.bytes
            if not by_user[user]:
                del sums[user]
            bytes_ -= held.bytes
            row.cut += 1
            row.freed += held.bytes
            self._stood.pop((row.name, held.key), None)
            for tell in self.on_cut:
                tell(row.name, held)
            seconds = PATIENCE_US // 1_000_000
            held.cut(
                MemoryShort(
                    f"there is no memory for it: {held.name} had {held.bytes} bytes and gave none back for {seconds} s "
                    f"while memory was short; {limit}"
                )
            )
