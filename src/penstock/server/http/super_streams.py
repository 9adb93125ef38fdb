"""Super streams: an exchange and the streams that are its partitions, as RabbitMQ's path declares them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from penstock.errors import InvalidArgument, PreconditionFailed, Refused
from penstock.operations import queues
from penstock.operations.topology import BIND, BINDINGS, DECLARE_EXCHANGE, DELETE_EXCHANGE, UNBIND
from penstock.records.rights import uses
from penstock.server.http.routes import Ask, Row
from penstock.wire.fields import short
from penstock.wire.http.lenient import Lenient
from penstock.wire.http.lists import json_response

if TYPE_CHECKING:
    from starlette.responses import Response

    from penstock.server.operating import Operating


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
