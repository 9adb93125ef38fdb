"""Actions: templates rendered when a queue expires a message.

A variable inside a JSON string is escaped, so that `"why": "{{AMPS_REASON}}"` stays JSON whatever the text holds;
outside of quotes it is pasted as it is, so that `"message": {{AMPS_DATA}}` nests the message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from penstock.errors import InvalidArgument
from penstock.records.settings import Action

REASONS = ("forced_expire", "time_limit", "max_cancels", "max_deliveries")
_VARIABLE = re.compile(r"\{\{([A-Z0-9_]+)\}\}")


@dataclass(frozen=True, slots=True)
class Expired:
    """What a template may speak of."""

    queue: str
    data: bytes
    reason: str  # comma-separated
    bookmark: str
    time: int  # microseconds since the epoch
    instance: str


def _moment(expired: Expired) -> bytes:
    return datetime.fromtimestamp(expired.time // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ").encode()


VARIABLES: Mapping[str, Callable[[Expired], bytes]] = {
    "AMPS_DATA": lambda e: e.data,
    "AMPS_REASON": lambda e: e.reason.encode(),
    "AMPS_TOPIC": lambda e: e.queue.encode(),
    "AMPS_DATA_LENGTH": lambda e: b"%d" % len(e.data),
    "AMPS_BOOKMARK": lambda e: e.bookmark.encode(),
    "AMPS_DATETIME": _moment,
    "AMPS_UNIX_TIMESTAMP": lambda e: b"%d" % (e.time // 1_000_000),
    "AMPS_INSTANCE_NAME": lambda e: e.instance.encode(),
}


class Template:
    """A text with variables, parsed once."""

    __slots__ = ("_parts",)

    def __init__(self, text: str) -> None:
        """Raises InvalidArgument for a variable that nobody knows, with those that exist."""
        self._parts: list[bytes | tuple[Callable[[Expired], bytes], bool]] = []
        end, quoted = 0, False
        for match in _VARIABLE.finditer(text):
            name = match.group(1)
            if name not in VARIABLES:
                raise InvalidArgument(f"an action knows no variable {{{{{name}}}}}; there are {', '.join(VARIABLES)}")
            between = text[end : match.start()]
            quoted = _in_string(between, quoted)
            self._parts += (between.encode(), (VARIABLES[name], quoted))
            end = match.end()
        self._parts.append(text[end:].encode())

    def render(self, expired: Expired) -> bytes:
        """The text for one message."""
        out = list[bytes]()
        for part in self._parts:
            if isinstance(part, bytes):
                out.append(part)
            else:
                variable, quoted = part
                value = variable(expired)
                if quoted:
                    value = json.dumps(value.decode(errors="replace"), ensure_ascii=False)[1:-1].encode()
                out.append(value)
        return b"".join(out)


def _in_string(text: str, quoted: bool) -> bool:
    """Whether a JSON string is open after `text`."""
    escaped = False
    for character in text:
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = quoted
        elif character == '"':
            quoted = not quoted
    return quoted


class Actions:
    """The actions of a server, by queue."""

    def __init__(self, actions: tuple[Action, ...] = ()) -> None:
        self._by_queue: dict[tuple[str, str], list[tuple[Action, Template]]] = {}
        for action in actions:
            unknown = set(action.reasons) - set(REASONS)
            if unknown:
                raise InvalidArgument(f"an action knows no reason {min(unknown)!r}; there are {', '.join(REASONS)}")
            self._by_queue.setdefault((action.vhost, action.queue), []).append((action, Template(action.data)))

    def wants(self, vhost: str, queue: str) -> bool:
        """Whether any action listens to that queue."""
        return (vhost, queue) in self._by_queue

    def of(self, vhost: str, queue: str, reasons: tuple[str, ...]) -> list[tuple[Action, Template]]:
        """The actions that a message with these reasons sets off."""
        return [
            (action, template)
            for action, template in self._by_queue.get((vhost, queue), ())
            if not action.reasons or not set(action.reasons).isdisjoint(reasons)
        ]
