"""Places that are given back whatever happens: what takes one is counted as long as it lives.

A door with little memory left fails anywhere, also where somebody says that he has done.  A count that goes up and down
would keep such a place for ever; here nobody has to say anything.  Whoever is gone is gone because nothing refers to it
any more, which takes no memory to know.  Who has done earlier says so by `over`, if he can.
"""

from __future__ import annotations

import threading
import weakref


class Holder:
    """What takes a place."""

    __slots__ = ("__weakref__", "over")

    def __init__(self) -> None:
        self.over = False  # it has given its place back


class Living:
    """Holders, and how many of them there are.  Thread-safe."""

    __slots__ = ("_all", "_lock")

    def __init__(self) -> None:
        self._all: list[weakref.ref[Holder]] = []
        self._lock = threading.Lock()

    def here(self) -> list[Holder]:
        """Those that live, and have not done."""
        with self._lock:
            return self._here()

    def _here(self) -> list[Holder]:
        found = [(one, holder) for one in self._all if (holder := one()) is not None and not holder.over]
        self._all = [one for one, _ in found]
        return [holder for _, holder in found]

    def count(self) -> int:
        return len(self.here())

    def most(self) -> int:
        """How many there are at most: nobody is looked at."""
        return len(self._all)

    def add(self, holder: Holder) -> None:
        with self._lock:
            self._all.append(weakref.ref(holder))

    def take(self, holder: Holder, most: int) -> bool:
        """A place for one more, of so many; whether there is one."""
        with self._lock:
            if len(self._all) >= most and len(self._here()) >= most:
                return False
            self._all.append(weakref.ref(holder))
            return True
