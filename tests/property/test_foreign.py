"""Queues whose messages other sites own: what nobody here may have nobody is given, and the log says whose it is."""

from __future__ import annotations

from choices import SEED
from property.foreign_walk import ForeignWalk

WALKS = 40


def test_walks(effort: int) -> None:
    for seed in range(SEED, SEED + WALKS * effort):
        try:
            ForeignWalk(seed).run()
        except Exception as error:
            error.add_note(f"walk {seed}")
            raise
