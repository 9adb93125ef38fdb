"""Sums as RabbitMQ's API has them, with their rates: of `/api/overview`, of vhosts, and of a node's memory.

Who has `monitoring` is told what the server has counted, whatever queue it went through; others what went through the
queues that they see.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.operations.vhosts import VHOSTS
from penstock.records.rights import LOGIN, SEES
from penstock.server.counters import NAMES, STATS, Rates
from penstock.server.http.routes import Ask, Row
from penstock.wire.http.lists import COLUMNS, json_response, not_found, only_columns

if TYPE_CHECKING:
    from starlette.responses import Response

    from penstock.server.http.facts import Facts
    from penstock.server.http.metrics import Metrics
    from penstock.server.operating import Operating
    from penstock.server.sums import Seen, Sums

DEPTHS = ("messages", "messages_ready", "messages_unacknowledged")

CHURN = {
    "connection_created": "connections_opened", "connection_closed": "connections_closed",
    "channel_created": "channels_opened", "channel_closed": "channels_closed",
    "queue_created": "queues_created", "queue_declared": "queues_declared", "queue_deleted": "queues_deleted",
}  # fmt: skip
"""What came and went, by the name of its metric."""


class Totals:
    """Sums of what somebody sees.  Rates are those between two looks of the same user."""

    def __init__(self) -> None:
        self._rates = Rates()

    def of_overview(self, seen: Seen, sums: Sums, numbers: Metrics, mono: int) -> dict[str, object]:
        connections, channels = seen.connections()
        told: dict[str, object] = {
            "object_totals": {
                "connections": connections,
                "channels": channels,
                "consumers": sums.consumers,
                "queues": sums.queues,
                "exchanges": seen.exchanges(),
            },
            "queue_totals": self._depths(("depths", seen.whose), sums, mono),
            "message_stats": self._stats(("stats", seen.whose), seen, None, sums, mono),
        }
        if seen.everything:
            counts = tuple(int(numbers[f"rabbitmq_{of}"]) for of in CHURN.values())
            told["churn_rates"] = self._rates.told("churn", mono, CHURN, counts)
        return told

    def of_vhost(self, seen: Seen, vhost: str, sums: Sums, mono: int) -> dict[str, object]:
        stats = self._stats(("stats", seen.whose, vhost), seen, vhost, sums, mono)
        return {**self._depths(("depths", seen.whose, vhost), sums, mono), "message_stats": stats}

    def _depths(self, key: Hashable, sums: Sums, mono: int) -> dict[str, object]:
        counts = sums.ready + sums.leased + sums.delayed, sums.ready, sums.leased
        return self._rates.told(key, mono, DEPTHS, counts, falls=True)

    def _stats(self, key: Hashable, seen: Seen, vhost: str | None, sums: Sums, mono: int) -> dict[str, object]:
        if seen.everything:
            return self._rates.told(key, mono, STATS, seen.counts(vhost))
        return self._rates.told(key, mono, NAMES, sums.counts)


class VhostDoors:
    """Vhosts with what is in them."""

    def __init__(self, house: Operating, facts: Facts) -> None:
        self._house = house
        self._facts = facts
        self._totals = Totals()

    def rows(self) -> tuple[Row, ...]:
        return (
            Row("GET", "/api/vhosts", self.every, "Every vhost", LOGIN, many=True, operation=VHOSTS.name),
            Row("GET", "/api/vhosts/{vhost}", self.one, "One vhost", SEES, query=COLUMNS, operation=VHOSTS.name),
        )

    async def _found(self, ask: Ask) -> list[dict[str, object]]:
        """Those that the user sees, or the one that is asked for."""
        found: Iterable[Mapping[str, object]] = await self._house.operate(VHOSTS, ask.who, {})
        found = [one for one in found if ask.names.get("vhost") in {None, one["name"]}]
        seen, mono = self._facts.seen(ask.who), self._facts.mono()
        sums = await seen.vhosts()
        return [
            {
                **one,
                "metadata": {"description": one["description"], "tags": one["tags"]},
                "cluster_state": {self._facts.node: "running"},
                **self._totals.of_vhost(seen, str(one["name"]), sums[str(one["name"])], mono),
            }
            for one in found
        ]

    async def every(self, ask: Ask) -> Response:
        """All that the user may open, or see."""
        return await ask.listed(await self._found(ask))

    async def one(self, ask: Ask) -> Response:
        """One, by its name."""
        found = await self._found(ask)
        return json_response(only_columns(found[0], ask.query)) if found else not_found()


def memory_of(facts: Facts) -> dict[str, object]:
    """What bodies and buffers take by what they are for, and what the process takes in all; bytes."""
    resident = facts.metrics()["rabbitmq_process_resident_memory_bytes"]
    return {"memory": {**facts.memory(), "strategy": "rss", "total": {"rss": resident}}}
