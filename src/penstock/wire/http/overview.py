"""The server as a whole: `/api/overview`, `/api/nodes`, who asks, the names of cluster and features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from starlette.responses import Response

from penstock.records.rights import ADMINISTERS, LOGIN, MONITORING, MONITORS, WATCHES
from penstock.wire.http.facts import Metrics, ServerFacts
from penstock.wire.http.lists import gathered, json_response, not_found, only_columns
from penstock.wire.http.routes import Ask, Row

RABBITMQ_VERSION = "3.13.0"
"""What tools that look at `rabbitmq_version` are told: the version whose behaviour they will meet."""


async def all_metrics(facts: ServerFacts) -> Metrics:
    """The numbers of the server with those of its queues."""
    queues = await gathered(facts.queue_metrics())
    return replace(facts.metrics(), queues=queues, consumers=sum([queue.consumers for queue in queues]))


def rows(facts: ServerFacts) -> Sequence[Row]:
    doors = _Overview(facts)
    return (
        Row("GET", "/api/overview", doors.overview, "Totals, and the settings in force", LOGIN),
        Row("GET", "/api/whoami", doors.whoami, "The user that is asking", LOGIN),
        Row("GET", "/api/log", doors.log, "The files of the log, and how far it is", MONITORS),
        Row("GET", "/api/topics", doors.topics, "Topics with a key: how many records they have", LOGIN, many=True),
        Row("GET", "/api/views", doors.views, "Views and conflated topics", MONITORS, many=True),
        Row(
            "GET",
            "/api/streams",
            doors.streams,
            "Durable readers and their lag",
            WATCHES,
            many=True,
            operation="streams",
        ),
        Row("GET", "/api/nodes", doors.nodes, "The one node", MONITORS, many=True),
        Row("GET", "/api/nodes/{name}", doors.node, "The one node", MONITORS),
        Row("GET", "/api/cluster-name", doors.cluster_name, "The name of the instance", LOGIN),
        Row("GET", "/api/feature-flags", doors.nothing, "No feature is behind a flag", LOGIN),
        Row("GET", "/api/deprecated-features", doors.nothing, "None", LOGIN),
        Row("GET", "/api/extensions", doors.nothing, "None", LOGIN),
        Row("GET", "/api/federation-links", doors.nothing, "None", ADMINISTERS),
        Row("GET", "/api/auth", doors.auth, "How tools may log in", LOGIN),
    )


class _Overview:
    def __init__(self, facts: ServerFacts) -> None:
        self._facts = facts

    async def overview(self, ask: Ask) -> Response:
        """Totals; addresses and the settings in force are for those who see everything."""
        numbers = await all_metrics(self._facts)
        ready = sum(queue.ready for queue in numbers.queues)
        leased = sum(queue.leased for queue in numbers.queues)
        delayed = sum(queue.delayed for queue in numbers.queues)
        answer: dict[str, object] = {
            "product_name": "Penstock",
            "product_version": numbers.version,
            "rabbitmq_version": RABBITMQ_VERSION,
            "management_version": RABBITMQ_VERSION,
            "rates_mode": "basic",
            "cluster_name": numbers.cluster or numbers.node,
            "node": numbers.node,
            "exchange_types": self._exchange_types(),
            "object_totals": {
                "connections": numbers.connections,
                "channels": numbers.channels,
                "consumers": numbers.consumers,
                "queues": len(numbers.queues),
                "exchanges": self._facts.exchange_count(),
            },
            "queue_totals": {
                "messages": ready + leased + delayed,
                "messages_ready": ready,
                "messages_unacknowledged": leased,
            },
            "message_stats": {
                "publish": numbers.published,
                "confirm": numbers.confirmed,
                "deliver_get": numbers.delivered,
                "redeliver": numbers.redelivered,
                "ack": numbers.acknowledged,
                "return_unroutable": numbers.unroutable_returned,
                "drop_unroutable": numbers.unroutable_dropped,
            },
            "churn_rates": {
                "connection_created": numbers.connections_opened,
                "connection_closed": numbers.connections_closed,
                "channel_created": numbers.channels_opened,
                "channel_closed": numbers.channels_closed,
            },
        }
        if ask.may(MONITORING):
            answer |= {"listeners": list(self._facts.listeners()), "penstock": dict(self._facts.overview())}
        return json_response(only_columns(answer, ask.query))

    def _exchange_types(self) -> list[dict[str, object]]:
        return [{"name": name, "description": "", "enabled": True} for name in self._facts.exchange_types()]

    async def whoami(self, ask: Ask) -> Response:
        """The user that is asking."""
        return json_response({"name": ask.user, "tags": list(ask.access.tags(ask.user))})

    async def log(self, _: Ask) -> Response:
        return json_response(self._facts.segments())

    async def topics(self, ask: Ask) -> Response:
        """Those that the user may read."""
        return await ask.listed(map(dict[str, object], self._facts.topics(ask.user)))

    async def views(self, ask: Ask) -> Response:
        return await ask.listed(map(dict[str, object], self._facts.views()))

    async def streams(self, ask: Ask) -> Response:
        found = ({"name": one.get("stream"), **one} for one in self._facts.streams())
        return await ask.listed(found)

    def _node(self) -> dict[str, object]:
        numbers = self._facts.metrics()
        return {
            "name": numbers.node,
            "type": "disc",
            "running": True,
            "being_drained": self._facts.health().get("status") == "draining",
            "partitions": [],
            "mem_used": numbers.resident_bytes,
            "mem_limit": numbers.body_cache_limit_bytes,
            "mem_alarm": numbers.memory_alarm,
            "disk_free": numbers.disk_free_bytes,
            "disk_free_alarm": numbers.disk_alarm,
            "exchange_types": self._exchange_types(),
            "auth_mechanisms": [{"name": name, "enabled": True} for name in ("PLAIN", "AMQPLAIN")],
            "applications": [{"name": "penstock", "description": "Penstock", "version": numbers.version}],
            "contexts": [],
            "rates_mode": "basic",
            **self._facts.process(),
        }

    async def nodes(self, ask: Ask) -> Response:
        return json_response([only_columns(self._node(), ask.query)])

    async def node(self, ask: Ask) -> Response:
        """The same by its name."""
        node = self._node()
        return json_response(only_columns(node, ask.query)) if ask.names["name"] == node["name"] else not_found()

    async def cluster_name(self, _: Ask) -> Response:
        """The name of the instance, or the one that tools gave it."""
        numbers = self._facts.metrics()
        return json_response({"name": numbers.cluster or numbers.node})

    async def nothing(self, _: Ask) -> Response:
        return json_response([])

    async def auth(self, _: Ask) -> Response:
        return json_response({"oauth_enabled": False})
