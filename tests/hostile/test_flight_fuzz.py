"""Whatever is sent through the Flight door, the server lives, answers in its own words, and nothing of it grows.

A sample of 250 streams and 200 commands; with more effort 100,000 and 50,000, each server pressed by 10,000.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from hostile.pressing import Pressed

SEED = int(os.environ.get("PENSTOCK_SEED", "0"))
A_LIFE = 10_000
"""Cases that one server sees: what has grown by then has grown."""


def lives(sample: int, all_of_them: int, effort: int) -> Iterator[range]:
    """Seeds, life by life."""
    count = sample if effort == 1 else all_of_them
    for first in range(SEED, SEED + count, A_LIFE):
        yield range(first, min(first + A_LIFE, SEED + count))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pressed]:
    """The server that sees the first cases of both kinds."""
    with Pressed(tmp_path_factory.mktemp("first")) as pressed:
        yield pressed


@contextmanager
def pressed_by(seeds: range, first: Pressed, folder: Path) -> Iterator[Pressed]:
    """Judged at the end."""
    with nullcontext(first) if seeds.start == SEED else Pressed(folder / str(seeds.start)) as pressed:
        pressed.seen.clear()
        yield pressed
        pressed.judge()


def test_broken_streams_of_every_command_and_shape(first: Pressed, tmp_path: Path, effort: int) -> None:
    for seeds in lives(250, 100_000, effort):
        with pressed_by(seeds, first, tmp_path) as pressed:
            for seed in seeds:
                pressed.stream(seed)
        assert pressed.seen["refused"] > len(seeds) // 2  # they are broken
        assert pressed.seen.total() - pressed.seen["refused"] > len(seeds) // 20  # and some get through


def test_made_up_commands(first: Pressed, tmp_path: Path, effort: int) -> None:
    for seeds in lives(200, 50_000, effort):
        with pressed_by(seeds, first, tmp_path) as pressed:
            described = pressed.described()
            for seed in seeds:
                pressed.words(seed, described)
        assert pressed.seen["refused"] > len(seeds) // 2
        assert pressed.seen.total() - pressed.seen["refused"] > len(seeds) // 50
