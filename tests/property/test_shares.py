"""Shares on lines and fronts against the definition, one message at a time: see `shares_machine`."""

from __future__ import annotations

import pytest

from choices import examples, seeds
from property.shares_machine import RankedSharesWalk, SharesWalk

WALKS, BULK = 20, 300
"""In all parts, and where more than a sample is asked for, for each step of effort.  Seven find what is planted."""


@pytest.mark.parametrize("part", range(4))
def test_groups_and_definition_agree_on_every_command(part: int, effort: int) -> None:
    for seed in seeds(WALKS if effort == 1 else BULK * effort, part, 4):
        try:
            SharesWalk(seed).run()
        except AssertionError as error:
            raise AssertionError(f"walk {seed}: {error}") from error


@pytest.mark.parametrize("part", range(2))
def test_with_priorities_queue_and_definition_agree_on_every_command(part: int) -> None:
    for seed in seeds(examples(40), part, 2):
        try:
            RankedSharesWalk(seed).run()
        except AssertionError as error:
            raise AssertionError(f"walk {seed}: {error}") from error
