"""What wakes a thread of Flight's that waits for the loop: rung however often, it is heard once."""

from __future__ import annotations

import threading


class Bell:
    """Any thread rings, one thread waits."""

    __slots__ = ("_silent",)

    def __init__(self) -> None:
        self._silent = threading.Lock()  # held until it rings
        self._silent.acquire()

    def ring(self) -> None:
        """There is something to do."""
        try:
            self._silent.release()
        except RuntimeError:
            pass  # it has rung already and nobody has come yet

    def wait(self, seconds: float) -> bool:
        """Until it rings; False when it did not within so many seconds."""
        return self._silent.acquire(timeout=seconds)
