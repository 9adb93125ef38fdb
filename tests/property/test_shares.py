"""Shares on lines and fronts against the definition, one message at a time: see `shares_machine`."""

from __future__ import annotations

import pytest

from property.shares_machine import RankedSharesWalk, SharesWalk


@pytest.mark.parametrize("part", range(4))
def test_groups_and_definition_agree_on_every_command(part: int, effort: int) -> None:
    for seed in range(part, 300 * effort, 4):
        try:
            SharesWalk(seed).run()
        except AssertionError as error:
            raise AssertionError(f"walk {seed}: {error}") from error


@pytest.mark.parametrize("part", range(2))
def test_with_priorities_queue_and_definition_agree_on_every_command(part: int, effort: int) -> None:
    for seed in range(part, 60 * effort, 2):
        try:
            RankedSharesWalk(seed).run()
        except AssertionError as error:
            raise AssertionError(f"walk {seed}: {error}") from error
