"""Clocks of members that are apart: what is told of them before one that is wrong leads."""

from __future__ import annotations

from collections.abc import Mapping

APART_S = 1.0

ADVICE = "delays, expirations and schedules go by the clock of whoever leads: keep clocks together, as by NTP"


def apart(known: Mapping[str, object]) -> bool:
    """Whether a member's clock is far from that of its leader, as it says of itself."""
    ahead = known.get("clock_ahead_seconds")
    return isinstance(ahead, float) and abs(ahead) >= APART_S


def news(before: Mapping[str, object], known: Mapping[str, object]) -> str:
    """The line for an operator when it begins, and when it is over; else empty."""
    ahead = known.get("clock_ahead_seconds")
    if not isinstance(ahead, float) or apart(before) == apart(known):
        return ""
    if not apart(known):
        return "this machine's clock and the leader's are together again"
    if ahead > 0:
        what = f"is {ahead:.0f} s ahead of the leader's: what expires then may be over once this member leads"
    else:
        what = f"is {-ahead:.0f} s behind the leader's: times go on a tenth slower once this member leads"
    return f"this machine's clock {what}; {ADVICE}"
