"""What many tests of the server begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from bulk_lab import Writer
    from penstock.server.sql.duckdb_engine import Engine
    from sim.serverkit import Life


@pytest.fixture
def life(request: pytest.FixtureRequest) -> Life:
    """A server on a disk and a clock of its own, with the queues and on the terms that the module names."""
    from penstock.log.simdisk import SimDisk
    from sim.serverkit import Life, clock

    life = Life(SimDisk(), clock(), **getattr(request.module, "LIFE", {}))
    life.declare(*getattr(request.module, "QUEUES", ("q",)))
    return life


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    """A log that is written to."""
    from bulk_lab import Writer

    made = Writer(tmp_path)
    yield made
    made.log.close()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """What runs SQL, with little memory."""
    from penstock.server.sql.duckdb_engine import Bounds, Engine

    made = Engine(Bounds(64 << 20, 64 << 20, tmp_path, 1))
    yield made
    made.close()
