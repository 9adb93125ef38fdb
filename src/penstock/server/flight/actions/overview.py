"""The action `overview`: the server as a whole, from the counters that `/metrics` has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.records.rights import LOGIN
from penstock.server.flight.actions.action import Action, Table
from penstock.server.flight.calls import Caller
from penstock.wire.flight.fields import Fields

if TYPE_CHECKING:
    from penstock.server.flight.actions.desk import Commands, Desk

FIGURES = (
    "connections", "channels", "published", "confirmed", "delivered", "acknowledged", "redelivered", "resident_bytes",
    "body_cache_limit_bytes", "log_bytes", "log_segments", "disk_free_bytes",
)  # fmt: skip
"""Of all metrics; counts are since the start of the process."""


class OverviewAction:
    """This action, as a row of the table of all actions."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.table: Table = {
            "overview": Action(self._overview, "health, connections, memory and log, and what went through", LOGIN),
        }

    def _overview(self, caller: Caller, f: Fields) -> Mapping[str, object]:
        f.finish()

        async def work(desk: Commands) -> Mapping[str, object]:
            facts = desk.links.facts
            metrics = facts.metrics()
            return {
                **facts.health(),
                "version": metrics.version,
                **{name: getattr(metrics, name) for name in FIGURES},
            }

        return self._desk.do(caller, work)
