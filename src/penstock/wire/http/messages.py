"""Messages one at a time: publishing into an exchange, getting from a queue.

Meant for a person with a browser, as at the peer: no confirms but the answer, a few messages at once.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from starlette.responses import Response

from penstock.errors import InvalidArgument
from penstock.records.causes import death_reason
from penstock.records.dataclass import dataclass
from penstock.records.field_tables import FieldValue
from penstock.records.properties import Properties, decode, encode
from penstock.records.rights import USES, uses
from penstock.wire.fields import Lenient, short, shown
from penstock.wire.http.lists import json_response
from penstock.wire.http.routes import LARGE_MOST, Ask, Row, exchange_name

COUNT_MOST = 10_000
"""Messages of one get; their bytes have a bound of their own."""

ACK_MODES = ("ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false")

TEXTS = (
    "content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id", "type", "user_id",
    "app_id", "cluster_id",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Got:
    """One message of a queue."""

    exchange: str
    key: str
    header: bytes  # the encoded properties
    body: bytes
    redelivered: bool
    left: int  # ready ones behind it


class Messages(Protocol):
    """What these paths ask of the server."""

    async def publish(self, user: str, vhost: str, exchange: str, key: str, header: bytes, body: bytes) -> bool:
        """Store a message; whether a queue or a topic took it.  Raises QueueFull and whatever else refuses it."""
        ...

    async def get(self, user: str, vhost: str, name: str, count: int, mode: str) -> Sequence[Got]:
        """Up to `count` messages of a queue, settled as the mode says."""
        ...


def rows(messages: Messages) -> Sequence[Row]:
    async def publish(ask: Ask) -> Response:
        fields = await ask.fields(LARGE_MOST)
        key = short(fields.text("routing_key"), "routing_key")
        body = payload(fields)
        header = encode(properties(fields))
        exchange = exchange_name(ask.names["name"])
        routed = await messages.publish(ask.user, ask.names["vhost"], exchange, key, header, body)
        return json_response({"routed": routed})

    async def get(ask: Ask) -> Response:
        fields = await ask.fields()
        if "ackmode" not in fields.values and "requeue" in fields.values:  # before 3.7
            mode = "reject_requeue_true" if fields.flag("requeue", True) else "ack_requeue_false"
        else:
            mode = fields.choice("ackmode", ACK_MODES)
        count = fields.number("count", 0, COUNT_MOST)
        encoding = fields.choice("encoding", ("auto", "base64"))
        truncate = fields.count("truncate", -1, 0, 1 << 40)
        found = await messages.get(ask.user, ask.names["vhost"], ask.names["name"], count, mode)
        return json_response([message_item(one, encoding, truncate) for one in found])

    path = "/api/exchanges/{vhost}/{name}/publish"
    return (
        Row("POST", path, publish, "Publish a message", USES, "properties routing_key payload payload_encoding"),
        Row("POST", "/api/queues/{vhost}/{name}/get", get, "Get messages", uses(("read", "queue", "name")),
            "count ackmode encoding truncate"),
    )  # fmt: skip


def payload(fields: Lenient) -> bytes:
    """The body of a message.  Raises InvalidArgument."""
    encoding = fields.choice("payload_encoding", ("string", "base64"))
    text = fields.text("payload")
    if encoding == "string":
        return text.encode()
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgument(f"payload is {shown(text)}, not base64") from None


def properties(fields: Lenient) -> Properties:
    """Basic properties by their names; what has no such name is refused, since nobody would see it."""
    given = fields.table("properties")
    unknown = given.keys() - {*TEXTS, "headers", "delivery_mode", "priority", "timestamp"}
    if unknown:
        raise InvalidArgument(f"properties: {shown(min(unknown))} is no property of a message")
    some = Lenient(given, "properties: ")
    texts = {name: some.text(name) for name in TEXTS if given.get(name) is not None}
    headers = some.table("headers")

    def number(name: str, high: int) -> int | None:
        return None if given.get(name) is None else some.number(name, 0, high)

    return Properties(
        **texts,  # pyright: ignore[reportArgumentType]  # all of them are texts
        headers=cast("Mapping[str, FieldValue]", headers) or None,
        delivery_mode=number("delivery_mode", 255),
        priority=number("priority", 255),
        timestamp=number("timestamp", 2**64 - 1),
    )


def message_item(got: Got, encoding: str, truncate: int) -> dict[str, object]:
    """One message with RabbitMQ's field names, and for a dead letter `reason`: why it died.

    truncate: bytes of the payload that are shown; -1: all.
    """
    part = got.body if truncate < 0 else got.body[:truncate]
    text: str | None = None
    if encoding == "auto":
        try:
            text = part.decode()
        except UnicodeDecodeError:
            text = None
    header = decode(got.header)
    why = death_reason(header.headers)
    return {
        **({} if why is None else {"reason": why}),
        "payload_bytes": len(got.body),
        "redelivered": got.redelivered,
        "exchange": got.exchange,
        "routing_key": got.key,
        "message_count": got.left,
        "properties": properties_item(header),
        "payload": base64.b64encode(part).decode() if text is None else text,
        "payload_encoding": "base64" if text is None else "string",
    }


def properties_item(p: Properties) -> Mapping[str, object]:
    """The properties that there are, by name."""
    names = (*TEXTS, "headers", "delivery_mode", "priority", "timestamp")
    return {name: value for name in names if (value := getattr(p, name)) is not None}
