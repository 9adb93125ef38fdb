"""The budget of `server.memory`: one number, and an account for everything that counts against it.

Who holds bytes charges its account when it takes them and credits it when they are gone.  What others hold and change
all the time (the gathering commit, the reader's decoded batches) is asked for when a sum is wanted.  A part of the
budget is kept back for reading what somebody waits for: nothing else may use it, so that no cache and no stalled
consumer can keep another's messages on disk.  It knows no queue and decides nothing about what has to go.
"""

from __future__ import annotations

from collections.abc import Callable

GATHER_MOST = 64 << 20
"""Bytes gathered and in flight to the log beyond which publishers wait, however large the budget is."""

GATHER_LEAST = 64 << 10
"""A budget too small for anything still gathers this much at once."""

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


class Budget:
    """The accounts, their sum, and the limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.kept_back = min(limit // 8, KEPT_BACK_MOST)  # for reads that somebody waits for, and the allocator's holes
        self.accounts: dict[str, Account] = {}
        self._asked: dict[str, Callable[[], int]] = {}

    def account(self, name: str) -> Account:
        """The account of that name, made if it is new."""
        account = self.accounts.get(name)
        if account is None:
            account = self.accounts[name] = Account(name)
        return account

    def watch(self, name: str, ask: Callable[[], int]) -> None:
        """Have an account whose holder is asked each time."""
        self._asked[name] = ask

    @property
    def used(self) -> int:
        """All bytes held, by whomever."""
        used = 0
        for account in self.accounts.values():
            used += account.bytes
        for ask in self._asked.values():
            used += ask()
        return used

    @property
    def over(self) -> int:
        """Bytes by which caches must shrink; 0 or less when all is well."""
        return self.used - self.limit + self.kept_back

    @property
    def gather_most(self) -> int:
        """Bytes that may gather for the log: each lies in memory twice, as bodies and as what is being written."""
        return max(GATHER_LEAST, min(GATHER_MOST, self.limit // 4))

    def by_name(self) -> dict[str, int]:
        """Bytes by account, for metrics."""
        names = {name: account.bytes for name, account in self.accounts.items()}
        names.update((name, ask()) for name, ask in self._asked.items())
        return names
