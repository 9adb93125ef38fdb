"""The budget of `server.memory`: one number, and an account for everything that counts against it.

Who holds bytes charges its account when it takes them and credits it when they are gone, or is known as a holder whose
`bytes` are read when a sum is wanted, which is after every commit.  Who has to work his out is asked.  A part of the
budget is kept back for reading what somebody waits for: nothing else may use it, so that no cache and no stalled
consumer can keep another's messages on disk.  It knows no queue and decides nothing about what has to go.

Beside it stands what reads of the log have in common: how much one brings, for how many, and the positions of all
together.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import numpy as np

from penstock.records.chunks import Chunk, as_chunk
from penstock.records.compute import lsns_of
from penstock.records.entries import Rows

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
        ...


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
