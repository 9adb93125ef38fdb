"""The server as a whole: `/api/overview`, `/api/nodes`, who asks, the names of cluster and features.

Health checks (`/api/health/checks/...`, `/api/aliveness-test/{vhost}`): one that holds is 200 with
`{"status": "ok"}`, one that does not 503 with a reason.

Definitions (`/api/definitions`): what there is as one JSON document, and taking such a document over.  That merges: it
adds and replaces, never removes; a queue or exchange that is there with other properties is left alone.  All of a
document is taken, or nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

from starlette.responses import Response

from penstock.errors import InvalidArgument
from penstock.records.rights import ADMINISTERS, LOGIN, MONITORING, MONITORS, RULES, USES, WATCHES
from penstock.wire.fields import Lenient
from penstock.wire.http.facts import Metrics, ServerFacts
from penstock.wire.http.lists import done, encoded, gathered, json_bytes, json_response, not_found, only_columns
from penstock.wire.http.routes import LARGE_MOST, Ask, Row

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


TEST_QUEUE = "aliveness-test"

UNITS_S = {"days": 86_400, "weeks": 7 * 86_400, "months": 30 * 86_400, "years": 365 * 86_400}
"""Seconds of the units in which RabbitMQ's tool asks."""


Declare: TypeAlias = "Callable[[str, str, str], Awaitable[None]]"
"""Declares a queue, for a user in a vhost."""


class Talk(Protocol):
    """What the test of a vhost asks of the server for messages."""

    async def publish(self, user: str, vhost: str, exchange: str, key: str, header: bytes, body: bytes) -> bool: ...

    async def get(self, user: str, vhost: str, name: str, count: int, mode: str) -> Sequence[object]: ...


def health_rows(facts: ServerFacts, declare: Declare, talk: Talk) -> Sequence[Row]:
    doors = _Checks(facts, declare, talk)
    checks = "/api/health/checks"
    return (
        Row("GET", f"{checks}/alarms", doors.alarms, "No alarm in the cluster", LOGIN),
        Row("GET", f"{checks}/local-alarms", doors.alarms, "No alarm here", LOGIN),
        Row("GET", f"{checks}/virtual-hosts", doors.running, "All vhosts run", LOGIN),
        Row("GET", f"{checks}/is-in-service", doors.running, "Publishes are taken", LOGIN),
        Row("GET", f"{checks}/ready-to-serve-clients", doors.running, "Publishes are taken", LOGIN),
        Row("GET", f"{checks}/below-node-connection-limit", doors.fine, "There is no such limit", LOGIN),
        Row("GET", f"{checks}/node-is-quorum-critical", doors.fine, "There is one node", LOGIN),
        Row("GET", f"{checks}/node-is-mirror-sync-critical", doors.fine, "There is one node", LOGIN),
        Row(
            "GET",
            f"{checks}/quorum-queues-without-elected-leaders/all-vhosts",
            doors.fine,
            "Each has its leader",
            LOGIN,
        ),
        Row(
            "GET",
            f"{checks}/certificate-expiration/{{within}}/{{unit}}",
            doors.certificate,
            "No certificate ends so soon",
            LOGIN,
        ),
        Row("GET", f"{checks}/port-listener/{{port}}", doors.port, "Somebody listens on a port", LOGIN),
        Row("GET", f"{checks}/protocol-listener/{{protocol}}", doors.protocol, "A door is open for a protocol", LOGIN),
        Row("GET", "/api/aliveness-test/{vhost}", doors.alive, "Declare, publish and consume", USES),
    )


class _Checks:
    def __init__(self, facts: ServerFacts, declare: Declare, talk: Talk) -> None:
        self._facts = facts
        self._declare = declare
        self._talk = talk

    async def alarms(self, _: Ask) -> Response:
        """The disk has room, the log can be written, and publishers do not wait for memory."""
        health = self._facts.health()
        status = health.get("status")
        if status in {"ok", "draining", "recovering"}:
            if self._facts.metrics().memory_alarm:
                alarm = {"node": health.get("name"), "resource": "memory"}
                return _failed("server.memory is used up: publishers wait", alarms=[alarm])
            return json_response({"status": "ok"})
        alarm = {"node": health.get("name"), "resource": "disk" if status == "full" else "log"}
        return _failed(f"the server is {status}", alarms=[alarm])

    async def running(self, _: Ask) -> Response:
        if self._facts.ready():
            return json_response({"status": "ok"})
        return _failed(f"the server is {self._facts.health().get('status')}")

    async def fine(self, _: Ask) -> Response:
        return json_response({"status": "ok"})

    async def port(self, ask: Ask) -> Response:
        text = ask.names["port"]
        if not (text.isascii() and text.isdecimal() and len(text) < 6):
            raise InvalidArgument(f"port is {text[:60]!r}, not a number from 0 to 65535")
        ports = [listener["port"] for listener in self._facts.listeners()]
        if int(text) in ports:
            return json_response({"status": "ok", "port": int(text)})
        return _failed(f"no active listener on port {text}", missing=int(text), ports=ports)

    async def certificate(self, ask: Ask) -> Response:
        """None of the server's ends within so long; there may be none."""
        within, unit = ask.names["within"], ask.names["unit"].lower()
        unit = unit if unit.endswith("s") else f"{unit}s"
        if unit not in UNITS_S:
            raise InvalidArgument(f"unit is {unit[:60]!r}, not one of {', '.join(UNITS_S)}")
        if not (within.isascii() and within.isdecimal() and 0 < len(within) < 6):
            raise InvalidArgument(f"within is {within[:60]!r}, not a number from 0 to 99999")
        left = self._facts.certificate_left()
        if left is None or left > int(within) * UNITS_S[unit]:
            return json_response({"status": "ok"})
        what = "has ended" if left <= 0 else f"ends in {left / 86400:.1f} days"
        return _failed(f"the server's certificate {what}", seconds_left=round(left))

    async def protocol(self, ask: Ask) -> Response:
        """By name; `amqp091` and `http/prometheus` too."""
        known = {"amqp091": "amqp", "amqp0.9.1": "amqp", "http/prometheus": "http", "amqps": "amqp/ssl"}
        name = ask.names["protocol"].lower()
        name = known.get(name, name)
        protocols = [listener["protocol"] for listener in self._facts.listeners()]
        if name in protocols:
            return json_response({"status": "ok", "protocol": name})
        return _failed(f"no active listener for {name}", missing=name, protocols=protocols)

    async def alive(self, ask: Ask) -> Response:
        """A message goes through a queue."""
        vhost = ask.names["vhost"]
        if vhost not in self._facts.vhosts():
            return not_found()
        await self._declare(ask.user, vhost, TEST_QUEUE)
        routed = await self._talk.publish(ask.user, vhost, "", TEST_QUEUE, b"\x00\x00", b"test_message")
        if routed and await self._talk.get(ask.user, vhost, TEST_QUEUE, 1, "ack_requeue_false"):
            return json_response({"status": "ok"})
        return _failed("the message that was published did not come")


def _failed(reason: str, **more: object) -> Response:
    return json_response({"status": "failed", "reason": reason, **more}, 503)


SECTIONS = (
    "users", "vhosts", "permissions", "topic_permissions", "parameters", "global_parameters", "policies", "queues",
    "exchanges", "bindings",
)  # fmt: skip

OF_A_VHOST = ("parameters", "policies", "queues", "exchanges", "bindings")


class Definitions(Protocol):
    """What these paths ask of the server."""

    def section(self, name: str, vhost: str | None) -> Iterable[Mapping[str, object]]:
        """Objects of one section, of one vhost or of all, with RabbitMQ's field names."""
        ...

    async def take(self, sections: Mapping[str, list[Lenient]], vhost: str | None) -> Sequence[str]:
        """Take a document over; raises what is wrong with it, and nothing has changed.

        What is taken and not the same here is told, a sentence each.
        """
        ...


def definition_rows(facts: ServerFacts, definitions: Definitions) -> Sequence[Row]:
    doors = _Definitions(facts, definitions)
    every, of_vhost = "/api/definitions", "/api/definitions/{vhost}"
    fields = " ".join(SECTIONS)
    return (
        Row("GET", every, doors.every, "Everything that is defined", ADMINISTERS),
        Row("POST", every, doors.take, "Take definitions over", ADMINISTERS, fields),
        Row("GET", of_vhost, doors.of_vhost, "What is defined in a vhost", RULES),
        Row("POST", of_vhost, doors.take_into, "Take definitions over into a vhost", ADMINISTERS, fields),
    )


class _Definitions:
    def __init__(self, facts: ServerFacts, definitions: Definitions) -> None:
        self._facts = facts
        self._definitions = definitions

    async def every(self, _: Ask) -> Response:
        return await self._shown(SECTIONS, None)

    async def of_vhost(self, ask: Ask) -> Response:
        """Its objects do not name the vhost."""
        vhost = ask.names["vhost"]
        return await self._shown(OF_A_VHOST, vhost) if vhost in self._facts.vhosts() else not_found()

    async def _shown(self, sections: Sequence[str], vhost: str | None) -> Response:
        version = self._facts.metrics().version
        head: dict[str, object] = {
            "rabbit_version": RABBITMQ_VERSION,
            "rabbitmq_version": RABBITMQ_VERSION,
            "product_name": "Penstock",
            "product_version": version,
        }
        parts = [bytes(json_response(head).body)[:-1]]
        for name in sections:
            found = await gathered(self._definitions.section(name, vhost))
            items: list[object] = [
                {key: value for key, value in one.items() if vhost is None or key != "vhost"} for one in found
            ]
            parts.append(b'"' + name.encode() + b'":' + await encoded(items))
        headers = {"content-disposition": "attachment; filename=definitions.json"}
        return json_bytes(b",".join(parts) + b"}", 200, headers)

    async def take(self, ask: Ask) -> Response:
        return await self._taken(ask, None)

    async def take_into(self, ask: Ask) -> Response:
        vhost = ask.names["vhost"]
        return await self._taken(ask, vhost) if vhost in self._facts.vhosts() else not_found()

    async def _taken(self, ask: Ask, vhost: str | None) -> Response:
        fields = await ask.fields(LARGE_MOST, once=True)
        if not any(name in fields.values for name in SECTIONS):
            raise InvalidArgument(f"the document has none of {', '.join(SECTIONS)}")
        warnings = await self._definitions.take({name: fields.items(name) for name in SECTIONS}, vhost)
        return json_response({"warnings": warnings}) if warnings else done()
