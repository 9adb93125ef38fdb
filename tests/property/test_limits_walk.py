"""Limits and rings against their one-message definition, found again by seed."""

from __future__ import annotations

import os

import pytest

from property.limits_walk import LimitedWalk
from property.queue_walk import STEPS

PARTS = 4
WALKS, BULK = 8, 100
"""In each part, and where more than a sample is asked for, for each step of effort.  The first finds all."""
FIRST = int(os.environ.get("PENSTOCK_SEED", "0"))


@pytest.mark.parametrize("part", range(PARTS))
def test_queue_and_definition_agree_on_every_command(part: int, effort: int) -> None:
    """`PENSTOCK_EFFORT` times as many walks, `PENSTOCK_SEED` for others."""
    for number in range(WALKS if effort == 1 else BULK * effort):
        seed = FIRST + number * PARTS + part
        try:
            assert LimitedWalk(seed).run() == STEPS
        except Exception as error:
            error.add_note(f"walk {seed}: PENSTOCK_SEED={seed}")
            raise
