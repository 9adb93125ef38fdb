"""The management paths of a broker in this process, asked as a tool would ask."""

from __future__ import annotations

import ssl
from typing import Any

import httpx

from penstock.testing import Broker

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts nobody, for addresses without TLS: httpx reads all the CAs of the world for each request that has none."""


class Http:
    """A client of one broker; paths are below `/api/`."""

    def __init__(self, broker: Broker, user: str = "guest", password: str | None = None) -> None:
        self.broker = broker
        self._auth = user, user if password is None else password

    def ask(self, method: str, path: str, body: object = None, **more: Any) -> httpx.Response:
        """An answer, whatever its status."""
        if body is not None:
            more["json"] = body
        return httpx.request(
            method, f"{self.broker.http_url}/api/{path}", verify=NO_TLS, auth=self._auth, timeout=20, **more
        )

    def get(self, path: str) -> Any:
        """The value of a path that is there."""
        answer = self.ask("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def do(self, method: str, path: str, body: object = None, status: int = 204) -> Any:
        """The value of an answer with this status, None without one."""
        answer = self.ask(method, path, body)
        assert answer.status_code == status, (answer.status_code, answer.text)
        return answer.json() if answer.content else None

    def refused(self, method: str, path: str, body: object = None, status: int = 400) -> str:
        """The reason of a refusal with this status."""
        return str(self.do(method, path, body, status)["reason"])

    def publish(self, key: str, payload: str, exchange: str = "amq.default", **properties: object) -> bool:
        """Into `/`; whether it was routed."""
        body = {"routing_key": key, "payload": payload, "payload_encoding": "string", "properties": properties}
        return bool(self.do("POST", f"exchanges/%2F/{exchange}/publish", body, 200)["routed"])

    def take(self, queue: str, count: int = 10, mode: str = "ack_requeue_false", **more: object) -> list[Any]:
        """Messages of a queue of `/`."""
        body = {"count": count, "ackmode": mode, "encoding": "auto", **more}
        found: list[Any] = self.do("POST", f"queues/%2F/{queue}/get", body, 200)
        return found
