"""Compaction's large reading and writing, done by the bulk child."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from penstock.log.upkeep.jobs import made_of, plain_order

if TYPE_CHECKING:
    from penstock.log.upkeep.rewrite import Made, Order
    from penstock.server.bulk.process import Bulk


class Compactor:
    """What `server.compaction.Elsewhere` asks for.  The child leaves a whole new file beside the old, or nothing."""

    def __init__(self, bulk: Bulk) -> None:
        self._bulk = bulk

    async def rewrite(self, order: Order) -> Made:
        """Raises what the job raises, and Unavailable when the child died under it or could not be started."""
        return made_of(await self._bulk.run("rewrite", **plain_order(order)))

    async def index(self, first: int) -> int:
        """The same."""
        return cast("int", (await self._bulk.run("index", first=first))["size"])
