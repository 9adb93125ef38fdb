"""Queues and their consumers as RabbitMQ's management API shows them: `/api/queues`, `/api/consumers`.

Messages one at a time, published into an exchange or fetched from a queue, are meant for a person with a browser, as at
the peer: no confirms but the answer, a few messages at once.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

from starlette.responses import Response

from penstock.errors import InvalidArgument
from penstock.records.causes import death_reason
from penstock.records.dataclass import dataclass
from penstock.records.field_tables import FieldValue
from penstock.records.properties import Properties, decode, encode
from penstock.records.rights import LOGIN, SEES, USES, uses
from penstock.wire.fields import Lenient, short, shown
from penstock.wire.http.facts import ServerFacts, node_of
from penstock.wire.http.lists import chosen_of, gathered, json_response, not_found, only_columns
from penstock.wire.http.routes import LARGE_MOST, Ask, Row, exchange_name


def rows(facts: ServerFacts) -> Sequence[Row]:
    doors = _Queues(facts)
    return (
        Row("GET", "/api/queues", doors.every, "Every queue", LOGIN, many=True),
        Row("GET", "/api/queues/{vhost}", doors.of_vhost, "Every queue of a vhost", SEES, many=True),
        Row("GET", "/api/queues/{vhost}/{name}", doors.one, "One queue with its consumers", SEES),
    )


class _Queues:
    def __init__(self, facts: ServerFacts) -> None:
        self._facts = facts

    async def every(self, ask: Ask) -> Response:
        return await self._listed(ask, None)

    async def of_vhost(self, ask: Ask) -> Response:
        vhost = ask.names["vhost"]
        return await self._listed(ask, vhost) if vhost in self._facts.vhosts() else not_found()

    async def one(self, ask: Ask) -> Response:
        vhost, name = ask.names["vhost"], ask.names["name"]
        found = self._facts.queue(vhost, name, ask.user)
        if found is None:
            return not_found()
        node = node_of(self._facts)
        details = await gathered(consumer_item(one, node) for one in self._facts.consumers(ask.user, vhost, name))
        item = {**queue_item(found, node), "consumer_details": details}
        return json_response(only_columns(item, ask.query))

    async def _listed(self, ask: Ask, vhost: str | None) -> Response:
        node, sort = node_of(self._facts), ask.query.get("sort", "")
        if "page" in ask.query and (sort in SHORT or sort.startswith("message_stats.")):
            return await self._page(ask, vhost, sort, node)
        queues = self._facts.queues(ask.user)
        items = (queue_item(queue, node) for queue in queues if vhost in {None, queue.get("vhost", "/")})
        return await ask.listed(items)

    async def _page(self, ask: Ask, vhost: str | None, sort: str, node: str) -> Response:
        """One page: of the queues that are on others no more is looked at than what they are chosen by."""
        found = await gathered(self._facts.short_queues(ask.user, vhost, sort))
        page = cast("dict[str, object]", await chosen_of(found, {**ask.query, "columns": ""}))
        shown = cast("list[dict[str, Callable[[], Mapping[str, object]]]]", page["items"])
        page["items"] = [only_columns(queue_item(one["make"](), node), ask.query) for one in shown]
        return json_response(page)


SHORT = frozenset(
    {"", "name", "vhost", "messages", "messages_ready", "messages_unacknowledged", "consumers", "penstock.delayed"}
)
"""Sorting by these needs no more of a queue than `ServerFacts.short_queues` has."""


def queue_item(facts: Mapping[str, object], node: str) -> dict[str, object]:
    """One queue with RabbitMQ's field names.

    Reads `name vhost durable auto_delete exclusive arguments ready leased delayed consumers` and, where present,
    `ready_bytes leased_bytes bytes consumer_details idle_since head_message_timestamp memory message_stats settings
    single_active_consumer_tag state`; whatever else there is comes under `penstock`.
    """
    given = dict(facts)

    def number(key: str) -> int:
        value = given.pop(key, 0)
        return value if isinstance(value, int) else 0

    ready, leased, delayed = number("ready"), number("leased"), number("delayed")
    item: dict[str, object] = {
        "name": given.pop("name"),
        "vhost": given.pop("vhost", "/"),
        "type": given.pop("type", "classic"),
        "node": node,
        "state": given.pop("state", "running"),
        "durable": given.pop("durable", True),
        "auto_delete": given.pop("auto_delete", False),
        "exclusive": given.pop("exclusive", False),
        "arguments": given.pop("arguments", {}),
        "policy": given.pop("policy", None),
        "operator_policy": given.pop("operator_policy", None),
        "effective_policy_definition": given.pop("effective_policy_definition", {}),
        "messages": ready + leased + delayed,
        "messages_ready": ready,
        "messages_unacknowledged": leased,
        "consumers": number("consumers"),
        "single_active_consumer_tag": given.pop("single_active_consumer_tag", None),
        "message_stats": given.pop("message_stats", {}),
    }
    for optional in (
        "consumer_details",
        "consumer_utilisation",
        "consumer_capacity",
        "idle_since",
        "head_message_timestamp",
        "memory",
        "slave_nodes",
    ):
        if optional in given:
            item[optional] = given.pop(optional)
    if "ready_bytes" in given:  # what is not measured is not told, least of all as nothing
        ready_bytes, leased_bytes = number("ready_bytes"), number("leased_bytes")
        item["message_bytes"] = number("bytes") if "bytes" in given else ready_bytes + leased_bytes
        item["message_bytes_ready"], item["message_bytes_unacknowledged"] = ready_bytes, leased_bytes
    item["penstock"] = {"delayed": delayed, **given}
    return item


def consumer_rows(facts: ServerFacts) -> Sequence[Row]:
    async def every(ask: Ask) -> Response:
        node = node_of(facts)
        return await ask.listed(consumer_item(one, node) for one in facts.consumers(ask.user, None))

    async def of_vhost(ask: Ask) -> Response:
        vhost, node = ask.names["vhost"], node_of(facts)
        if vhost not in facts.vhosts():
            return not_found()
        return await ask.listed(consumer_item(one, node) for one in facts.consumers(ask.user, vhost))

    return (
        Row("GET", "/api/consumers", every, "Every consumer", LOGIN, many=True),
        Row("GET", "/api/consumers/{vhost}", of_vhost, "Every consumer of a vhost", SEES, many=True),
    )


def consumer_item(facts: Mapping[str, object], node: str) -> dict[str, object]:
    """One consumer with RabbitMQ's field names.

    Reads `kind vhost queue tag client user ack_required exclusive prefetch active unacknowledged`; `client` is an
    address and perhaps the number of a channel, `host:port/number`; `connection`, where it has one, is the name that
    `/api/connections` gives it.  `kind` is `queue` or `replay`: the latter takes nothing out of a queue, and has
    `state` (behind, live, paused), `bookmark` (all up to it was sent or did not match) and `lag` (durable records of
    the log after that).  What RabbitMQ has no name for comes under `penstock`.
    """
    given = dict(facts)
    client = cast("str", given.pop("client"))
    peer, _, number = client.rpartition("/")
    peer, number = (peer, number) if number.isascii() and number.isdigit() else (client, "")
    host, _, port = peer.rpartition(":")
    connection = str(given.pop("connection", peer))
    active = given.pop("active")
    return {
        "arguments": {},
        "ack_required": given.pop("ack_required"),
        "active": active,
        "activity_status": "up" if active else "waiting",
        "channel_details": {
            "connection_name": connection,
            "name": f"{connection} ({number})" if number else connection,
            "node": node,
            "number": int(number or 0),
            "peer_host": host,
            "peer_port": int(port) if port.isascii() and port.isdigit() else 0,
            "user": given.pop("user"),
        },
        "consumer_tag": given.pop("tag"),
        "exclusive": given.pop("exclusive"),
        "prefetch_count": given.pop("prefetch"),
        "queue": {"name": given.pop("queue"), "vhost": given.pop("vhost")},
        "penstock": given,
    }


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


def message_rows(messages: Messages) -> Sequence[Row]:
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
