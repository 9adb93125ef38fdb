"""Schedules of simulated members by their seeds: the first thing that did not hold in them, and what was seen."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from functools import cache, partial
from typing import Protocol, TypeVar
from unittest import mock

from penstock.errors import LogDamaged
from penstock.server.cluster import log_sending, side_sending
from sim.members_machine import Broken
from sim.members_world import Begun, World

W = TypeVar("W", bound="Walked")

PIECE = 300
"""Bytes of a file beside the log in one message; in some schedules of the log's files, too."""


class Walked(Protocol):
    """A world of members that is walked through by chance."""

    seen: Counter[str]

    @property
    def confirmed(self) -> Sized: ...
    def quiet(self) -> None: ...
    def compare(self) -> None: ...


def walked(
    world: Callable[[int], W], seeds: Iterable[int], walk: Callable[[W], None]
) -> tuple[str | None, Counter[str]]:
    """The first thing that did not hold in the schedules of these seeds, and what was seen in them."""
    seen = Counter[str]()
    with unheard():
        for seed in seeds:
            most = PIECE if seed % 8 == 1 else 1 << 20
            with (
                mock.patch.object(side_sending, "SIDE_PIECE", PIECE),
                mock.patch.object(log_sending, "PIECE_MOST", most),
            ):
                broken = _walked(partial(world, seed), walk, seen)
            if broken is not None:
                return f"seed {seed}: {broken}", seen
    return None, seen


@contextmanager
def unheard() -> Iterator[None]:
    """What members log of all that goes wrong costs more than the rest, and nobody reads it."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _walked(world: Callable[[], W], walk: Callable[[W], None], seen: Counter[str]) -> Exception | None:
    try:
        one = world()
        walk(one)
        one.quiet()
        one.compare()
    except (Broken, LogDamaged) as broken:
        return broken
    seen.update(one.seen)
    seen["confirmed"] += len(one.confirmed)
    return None


@cache
def begun(members: int, min_in_sync: int) -> Begun:
    """A cluster in sync, as directed schedules begin with it."""
    world = World(0, members=members, min_in_sync=min_in_sync)
    world.quiet()
    for host in world.hosts.values():
        host.stop()
    return world.begun()
