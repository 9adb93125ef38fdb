"""On which terms messages are published, what their headers ask of the server, and what became of them.

Headers repeat, so each distinct header is read once and remembered under its bytes (bounded).  A header that asks for
something impossible carries the refusal; nothing is raised, because one message of a batch must not stop the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias, TypeVar

from penstock.core.queue.last_values import key_of
from penstock.errors import PreconditionFailed, ProtocolError, Refused
from penstock.records import properties as header_codec
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes
from penstock.records.field_tables import FieldValue, Written
from penstock.records.one_or_each import one_or_each
from penstock.records.properties import ASKING
from penstock.records.remembered import Remembered

Refusal: TypeAlias = "Refused | ProtocolError"

T = TypeVar("T")

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

    @property
    def timed(self) -> bool:
        """Whether it says when a message is due."""
        return self.delay is not None or self.deliver_at is not None

    def not_before(self, time: int) -> int:
        """When a message that is published at `time` is due; 0: at once."""
        if self.deliver_at is not None:
            return self.deliver_at if self.deliver_at > time else 0
        return time + self.delay if self.delay is not None and self.delay > 0 else 0


PERSISTENT = Traits(transient=False)
TRANSIENT = Traits(transient=True)


class TraitsMemo(Remembered[bytes, Traits]):
    """Header bytes to traits."""

    def __init__(self, most: int = 4096) -> None:
        super().__init__(most)

    def __missing__(self, data: bytes) -> Traits:
        traits = read_traits(data)
        if traits.plain and (data[0] & 0x04 or data[1] & 0xC0):
            return traits  # with a correlation id, a message id or a timestamp: it will hardly come again
        return self.keep(data, traits) if len(data) <= HEADER_KEPT else traits

    def kinds(self, batch: Publishes) -> set[Traits]:
        """What the headers of a batch ask for, each once."""
        properties = batch.properties
        return {self[data] for data in ({properties} if isinstance(properties, bytes) else set(properties))}

    def each(self, batch: Publishes) -> list[Traits]:
        """What the header of each row asks for."""
        properties = batch.properties
        if batch.plain >= 0:
            return [_plain(batch.plain)] * len(batch.bodies)
        if isinstance(properties, bytes):
            return [self[properties]] * len(batch.bodies)
        return [self[data] for data in properties]

    def uniform(self, batch: Publishes, header: bytes) -> Traits:
        """The same of a batch with one header."""
        return self[header] if batch.plain < 0 else _plain(batch.plain)


def _plain(mode: int) -> Traits:
    """What a header asks for that asks for this delivery mode alone."""
    return PERSISTENT if mode == header_codec.PERSISTENT else TRANSIENT


def read_traits(data: bytes) -> Traits:
    plain = header_codec.plain_mode(data)
    if plain >= 0:
        return _plain(plain)
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
    batch.expires_at = filled(batch.expires_at, [None if one.ttl is None else time + one.ttl for one in traits])
    batch.priority = filled(batch.priority, [one.priority for one in traits])
    batch.not_before = filled(batch.not_before, [one.not_before(time) if one.timed else None for one in traits])


def filled(present: list[int] | None, said: list[int | None]) -> list[int] | None:
    """The column that is there, else what headers say, if one of them says something."""
    if present is not None or said.count(None) == len(said):
        return present
    return [value or 0 for value in said]


def transient_of(traits: Sequence[Traits], persistent: bool | None) -> bool | list[bool]:
    """Which rows a restart does not keep; one word where it is the same for all."""
    if persistent is not None:
        return not persistent
    first = traits[0]
    return first.transient if traits.count(first) == len(traits) else one_or_each([one.transient for one in traits])


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
        written: Written = {}
        properties = header_codec.decode(data, written)
        properties.headers = {name: value for name, (value, _) in written.items() if name not in PRIVATE} or None
        cleaned = header_codec.encode(properties, written)
    publisher, sequence = _identity(headers)
    return replace(
        traits, delay=None if delay is None else delay * 1000,
        deliver_at=None if deliver_at is None else deliver_at * 1000, keys=keys, blind=blind, publisher=publisher,
        sequence=sequence, dedup=dedup, cleaned=cleaned,
    )  # fmt: skip


def _identity(headers: Mapping[str, FieldValue]) -> tuple[str | None, int | None]:
    """Publisher and sequence.  Both or none, and of a sensible size."""
    publisher, sequence = headers.get(PUBLISHER), headers.get(SEQUENCE)
    if publisher is None and sequence is None:
        return None, None
    if not isinstance(publisher, str) or not 0 < len(publisher) <= PUBLISHER_LIMIT or "\0" in publisher:
        most = f"text of 1 to {PUBLISHER_LIMIT} characters without a zero byte is needed"
        raise PreconditionFailed(f"invalid header '{PUBLISHER}': {most}")
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


Banned: TypeAlias = "Mapping[int, frozenset[str]]"
"""By row, names of queues that must not take it."""


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a batch.  Row numbers are those of the batch as it was given."""

    first: int  # LSN of the first stored row; 0 when none was stored
    last: int  # the LSN whose durability confirms the batch
    unroutable: Sequence[int] = ()  # no queue and no declared topic wanted them
    refused: Sequence[tuple[int, Refusal]] = ()
    repeats: Sequence[int] = ()  # their sequence, or their key in a queue, was known: confirmed, not stored again
    stored: int = 0  # rows written
    kept: Sequence[int] = ()  # of the refused ones those that are stored all the same, for other queues took them
    dropped: Sequence[int] = ()  # confirmed, not stored: a full queue drops what comes, or they are replies
    lsns: Sequence[int] | None = None  # of the stored rows, where they are not `first` and those that follow it
    order: Sequence[int] | None = None  # the stored rows as their LSNs rise, where that is not their own order
    replied: Sequence[int] = ()  # of those that are dropped the replies, which were given to who waits for them

    @property
    def duplicates(self) -> int:
        """How many rows are stored already."""
        return len(self.repeats)

    @property
    def positions(self) -> Sequence[int]:
        """The LSNs of the stored rows, ascending."""
        return range(self.first, self.first + self.stored) if self.lsns is None else self.lsns

    def lost(self) -> set[int]:
        """The rows that are not stored."""
        refused = (row for row, _ in self.refused)
        return {*self.unroutable, *self.dropped, *self.repeats, *refused}.difference(self.kept)

    def stored_rows(self, size: int) -> Sequence[int]:
        """The rows that are stored of a batch of this size, one for each of `positions`."""
        if self.order is not None:
            return self.order
        return [row for row in range(size) if row not in lost] if (lost := self.lost()) else range(size)

    def lsns_by_row(self, size: int) -> Sequence[int]:
        """The LSN of each row of a batch of this size; 0 for one that is not stored."""
        if self.stored == size and self.order is None:
            return self.positions
        out = [0] * size
        for row, lsn in zip(self.stored_rows(size), self.positions, strict=True):
            out[row] = lsn
        return out

    def among(self, rows: Sequence[int]) -> Published:
        """The same of some rows of a batch, told in rows of the whole; rows: which these are."""
        return Published(
            self.first, self.last, [rows[row] for row in self.unroutable],
            [(rows[row], why) for row, why in self.refused], [rows[row] for row in self.repeats], self.stored,
            [rows[row] for row in self.kept], [rows[row] for row in self.dropped], self.lsns,
            None if self.order is None else [rows[row] for row in self.order], [rows[row] for row in self.replied],
        )  # fmt: skip


def joined(parts: Sequence[Published], skip: int, last: int) -> Published:
    """What became of the parts of a batch, told in rows of the whole, as one.

    skip: leading rows that are duplicates, and in no part.  last: the last LSN that was given out for any of them.
    """
    stored = [published for published in parts if published.stored]
    lsns: Sequence[int] | None = None
    if len(stored) > 1:
        lsns = list(chain.from_iterable(published.positions for published in stored))
    elif stored:
        lsns = stored[0].lsns

    def all_of(name: str) -> list[Any]:
        return list(chain.from_iterable(map(attrgetter(name), parts)))

    return Published(
        stored[0].first if stored else 0,
        max([last, *map(attrgetter("last"), stored)]),
        all_of("unroutable"),
        all_of("refused"),
        [*range(skip), *all_of("repeats")],
        sum(map(attrgetter("stored"), parts)),
        all_of("kept"),
        all_of("dropped"),
        lsns,
        replied=all_of("replied"),
    )


def part_of(batch: Publishes, rows: Sequence[int]) -> Publishes:
    """These rows of a batch: the batch itself where they are all."""
    return batch if len(rows) == len(batch.bodies) else batch.select(rows)


def banned_in(rows: range, banned: Banned | None, more: Iterable[tuple[int, str]] = ()) -> dict[int, frozenset[str]]:
    """Of a part of a batch who must not take which row, in rows of the part: as was said, and these (row, name)."""
    out = {row - rows.start: names for row, names in (banned or {}).items() if row in rows}
    for row, name in more:
        out[row - rows.start] = out.get(row - rows.start, frozenset()) | {name}
    return out


class Terms(NamedTuple):
    """On which terms the rows of one call of `Publisher.publish` are published, handed on from step to step.

    persistent   overrides the headers' delivery mode
    trusted      the server's own rows, whose headers are not judged and whose times have had their effect
    carbon       CC and BCC count
    banned       by row, names of queues that must not take it
    numbered     what is a duplicate is known, as it is of the server's own rows and where rows are skipped: publisher
                 and sequence in headers have had their effect
    admitted     `Publisher.no_room` had nothing to say, so no queue is asked again
    """

    persistent: bool | None = None
    trusted: bool = False
    carbon: bool = True
    banned: Banned | None = None
    numbered: bool = False
    admitted: bool = False


USUAL, ADMITTED = Terms(), Terms(admitted=True)
