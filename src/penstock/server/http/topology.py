"""RabbitMQ's paths of queues, their consumers, exchanges, bindings and super streams, and our own of a queue.

The default exchange, which has no name, is `amq.default` in a path, as there.  A binding has no name either;
`properties_key` stands for one: its routing key (`~` for an empty one), and when it has arguments `~` and a digest of
them.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, cast
from urllib.parse import quote, quote_plus

import orjson

from penstock.errors import InvalidArgument, PreconditionFailed, Refused
from penstock.operations import queues
from penstock.operations.topology import BIND, BINDINGS, DECLARE_EXCHANGE, DELETE_EXCHANGE, EXCHANGES, UNBIND
from penstock.records.rights import LOGIN, SEES, Thing, uses
from penstock.server.http.routes import DEFAULT_NAME, Ask, Deriving, Row, exchange_name
from penstock.units import parted_address, wait_of
from penstock.wire.fields import short
from penstock.wire.http.bodies import Lenient
from penstock.wire.http.lists import COLUMNS, chosen_of, created, done, gathered, json_response, not_found, only_columns

if TYPE_CHECKING:
    from starlette.responses import Response

    from penstock.server.http.facts import Facts
    from penstock.server.operating import Operating


DIGEST = 22
"""Characters of a digest of arguments."""


# -- queues


def _pause(fields: Lenient) -> Mapping[str, object]:
    """`{"for": "5m"}`, or for good."""
    text = fields.only("for").optional_text("for")
    return {"wait": None if text is None else wait_of(text, "for", 1)}


def of_queues(of: Deriving) -> Sequence[Row]:
    queue, at = "/api/queues/{vhost}/{name}", {"name": "queue"}
    return (
        of.put(queue, queues.DECLARE_BY_ARGUMENTS, "Declare a queue", None, at, body="durable auto_delete arguments"),
        of.do("DELETE", queue, queues.DELETE, "Delete a queue", None, at,
              flags={"if-unused": "if_unused", "if-empty": "if_empty"}),
        of.do("DELETE", f"{queue}/contents", queues.PURGE, "Purge a queue", None, at),
        of.do("POST", f"{queue}/pause", queues.PAUSE, "Deliver nothing: for a while (for), or for good", _pause, at,
              body="for", answer=json_response, own=True),
        of.list(f"{queue}/bindings", BINDINGS, "Bindings of a queue", at, shape=binding_item),
    )  # fmt: skip


# -- exchanges


def exchange_item(facts: Mapping[str, object]) -> dict[str, object]:
    """One exchange with RabbitMQ's field names."""
    return {"policy": None, "user_who_performed_action": "", **facts}


def _whole_exchange(facts: Mapping[str, object]) -> dict[str, object]:
    return {**exchange_item(facts), "incoming": [], "outgoing": []}


def of_exchanges(of: Deriving, own: Deriving) -> Sequence[Row]:
    """Exchanges.  own: what is not found is told by name."""
    every, one, at = "/api/exchanges", "/api/exchanges/{vhost}/{name}", {"name": "exchange"}
    return (
        of.list(every, EXCHANGES, "Every exchange", shape=exchange_item),
        of.list(f"{every}/{{vhost}}", EXCHANGES, "Every exchange of a vhost", shape=exchange_item),
        of.one(one, EXCHANGES, "One exchange", at, shape=_whole_exchange, exchange=None),
        own.put(one, DECLARE_EXCHANGE, "Declare an exchange", None, at, thing="an exchange",
                body="type durable auto_delete internal arguments", right=DELETE_EXCHANGE.right),  # type: ignore[arg-type]
        of.do("DELETE", one, DELETE_EXCHANGE, "Delete an exchange", None, at, flags={"if-unused": "if_unused"},
              there=True),
        of.list(f"{one}/bindings/source", BINDINGS, "Bindings that begin at an exchange", {"name": "source"},
                shape=binding_item),
        of.list(f"{one}/bindings/destination", BINDINGS, "Bindings that end at an exchange", {"name": "destination"},
                shape=binding_item),
    )  # fmt: skip


# -- bindings


def properties_key(key: str, arguments: Mapping[str, object]) -> str:
    """What stands for the name of a binding."""
    if not arguments:
        return quote_plus(key) or "~"
    canonical = orjson.dumps(arguments, default=str, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    digest = base64.urlsafe_b64encode(hashlib.sha256(canonical).digest()).decode()
    return f"{quote_plus(key)}~{digest[:DIGEST]}"


def binding_item(facts: Mapping[str, object]) -> dict[str, object]:
    """One binding with RabbitMQ's field names."""
    arguments = cast("Mapping[str, object]", facts["arguments"])
    return {**facts, "properties_key": properties_key(cast("str", facts["routing_key"]), arguments)}


def of_bindings(of: Deriving, house: Operating) -> Sequence[Row]:
    """Bindings of all, and between an exchange and what is bound to it."""
    found = [
        of.list("/api/bindings", BINDINGS, "Every binding", shape=binding_item),
        of.list("/api/bindings/{vhost}", BINDINGS, "Every binding of a vhost", shape=binding_item),
    ]
    kinds: Mapping[str, Thing] = {"q": "queue", "e": "exchange"}
    for letter, kind in kinds.items():
        path, pair = f"/api/bindings/{{vhost}}/e/{{source}}/{letter}/{{destination}}", _Pair(house, letter)
        binds = uses(("write", kind, "destination"), ("read", "exchange", "source"))
        found += [
            Row("GET", path, pair.all, f"Bindings between an exchange and a {kind}", SEES, many=True),
            Row("POST", path, pair.bind, f"Bind a {kind}", binds, "routing_key arguments", operation=BIND.name),
            Row("GET", f"{path}/{{props}}", pair.one, "One binding by its properties_key", SEES, query=COLUMNS),
            Row("DELETE", f"{path}/{{props}}", pair.unbind, "Remove a binding", binds, operation=UNBIND.name),
        ]
    return found


class _Pair:
    """The handlers for an exchange and what is bound to it, of one kind."""

    def __init__(self, house: Operating, letter: str) -> None:
        self._house = house
        self._letter = letter

    def _ends(self, ask: Ask) -> dict[str, object]:
        name = ask.names["destination"]
        end = {"queue": name} if self._letter == "q" else {"destination": exchange_name(name)}
        return {"vhost": ask.names["vhost"], **end}

    async def _found(self, ask: Ask) -> list[dict[str, object]]:
        asked = {**self._ends(ask), "source": exchange_name(ask.names["source"]), "between": True}
        found = await self._house.operate(BINDINGS, ask.who, asked)
        return [binding_item(one) for one in found]

    async def all(self, ask: Ask) -> Response:
        return await ask.listed(await self._found(ask))

    async def bind(self, ask: Ask) -> Response:
        """201 with the place of the binding; the same twice is one."""
        fields = await ask.fields()
        key, arguments = short(fields.text("routing_key", ""), "routing_key"), fields.table("arguments")
        ends, source = self._ends(ask), exchange_name(ask.names["source"])
        asked = {**ends, "exchange": source, "key": key, "arguments": arguments}
        await self._house.operate(BIND, ask.who, asked)
        end = str(ends["queue"] if self._letter == "q" else ends["destination"])
        parts = (str(ends["vhost"]), "e", source or DEFAULT_NAME, self._letter, end, properties_key(key, arguments))
        return created("/api/bindings/" + "/".join(quote(part, safe="") for part in parts))

    async def _one(self, ask: Ask) -> dict[str, object] | None:
        """By its key; a part of a path is decoded, so a quoted key is compared in both forms."""
        wanted = ask.names["props"]
        for one in await self._found(ask):
            if wanted in {one["properties_key"], one["routing_key"] if not one["arguments"] else None}:
                return one
        return None

    async def one(self, ask: Ask) -> Response:
        found = await self._one(ask)
        return not_found() if found is None else json_response(only_columns(found, ask.query))

    async def unbind(self, ask: Ask) -> Response:
        found = await self._one(ask)
        if found is None:
            return not_found()
        asked = {
            **self._ends(ask), "exchange": exchange_name(ask.names["source"]), "key": found["routing_key"],
            "arguments": found["arguments"],
        }  # fmt: skip
        await self._house.operate(UNBIND, ask.who, asked)
        return done()


def rows(facts: Facts) -> Sequence[Row]:
    doors = _Queues(facts)
    return (
        Row("GET", "/api/queues", doors.every, "Every queue", LOGIN, many=True),
        Row("GET", "/api/queues/detailed", doors.every, "Every queue with all of its fields", LOGIN, many=True),
        Row("GET", "/api/queues/{vhost}", doors.every, "Every queue of a vhost", SEES, many=True),
        Row("GET", "/api/queues/{vhost}/{name}", doors.one, "One queue with its consumers", SEES, query=COLUMNS),
    )


class _Queues:
    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    async def one(self, ask: Ask) -> Response:
        vhost, name = ask.names["vhost"], ask.names["name"]
        found = self._facts.queue(vhost, name, ask.user)
        if found is None:
            return not_found()
        node = self._facts.node
        details = await gathered(consumer_item(one, node) for one in self._facts.consumers(ask.user, vhost, name))
        item = {**queue_item(found, node), "consumer_details": details}
        return json_response(only_columns(item, ask.query))

    async def every(self, ask: Ask) -> Response:
        """Of all vhosts, or of one."""
        node, sort, vhost = self._facts.node, ask.query.get("sort", ""), ask.names.get("vhost")
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
    `ready_bytes leased_bytes bytes idle_since head_message_timestamp message_stats settings
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
        "consumer_utilisation",
        "consumer_capacity",
        "idle_since",
        "head_message_timestamp",
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
        found, node = facts.consumers(ask.user, ask.names.get("vhost")), facts.node
        return await ask.listed(consumer_item(one, node) for one in found)

    return (
        Row("GET", "/api/consumers", every, "Every consumer", LOGIN, many=True),
        Row("GET", "/api/consumers/{vhost}", every, "Every consumer of a vhost", SEES, many=True),
    )


def consumer_item(facts: Mapping[str, object], node: str) -> dict[str, object]:
    """One consumer with RabbitMQ's field names.

    Reads `kind vhost queue tag client user ack_required exclusive prefetch active arguments unacknowledged`; `client`
    is an address and perhaps the number of a channel, `host:port/number`; `connection`, where it has one, is the name
    that `/api/connections` gives it.  `kind` is `queue` or `replay`: the latter takes nothing out of a queue, and has
    `state` (behind, live, paused), `bookmark` (all up to it was sent or did not match) and `lag` (durable records of
    the log after that).  What RabbitMQ has no name for comes under `penstock`.
    """
    given = dict(facts)
    client = cast("str", given.pop("client"))
    peer, _, number = client.rpartition("/")
    peer, number = (peer, number) if number.isascii() and number.isdigit() else (client, "")
    host, port = parted_address(peer)
    connection = str(given.pop("connection", peer))
    active = given.pop("active")
    return {
        "arguments": given.pop("arguments", {}),
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


# -- super streams: an exchange and the streams that are its partitions

PARTITIONS_MOST = 1000

PARTITION_ORDER = "x-stream-partition-order"
"""An argument of a binding: the how many-th partition it leads to."""


def of_super_streams(house: Operating) -> Sequence[Row]:
    """Streams that are parts of one: an exchange, and what is bound to it."""

    async def declare(ask: Ask) -> Response:
        """As RabbitMQ does: `partitions` with the keys 0, 1, 2 ..., or one for each of `binding-keys`.

        The answer names them, in their order, which RabbitMQ's does not: who declares by numbers learns what to read.
        """
        fields = (await ask.fields()).only("partitions", "binding-keys", "arguments", "type")
        vhost, name, who = ask.names["vhost"], ask.names["name"], ask.who
        keys, arguments = _partitions(fields), {"x-queue-type": "stream", **fields.table("arguments")}
        if (other := arguments["x-queue-type"]) != "stream":
            raise InvalidArgument(f"x-queue-type is {other!r}: the partitions of a super stream are streams")
        kind = fields.choice("type", ("direct", "x-super-stream"), "direct")
        partitions = {short(f"{name}-{key}", "the name of a partition"): key for key in keys}
        asked = {"vhost": vhost, "exchange": name, "type": kind, "arguments": {"x-super-stream": True}}
        answer = await house.operate(DECLARE_EXCHANGE, who, asked)
        there = await house.operate(BINDINGS, who, {"vhost": vhost, "source": name})
        before = {(one["destination"], one["routing_key"]) for one in there}
        made, bindings = list[str](), list[Mapping[str, object]]()
        try:
            for place, (part, key) in enumerate(partitions.items()):
                stream = {"vhost": vhost, "queue": part}
                declared = await house.operate(queues.DECLARE_BY_ARGUMENTS, who, {**stream, "arguments": arguments})
                if declared["new"]:
                    made.append(part)
                else:
                    _no_other_s(name, await house.operate(BINDINGS, who, stream))
                bound = {**stream, "exchange": name, "key": key, "arguments": {PARTITION_ORDER: place}}
                await house.operate(BIND, who, bound)
                if (part, key) not in before:
                    bindings.append(bound)
        except Refused:
            for one in bindings:
                await house.operate(UNBIND, who, one)
            for part in made:
                with suppress(PreconditionFailed):  # somebody uses it already
                    unused = {"vhost": vhost, "queue": part, "if_unused": True, "if_empty": True}
                    await house.operate(queues.DELETE, who, unused)
            if answer["new"]:
                await house.operate(DELETE_EXCHANGE, who, {"vhost": vhost, "exchange": name})
            raise
        parts = [{"name": part, "routing_key": key} for part, key in partitions.items()]
        told = {"name": name, "vhost": vhost, "type": kind, "partitions": parts}
        return json_response(told, 201 if answer["new"] else 200)

    path, body = "/api/stream/super-streams/{vhost}/{name}", "partitions binding-keys arguments type"
    right = uses(("configure", "exchange", "name"))
    return [Row("PUT", path, declare, "Declare a super stream with its partitions", right, body)]


def _no_other_s(name: str, bindings: Iterable[Mapping[str, object]]) -> None:
    """PreconditionFailed where a stream is a partition already, of another super stream: `a` with the key `b-0`, and
    `a-b` with the key `0`, would both have what is published to either."""
    for one in bindings:
        arguments = cast("Mapping[str, object]", one["arguments"])
        if PARTITION_ORDER in arguments and one["source"] != name:
            raise PreconditionFailed(
                f"stream '{one['destination']}' is a partition of the super stream '{one['source']}', "
                f"so it cannot be one of '{name}': take another name, or other keys"
            )


def _partitions(fields: Lenient) -> Sequence[str]:
    """The keys of the partitions that are asked for."""
    text = fields.text("binding-keys", "")
    count = fields.number("partitions", 1, PARTITIONS_MOST) if "partitions" in fields.values else 0
    if bool(text) == bool(count):
        raise InvalidArgument("a super stream has either partitions, a number, or binding-keys, texts with commas")
    keys = [one.strip() for one in text.split(",")] if text else [str(one) for one in range(count)]
    if len(set(keys)) < len(keys) or len(keys) > PARTITIONS_MOST:
        raise InvalidArgument(f"binding-keys: {len(keys)} keys, {len(set(keys))} different; {PARTITIONS_MOST} at most")
    return keys
