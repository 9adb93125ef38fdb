"""The history of a dead message: headers `x-death`, `x-first-death-*`, `x-last-death-*`, and the rule against cycles.

Field names, types and the order of entries are RabbitMQ's (4.x).  A history counts only if this server wrote it: what a
client sends under these names starts from nothing at the first death.
"""

from __future__ import annotations

from typing import cast

from penstock.errors import ProtocolError
from penstock.records import properties as header_codec
from penstock.records.causes import REJECTED, WHY_HEADER, WHY_MOST, amqp_reason
from penstock.records.dataclass import dataclass
from penstock.records.tables import FieldValue, Long, Table, Timestamp


@dataclass(frozen=True, slots=True)
class Death:
    """One death of one message."""

    queue: str
    reason: str  # in our words
    exchange: str  # that it was published to before
    keys: tuple[str, ...]  # that it was published with: routing key and CC
    time: int  # microseconds since the epoch
    why: str = ""  # in the words of the consumer that refused it


def after_death(properties: bytes, death: Death, *, own: bool) -> tuple[bytes, list[tuple[str, str]]]:
    """The header of the dead letter, and its history as (queue, reason), newest first.

    `own`: the header's history was written by this server.  The `expiration` is gone from the result and kept in the
    history.  Headers that cannot be read are replaced by the history alone.
    """
    try:
        header = header_codec.decode(properties)
    except ProtocolError:
        header = header_codec.Properties(delivery_mode=header_codec.PERSISTENT)
    headers: Table = dict(header.headers or {})
    reason = amqp_reason(death.reason)
    entries: list[Table] = []
    if own and isinstance(past := headers.get("x-death"), list):
        entries = [entry for entry in past if isinstance(entry, dict)]
    else:
        for name in [name for name in headers if name.startswith(("x-first-death-", "x-last-death-"))]:
            del headers[name]
    entry: Table | None = None
    for old in entries:
        if old.get("queue") == death.queue and old.get("reason") == reason:
            entry = old
            entries.remove(old)
            break
    if entry is None:
        entry = {
            "count": Long(1),
            "reason": reason,
            "queue": death.queue,
            "time": Timestamp(death.time // 1_000_000),
            "exchange": death.exchange,
            "routing-keys": cast("FieldValue", list(death.keys)),
        }
        if header.expiration is not None:
            entry["original-expiration"] = header.expiration
    else:
        count = entry.get("count")
        entry["count"] = Long(count + 1 if isinstance(count, int) else 1)
    entries.insert(0, entry)
    headers["x-death"] = cast("FieldValue", entries)
    for field, value in (("reason", reason), ("queue", death.queue), ("exchange", death.exchange)):
        headers.setdefault(f"x-first-death-{field}", value)
        headers[f"x-last-death-{field}"] = value
    headers.pop(WHY_HEADER, None)
    if death.why:
        headers[WHY_HEADER] = death.why[:WHY_MOST]
    header.headers = headers
    header.expiration = None
    history = [(str(one.get("queue")), str(one.get("reason"))) for one in entries]
    return header_codec.encode(header), history


def is_cycle(target: str, history: list[tuple[str, str]]) -> bool:
    """Whether a dead letter must not go to that queue: it died there before, and nobody has rejected it since."""
    for queue, reason in history:
        if reason == REJECTED:
            return False
        if queue == target:
            return True
    return False
