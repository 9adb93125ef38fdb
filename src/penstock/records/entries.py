"""What the core hands to the log: batches of messages, control records, and groups that must not be parted.

Records that come by the hundred are handed over as columns.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from typing import Any, NamedTuple, TypeAlias

from penstock.records.dataclass import dataclass
from penstock.records.kinds import NO_ROUTE, NO_VIA, Kind
from penstock.records.message_bodies import Bodies, listed, picked, size_of
from penstock.records.one_or_each import Where, bytes_of, each, list_at, rows_at


@dataclass(slots=True, eq=False)
class Topic:
    """A (vhost, exchange, key), interned once a process; the core keeps its routing plan here.

    `via` is the logged id of (vhost, exchange), `NO_VIA` for the default vhost and exchange.
    `plan` belongs to the core: None until the topic has been routed under the present topology.
    `blind`: routing keys of its messages that nobody is shown (BCC), which their dead letters have, too; the `via` of
    such a topic is its own.
    """

    vhost: str
    exchange: str
    name: str
    via: int = NO_VIA
    plan: object = None
    blind: tuple[str, ...] = ()

    def with_blind(self, keys: tuple[str, ...]) -> Topic:
        """The same topic for messages with these keys."""
        return Topic(self.vhost, self.exchange, self.name, blind=keys) if keys else self


@dataclass(slots=True, eq=False)
class Publishes:
    """Messages that came together, in order: one socket read, or one Arrow batch.

    A column is one value where all rows agree and a list otherwise.  The edge fills the first three; the core fills the
    rest when it gives the LSNs.  Rows have the LSNs `first, first + 1, ...`.
    """

    topics: Topic | list[Topic]
    properties: bytes | list[bytes]  # AMQP 0-9-1 property flags and list, as published
    bodies: Bodies
    first: int = 0
    time: int = 0  # microseconds since the epoch
    routes: int | list[int] = NO_ROUTE
    expires_at: list[int] | None = None  # microseconds; 0 is never
    not_before: list[int] | None = None  # microseconds; 0 is at once
    priority: list[int] | None = None  # 0..255
    transient: bool | list[bool] = False
    wanted: int = 0  # how many (row, queue) pairs wait for a delivery: when it reaches 0 the bodies may leave memory
    size: int = 0  # bytes of bodies and properties; 0: nobody has counted them yet
    plain: int = -1  # the delivery mode of all rows, if it is known that their headers ask for nothing else
    judged: dict[str, dict[int, int]] | None = None  # what filters said of rows before: text -> row -> does it pass
    delta: bool | None = None  # whether bodies are deltas to the present records of SOW topics; None: the headers say
    keyed: tuple[int, list[int]] | None = None  # id of its SOW topic and the numbers of its rows' keys, if worked out
    routed: object = None  # the core's own: where the rows go, worked out before they are published
    read: object = None  # the core's own: what was read of its bodies, while several queues look at them
    deduplicated: bool = False  # queues that want no duplicates were asked, and note the keys of what they take
    ahead: Publishes | None = None  # the same with large deltas merged as they will be, for filters to judge
    checked: bool = False  # bodies were held to what their topics ask of them
    sent_at: array[int] | None = None  # microseconds; when another site took them, for what they are as old as that
    draws: list[float] | None = None  # what chance has drawn for each row, where an exchange routes by it
    sender: tuple[str, int, str] | None = None  # connection and channel of AMQP, and user, where somebody wants to know

    def __len__(self) -> int:
        return len(self.bodies)

    def topic_of(self, row: int) -> Topic:
        """The topic of one row."""
        return self.topics[row] if isinstance(self.topics, list) else self.topics  # each row asks: no call

    @property
    def vhost(self) -> str:
        """That of its first row; what came over one connection or call is of one vhost."""
        return self.topic_of(0).vhost

    @property
    def distinct_topics(self) -> set[Topic]:
        """Each topic of its rows once."""
        return set(self.topics) if isinstance(self.topics, list) else {self.topics}

    def properties_of(self, row: int) -> bytes:
        """The header of one row."""
        return self.properties[row] if isinstance(self.properties, list) else self.properties

    @property
    def messages(self) -> Messages:
        """The same, once they are stored, for who looks at them."""
        bodies = listed(self.bodies)
        lsns = range(self.first, self.first + len(bodies))
        return Messages(bodies, self.properties, self.topics, lsns, self.time)

    def select(self, rows: Sequence[int]) -> Publishes:
        """Some of its rows as a batch of their own, not yet stored; what was said of them before is kept."""
        out = self._part(listed(self.bodies), rows)
        out.plain, out.deduplicated, out.checked, out.sender = self.plain, self.deduplicated, self.checked, self.sender
        out.draws = None if self.draws is None else [self.draws[row] for row in rows]
        out.sent_at = None if self.sent_at is None else array("q", [self.sent_at[row] for row in rows])
        if self.judged is not None:
            out.judged = {
                text: {i: said[row] for i, row in enumerate(rows) if row in said} for text, said in self.judged.items()
            }
        return out

    def take_judged(self, before: Publishes) -> None:
        """The same rows, made before, were judged: what was worked out of a body is known by the object that it is."""
        self.judged, self.ahead, self.bodies = before.judged, before.ahead, before.bodies

    def stored_part(self, low: int, high: int) -> Publishes:
        """Rows low..high-1 of a batch that is stored as one of their own, for who reads them; it keeps nothing else."""
        out = self._part(self.bodies, slice(low, high))
        out.first, out.time = self.first + low, self.time
        return out

    def _part(self, bodies: Bodies, where: Where) -> Publishes:
        """What every part has: the columns of the log, and its size."""

        def some(column: list[int] | None) -> list[int] | None:
            return None if column is None else list_at(column, where)

        bodies, properties = picked(bodies, where), rows_at(self.properties, where)
        return Publishes(
            rows_at(self.topics, where), properties, bodies, routes=rows_at(self.routes, where),
            expires_at=some(self.expires_at), not_before=some(self.not_before), priority=some(self.priority),
            transient=rows_at(self.transient, where), size=measured(bodies, properties),
        )  # fmt: skip


def measured(bodies: Bodies, properties: bytes | list[bytes]) -> int:
    """Bytes of bodies and of their headers."""
    return size_of(bodies) + bytes_of(properties, len(bodies))


def joined(batches: Sequence[Publishes], size: int) -> Publishes:
    """Batches that are not stored yet, in order, as one of `size` bytes."""
    topics: list[Topic] = []
    properties, bodies = list[bytes](), list[bytes]()
    columns: dict[str, list[int]] = {}
    for batch in batches:
        n, before = len(batch), len(bodies)
        topics += each(batch.topics, n)
        properties += each(batch.properties, n)
        bodies += listed(batch.bodies)
        for name in ("expires_at", "not_before"):
            own: list[int] | None = getattr(batch, name)
            if own is not None or name in columns:
                columns.setdefault(name, [0] * before).extend(own or [0] * n)
    alike, same = set(topics), set(properties)
    return Publishes(
        alike.pop() if len(alike) == 1 else topics,
        same.pop() if len(same) == 1 else properties,
        bodies,
        size=size,
        expires_at=columns.get("expires_at"),
        not_before=columns.get("not_before"),
        sender=batches[0].sender,
    )


@dataclass(slots=True, eq=False)
class Control:
    """A decision that is not a message; `records.kinds` says what the columns hold for each kind."""

    kind: Kind
    name: str
    header: bytes = b""  # JSON
    body: bytes = b""
    lsn: int = 0
    time: int = 0
    via: int = NO_VIA
    route: int = NO_ROUTE

    def __len__(self) -> int:
        return 1


@dataclass(slots=True, eq=False)
class Group:
    """Entries that a crash keeps or loses together: they lie in one record batch."""

    entries: list[Publishes | Control] = field(default_factory=list["Publishes | Control"])

    def __len__(self) -> int:
        return sum(map(len, self.entries))


@dataclass(slots=True, eq=False)
class Moves:
    """What became of many queues' messages, record by record: as columns what a `Control` for each would say.

    Records have the LSNs `first, first + 1, ...`.
    """

    first: int
    time: int  # of all of them
    kinds: list[Kind]
    names: list[str]
    headers: list[bytes]
    bodies: list[bytes]
    stop: int = 0  # LSNs below this may join it

    def __len__(self) -> int:
        return len(self.kinds)

    def singly(self) -> list[Control]:
        """The same, one by one."""
        columns = zip(self.kinds, self.names, self.headers, self.bodies, strict=True)
        return [Control(*one, self.first + row, self.time) for row, one in enumerate(columns)]


Entry: TypeAlias = Publishes | Control | Moves | Group


def singly(entries: Iterable[Entry]) -> Iterator[Publishes | Control]:
    """The entries in order, with groups and runs of records opened."""
    for entry in entries:
        if isinstance(entry, Group):
            yield from entry.entries
        elif isinstance(entry, Moves):
            yield from entry.singly()
        else:
            yield entry


@dataclass(slots=True, eq=False)
class Rows:
    """Messages read back, from memory or from the log, one list element a row."""

    lsns: list[int]
    topics: list[Topic]
    properties: list[bytes]
    bodies: list[bytes]
    times: list[int]
    expires_at: list[int]  # 0 is never
    priority: list[int]

    def __len__(self) -> int:
        return len(self.lsns)

    def part(self, where: slice) -> Rows:
        """Those rows."""
        return Rows(
            self.lsns[where], self.topics[where], self.properties[where], self.bodies[where], self.times[where],
            self.expires_at[where], self.priority[where],
        )  # fmt: skip

    @property
    def messages(self) -> Messages:
        """The same for who looks at them."""
        return Messages(self.bodies, self.properties, self.topics, self.lsns, self.times)


class Messages(NamedTuple):
    """Messages that are looked at together, as columns: one value where all rows agree, None where nobody asks."""

    bodies: Sequence[bytes]
    properties: bytes | Sequence[bytes]
    topics: Topic | Sequence[Topic] | None
    lsns: Sequence[int] | None = None
    times: Sequence[int] | int | None = None

    def topic_of(self, row: int) -> Topic:
        """The topic of one row; where topics are asked for."""
        topic = self.topics[row] if isinstance(self.topics, Sequence) else self.topics
        assert topic is not None
        return topic

    def properties_of(self, row: int) -> bytes:
        """The header of one row."""
        return self.properties if isinstance(self.properties, bytes) else self.properties[row]

    def some(self, where: Where) -> Messages:
        """Some neighbours of them, in the same order."""

        def part(column: Any) -> Any:
            if column is None or isinstance(column, (bytes, Topic, int)):
                return column
            return column[where] if isinstance(where, slice) else [column[row] for row in where]

        return Messages(*map(part, self))


def fence_of(term: int, attempt: int) -> int:
    """A number of one delivery that is higher than those of all earlier deliveries of its message, by whomever.

    term: of the leader in a cluster, whose attempts are counted from what it found; 0 without one.
    """
    return (term << 32) + attempt
