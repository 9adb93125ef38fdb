"""Health checks: `/api/health/checks/...`, and `/api/aliveness-test/{vhost}`.

A check that holds is 200 with `{"status": "ok"}`, one that does not 503 with a reason.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from starlette.responses import Response

from penstock.errors import InvalidArgument
from penstock.records.rights import LOGIN, USES
from penstock.wire.http.facts import ServerFacts
from penstock.wire.http.lists import json_response, not_found
from penstock.wire.http.routes import Ask, Row

TEST_QUEUE = "aliveness-test"

UNITS_S = {"days": 86_400, "weeks": 7 * 86_400, "months": 30 * 86_400, "years": 365 * 86_400}
"""Seconds of the units in which RabbitMQ's tool asks."""


Declare: TypeAlias = "Callable[[str, str, str], Awaitable[None]]"
"""Declares a queue, for a user in a vhost."""


class Talk(Protocol):
    """What the test of a vhost asks of the server for messages."""

    async def publish(self, user: str, vhost: str, exchange: str, key: str, header: bytes, body: bytes) -> bool: ...

    async def get(self, user: str, vhost: str, name: str, count: int, mode: str) -> Sequence[object]: ...


def rows(facts: ServerFacts, declare: Declare, talk: Talk) -> Sequence[Row]:
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
