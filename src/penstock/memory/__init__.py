"""The budget of `server.memory`: one number, and an account for everything that counts against it.

Who holds bytes charges its account when it takes them and credits it when they are gone, or is known as a holder whose
`bytes` are read when a sum is wanted, which is after every commit.  Who has to work his out is asked.  A part of the
budget is kept back for reading what somebody waits for: nothing else may use it, so that no cache and no stalled
consumer can keep another's messages on disk.  It knows no queue.

Beside it stands what reads of the log have in common: how much one brings, for how many, and the positions of all
together.

And who has to give way when memory stays short (`Relief`).  Whoever keeps bytes for others registers how his holders
are told apart: of each a key, whose it is, how many bytes it has, how far it has moved, and how it is cut.  Nobody is
asked while there is room.  Where memory has been short for `PATIENCE_US`, those who have given nothing back for as long
are cut until there would be room: of the user who has the most of it his largest, and so on.  An account with a bound
of its own may be short by itself: then its holders are looked at alone, and cut if that makes the room that is lacking.
Each who is cut is told what he held, how much, and of what limit; all are counted by account, and the log names the
first few, for who reads nothing cannot be told.

    gives up by itself     caches, and what can be read again (`Caches.spare`)
    is cut here            unread bytes, bodies begun, held publishes, transactions, streams that stand still

It knows no protocol; time is told by who asks.
"""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from penstock.errors import MemoryShort, shown
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.compute import lsns_of
from penstock.records.dataclass import dataclass
from penstock.records.entries import Rows
from penstock.units import format_size

logger = logging.getLogger("penstock.server")

GATHER_MOST = 64 << 20
"""Bytes gathered and in flight to the log beyond which publishers wait, however large the budget is."""

GATHER_LEAST = 64 << 10
"""A budget too small for anything still gathers this much at once."""

GATHER_SHORT = 1 << 20
"""Bytes gathered while memory is short of what no cache can give up: whoever holds that, publishers go on."""

KEPT_BACK_MOST = 16 << 20


class Account:
    """Bytes held for one purpose."""

    __slots__ = ("bytes", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.bytes = 0

    def add(self, size: int) -> None:
        """Charge so many bytes; a negative number credits them."""
        self.bytes += size

    def __repr__(self) -> str:
        return f"Account({self.name!r}, {self.bytes})"


class Holder(Protocol):
    """Who keeps count of what it holds."""

    @property
    def bytes(self) -> int:
        """So many now."""
        ...


class Budget:
    """The accounts, their sum, and the limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.kept_back = min(limit // 8, KEPT_BACK_MOST)  # for reads that somebody waits for, and the allocator's holes
        self.gather_most = max(GATHER_LEAST, min(GATHER_MOST, limit // 4))  # bytes that may gather for the log: each
        # lies in memory twice, as bodies and as what is being written
        self.gather_least = min(GATHER_SHORT, self.gather_most)  # the same while nothing can be put aside
        self._accounts: dict[str, Account] = {}
        self._holders: dict[str, Holder] = {}  # the accounts are among them
        self._asked: dict[str, Callable[[], int]] = {}

    def account(self, name: str) -> Account:
        """The account of that name, made if it is new."""
        account = self._accounts.get(name)
        if account is None:
            account = self._holders[name] = self._accounts[name] = Account(name)
        return account

    def hold(self, name: str, holder: Holder) -> None:
        """Have somebody else's count as an account."""
        self._holders[name] = holder

    def watch(self, name: str, ask: Callable[[], int]) -> None:
        """Have an account whose holder is asked each time."""
        self._asked[name] = ask

    @property
    def used(self) -> int:
        """All bytes held, by whomever."""
        used = 0
        for holder in self._holders.values():
            used += holder.bytes
        for ask in self._asked.values():
            used += ask()
        return used

    @property
    def over(self) -> int:
        """Bytes by which caches must shrink; 0 or less when all is well."""
        return self.used - self.limit + self.kept_back

    def by_name(self) -> dict[str, int]:
        """Bytes by account, for metrics."""
        names = {name: holder.bytes for name, holder in self._holders.items()}
        names.update((name, ask()) for name, ask in self._asked.items())
        return names


READ_ROWS = 8192
"""Rows of one read at most."""

READ_BYTES = 1 << 20
"""Bytes of one read at most, unless one row has more."""

JOIN_MOST = 256
"""Lists, or heads, that one read serves at most."""


class ReadCold(Protocol):
    """Reads rows of the log off the loop and answers on it, never before the call has returned."""

    def __call__(self, lsns: Chunk, answer: Callable[[Rows], None], most: int = 0, /) -> None:
        """most: bytes after which the answer ends; 0 is no limit.  At least the first row is there."""


def union(chunks: Collection[Chunk]) -> Chunk:
    """All positions of some chunks, ascending."""
    if len(chunks) == 1:
        return next(iter(chunks))
    lsns = np.concatenate([lsns_of(chunk) for chunk in chunks])
    lsns.sort()
    fresh = np.empty(len(lsns), np.bool_)
    fresh[0] = True
    np.not_equal(lsns[1:], lsns[:-1], out=fresh[1:])
    return as_chunk(array("q", (lsns if fresh.all() else lsns[fresh]).tobytes()))


def merged(a: Rows, b: Rows) -> Rows:
    """The rows of both, ascending."""
    both = Rows(
        a.lsns + b.lsns,
        a.topics + b.topics,
        a.properties + b.properties,
        a.bodies + b.bodies,
        a.times + b.times,
        a.expires_at + b.expires_at,
        a.priority + b.priority,
    )
    return _select(both, sorted(range(len(both)), key=both.lsns.__getitem__))


def first_of(rows: Rows, count: int) -> Rows:
    """The first so many rows."""
    return rows if count >= len(rows) else _select(rows, range(count))


def _select(rows: Rows, places: Sequence[int]) -> Rows:
    """The rows at these places, in this order."""
    return Rows(
        [rows.lsns[i] for i in places],
        [rows.topics[i] for i in places],
        [rows.properties[i] for i in places],
        [rows.bodies[i] for i in places],
        [rows.times[i] for i in places],
        [rows.expires_at[i] for i in places],
        [rows.priority[i] for i in places],
    )


PATIENCE_US = 10_000_000
"""So long has memory to be short, and has a holder to stand still, before he is cut."""

LEAST = 1 << 10
"""Who holds less is left alone: it would not help."""

NAMED_MOST = 3
"""Of all that are cut at once, so many are named in the log."""


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
        gone, seconds = list[Held](), PATIENCE_US // 1_000_000
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
            gone.append(held)
            held.cut(
                MemoryShort(
                    f"there is no memory for it: {held.name} had {held.bytes} bytes and gave none back for {seconds} s "
                    f"while memory was short; {limit}"
                )
            )
        if gone:
            named = [f"{held.name} (user {shown(held.user)}, {held.bytes} bytes)" for held in gone[:NAMED_MOST]]
            logger.warning(
                "memory was short, and who gave none back for %d s was cut: %s%s; %s",
                seconds, ", ".join(named), f", and {more} more" if (more := len(gone) - NAMED_MOST) > 0 else "", limit,
            )  # fmt: skip
