"""How many messages are fetched together: about so many bytes, whatever their size."""

from __future__ import annotations

BYTES = 4 << 20
MOST = 256
FIRST = 8


class Portion:
    """Learns from what came.  It begins with few, and grows while they are small."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows = FIRST

    def read(self, size: int, rows: int) -> None:
        """So many bytes came in so many rows."""
        if rows:
            self.rows = max(1, min(BYTES * rows // max(size, 1), 2 * self.rows, MOST))
