"""All SOW topics with their indexes: what the living core and the fold share, one method a kind of record.

A topic's id is the LSN of the declare that gave it its key; another key is another id, and begins with no record.
Bodies of present records are asked of the shell (`Bodies`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from penstock.core.sow.cutting import drop_many
from penstock.core.sow.index import NEVER, Index, Ints, Numbers
from penstock.core.sow.keys import KeyRule, domain_of
from penstock.core.sow.records import Put, unpack_put
from penstock.records.dataclass import dataclass
from penstock.records.sow_settings import EXPIRATION, INDEX, KEY, KEY_DOMAIN, is_sow, parse_paths

Name = tuple[str, str, str]  # vhost, exchange, key


class Watcher(Protocol):
    """Who wants to know of the records of a topic; called inside a command, and only takes notes."""

    def dropped(self, lsn: int, numbers: Sequence[int], lsns: Sequence[int], reason: str) -> None:
        """The record at `lsn` says that these keys have no record any more; `lsns`: those they had."""
        ...


@dataclass(slots=True, eq=False)
class Sow:
    """One SOW topic."""

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
    return KeyRule(domain, parse_paths(cast("list[object]", settings.get(KEY) or [])))


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

    def declared(self, lsn: int, name: Name, settings: Mapping[str, object]) -> Sow | None:
        """TOPIC_DECLARE: the SOW topic that it now is, with the records it had if the key is the same."""
        rule = rule_of(name, settings)
        present = self.by_name.get(name)
        if present is not None and present.rule != rule:
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

    def due(self) -> int | None:
        """When the next record expires, or somewhat before; None: none does."""
        due = min((sow.index.due for sow in self), default=NEVER)
        return None if due >= NEVER else due

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


class Bodies(Protocol):
    """Bodies of messages by LSN, as far as they are at hand."""

    def has(self, lsn: int) -> bool:
        """Whether `get` knows the message, be it that it cannot be read."""
        ...

    def get(self, lsn: int) -> bytes | None:
        """The body of a message; None when it is not at hand."""
        ...

    def keep(self, lsn: int, body: bytes | None) -> None:
        """A body that may be asked for again."""
        ...


class Nothing:
    """No bodies at all."""

    def has(self, lsn: int) -> bool:
        return False

    def get(self, lsn: int) -> bytes | None:
        return None

    def keep(self, lsn: int, body: bytes | None) -> None:
        """Forgets it."""


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
