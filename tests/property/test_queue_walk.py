"""4,320 commands against the one-message definition of a queue, found again by their seed; in `make soak` 2,160,000.

Queues of every kind: plain, with barriers, priorities, a target depth; with passes over the log, acks that come before
their message, consumers that are replaced, and crashes that lose what was not on the disk.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from property.queue_walk import STEPS, Walk

PARTS = 2
WALKS = 36
"""In each part: 2 x 36 walks of 60 commands.  `test_planted` needs 14 of them to find any of its mistakes."""

BULK = 1800
"""In each part, for each step of effort, where more than a sample is asked for."""

FIRST = int(os.environ.get("PENSTOCK_SEED", "0"))


@pytest.mark.parametrize("part", range(PARTS))
def test_queue_and_definition_agree_on_every_command(part: int, effort: int) -> None:
    """`PENSTOCK_EFFORT` for many more walks, `PENSTOCK_SEED` for others."""
    done, walks = 0, WALKS if effort == 1 else BULK * effort
    kinds, commands = Counter[str](), Counter[str]()
    for number in range(walks):
        seed = FIRST + number * PARTS + part
        walk = Walk(seed)
        try:
            done += walk.run()
        except Exception as error:
            error.add_note(f"walk {seed}: PENSTOCK_SEED={seed}")
            raise
        kinds[walk.kind] += 1
        commands += walk.counts
    assert set(kinds) == {*Walk.KINDS, "levels"}
    assert min(kinds.values()) > WALKS // 40
    few = {name: count for name, count in commands.items() if count < WALKS // 2}
    assert not few, "commands that hardly ever came"
    assert {"crash", "find", "defer", "replace", "disk", "sweep", "extend"} <= set(commands)
    assert done == walks * STEPS


def test_the_walks_are_many() -> None:
    assert PARTS * WALKS * STEPS >= 4_000
    assert PARTS * BULK * STEPS >= 200_000


@pytest.mark.parametrize(
    ("seed", "mix"),
    [
        (3298, None),
        (1359, None),
        (5513, None),
        (35062, None),
        (824, None),
        *((seed, 0) for seed in (700167, 24200, 24328)),
    ]
    + [(22406, 2), (3374, 2), (639, 1), (418, 1), (22231, 2)],
)
def test_walks_that_once_failed(seed: int, mix: int | None) -> None:
    """The queue was wrong, and in the last three its definition.

    3298: what was rescheduled of an empty queue changed the order that all empty queues share.
    700167: inactive messages moved up in the middle of a dispatch that goes in steps.
    1359, 5513: a filter's list took what was gone for all that it had still to look at, and gave what stands behind.
    35062: a full list kept twice what it has to look at later, and gave what somebody else had taken.
    824: what was over, and had to wait for its step, was replaced, and had no dead letter.
    24200, 24328, 22406: a record named what a pass had found between messages that a barrier holds back.
    3374: what was delayed after a snapshot was in it.
    639: lists of filters that were made anew at the end of a ranking were said to know what came back.
    418, 22231: a pass found the LSN of a record.
    """
    assert Walk(seed, mix).run() == STEPS
