"""What each record may do to a message, wherever it stands: the audit allows that, and names whatever else was written.

The table here is written by hand, beside the one in `records.kinds` that the audit is made of.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.records.chunks import pack_pairs
from penstock.records.kinds import MOVES, Kind
from unit.cli.forging import T0, Forger

DUE = T0 + 100
ACTS = (
    Kind.GRANT, Kind.RETURN, Kind.DUE, Kind.PLAN, Kind.RESCHEDULE, Kind.SETTLE, Kind.EXPIRE, Kind.DROP, Kind.PURGE,
)  # fmt: skip


def _leased(f: Forger) -> int:
    f.grant(10, 20)
    return 10


def _planned(f: Forger) -> int:
    f.grant(10, 20)
    f.control(Kind.PLAN, "s", {"batch": 1, "epoch": 1, "queue": f.queue}, pack_pairs(f.queue, (10, 20)))
    return 10


def _delayed(f: Forger) -> int:
    f.grant(10, 20)
    f.give_back(10, 20, not_before=DUE)
    return 10


def _rescheduled(f: Forger) -> int:
    f.about(Kind.RESCHEDULE, 10, 20, not_before=DUE)
    return 10


def _after_a_start(f: Forger) -> int:
    """Leases end with the process."""
    f.grant(10, 20)
    f.boot()
    return 10


def _planned_before_a_start(f: Forger) -> int:
    """What a stream has planned is held on."""
    _planned(f)
    f.boot()
    return 10


def _ended(f: Forger) -> int:
    f.about(Kind.SETTLE, 10, 20)
    return 10


PLACES: dict[Callable[[Forger], int], str] = {
    lambda f: 10: ". h d s . . . . .",
    _leased: "h . h . h . . . h",
    _planned: "h . h s h . . . h",
    _delayed: "d h . s . . . . d",
    _rescheduled: "d h . s . . . . d",
    lambda f: f.messages(10, not_before=DUE): "d h . s . . . . d",
    lambda f: f.messages(10, not_before=T0 - 1): ". h . s . . . . .",  # its time was over when it came
    _after_a_start: ". h d s . . . . .",
    _planned_before_a_start: "h . h s h . . . h",
    _ended: "e e e e e e e e e",
}
"""Of each place what the audit says of each act: nothing, or that it breaks a guarantee."""

SAID = {".": None, "h": "one holder", "d": "delays", "s": "stream batches", "e": "ends once"}


def test_every_kind_that_moves_messages_is_tried() -> None:
    assert set(ACTS) - {Kind.PLAN} == MOVES


@pytest.mark.parametrize(("place", "row"), PLACES.items())
def test_an_act_is_allowed_where_the_message_stands_or_named(
    place: Callable[[Forger], int], row: str, tmp_path: Path
) -> None:
    f = Forger(tmp_path)
    f.control(Kind.STREAM, "s", {"queue": f.queue, "epoch": 1, "mode": "queue", "floor": 0})
    first = place(f)
    f.time = DUE
    for lsn, kind in enumerate(ACTS, first):
        if kind is Kind.PLAN:
            batch = 2 if place in (_planned, _planned_before_a_start) else 1
            f.control(kind, "s", {"batch": batch, "epoch": 1, "queue": f.queue}, pack_pairs(f.queue, (lsn, lsn + 1)))
        else:
            times = {Kind.RETURN: 0, Kind.RESCHEDULE: DUE}
            f.about(kind, lsn, lsn + 1, attempt=1, not_before=times.get(kind, 0))
    found = [one for one in f.report().findings if one.guarantee != "attempts"]
    broken = {kind: {one.guarantee for one in found if lsn in one.lsns} for lsn, kind in enumerate(ACTS, first)}
    assert broken == {kind: {SAID[mark]} - {None} for kind, mark in zip(ACTS, row.split(), strict=True)}
