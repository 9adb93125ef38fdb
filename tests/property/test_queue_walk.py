"""More than 200,000 commands against the one-message definition of a queue, each found again by its seed."""

from __future__ import annotations

import os

import pytest

from property.queue_walk import STEPS, Walk

PARTS = 8
WALKS = 450
"""In each part: 8 x 450 walks of 60 commands are 216,000."""

FIRST = int(os.environ.get("PENSTOCK_SEED", "0"))


@pytest.mark.parametrize("part", range(PARTS))
def test_queue_and_definition_agree_on_every_command(part: int, effort: int) -> None:
    """`PENSTOCK_EFFORT` times as many walks, `PENSTOCK_SEED` for others."""
    done = 0
    for number in range(WALKS * effort):
        seed = FIRST + number * PARTS + part
        try:
            done += Walk(seed).run()
        except Exception as error:
            error.add_note(f"walk {seed}: PENSTOCK_SEED={seed}")
            raise
    assert done == WALKS * effort * STEPS
