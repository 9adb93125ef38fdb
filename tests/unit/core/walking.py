"""The walk of `server.asking.recovering` over the log of a `World`, a step at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.effects import Recovered
from penstock.core.state.encoding import load
from penstock.log.reader import Vias
from penstock.records.entries import Control, Rows
from penstock.records.kinds import Kind
from penstock.server.asking.recovering import look_for
from unit.core.world import World


class TableLog:
    """As much of a log as a walk asks for."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.vias = Vias()
        self.vias.load({
            str(entry.via): [str(header["vhost"]), str(header["exchange"])]
            for entry in world.entries
            if isinstance(entry, Control) and entry.kind is Kind.VIA
            for header in (load(entry.header),)
        })  # fmt: skip

    def batches(self, a: int, b: int, *, around: bool) -> Iterator[pa.RecordBatch]:
        assert around
        for table in self._world.tables:
            lsns: Any = table.column("lsn")
            yield from (
                batch
                for batch in table.filter(pc.and_(pc.greater_equal(lsns, a), pc.less(lsns, b))).to_batches()
                if batch.num_rows
            )

    def read(self, lsns: Sequence[int], *, around: bool) -> Rows:
        assert around
        return self._world.read(lsns)


def walk(world: World, whole: bool = True) -> bool:
    """One step of the passes that are under way, or (not `whole`) one batch of it; False: there are none."""
    world.turn()
    passes = world.core.passes()
    if not passes:
        return False
    clock = count(0, 0 if whole else 1_000_000_000)
    found, upto = look_for(cast("Any", TableLog(world)), passes, lambda: next(clock))
    for one, some in zip(passes, found, strict=True):
        if upto > one.at:
            world.core.answered(world.now, Recovered(one, some, upto))
    world.turn()
    return True
