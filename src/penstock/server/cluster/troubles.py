"""What is wrong with a member, as lines for an operator: two that take turns, some times a second, are two lines."""

from __future__ import annotations

import time

AGAIN_S = 60.0


class Troubles:
    """Those that were told a moment ago."""

    def __init__(self) -> None:
        self._told = dict[str, float]()  # when

    def news(self, trouble: str, before: str) -> bool:
        """Whether to tell it.  Both empty where there is none."""
        now = time.monotonic()
        self._told = {one: at for one, at in self._told.items() if now - at < AGAIN_S}
        if not trouble or trouble == before or trouble in self._told:
            return False
        self._told[trouble] = now
        return True
