"""Templates filled in: the variables of one happening, and what earlier steps added to them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from datetime import UTC, datetime

from penstock.errors import ProtocolError
from penstock.records import properties as header_codec
from penstock.records.dataclass import dataclass
from penstock.records.event_actions import BYTE, Variable, parts


@dataclass(slots=True)
class Happening:
    """What a template may speak of.  An event without a message has an empty one."""

    time: int  # microseconds since the epoch
    instance: str
    topic: str = ""
    data: bytes = b""
    properties: bytes = header_codec.EMPTY
    reason: str = ""  # comma-separated
    bookmark: str = ""
    client: str = ""
    stamp: int = 0  # when the message was published, microseconds
    previous: bytes = b""
    lsn: int = 0  # of the message; 0 without one
    why: str = ""  # it left its queue, in the words of who refused it
    added: dict[str, bytes] = field(default_factory=dict[str, bytes])  # by earlier steps


def copied(happening: Happening) -> Happening:
    """A copy with variables of its own: each action of a message begins without those of the others."""
    return replace(happening, added=dict(happening.added))


def iso_time(micros: int) -> str:
    """Seconds in UTC, as `2026-11-20T08:00:00Z`."""
    return datetime.fromtimestamp(micros // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _correlation(happening: Happening) -> bytes:
    if happening.properties == header_codec.EMPTY:
        return b""
    try:
        return (header_codec.decode(happening.properties).correlation_id or "").encode()
    except ProtocolError:
        return b""


GETTERS: Mapping[str, Callable[[Happening], bytes]] = {
    "AMPS_DATA": lambda h: h.data,
    "AMPS_REASON": lambda h: h.reason.encode(),
    "PENSTOCK_WHY": lambda h: h.why.encode(),
    "AMPS_TOPIC": lambda h: h.topic.encode(),
    "AMPS_DATA_LENGTH": lambda h: b"%d" % len(h.data),
    "AMPS_BOOKMARK": lambda h: h.bookmark.encode(),
    "AMPS_CORRELATION_ID": _correlation,
    "AMPS_CLIENT_NAME": lambda h: h.client.encode(),
    "AMPS_TIMESTAMP": lambda h: iso_time(h.stamp).encode(),
    "AMPS_PREVIOUS_DATA": lambda h: h.previous,
    "AMPS_DATETIME": lambda h: iso_time(h.time).encode(),
    "AMPS_UNIX_TIMESTAMP": lambda h: b"%d" % (h.time // 1_000_000),
    "AMPS_INSTANCE_NAME": lambda h: h.instance.encode(),
}


class Template:
    """A text with variables, parsed once.  Its variables are known to be there: `records.templates.unfit`."""

    __slots__ = ("_parts", "json")

    def __init__(self, text: str, *, json: bool = True) -> None:
        """`json`: values inside quotes are escaped."""
        self.json = json
        self._parts: list[bytes | Variable] = []
        for part in parts(text):
            if isinstance(part, str):
                self._parts.append(part.encode())
            elif part.name not in GETTERS and (byte := BYTE.fullmatch(part.name)) is not None:
                value = bytes.fromhex(byte.group(1))
                self._parts.append(escaped(value) if part.quoted and json else value)
            else:
                self._parts.append(part)

    def render(self, happening: Happening) -> bytes:
        """The text for one happening."""
        out = list[bytes]()
        for part in self._parts:
            if isinstance(part, bytes):
                out.append(part)
                continue
            value = happening.added.get(part.name)
            if value is None:
                value = GETTERS[part.name](happening)
            out.append(escaped(value) if part.quoted and self.json else value)
        return b"".join(out)


def escaped(value: bytes) -> bytes:
    """A value as it stands inside a JSON string."""
    return json.dumps(value.decode(errors="replace"), ensure_ascii=False)[1:-1].encode()
