"""Queues whose messages other sites own: what nobody here may have nobody is given, and the log says whose it is."""

from __future__ import annotations

from choices import EFFORT, SEED
from property.foreign_walk import ForeignWalk

FIRST, WALKS = (SEED + 16, 20) if EFFORT == 1 else (SEED, 40 * EFFORT)
"""A usual run has the twenty around the one that finds a queue that forgets whose a message is: `test_planted`."""


def test_walks() -> None:
    for seed in range(FIRST, FIRST + WALKS):
        try:
            ForeignWalk(seed).run()
        except Exception as error:
            error.add_note(f"walk {seed}")
            raise
