"""What a publisher's header asks of the server: durability, priority, times, extra keys.

Headers repeat, so each distinct header is read once and remembered under its bytes (bounded).  A header that asks for
something impossible carries the refusal; nothing is raised, because one message of a batch must not stop the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from penstock.core.queue.last_values import key_of
from penstock.errors import PreconditionFailed, ProtocolError, Refused
from penstock.records import properties as header_codec
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes
from penstock.records.field_tables import FieldValue
from penstock.records.header_classes import ASKING

Refusal: TypeAlias = "Refused | ProtocolError"

HEADER_KEPT = 1024
"""Bytes of a header beyond which nothing is remembered under it: the bound is on headers, and they are strangers'."""

PUBLISHER, SEQUENCE = "x-publisher", "x-sequence"

PRIVATE = frozenset({"BCC", PUBLISHER, SEQUENCE})
"""Headers between publisher and server.  They are not stored: who publishes a message anew says so anew."""

DEDUP_KEY = "x-dedup-key"
"""The message's key where a queue knows the keys that it took: text or a number."""

DELTA = "x-delta"
"""true: the body is a delta for its topic's record."""

PUBLISHER_LIMIT = 255

LONGEST_EXPIRATION_MS = 315_360_000_000
"""Ten years, RabbitMQ's limit."""


@dataclass(frozen=True, slots=True, eq=False)
class Traits:
    """One header, read.  Times in microseconds; None: not asked for."""

    transient: bool = True
    priority: int | None = None  # 0..255
    ttl: int | None = None
    delay: int | None = None  # from the publish on; 0 or less is at once
    deliver_at: int | None = None  # since the epoch
    keys: tuple[str, ...] = ()  # extra routing keys: CC, then BCC
    blind: tuple[str, ...] = ()  # of these BCC
    publisher: str | None = None  # whose number `sequence` is
    sequence: int | None = None
    dedup: int = 0  # its key for queues that want no duplicates, hashed; 0: none
    cleaned: bytes | None = None  # the header to store, where it is not the publisher's own
    headers: Mapping[str, FieldValue] | None = None
    refusal: Refusal | None = None
    plain: bool = True  # nothing but the delivery mode matters

    @property
    def shown(self) -> tuple[str, ...]:
        """Extra routing keys without those that nobody is shown."""
        return self.keys[: len(self.keys) - len(self.blind)]

    def not_before(self, time: int) -> int:
        """When a message that is published at `time` is due; 0: at once."""
        if self.deliver_at is not None:
            return self.deliver_at if self.deliver_at > time else 0
        return time + self.delay if self.delay is not None and self.delay > 0 else 0


PERSISTENT = Traits(transient=False)
TRANSIENT = Traits(transient=True)


class TraitsMemo(dict[bytes, Traits]):
    """Header bytes to traits; forgets everything when it has `bound` headers, which costs one more reading of each."""

    def __init__(self, bound: int = 4096) -> None:
        super().__init__()
        self.bound = bound

    def __missing__(self, data: bytes) -> Traits:
        traits = read_traits(data)
        if traits.plain and (data[0] & 0x04 or data[1] & 0xC0):
            return traits  # with a correlation id, a message id or a timestamp: it will hardly come again
        if len(self) >= self.bound:
            self.clear()
        if len(data) <= HEADER_KEPT:
            self[data] = traits
        return traits


def read_traits(data: bytes) -> Traits:
    plain = header_codec.plain_mode(data)
    if plain >= 0:
        return PERSISTENT if plain == header_codec.PERSISTENT else TRANSIENT
    try:
        mode, priority, expiration, _, headers = header_codec.peek(data)
    except ProtocolError as error:
        return Traits(refusal=error, plain=False)
    transient = mode != header_codec.PERSISTENT
    if priority is None and expiration is None and headers is None:
        return TRANSIENT if transient else PERSISTENT
    asks = headers is not None and not ASKING.isdisjoint(headers)
    traits = Traits(transient=transient, priority=priority, headers=headers, plain=priority is None and not asks)
    try:
        if expiration is not None:
            traits = replace(traits, ttl=parse_expiration(expiration), plain=False)
        if asks and headers:
            traits = _with_headers(traits, data, headers)
    except PreconditionFailed as refusal:
        return Traits(transient=transient, refusal=refusal, plain=False)
    return traits


def fill_times(batch: Publishes, traits: list[Traits], time: int) -> None:
    """Columns from the rows' headers, where the edge has not set them.  time: now, microseconds since the epoch."""
    if batch.expires_at is None and any(one.ttl is not None for one in traits):
        batch.expires_at = [0 if one.ttl is None else time + one.ttl for one in traits]
    if batch.priority is None and any(one.priority is not None for one in traits):
        batch.priority = [one.priority or 0 for one in traits]
    if batch.not_before is None and any(one.delay is not None or one.deliver_at is not None for one in traits):
        batch.not_before = [one.not_before(time) for one in traits]


def _with_headers(traits: Traits, data: bytes, headers: Mapping[str, FieldValue]) -> Traits:
    delay, deliver_at = _whole(headers, "x-delay"), _whole(headers, "x-deliver-at")
    if deliver_at is None:
        deliver_at = _whole(headers, "_AMQ_SCHED_DELIVERY")
    if not isinstance(headers.get(DELTA, False), bool):
        raise PreconditionFailed(f"invalid header '{DELTA}': true or false is needed, not {headers[DELTA]!r}")
    dedup = 0
    if DEDUP_KEY in headers:
        value = headers[DEDUP_KEY]
        if isinstance(value, bool) or not isinstance(value, str | bytes | int | float) or not (dedup := key_of(value)):
            raise PreconditionFailed(f"invalid header '{DEDUP_KEY}': text or a number is needed, not {value!r}")
    blind = _keys(headers, "BCC")
    keys = (*_keys(headers, "CC"), *blind)
    cleaned = None
    if not PRIVATE.isdisjoint(headers):
        properties = header_codec.decode(data)
        properties.headers = {name: value for name, value in headers.items() if name not in PRIVATE} or None
        cleaned = header_codec.encode(properties)
    publisher, sequence = _identity(headers)
    return replace(
        traits,
        delay=None if delay is None else delay * 1000,
        deliver_at=None if deliver_at is None else deliver_at * 1000,
        keys=keys,
        blind=blind,
        publisher=publisher,
        sequence=sequence,
        dedup=dedup,
        cleaned=cleaned,
    )


def _identity(headers: Mapping[str, FieldValue]) -> tuple[str | None, int | None]:
    """Publisher and sequence.  Both or none, and of a sensible size."""
    publisher, sequence = headers.get(PUBLISHER), headers.get(SEQUENCE)
    if publisher is None and sequence is None:
        return None, None
    if not isinstance(publisher, str) or not 0 < len(publisher) <= PUBLISHER_LIMIT:
        raise PreconditionFailed(f"invalid header '{PUBLISHER}': text of 1 to {PUBLISHER_LIMIT} characters is needed")
    if isinstance(sequence, bool) or not isinstance(sequence, int) or not 0 < sequence < 2**53:
        raise PreconditionFailed(f"invalid header '{SEQUENCE}': a whole number from 1 on is needed, not {sequence!r}")
    return publisher, int(sequence)


def _whole(headers: Mapping[str, FieldValue], name: str) -> int | None:
    """A header in milliseconds.  Anything but a whole number of a sensible size is refused."""
    value = headers.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise PreconditionFailed(f"invalid header '{name}': a whole number of milliseconds is needed, not {value!r}")
    if abs(value) > 2**42:
        raise PreconditionFailed(f"invalid header '{name}': {value} milliseconds are more than {2**42}")
    return int(value)


def _keys(headers: Mapping[str, FieldValue], name: str) -> tuple[str, ...]:
    value = headers.get(name)
    if value is None and name not in headers:
        return ()
    if not isinstance(value, list) or not all(isinstance(key, str) for key in value):
        raise PreconditionFailed(f"invalid header '{name}': an array of strings is needed")
    return tuple(str(key) for key in value)


def parse_expiration(text: str) -> int:
    """Microseconds of an `expiration` property, a decimal text of milliseconds.

    Errors: PreconditionFailed with the texts that RabbitMQ's users know.
    """
    end = 1 if text[:1] in ("+", "-") else 0
    digits = end
    while end < len(text) and "0" <= text[end] <= "9":
        end += 1
    if end == digits:
        raise PreconditionFailed(f"invalid expiration '{text}': no_integer")
    if end < len(text):
        raise PreconditionFailed(f"invalid expiration '{text}': {{leftover_string,\"{text[end:]}\"}}")
    value = int(text) if len(text) < 20 else LONGEST_EXPIRATION_MS + 1 if text[0] != "-" else -1
    if value < 0:
        raise PreconditionFailed(f"invalid expiration '{text}': {{value_negative,{text}}}")
    if value > LONGEST_EXPIRATION_MS:
        raise PreconditionFailed(f"invalid expiration '{text}': {{value_too_large,{text}}}")
    return value * 1000
