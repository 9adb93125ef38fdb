"""The machine's clocks behind the Clock port."""

from __future__ import annotations

import time


class SystemClock:
    """Wall time from the system, monotonic time from the kernel; both in microseconds."""

    def wall(self) -> int:
        """Microseconds since the Unix epoch."""
        return time.time_ns() // 1000

    def mono(self) -> int:
        """Microseconds on the monotonic clock."""
        return time.monotonic_ns() // 1000
