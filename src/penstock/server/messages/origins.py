"""Where a dead letter came from: the queue in which it died first, and the topic that it had there.

Its own header says so (`x-first-death-queue`, `x-death`), where a dead-letter exchange made it; what an action made
says nothing, but the record that ended its cause lies in the same group and names both.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import NamedTuple, cast

import orjson

from penstock.core.state.arrow import blobs, numbers, pick, texts, whole
from penstock.core.state.plain import unwrap
from penstock.errors import ProtocolError
from penstock.records import properties as header_codec
from penstock.records.kinds import NO_VIA, PUBLISHES, Kind
from penstock.records.tables import Table
from penstock.server.messages.story import Kept

_DEATHS = ("x-first-death-", "x-last-death-")


class Origin(NamedTuple):
    """Where a message was before it died for the first time."""

    queue: str
    exchange: str
    key: str


def of_header(properties: bytes) -> tuple[Origin | None, bytes]:
    """The origin that a header tells, and the header without the history of its deaths."""
    try:
        header = header_codec.decode(properties)
    except ProtocolError:
        return None, properties
    headers: Table = dict(header.headers or {})
    deaths = headers.pop("x-death", None)
    first, reason = headers.get("x-first-death-queue"), headers.get("x-first-death-reason")
    for name in [name for name in headers if name.startswith(_DEATHS)]:
        del headers[name]
    if not isinstance(deaths, list) or not deaths:
        return None, properties
    entries = [entry for entry in deaths if isinstance(entry, dict)]
    if not entries:
        return None, properties
    oldest = next((one for one in entries if one.get("queue") == first and one.get("reason") == reason), entries[-1])
    keys = oldest.get("routing-keys")
    key = _text(keys[0]) if isinstance(keys, list) and keys else ""
    header.headers = headers or None
    return Origin(_text(oldest.get("queue")), _text(oldest.get("exchange")), key), header_codec.encode(header)


def of_record(log: Kept, lsn: int) -> Origin | None:
    """The origin that the record tells which ended the cause of this message; None when it is no dead letter."""
    batch = next(log.batches(lsn, log.durable + 1), None)
    if batch is None:
        return None
    table = whole(batch)
    some = pick(table, numbers(table, "kind") == int(Kind.EXPIRE), ["name", "properties"])
    for name, header in zip(texts(some, "name"), blobs(some, "properties"), strict=True):
        told = cast("dict[str, object]", unwrap(orjson.loads(header))) if header else {}
        for cause, new in cast("list[tuple[int, int]]", told.get("dead") or ()):
            if new == lsn:
                return _of_cause(log, cause, name)
    return None


def _of_cause(log: Kept, cause: int, queue: str) -> Origin | None:
    batch = next(log.batches(cause, cause + 1), None)
    if batch is None:
        return Origin(queue, "", queue)  # retention has passed it: its queue is known
    table = whole(batch)
    if Kind(int(numbers(table, "kind")[0])) not in PUBLISHES:
        return None
    via = int(numbers(table, "via", NO_VIA)[0])
    exchange = log.vias.known.get(via, ("", ""))[1] if via != NO_VIA else ""
    return Origin(queue, exchange, texts(table, "name")[0])


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
