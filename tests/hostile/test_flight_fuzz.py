"""Whatever is sent through the Flight door, the server lives, answers in its own words, and nothing of it grows.

A sample of 500 streams and 350 commands; with more effort 100,000 and 50,000, each server pressed by 10,000.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hostile.pressing import Pressed

SEED = int(os.environ.get("PENSTOCK_SEED", "0"))
A_LIFE = 10_000
"""Cases that one server sees: what has grown by then has grown."""


def lives(sample: int, all_of_them: int, effort: int) -> Iterator[range]:
    """Seeds, life by life."""
    count = sample if effort == 1 else all_of_them
    for first in range(SEED, SEED + count, A_LIFE):
        yield range(first, min(first + A_LIFE, SEED + count))


def test_broken_streams_of_every_command_and_shape(tmp_path: Path, effort: int) -> None:
    for seeds in lives(500, 100_000, effort):
        with Pressed(tmp_path / str(seeds.start)) as pressed:
            for seed in seeds:
                pressed.stream(seed)
            pressed.judge()
        assert pressed.seen["refused"] > len(seeds) // 2  # they are broken
        assert pressed.seen.total() - pressed.seen["refused"] > len(seeds) // 20  # and some get through


def test_made_up_commands(tmp_path: Path, effort: int) -> None:
    for seeds in lives(350, 50_000, effort):
        with Pressed(tmp_path / str(seeds.start)) as pressed:
            described = pressed.described()
            for seed in seeds:
                pressed.words(seed, described)
            pressed.judge()
        assert pressed.seen["refused"] > len(seeds) // 2
        assert pressed.seen.total() - pressed.seen["refused"] > len(seeds) // 50
