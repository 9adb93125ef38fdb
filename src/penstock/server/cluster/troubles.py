"""The troubles of a member: what an operator is told of them, that its clock is apart from others, before one that is
wrong leads, and how long its disk is full.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from penstock.units import format_duration

APART_S = 1.0

ADVICE = "delays, expirations and schedules go by the clock of whoever leads: keep clocks together, as by NTP"

SPACED_US, ENOUGH = 500_000, 3


class Apart:
    """How far another's clock is from this machine's, by what it says now and then.

    What comes late has this clock seem ahead, never behind, and who was stopped hears much at once that is late: so the
    least of some counts, as soon as enough of them came one after the other.
    """

    def __init__(self) -> None:
        self.ahead: int | None = None  # microseconds of this machine's clock; None: not known yet
        self._least: int | None = None
        self._count = 0
        self._at: int | None = None  # when the last one came that counts, microseconds, monotonic

    def hear(self, there: int, wall: int, mono: int) -> None:
        """The other's time, and this machine's as that came: microseconds."""
        self._least = wall - there if self._least is None else min(self._least, wall - there)
        if self._at is None or mono - self._at >= SPACED_US:
            self._count, self._at = self._count + 1, mono
        if self._count >= ENOUGH:
            self.ahead, self._least, self._count = self._least, None, 0


def apart(known: Mapping[str, object]) -> int:
    """Whether a member's clock is far from that of its leader, as it says of itself; -1: it is behind."""
    ahead = known.get("clock_ahead_seconds")
    return 0 if not isinstance(ahead, float) or abs(ahead) < APART_S else 1 if ahead > 0 else -1


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


def out_of_sync(known: Mapping[str, Any]) -> str:
    """Who is not in sync, as a leader knows; empty: all are."""
    members, in_sync = known.get("members", {}), known.get("in_sync", ())
    names = Counter(one["name"] for one in members.values())  # whose folder was emptied is listed twice
    out = sorted(
        one["name"] if names[one["name"]] == 1 else f"{one['name']} ({key})"
        for key, one in members.items() if key not in in_sync
    )  # fmt: skip
    if not out:
        return ""
    count = f"{len(members) - len(out)} of {len(members)}"
    are = "is" if len(out) == 1 else "are"
    return f"{count} members are in sync: {', '.join(out)} {are} not; `GET /api/cluster` says how far each is"


def confirms_nothing(known: Mapping[str, Any]) -> str:
    """Why a leader confirms nothing; empty: it does.

    Who is in sync, and silent, is waited for until the register drops him: with copies of it, until a person decides.
    """
    if not known.get("enough", True):
        return "fewer members are in sync than min_in_sync: nothing is confirmed until more are"
    count = 0 if known.get("confirm") == "local" else len(known.get("waited_for", ()))
    who = "a member in sync that does" if count == 1 else f"{count} members in sync that do"
    return f"confirms wait for {who} not answer" if count else ""


AGAIN_S = 60.0
"""Two troubles that take turns, some times a second, are two lines a minute."""


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


class FullDisk:
    """For how long it has been full, of a server that leads: when that lasts, one that is level and has room leads
    instead, for who publishes waits for no person.

    Where those with room are too few to confirm without it, the lead stays where it is: acks are still stored there,
    and nobody could do more.
    """

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
