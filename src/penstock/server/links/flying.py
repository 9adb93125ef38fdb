"""Parcels of a link that were sent, and that the other site has not acknowledged: how many may be, and since when."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

FLYING_MOST = 32 << 20
PARCELS_MOST = 20_000
"""Bytes of messages, and parcels, that are under way: then the link waits."""


class Flight(NamedTuple):
    """A parcel that was sent.  before: what was told up to there was done with when it went; at: when, microseconds."""

    upto: int
    before: int
    size: int
    at: int


class Flying:
    """Those of one link.  The loop's thread changes it."""

    def __init__(self) -> None:
        self._parcels = deque[Flight]()
        self._bytes = 0

    @property
    def oldest(self) -> Flight | None:
        """What an acknowledgement has to come for next."""
        return self._parcels[0] if self._parcels else None

    @property
    def full(self) -> bool:
        """Whether no more may be sent now.  Any thread."""
        return self._bytes >= FLYING_MOST or len(self._parcels) >= PARCELS_MOST

    def add(self, sent: Flight) -> None:
        self._parcels.append(sent)
        self._bytes += sent.size

    def heard(self, ack: int) -> None:
        """The other site has all up to there."""
        while self._parcels and self._parcels[0].upto <= ack:
            self._bytes -= self._parcels.popleft().size

    def clear(self) -> None:
        """It is told anew."""
        self._parcels.clear()
        self._bytes = 0
