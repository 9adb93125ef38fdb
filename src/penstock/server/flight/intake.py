"""What Flight's threads hold of what clients sent, and the core has not taken yet: an account of the budget.

Batches of an upload until they are stored or staged, rows of stages on their way into the log.  A thread says what it
holds; caches shrink for that.  It counts for a quarter of the budget at most: it waits for room itself, and must not be
why there is none.  What gRPC has read of a message that is not whole is not known here.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

SHARE = 4
"""It may count for the budget's share of one in so many."""


class Intake:
    """Bytes.  Thread-safe."""

    def __init__(self, budget: int) -> None:
        """budget: bytes of `server.memory`."""
        self.bytes = 0
        self._most = budget // SHARE
        self._lock = threading.Lock()

    @property
    def counted(self) -> int:
        """What of it counts."""
        return min(self.bytes, self._most)

    def add(self, size: int) -> None:
        """So many bytes more; a negative number gives them back."""
        with self._lock:
            self.bytes += size

    @contextmanager
    def holding(self, size: int) -> Generator[None]:
        """So many bytes, for a while."""
        self.add(size)
        try:
            yield
        finally:
            self.add(-size)
