"""A leader whose disk stays full: one that is level and has room leads instead, for who publishes waits for no person.

Where those with room are too few to confirm without it, the lead stays where it is: acks are still stored there, and
nobody could do more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.units import format_duration


class FullDisk:
    """For how long it has been full, of a server that leads."""

    def __init__(self, patience: int) -> None:
        """patience: microseconds that it may be full."""
        self._patience = patience
        self._since: int | None = None

    def relief(self, known: Mapping[str, Any], now: int, *, full: bool) -> str:
        """Who is to lead now instead; empty: nobody.  known: what the member says."""
        since = self._since = None if not full else now if self._since is None else self._since
        return known.get("relief", "") if since is not None and now - since >= self._patience else ""


def way_out(known: Mapping[str, Any], patience: int) -> str:
    """What becomes of a leader whose disk is full, for who looks at its alarms."""
    by_hand = "`penstock cluster switchover` has another member lead"
    if known.get("manual"):
        return by_hand
    if to := known.get("relief"):
        name = known["members"].get(to, {}).get("name", to)
        return f"{name}, whose disk has room, leads when this has lasted for {format_duration(patience)}"
    return f"too few in sync have room for one of them to take over, {known.get('min_in_sync')} are needed; {by_hand}"
