"""All SOW topics with their indexes, one method a kind of record; keys of records; many keys taken out at once.

The living core and the fold share it.  A topic's id is the LSN of the declare that gave it its key; another key is
another id, and begins with no record.  So does another type, but for one that has more schemas than that, or fewer.
Bodies of present records are asked of the shell (`rows.Bodies`).

    number of a key = first 8 bytes of BLAKE2b over  domain 0x1F value 0x1F value ...

The number is what the index and the log hold, and what people see as the key of a record whose key comes from fields:
an unsigned 64-bit decimal.  Of a million keys two share a number with a probability of 3 in 100 million; the later
record then replaces the other.

Where many keys go at once, what is left of each leaf is worked out on a snapshot, in any thread; the loop then puts the
leaves in their places, which is a look at each.  A leaf that was changed since is worked out there; `Cut.behind` says
how many these are, so that a thread can look once more before.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from hashlib import blake2b
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from penstock.core.sow.index import BATCHED, NEVER, Index, Ints, Leaf, Numbers, Put, Snapshot, packed_array, unpack_put
from penstock.expr.batches import Properties
from penstock.expr.bodies import body_most, body_type
from penstock.expr.bodies.body_type import BodyType, Whole
from penstock.records.dataclass import dataclass
from penstock.records.message_types import JSON, MESSAGE_TYPE, MessageType
from penstock.records.sow_settings import EXPIRATION, INDEX, KEY, KEY_DOMAIN, is_sow, parse_paths

SEPARATOR = b"\x1f"

EXACT = float(1 << 53)
"""Doubles of this size may stand for several whole numbers."""

GIVEN_MOST = 255
"""Bytes of a key that a publisher gives."""


@dataclass(frozen=True, slots=True)
class KeyRule:
    """How the records of one topic are told apart."""

    domain: bytes
    paths: tuple[tuple[str, ...], ...] = ()  # fields of the body; none: the publisher gives the key
    message_type: MessageType = JSON  # of the records

    @property
    def given(self) -> bool:
        """Whether the publisher gives the key."""
        return not self.paths

    @property
    def body_most(self) -> int:
        """Bytes of a body from which on nothing is read of it on the loop."""
        return body_most(self.message_type)

    def of_text(self, text: str) -> int | str:
        """The number of a key that a publisher gave; a sentence if it cannot be one."""
        data = text.encode()
        if not data or len(data) > GIVEN_MOST:
            return f"a key has 1 to {GIVEN_MOST} bytes, not {len(data)}"
        return number_of(self.domain, (data,))

    def of_body(self, body: bytes, properties: bytes) -> int | str:
        """The number of the key that a body holds, of a message with this header; a sentence if it holds none."""
        kind = body_type(self.message_type)
        return self._of_whole(kind.one_whole(body, properties), kind)

    def _of_whole(self, body: Whole, kind: BodyType) -> int | str:
        try:
            value = kind.read(body)
        except ValueError as error:
            return f"the body is no {kind.title}, so it has no key {self.spelled()}: {str(error)[:100]}"
        return self._of_value(value, body, kind)

    def of_bodies(self, bodies: Sequence[bytes], properties: Properties) -> list[int] | None:
        """The number of each key; None when one of the bodies has none (`of_body` says which)."""
        out: list[int] = []
        name = self.paths[0][0] if len(self.paths) == 1 and len(self.paths[0]) == 1 else None
        kind, number_of_bytes, prefix = body_type(self.message_type), int.from_bytes, self.domain + SEPARATOR
        read = kind.read
        for body in kind.whole(bodies, properties):
            if name is not None:  # the usual key, of one field, without a call for each step
                try:
                    value = read(body)
                except ValueError:
                    return None
                found = cast("dict[str, object]", value).get(name) if type(value) is dict else None
                if type(found) is str:
                    text = found.encode("utf-8", "surrogatepass")
                elif type(found) is int:
                    text = b"%d" % found
                else:
                    text = None
                if text is not None:
                    out.append(number_of_bytes(blake2b(prefix + text, digest_size=8).digest(), "little"))
                    continue
            number = self._of_whole(body, kind)
            if isinstance(number, str):
                return None
            out.append(number)
        return out

    def _of_value(self, value: object, body: Whole, kind: BodyType) -> int | str:
        parts: list[bytes] = []
        for path in self.paths:
            found = _at(value, path)
            if isinstance(found, float) and abs(found) >= EXACT:
                try:
                    found = _at(kind.exact(body), path)
                except ValueError as error:
                    return f"the body has no key {self.spelled()} that could be read exactly: {error}"
            part = _text(found)
            if part is None:
                why = "is null or missing" if found is None else "is no single value"
                return f"the key field /{'/'.join(path)} {why}"
            parts.append(part)
        return number_of(self.domain, parts)

    def spelled(self) -> str:
        """The fields as people write them."""
        return ", ".join(f"/{'/'.join(path)}" for path in self.paths)


def number_of(domain: bytes, values: Sequence[bytes]) -> int:
    """The number of a key."""
    digest = blake2b(SEPARATOR.join((domain, *values)), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _at(value: object, path: Sequence[str]) -> object:
    """What stands at a path; None where nothing does."""
    for name in path:
        value = cast("dict[str, object]", value).get(name) if isinstance(value, dict) else None
    return value


def _text(value: object) -> bytes | None:
    """The text of one key field; None for what cannot be one.  Equal texts are equal keys, 1 and "1" too."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, int | float):
        return repr(value).encode()
    return None


def domain_of(vhost: str, exchange: str, name: str) -> bytes:
    """The domain of a topic's keys: its name; with exchange and vhost where they are not the default ones."""
    text = name if not exchange and vhost == "/" else f"{vhost}\x1e{exchange}\x1e{name}"
    return text.encode("utf-8", "surrogatepass")


def parse_number(text: str) -> int | None:
    """A key as people see it, an unsigned 64-bit decimal; None for anything else."""
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        return None
    value = int(text)
    return value if value < 1 << 64 else None


PIECE = 8192
"""Keys that one record names at most, as far as leaves go into it whole: who watches has work with each."""


@dataclass(frozen=True, slots=True)
class Shorter:
    """A leaf without some of its keys."""

    leaf: Leaf  # as it was
    rest: Leaf | None  # None: nothing is left
    numbers: Numbers  # that go
    lsns: Ints  # of their records


class Cut:
    """Keys that go, all at once.  One thread at a time."""

    def __init__(self, numbers: Numbers | None = None) -> None:
        """numbers: ascending, each once; None: every key."""
        self.numbers = numbers
        self._known: dict[int, Shorter] = {}  # by the identity of the leaf

    def look(self, snapshot: Snapshot) -> Iterator[None]:
        """Work out what is not known yet; a step is one leaf."""
        before, self._known = self._known, {}
        for leaf, mine in self._some(snapshot.leaves):
            known = before.get(id(leaf))
            self._known[id(leaf)] = _without(leaf, mine) if known is None or known.leaf is not leaf else known
            yield

    def behind(self, index: Index) -> int:
        """Leaves that `take` would have to work out, a twentieth of a millisecond each."""
        return sum(self._of(leaf) is None for leaf, _ in self._some(index.leaves))

    def take(self, index: Index) -> Iterator[tuple[Numbers, Ints]]:
        """Take the keys out; those that were there, ascending, and the LSNs of their records, in pieces."""
        if self.numbers is None:
            gone = [Shorter(leaf, None, _numbers(leaf), _lsns(leaf)) for leaf in index.leaves if leaf.numbers]
        else:
            known = ((self._of(leaf), leaf, mine) for leaf, mine in self._some(index.leaves))
            gone = [_without(leaf, mine) if one is None else one for one, leaf, mine in known]
        index.replace({id(one.leaf): one.rest for one in gone}, sum(len(one.numbers) for one in gone))
        return _pieces(gone)

    def _of(self, leaf: Leaf) -> Shorter | None:
        known = self._known.get(id(leaf))
        return known if known is not None and known.leaf is leaf else None

    def _some(self, leaves: Sequence[Leaf]) -> Iterator[tuple[Leaf, Numbers]]:
        """The leaves among whose keys some might be, with those keys; none when every key goes."""
        some = [leaf for leaf in leaves if leaf.numbers]
        if self.numbers is None or not some:
            return
        first = np.array([leaf.numbers[0] for leaf in some], dtype=np.uint64)
        last = np.array([leaf.numbers[-1] for leaf in some], dtype=np.uint64)
        low = np.searchsorted(self.numbers, first).tolist()
        high = np.searchsorted(self.numbers, last, "right").tolist()
        for leaf, a, b in zip(some, low, high, strict=True):
            if a < b:
                yield leaf, self.numbers[a:b]


def drop_many(index: Index, numbers: Numbers) -> list[int]:
    """Take out keys, each once and in any order; the LSNs that they had."""
    if len(numbers) < BATCHED or len(numbers) < BATCHED * len(index.leaves) // 8:
        return [lsn for number in numbers.tolist() if (lsn := index.drop(number))]
    return [lsn for _, lsns in Cut(np.sort(numbers)).take(index) for lsn in lsns.tolist()]


def _without(leaf: Leaf, mine: Numbers) -> Shorter:
    """`mine`: ascending, between the first and the last key of the leaf."""
    numbers = np.frombuffer(leaf.numbers, dtype=np.uint64)
    lsns = np.frombuffer(leaf.lsns, dtype=np.int64)
    at = np.searchsorted(numbers, mine)
    at = at[numbers[at] == mine]
    if not len(at):
        return Shorter(leaf, leaf, numbers[:0].copy(), lsns[:0].copy())
    keep = np.ones(len(numbers), dtype=bool)
    keep[at] = False
    rest: Leaf | None = None
    if len(at) < len(numbers):
        times: array[int] = array("q")
        if leaf.deadlines:
            times = packed_array("q", np.frombuffer(leaf.deadlines, dtype=np.int64)[keep])
        left = lsns[keep]
        rest = Leaf(packed_array("Q", numbers[keep]), packed_array("q", left), times, leaf.due)
        rest.low = int(left.min())
    return Shorter(leaf, rest, numbers[at], lsns[at])


def _numbers(leaf: Leaf) -> Numbers:
    return np.frombuffer(leaf.numbers, dtype=np.uint64)


def _lsns(leaf: Leaf) -> Ints:
    return np.frombuffer(leaf.lsns, dtype=np.int64)


def _pieces(gone: Sequence[Shorter]) -> Iterator[tuple[Numbers, Ints]]:
    gathered: list[Shorter] = []
    size = 0
    for one in gone:
        if gathered and size + len(one.numbers) > PIECE:
            yield _all_of(gathered)
            gathered, size = [], 0
        if len(one.numbers):
            gathered.append(one)
            size += len(one.numbers)
    if gathered:
        yield _all_of(gathered)


def _all_of(gone: Sequence[Shorter]) -> tuple[Numbers, Ints]:
    return np.concatenate([one.numbers for one in gone]), np.concatenate([one.lsns for one in gone])


Name = tuple[str, str, str]  # vhost, exchange, key


class Watcher(Protocol):
    """Who wants to know of the records of a topic; called inside a command, and only takes notes."""

    def dropped(self, lsn: int, numbers: Sequence[int], lsns: Sequence[int], reason: str) -> None:
        """The record at `lsn` says that these keys have no record any more; `lsns`: those they had."""


@dataclass(slots=True, eq=False)
class Sow:
    """One topic with a key: its index, who watches it, and what it counted."""

    id: int
    vhost: str
    exchange: str
    name: str
    rule: KeyRule
    expiration: int = 0  # microseconds after which a record expires, 0: never
    index: Index = field(default_factory=Index)
    file_backed: bool = False  # the index may leave the heap
    watchers: list[Watcher] = field(default_factory=list["Watcher"])
    acting: bool = False  # an action wants to know what goes: the record of that says which messages they were
    ending: list[Callable[[], None]] = field(default_factory=list["Callable[[], None]"])  # called when it is gone
    inserted: int = 0  # since the start
    updated: int = 0
    deleted: int = 0
    expired: int = 0

    @property
    def key(self) -> Name:
        """Its vhost, exchange and name."""
        return self.vhost, self.exchange, self.name


@dataclass(slots=True)
class SowState:
    """One SOW topic in a durable state; its key is among the settings of the topic."""

    id: int
    vhost: str
    exchange: str
    name: str
    numbers: array[int] = field(default_factory=lambda: array("Q"))  # ascending
    lsns: array[int] = field(default_factory=lambda: array("q"))  # of the present record of each
    deadlines: array[int] = field(default_factory=lambda: array("q"))  # of each, 0: never; empty: of none


def rule_of(name: Name, settings: Mapping[str, object]) -> KeyRule | None:
    """How the settings of a topic tell its records apart; None: it is no SOW topic."""
    if not is_sow(settings):
        return None
    vhost, exchange, topic = name
    shared = settings.get(KEY_DOMAIN)
    domain = domain_of(vhost, "", shared) if isinstance(shared, str) else domain_of(vhost, exchange, topic)
    kind = cast("MessageType", settings.get(MESSAGE_TYPE, JSON))
    return KeyRule(domain, parse_paths(cast("list[object]", settings.get(KEY) or [])), kind)


class Sows:
    """Every SOW topic of an instance."""

    def __init__(self) -> None:
        self.by_id: dict[int, Sow] = {}
        self.by_name: dict[Name, Sow] = {}

    def __bool__(self) -> bool:
        return bool(self.by_id)

    def __iter__(self) -> Iterator[Sow]:
        return iter(self.by_id.values())

    # -- one method a kind of record

    def declared(self, lsn: int, name: Name, settings: Mapping[str, object], *, kept: bool = False) -> Sow | None:
        """TOPIC_DECLARE: the SOW topic that it now is, with the records it had if the key and the type are the same.

        kept: the record says that it has them though its type is another.
        """
        rule = rule_of(name, settings)
        present = self.by_name.get(name)
        if present is not None and kept and rule is not None:
            present.rule = rule
        elif present is not None and present.rule != rule:
            self.deleted(name)
            present = None
        if rule is None:
            return None
        if present is None:
            present = self.by_id[lsn] = self.by_name[name] = Sow(lsn, *name, rule)
        present.expiration = cast("int", settings.get(EXPIRATION) or 0)
        present.file_backed = settings.get(INDEX) == "file"
        return present

    def deleted(self, name: Name) -> None:
        gone = self.by_name.pop(name, None)
        if gone is not None:
            del self.by_id[gone.id]
            for told in gone.ending:
                told()

    def put(self, put: Put) -> None:
        """SOW_PUT; one of a topic that is gone says nothing any more."""
        sow = self.by_id.get(put.id)
        if sow is not None:
            before = sow.index.count
            sow.index.put_many(put.numbers, put.lsns, put.deadlines)
            fresh = sow.index.count - before
            sow.inserted += fresh
            sow.updated += len(put.lsns) - fresh

    def put_one(self, sow: Sow, number: int, lsn: int, deadline: int) -> None:
        """The same of one message, without arrays."""
        before = sow.index.count
        sow.index.put(number, lsn, deadline)
        if sow.index.count > before:
            sow.inserted += 1
        else:
            sow.updated += 1

    def drop(self, number: int, numbers: Numbers) -> None:
        sow = self.by_id.get(number)
        if sow is not None:
            drop_many(sow.index, numbers)

    # -- the whole

    def oldest(self) -> int:
        """No present record is older."""
        return min((sow.index.oldest() for sow in self), default=NEVER)

    def capture(self) -> Callable[[], dict[int, SowState]]:
        """The state as it is now, to be made into plain values later, in any thread."""
        taken = [(sow.id, sow.key, sow.index.snapshot()) for _, sow in sorted(self.by_id.items())]
        return lambda: {number: SowState(number, *name, *one.packed()) for number, name, one in taken}

    def load(self, states: Mapping[int, SowState], topics: Mapping[Name, Mapping[str, object]]) -> None:
        """Take over a durable state; `topics` has the settings."""
        for number, state in sorted(states.items()):
            name = state.vhost, state.exchange, state.name
            sow = self.declared(number, name, topics[name])
            if sow is not None:
                sow.index = Index.load(state.numbers[:], state.lsns[:], state.deadlines[:])


def fold(sows: Sows, puts: npt.NDArray[np.bool_], values: Ints, offsets: Ints) -> None:
    """Records in order: which are puts, else drops; the packed integers of all, and where each begins and ends.

    Shape: puts (n,), offsets (n + 1,).  ValueError for a record that cannot be read.
    """
    if (np.diff(offsets) < 2).any():
        raise ValueError("a SOW record of less than two integers")
    ids = values[offsets[:-1]]
    breaks = np.flatnonzero((np.diff(ids) != 0) | (puts[1:] != puts[:-1])) + 1
    starts = [0, *breaks.tolist()]
    for start, stop in zip(starts, [*breaks.tolist(), len(ids)], strict=True):
        number = int(ids[start])
        if number not in sows.by_id:
            continue
        if puts[start]:
            sows.put(_joined(number, values, offsets[start : stop + 1]))
        else:
            for at in range(start, stop):
                sows.drop(number, values[offsets[at] + 1 : offsets[at + 1]].view(np.uint64))


def _joined(number: int, values: Ints, offsets: Ints) -> Put:
    """Puts of one topic as one."""
    first = values[offsets[0] : offsets[1]]
    if len(offsets) == 2:
        return unpack_put(first)
    lone = bool((np.diff(offsets) == 4).all()) and not values[offsets[:-1] + 1].any()
    if lone:  # each of one message, published alone: no step for each
        return Put(number, values[offsets[:-1] + 3].view(np.uint64), values[offsets[:-1] + 2], None)
    puts = list(_each(values, offsets))
    deadlines: Ints | None = None
    if any(put.deadlines is not None for put in puts):
        none = np.int64(0)
        deadlines = np.concatenate(
            [np.full(len(put.lsns), none) if put.deadlines is None else put.deadlines for put in puts]
        )
    return Put(
        number, np.concatenate([put.numbers for put in puts]), np.concatenate([put.lsns for put in puts]), deadlines
    )


def _each(values: Ints, offsets: Ints) -> Iterator[Put]:
    for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        yield unpack_put(values[start:stop])
