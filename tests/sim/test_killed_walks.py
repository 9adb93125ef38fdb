"""Every command over power cuts and kills before any call to the disk; and that such walks find mistakes."""

from __future__ import annotations

import pytest

from choices import EFFORT, seeds
from sim.killed_walk import Walk
from sim.planted import SPOILED, Spoil

WALKS, MORE = 1, 4
"""In a usual run, and for each unit of effort in a hunt."""

ENOUGH = 40
"""Short walks in which a planted mistake shows."""

USUAL = ("streams begin too late", "withdrawals are not written", "alters are not written", "moves come apart",
         "all is answered too early")  # fmt: skip
"""Mistakes that are planted in a usual run, too."""


def test_every_command_is_done_wholly_or_not_at_all(effort: int) -> None:
    for seed in seeds(WALKS if effort == 1 else MORE * effort):
        try:
            Walk(seed).run()
        except Exception as error:
            error.add_note(f"walk {seed}: PENSTOCK_SEED={seed + 1}")
            raise


@pytest.mark.parametrize("name", sorted(SPOILED) if EFFORT > 1 else USUAL)
def test_who_spoils_a_command_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil: Spoil = SPOILED[name]
    spoil(monkeypatch)
    found = 0
    for seed in range(ENOUGH):
        try:
            Walk(seed, lives=1, copies=3, steps=40).run()
        except Exception:  # noqa: BLE001 - a server with a mistake may fall over anything
            found += 1
            break
    assert found, f"{name}, and {ENOUGH} walks do not see it"
