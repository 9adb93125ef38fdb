"""Rates against their one-message definition, found again by seed."""

from __future__ import annotations

import pytest

from choices import SEED, examples
from property.paced_walk import PacedSharesWalk, PacedWalk
from property.queue_walk import STEPS

WALKS = 16


@pytest.mark.parametrize("walk", [PacedWalk, PacedSharesWalk])
def test_rates_and_definition_agree_on_every_command(walk: type[PacedWalk]) -> None:
    for seed in range(SEED, SEED + examples(WALKS, 2)):
        try:
            assert walk(seed).run() == STEPS
        except Exception as error:
            error.add_note(f"walk {seed}: PENSTOCK_SEED={seed}")
            raise
