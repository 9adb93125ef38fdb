"""Consumers as RabbitMQ's management API shows them: `/api/consumers`, and `consumer_details` of a queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from starlette.responses import Response

from penstock.records.rights import LOGIN, SEES
from penstock.wire.http.answers import not_found
from penstock.wire.http.facts import ServerFacts, node_of
from penstock.wire.http.routes import Ask, Row


def rows(facts: ServerFacts) -> Sequence[Row]:
    """The paths."""

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
