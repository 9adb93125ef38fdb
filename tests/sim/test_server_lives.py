"""Power cuts at random moments of a mixed load, life after life on one folder, judged by docs/durability.md."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from choices import spread
from penstock.log.simdisk import SimDisk
from penstock.log.writer import MEMORY
from sim.ledger import Ledger, Load, check_restart
from sim.serverkit import clock


def live(seed: int, *, lives: int = 5, steps: int = 60, faults: bool = True) -> None:
    chance = random.Random(seed)
    first = chance.choice((1, 2**40))
    log = replace(MEMORY, segment=chance.choice((20_000, 1 << 20)), origin=9, first_lsn=first)
    budget = chance.choice((0, 300, 1 << 20))
    disk, time, ledger = SimDisk(seed=seed), clock(), Ledger()
    for _ in range(lives):
        life = check_restart(ledger, disk, time, log, budget=budget)
        assert life.core.last_lsn >= first
        load = Load(ledger, life, chance)
        for _ in range(chance.randint(1, steps)):
            if faults and life.engine.broken is None and chance.random() < 0.01:
                disk.fail_next(chance.choice(("write", "sync")), after=chance.randint(0, 2))
            load.step()
        kind = chance.random()
        if kind < 0.6:
            life.crash()
        elif kind < 0.9 or life.engine.broken is not None:
            life.kill()
        else:
            load.settle()
            life.stop()
            if life.engine.broken is None:
                ledger.gone |= load.unsure
            time.reboot()
            disk._faults.clear()
    check_restart(ledger, disk, time, log)
    assert ledger.confirmed


@pytest.mark.parametrize("seed", spread(range(16), 6))
def test_lives(seed: int, effort: int) -> None:
    for extra in range(effort):
        live(seed + 1000 * extra)
