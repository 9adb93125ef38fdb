"""Queues and their consumers as RabbitMQ's management API shows them: `/api/queues`, `/api/consumers`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from penstock.records.rights import LOGIN, SEES
from penstock.wire.http.lists import chosen_of, gathered, json_response, not_found, only_columns
from penstock.wire.http.routes import Ask, Row

if TYPE_CHECKING:
    from starlette.responses import Response

    from penstock.server.http.facts import Facts


def rows(facts: Facts) -> Sequence[Row]:
    doors = _Queues(facts)
    return (
        Row("GET", "/api/queues", doors.every, "Every queue", LOGIN, many=True),
        Row("GET", "/api/queues/{vhost}", doors.of_vhost, "Every queue of a vhost", SEES, many=True),
        Row("GET", "/api/queues/{vhost}/{name}", doors.one, "One queue with its consumers", SEES),
    )


class _Queues:
    def __init__(self, facts: Facts) -> None:
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
        node = self._facts.node
        details = await gathered(consumer_item(one, node) for one in self._facts.consumers(ask.user, vhost, name))
        item = {**queue_item(found, node), "consumer_details": details}
        return json_response(only_columns(item, ask.query))

    async def _listed(self, ask: Ask, vhost: str | None) -> Response:
        node, sort = self._facts.node, ask.query.get("sort", "")
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
"""Sorting by these needs no more of a queue than `Facts.short_queues` has."""


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


def consumer_rows(facts: Facts) -> Sequence[Row]:
    async def every(ask: Ask) -> Response:
        node = facts.node
        return await ask.listed(consumer_item(one, node) for one in facts.consumers(ask.user, None))

    async def of_vhost(ask: Ask) -> Response:
        vhost, node = ask.names["vhost"], facts.node
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
